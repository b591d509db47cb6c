"""A Slurm cluster of several node names on this machine, on loopback: munged, slurmctld and a slurmd for each node.

This file is also the program that starts the daemons, `python cluster.py COMMANDS`. It ends them, and every process of
the cluster's jobs, once its standard input is closed: also if the tests are interrupted or killed.
"""

import ctypes
import json
import os
import pwd
import random
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER: orphans among the descendants become children of this process
_PORTS = range(20_000, 32_000)  # above those of Ray's workers, below those that Linux gives to connections
_GRACE = 10.0  # seconds that processes have to end after SIGTERM, and again after SIGKILL
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol", "scancel")

CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=bf_interval=1,sched_interval=1,requeue_delay=1
ReturnToService=2
KillWait=5
MpiDefault=none
JobRequeue=1
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> list[str]:
    """The programs of Slurm that are not on this machine."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    return [name for name in PROGRAMS if shutil.which(name, path=path) is None]


@contextmanager
def slurm(folder: Path, nodes: int = 3) -> Iterator[dict[str, str]]:
    """Start a cluster with its files in `folder`; yields the environment in which Slurm's commands find it."""
    (folder / "state").mkdir()
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(1024))
    key.chmod(0o400)
    names, ports = [f"n{i + 1}" for i in range(nodes)], _free_ports(nodes + 1)
    host, user = socket.gethostname().split(".")[0], pwd.getpwuid(os.getuid()).pw_name
    text = CONFIGURATION.format(host=host, port=ports[0], user=user, folder=folder)
    for name, port in zip(names, ports[1:], strict=True):
        text += f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=2 RealMemory=4000\n"
    (folder / "slurm.conf").write_text(text)
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf"), "PATH": path}
    for name in ("PYTEST_XDIST_WORKER", "RAY_ADDRESS"):
        environment.pop(name, None)
    munged = [
        "munged", "--foreground", "--force", f"--key-file={key}", f"--socket={folder}/munge.socket",
        f"--pid-file={folder}/munged.pid", f"--log-file={folder}/munged.log", f"--seed-file={folder}/munged.seed",
    ]  # fmt: skip
    commands = [munged, ["slurmctld", "-D", "-c"], *(["slurmd", "-D", "-N", name] for name in names)]
    supervisor = subprocess.Popen(
        [sys.executable, __file__, json.dumps(commands)], env=environment, stdin=subprocess.PIPE, start_new_session=True
    )
    try:
        _wait_for_nodes(environment, nodes)
        yield environment
    finally:
        supervisor.communicate()  # closes its standard input


def _wait_for_nodes(environment: dict[str, str], nodes: int) -> None:
    give_up = time.monotonic() + 60
    while time.monotonic() < give_up:
        ask = ["sinfo", "--noheader", "--states=idle", "--format=%D"]
        answer = subprocess.run(ask, env=environment, capture_output=True, text=True).stdout.split()
        if answer == [str(nodes)]:
            return
        time.sleep(0.5)
    folder = Path(environment["SLURM_CONF"]).parent
    said = [
        line
        for log in sorted(folder.glob("*.log"))
        for line in log.read_text().splitlines()
        if "error" in line or "fatal" in line
    ]
    raise RuntimeError("\n".join(["Slurm has no idle nodes:", *said]))


def _free_ports(count: int) -> list[int]:
    """Free ports that stay free until the daemons have started: no program gets one of them without asking for it."""
    ports: list[int] = []
    for port in random.SystemRandom().sample(_PORTS, len(_PORTS)):
        if len(ports) < count:
            with suppress(OSError), socket.create_server(("", port)):
                ports.append(port)
    return ports


def _supervise(commands: list[list[str]]) -> None:
    """Run the daemons until standard input is closed; then end all processes of the cluster."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # not SIG_IGN, which the daemons would inherit
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    quiet, running = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}, []
    for command in commands:
        running.append(subprocess.Popen(command, **quiet))  # type: ignore[call-overload]
        time.sleep(0.5)
    sys.stdin.read()
    for number in (signal.SIGTERM, signal.SIGKILL):
        _end_all(number)


def _end_all(number: int) -> None:
    """Send a signal to every process of the cluster until none is left, but no longer than `_GRACE`."""
    told: set[int] = set()
    give_up = time.monotonic() + _GRACE
    while (processes := _processes()) and time.monotonic() < give_up:
        for pid in processes - told:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        told |= processes
        time.sleep(0.1)


def _processes() -> set[int]:
    """The descendants of this process, and others that have its SLURM_CONF: commands that the tests have called."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    mark = f"SLURM_CONF={os.environ['SLURM_CONF']}".encode()
    parents, found = {}, set()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            parents[int(folder.name)] = int(parent)
            if state != "Z" and mark in (folder / "environ").read_bytes().split(b"\0"):
                found.add(int(folder.name))
    more = {os.getpid()}
    while more:
        found |= more
        more = {pid for pid, parent in parents.items() if parent in more}
    return found - {os.getpid()}


if __name__ == "__main__":
    _supervise(json.loads(sys.argv[1]))
