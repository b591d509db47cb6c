"""python -m runners.upload: upload offline Weights & Biases runs, also of runs that still go on."""

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from runners.arguments import Parser
from runners.record.run_folder import RunFolder
from runners.record.terminal import say_error
from runners.record.wandb_attempts import NOTE, read_note

HELP = """Upload the offline W&B runs of experiments, with W&B's own `wandb sync`.

Finished, failed and crashed runs are uploaded whole. Runs that go on are followed until they end, by the live mode of
`wandb beta sync`, which alone would wait for ever if a run crashes. Ctrl-C stops this; the next upload starts again,
and sends the rows that are there once more, at the same steps.

Examples
  python -m runners.upload                    every experiment in results (make wandb-sync)
  python -m runners.upload fig2c --finished   without the runs that go on

Needs `wandb login` or WANDB_API_KEY. Exit code: 0, that of `wandb sync`, or 130 when interrupted."""

FOLLOW = "beta sync --live"  # a command of W&B
AT_A_TIME = 200  # runs in one call of `wandb sync`
LEAVE_SECONDS = 10.0  # for W&B to end after it was asked to
POLL_SECONDS, GRACE_SECONDS = 1.0, 45.0  # between looks at the runs that go on; W&B writes its file every 15 s


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv`; returns the exit code."""
    args = _parse(argv)
    names = args.experiments or sorted(path.name for path in args.results_dir.glob("*") if path.is_dir())
    waiting: list[Path] = []
    going: list[Path] = []
    for name in names:
        busy = ids_in_progress(args.results_dir / name)
        for path in not_uploaded(args.results_dir / name):
            (going if path.name.rpartition("-")[2] in busy else waiting).append(path)
    if not waiting and (args.finished or not going):
        print(f"nothing to upload: no offline W&B run below {args.results_dir}")
        return 0
    code = 0
    try:
        for first in range(0, len(waiting), AT_A_TIME):
            code = code or _wandb("sync", *map(str, waiting[first : first + AT_A_TIME])).wait()
        if going and not args.finished and not code:
            print(f"{len(going)} runs go on and are followed until they end; Ctrl-C stops that", flush=True)
            code = _follow(going)
    except KeyboardInterrupt:
        say_error("interrupted; the same command uploads what is left")
        return 130
    return code


def not_uploaded(experiment: Path) -> list[Path]:
    """The folders of offline W&B runs of an experiment that hold no mark of an upload."""
    found = (*experiment.glob("wandb/offline-run-*"), *experiment.glob("*/*/wandb/offline-run-*"))
    return sorted(path for path in found if not any(path.glob("*.synced")) and any(path.glob("*.wandb")))


def ids_in_progress(experiment: Path) -> set[str]:
    """The W&B ids of the runs that a process is at."""
    return {note.id for path in _run_folders(experiment) if (note := read_note(path)) and RunFolder(path).busy()}


def _run_folders(experiment: Path) -> Iterator[Path]:
    return (path.parent for path in experiment.glob(f"*/*/{NOTE}"))


def _follow(runs: Sequence[Path]) -> int:
    """Upload runs while they go on, until W&B has all of them or none of them goes on for a while."""
    experiments = {path.parents[1] for path in runs}
    child = _wandb(*FOLLOW.split(), *map(str, runs))
    seen = time.monotonic()
    try:
        while (code := child.poll()) is None:
            ids = {id for experiment in experiments for id in ids_in_progress(experiment)}
            if any(path.name.rpartition("-")[2] in ids for path in runs):
                seen = time.monotonic()
            if time.monotonic() > seen + GRACE_SECONDS:  # those that are left crashed, and W&B would wait for ever
                print("the runs that are left ended without W&B; the same command uploads what they wrote")
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


def _wandb(*arguments: str) -> subprocess.Popen[bytes]:
    quiet = {**os.environ, "WANDB_ERROR_REPORTING": "false"}
    return subprocess.Popen([sys.executable, "-m", "wandb", *arguments], env=quiet)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(
        prog="python -m runners.upload", description=HELP, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("experiments", nargs="*", metavar="EXPERIMENT", help="its experiment_name; default: all")
    parser.add_argument("--finished", action="store_true", help="leave out the runs that go on")
    parser.add_folder("results_dir", Path("results"), "results folder (default: results)")
    args = parser.parse_args(argv)
    if not args.results_dir.is_dir():
        parser.error(f"results_dir must be a folder, got {str(args.results_dir)!r}")
    for name in args.experiments:
        if Path(name).name != name or not (args.results_dir / name).is_dir():
            parser.error(f"EXPERIMENT must be the name of a folder in {args.results_dir}, got {name!r}")
    return args


if __name__ == "__main__":
    sys.exit(main())
