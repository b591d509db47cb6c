"""Finished runs reach W&B from their files, as a tracker would have logged them while they ran.

config.yaml, summary.json, rounds.parquet and server.parquet hold the same history, config, summary, tags and picture;
only the seconds of each round are not in them (their sums are). `show: auto` means what it means for a live run.
"""

import importlib.util
import logging
from collections.abc import Container, Iterable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import track

from runners.record import picture
from runners.record.run_folder import ResultsError, RunFolder
from runners.wandb.attempts import read_note
from runners.wandb.finished_runs import DAMAGED, RunOnDisk, finished_runs
from runners.wandb.summary_run import log_summary
from runners.wandb.tracker import WandbTracker

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LoggedExperiment:
    """The numbers of runs that were logged now, had been before, are in use or damaged, or that W&B did not take."""

    logged: int = 0
    before: int = 0
    skipped: int = 0
    failed: int = 0
    summary: bool = False


def log_run(run: RunOnDisk, mode: str) -> None:
    """Log a finished run to W&B. mode: `online` or `offline`; nothing happens if it is `disabled`.

    Nobody else may use the run's folder. As for a tracker, a failure of W&B is a warning.
    """
    summary, show = run.summary, "all" if run.shown else "released"
    tracker = WandbTracker(**{**run.config["tracker"]["wandb"], "mode": mode, "show": show})
    problem, name, setting = (str(summary[key]) for key in ("problem", "algorithm", "setting"))
    tracker.start(
        run.config, run.folder, f"{problem}-{name}-{setting}-{summary['seed']}", summary["experiment"],
        [problem, name], summary["commit"], summary["epsilon_before"], setting, summary["label"],
        folder=run.folder.parents[1],
    )  # fmt: skip
    for number, metrics in enumerate(run.rounds()):
        tracker.log_round(number, metrics)
    tracker.finish(summary, lambda path: picture.draw(summary, path))


def log_experiment(
    experiment: Path, mode: str, again: bool = False, only: Container[Path] | None = None,
    console: Console | None = None,
) -> LoggedExperiment:  # fmt: skip
    """Log the finished runs in the folder of an experiment that W&B does not have yet, and the summary if it is new.

    Args:
        experiment: folder of the experiment.
        mode: `online` or `offline`; nothing happens if it is `disabled`.
        again: True also for what W&B has already, as new runs.
        only: folders of the runs to log; None for all. The summary is about all of the experiment.
        console: shows a bar for several runs, if it is a terminal.
    """
    if mode == "disabled":
        return LoggedExperiment()
    runs = finished_runs(experiment)
    whole = [run for run in runs if _is_readable(run)]
    wanted = [run for run in whole if only is None or run.folder in only]
    missing = [run for run in wanted if again or not run.is_logged]
    counts = {"logged": 0, "before": len(wanted) - len(missing), "skipped": len(runs) - len(whole), "failed": 0}
    hidden = console is None or not console.is_terminal or len(missing) < 2
    watched = track(missing, f"W&B: {experiment.name}", console=console, disable=hidden, transient=True)
    for number, run in enumerate(watched):
        counts[_logged(run, mode)] += 1
        if counts["failed"]:  # W&B takes none of the others either, and each would wait for it
            counts["failed"] = len(missing) - number
            said = "W&B took %d of %d runs; runners.wandb backfill tries the others"
            logger.warning(said, counts["logged"], len(missing))
            return LoggedExperiment(**counts, summary=False)
    return LoggedExperiment(**counts, summary=log_summary(experiment, whole, mode, again))


def log_sweep(experiment: Path, finished: Container[Path], mode: str, console: Console) -> None:
    """Log what is left of a sweep: the runs in the folders `finished` that were copied, or that W&B lost; a summary.

    Nothing is done, or said again, where W&B is not installed.
    """
    if importlib.util.find_spec("wandb") is not None:
        log_experiment(experiment, mode, only=finished, console=console)


def log_copies(source: Path, copies: Iterable[Path], mode: str) -> None:
    """Log copies of a run in other experiments if W&B has the run itself; what is left, `log_sweep` logs."""
    if mode != "disabled" and RunOnDisk(source).is_logged:
        for run in map(RunOnDisk, copies):
            if not run.is_logged and _logged(run, mode) != "logged":
                return


def _logged(run: RunOnDisk, mode: str) -> str:
    """`logged`, `failed` if W&B did not take the run, or `skipped` if it is in use or damaged."""
    before = read_note(run.folder)
    try:
        with RunFolder(run.folder).opened():
            log_run(run, mode)
    except (ResultsError, *DAMAGED) as error:
        logger.warning("%s is not logged: %s", run.folder, error)
        return "skipped"
    return "logged" if run.is_logged and read_note(run.folder) != before else "failed"


def _is_readable(run: RunOnDisk) -> bool:
    try:
        run.shown, run.is_logged  # noqa: B018  # reads its settings and its summary
    except DAMAGED as error:
        logger.warning("%s is not logged, it cannot be read: %s", run.folder, error)
        return False
    return True
