"""Upload offline W&B runs by `wandb sync`, and follow unfinished runs until they end."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from dpfbo.formats.run_folder import RunFolder
from runners.wandb.attempts import NOTE, not_uploaded, read_note

AT_A_TIME = 200  # runs in one call of `wandb sync`
LEAVE_SECONDS = 10.0  # time that `wandb` has to end after SIGINT
POLL_SECONDS, GRACE_SECONDS = 1.0, 45.0  # between checks; since a run was last active, as W&B writes every 15 s


def upload(experiments: Sequence[Path], follow: bool) -> int:
    """Upload the runs of experiments, including unfinished ones if `follow` is set; return the exit code of W&B."""
    runs = [run for folder in experiments for run in not_uploaded(folder) if any(run.glob("*.wandb"))]
    in_progress = _ids_in_progress(experiments)
    waiting = [run for run in runs if _id(run) not in in_progress]
    going = [run for run in runs if _id(run) in in_progress and follow]
    if not waiting and not going:
        print("nothing to upload: no offline W&B run is left")
    for first in range(0, len(waiting), AT_A_TIME):
        if code := _wandb("sync", runs=waiting[first : first + AT_A_TIME]).wait():
            return code
    if not going:
        return 0
    print(f"{len(going)} runs are not finished and are followed until they end; Ctrl-C stops this", flush=True)
    return _follow(going)


def _follow(runs: Sequence[Path]) -> int:
    """Upload runs while they are computed; return the exit code of W&B.

    Gives up and returns 0 after `GRACE_SECONDS` in which no process was computing any of the runs.
    """
    experiments, ids = {run.parents[1] for run in runs}, set(map(_id, runs))
    child, seen = _wandb("beta", "sync", "--live", runs=runs), time.monotonic()
    try:
        while (code := child.poll()) is None:
            if ids & _ids_in_progress(experiments):
                seen = time.monotonic()
            if time.monotonic() > seen + GRACE_SECONDS:  # the remaining runs crashed; W&B would wait for ever
                print("the remaining runs ended without closing W&B; run the command again to upload what they wrote")
                return 0
            time.sleep(POLL_SECONDS)
        return code
    finally:
        if child.poll() is None:
            child.send_signal(signal.SIGINT)
            try:
                child.wait(timeout=LEAVE_SECONDS)
            except subprocess.TimeoutExpired:
                child.kill()


def _ids_in_progress(experiments: Iterable[Path]) -> set[str]:
    """Return the W&B ids of the runs that a process is computing."""
    folders = (path.parent for experiment in experiments for path in experiment.glob(f"*/*/{NOTE}"))
    return {note.id for folder in folders if (note := read_note(folder)) and RunFolder(folder).busy()}


def _id(run: Path) -> str:
    return run.name.rpartition("-")[2]


def _wandb(*words: str, runs: Sequence[Path]) -> subprocess.Popen[bytes]:
    quiet = {**os.environ, "WANDB_ERROR_REPORTING": "false"}
    return subprocess.Popen([sys.executable, "-m", "wandb", *words, *map(str, runs)], env=quiet)
