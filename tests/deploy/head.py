"""A Ray cluster of one node with a dashboard, which takes jobs and asks for a token."""

import ctypes
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import requests

_PR_SET_PDEATHSIG = 1
_START_SECONDS = 120.0
_END_SECONDS = 15.0


@dataclass(frozen=True)
class JobServer:
    """The address for `ray job --address`, and the environment of its clients, with the token. pid: of `ray start`."""

    address: str
    environment: dict[str, str]
    pid: int

    def processes(self) -> list[psutil.Process]:
        """All processes of the cluster at this moment, with those of jobs and trials."""
        return [node := psutil.Process(self.pid), *node.children(recursive=True)]


@contextmanager
def ray_head(cpus: int) -> Iterator[JobServer]:
    """Start Ray on free ports; at the end, also after an error or Ctrl-C, no process of it is left.

    The kernel ends Ray if this process is killed and cannot.
    """
    gcs, dashboard = _free_ports(2)
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # a job's `python` is this one
    environment = {**os.environ, "PATH": programs, "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    environment |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    environment.pop("RAY_ADDRESS", None)
    address = f"http://127.0.0.1:{dashboard}"
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp", ignore_cleanup_errors=True) as folder:
        command = [
            sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", f"--num-cpus={cpus}",
            "--node-ip-address=127.0.0.1", f"--port={gcs}", f"--temp-dir={folder}", "--include-dashboard=true",
            f"--dashboard-port={dashboard}", "--dashboard-agent-listen-port=0", "--min-worker-port=0",
            "--max-worker-port=0", "--disable-usage-stats",
        ]  # fmt: skip
        with open(f"{folder}/out", "w+") as out:
            node = subprocess.Popen(
                command, env=environment, stdout=out, stderr=subprocess.STDOUT, preexec_fn=_end_with_parent
            )
            try:
                server = JobServer(address, environment, node.pid)
                _wait_until_ready(node, server, Path(out.name))
                yield server
            finally:
                _end(node)


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _wait_until_ready(node: subprocess.Popen[bytes], server: JobServer, log: Path) -> None:
    give_up, token = time.monotonic() + _START_SECONDS, server.environment["RAY_AUTH_TOKEN"]
    while True:
        assert node.poll() is None and time.monotonic() < give_up, f"Ray has not started:\n{log.read_text()}"
        try:
            if requests.get(f"{server.address}/api/jobs/", headers={"Authorization": f"Bearer {token}"}, timeout=5).ok:
                return
        except requests.RequestException:  # not yet, or too busy to answer
            pass
        time.sleep(0.2)


def _end(node: subprocess.Popen[bytes]) -> None:
    started = psutil.Process(node.pid).children(recursive=True) if node.poll() is None else []
    node.terminate()
    try:
        node.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        node.kill()
        node.wait()
    for process in psutil.wait_procs(started, timeout=_END_SECONDS)[1]:
        process.kill()


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()
