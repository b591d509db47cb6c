"""Runs in processes that are forked, so that a start costs no imports and a soak can afford hundreds of kills."""

import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from runners.compose.composition import Composition
from runners.recorded_run import record_run
from tests.helpers.compose import compose

_POLL = 1e-3  # seconds


class Forked:
    """A run in a child process, with the interface of `subprocess.Popen` that kills need."""

    def __init__(self, given: Sequence[str], stderr: Path) -> None:
        cfg = compose(*given)
        stderr.touch()
        self._code: int | None = None
        self._pid = os.fork()
        if self._pid == 0:
            code = 1
            try:
                os.setpgrp()  # an interrupt is for the parent, which ends its children
                signal.signal(signal.SIGINT, signal.default_int_handler)
                _redirect(stderr)
                record_run(Composition.of(cfg), single=True)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)

    def poll(self) -> int | None:
        if self._code is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        give_up = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if give_up is not None and time.monotonic() > give_up:
                raise TimeoutError(f"process {self._pid} did not end within {timeout} s")
            time.sleep(_POLL)
        return code

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self._pid, signal.SIGKILL)


def forked(given: Sequence[str], stderr: Path, mark: str) -> Forked:
    """Start a run in a child of this process; see `tests.helpers.killed_runs.command`."""
    return Forked(given, stderr)


def _redirect(stderr: Path) -> None:
    os.dup2(os.open(stderr, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), 2)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
