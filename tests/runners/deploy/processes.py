"""The processes of a deployment on this machine, none of which outlives the tests."""

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path

import psutil

from tests.runners.deploy.deployments import deployed

ROOT = Path(__file__).parents[3]
MARK = "DPFBO_DEPLOY_WORLD"  # environment variable that all processes of one world inherit
LIMIT = 90.0  # seconds in which what is awaited must come


QUICK = ["--ask-again", 1, "--lost", 5]
OBJECTIVE = """
import time
from pathlib import Path
from tests.helpers.objectives import tuned

HERE = Path(__file__).parent

def evaluate(x):
    (HERE / "evaluating").touch()
    while (HERE / "hold").exists():
        time.sleep(0.1)
    return tuned({agent}, x)
"""


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return sock.getsockname()[1]


def _end_with_the_tests():
    """The system kills this process when the tests' thread ends, however it ends; Flower's own ones then end too."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


class World:
    """Starts programs of runners.deploy, and knows all processes that came of them."""

    def __init__(self, folder):
        self.folder, self.mark, self._started = folder, uuid.uuid4().hex, []

    def start(self, name, *arguments):
        """A process of `python -m runners.deploy ARGUMENTS`; its output is in the file `name`.out."""
        environment = {**os.environ, MARK: self.mark, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        with open(self.folder / f"{name}.out", "ab") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "runners.deploy", *map(str, arguments)], cwd=self.folder, env=environment,
                stdout=out, stderr=out, start_new_session=True, preexec_fn=_end_with_the_tests,
            )  # fmt: skip
        self._started.append(process)
        return process

    def output(self, name):
        path = self.folder / f"{name}.out"
        return path.read_text(errors="replace") if path.exists() else ""

    def wait(self, what, true):
        """Wait until `true()`; fail with all output if it does not come."""
        end = time.monotonic() + LIMIT
        while not true():
            if time.monotonic() > end:
                outputs = "\n".join(f"--- {path.name}\n{path.read_text()}" for path in self.folder.glob("*.out"))
                raise AssertionError(f"waited {LIMIT:.0f} s for: {what}\n{outputs}")
            time.sleep(0.2)

    def processes(self):
        """The processes of this world that live."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def kill(self, process):
        """SIGKILL to a process; what Flower started for it must end by itself."""
        process.kill()
        process.wait()

    def close(self):
        for process in self._started:
            if process.poll() is None:
                process.terminate()
        for process in self._started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=10)
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                process.kill()
        for process in self._started:
            process.wait()


@contextlib.contextmanager
def world(folder):
    """A world that ends with the block, also after an interrupt."""
    made = World(folder)
    try:
        yield made
    finally:
        made.close()


def quick_world(folder, n, *options, roster=None):
    project, sites = deployed(folder, n, "--port", free_port(), *options, roster=roster)
    for k, site in enumerate(sites):
        (site / "objective.py").write_text(OBJECTIVE.format(agent=k))
    return project, sites
