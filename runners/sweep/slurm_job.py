"""One task of a sweep's Slurm job: the first task starts a Ray cluster and runs the sweep on it, the others join it.

The tasks find each other through a file in the results folder, which all nodes share. Slurm may stop the job
because its time limit is near, or because another job needs its nodes. The first task then requeues an unfinished job,
at most `--max-requeues` times, and the sweep resumes from its run folders. A cancelled job is not requeued.
"""

import argparse
import json
import logging
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from dpfbo.formats.files import replace_text

_POLL_SECONDS = 0.5
_AGAIN_SECONDS = 3.0  # pause before a node rejoins
_END_SECONDS = 15.0  # time that a process has to end before it is killed
_QUESTIONS = 3  # attempts to query a Slurm that does not answer
_LOST_SECONDS = 60.0  # a node ends when it has not reached the head for this time
_HEAD_SECONDS = 300.0  # longest wait for the head


@dataclass(frozen=True)
class Head:
    """The Ray head, on the first node: its address, authentication token and folder for temporary files."""

    address: str
    token: str
    folder: str

    @property
    def environment(self) -> dict[str, str]:
        return {
            "RAY_ADDRESS": self.address, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": self.token,
            "RAY_USAGE_STATS_ENABLED": "0",
        }  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Run one task of the job and return its exit code."""
    args = _parse(argv)
    if args.inside:
        _wait_for_nodes(args.inside, args.wait_for_nodes)
        from runners.sweep import command  # imported here, because the other tasks do not need it

        return command.main([*args.arguments, "launcher=local", f"sweep.address='{os.environ['RAY_ADDRESS']}'"])
    job = f"{os.environ['SLURM_JOB_ID']}-{os.environ.get('SLURM_RESTART_COUNT', '0')}"
    meeting = args.folder / f"{job}.address"
    if os.environ.get("SLURM_PROCID", "0") != "0":
        return _join(meeting, args)
    signals: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: signals.append(number))
    try:
        code = _lead(meeting, args, signals)
    finally:
        meeting.unlink(missing_ok=True)  # without this file the other tasks end
    again = int(os.environ.get("SLURM_RESTART_COUNT", "0")) < args.max_requeues
    if signals and code != 0 and again and _runs():
        print("asked to stop: requeued, to resume from the run folders", flush=True)
        subprocess.run(["scontrol", "requeue", os.environ["SLURM_JOB_ID"]], check=False)
    return code


def _lead(meeting: Path, args: argparse.Namespace, signals: Sequence[int]) -> int:
    """Start the head, write its address to `meeting`, and run the sweep until it ends or a signal arrives.

    The sweep has its own process, because a process that is connected to Ray may hang when Slurm sends signals.
    """
    from ray.util import get_node_ip_address  # imported here, after the signal handler is installed

    host, port = get_node_ip_address(), _free_port()
    folder = Path(tempfile.mkdtemp(prefix="dp-", dir="/tmp"))  # short, because Ray's socket paths begin with it
    head = Head(f"{host}:{port}", secrets.token_hex(32), f"{folder}/r")  # Ray makes /r accessible to all
    place = [f"--node-ip-address={host}", f"--port={port}", f"--temp-dir={head.folder}", "--include-dashboard=false"]
    own = [f"--folder={args.folder}", f"--cpus={args.cpus}", f"--gpus={args.gpus}"]
    own += [f"--wait-for-nodes={args.wait_for_nodes}", f"--inside={os.environ.get('SLURM_NNODES', '1')}"]
    os.environ |= head.environment
    try:
        with _ray_node(args, "--head", *place):
            replace_text(meeting, json.dumps(asdict(head)), mode=0o600)
            sweep = subprocess.Popen([sys.executable, "-m", "runners.sweep.slurm_job", *own, "--", *args.arguments])
            while sweep.poll() is None and not signals:
                time.sleep(_POLL_SECONDS)
            _end(sweep, terminate=False)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return sweep.returncode if sweep.returncode >= 0 else 128 - sweep.returncode


def _end(process: subprocess.Popen[bytes], terminate: bool = True) -> None:
    """Kill a process that does not end within `_END_SECONDS`. terminate: send it SIGTERM at the start."""
    if terminate:
        process.terminate()
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _join(meeting: Path, args: argparse.Namespace) -> int:
    """Wait for the Ray head of the first task, then run a node of this Ray cluster until the first task ends."""
    give_up = time.monotonic() + _HEAD_SECONDS
    while not meeting.exists():
        if time.monotonic() > give_up:
            print(f"error: no head within {_HEAD_SECONDS:g} s", file=sys.stderr)
            return 1
        time.sleep(_POLL_SECONDS)
    head = Head(**json.loads(meeting.read_bytes()))
    os.environ |= head.environment
    folder = Path(head.folder).parent
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.lstat().st_uid != os.getuid() or folder.is_symlink():
        raise PermissionError(f"{folder} belongs to another user")
    try:
        return _be_a_node(meeting, head, args)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _be_a_node(meeting: Path, head: Head, args: argparse.Namespace) -> int:
    seen = time.monotonic()
    while meeting.exists():
        if _answers(head.address):
            seen = time.monotonic()
        elif time.monotonic() > seen + _LOST_SECONDS:  # the first task was killed
            print(f"error: no Ray at {head.address} any more", file=sys.stderr)
            return 1
        with _ray_node(args, f"--address={head.address}") as node:
            while meeting.exists() and node.poll() is None:
                time.sleep(_POLL_SECONDS)
        if meeting.exists():
            time.sleep(_AGAIN_SECONDS)
    return 0


@contextmanager
def _ray_node(args: argparse.Namespace, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run Ray on this node, on free ports, until the `with` block ends."""
    free = [f"--{name}=0" for name in ("min-worker-port", "max-worker-port", "dashboard-agent-listen-port")]
    resources = [f"--num-cpus={args.cpus}", f"--num-gpus={args.gpus}"]
    start = [sys.executable, "-m", "ray.scripts.scripts", "start", *options, *free, *resources, "--block"]
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    node = subprocess.Popen([*start, "--disable-usage-stats"], env=environment, stdout=subprocess.DEVNULL)
    try:
        yield node
    finally:
        _end(node)


def _wait_for_nodes(count: int, seconds: float) -> None:
    """Wait for the Ray head, and then until `count` nodes have joined or `seconds` have passed."""
    import ray

    give_up, there = time.monotonic() + max(seconds, _HEAD_SECONDS), 0
    while not ray.is_initialized():
        try:
            ray.init(os.environ["RAY_ADDRESS"], log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, RuntimeError, ValueError, OSError):  # Ray is not up yet
            if time.monotonic() > give_up:
                raise
            time.sleep(_POLL_SECONDS)
    give_up = time.monotonic() + seconds
    while (there := sum(node["Alive"] for node in ray.nodes())) < count and time.monotonic() < give_up:
        time.sleep(_POLL_SECONDS)
    ray.shutdown()
    words = f"{there} of {count} nodes"
    print(words if there == count else f"warning: {words} are there; the sweep begins without the others", flush=True)


def _runs() -> bool:
    """Return True if Slurm lists the job as running."""
    ask = ["squeue", "--noheader", "--jobs", os.environ["SLURM_JOB_ID"], "--format=%T"]
    for _ in range(_QUESTIONS):
        with suppress(OSError, subprocess.SubprocessError):
            said = subprocess.run(ask, capture_output=True, text=True, timeout=10, check=True).stdout
            return said.strip() == "RUNNING"
        time.sleep(1.0)
    return False


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with suppress(OSError), socket.create_connection((host, int(port)), timeout=5.0):
        return True
    return False


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("", 0))
        return int(s.getsockname()[1])


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m runners.sweep.slurm_job", description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="folder of the file with the head's address")
    parser.add_argument("--cpus", type=int, required=True, help="CPUs of each node")
    parser.add_argument("--gpus", type=int, required=True, help="GPUs of each node")
    parser.add_argument("--wait-for-nodes", type=float, default=300.0, help="seconds to wait for Ray on all nodes")
    parser.add_argument("--max-requeues", type=int, default=100, help="number of requeues after which the job ends")
    parser.add_argument("--inside", type=int, default=0, help="run the sweep once Ray has this number of nodes")
    parser.add_argument("arguments", nargs="*", help="command line of runners.sweep")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
