"""All finished runs of an experiment in W&B, and its summary: what no tracker has logged is logged from the files."""

import importlib.util
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import track

from runners.dashboard.from_files import DAMAGED, RunOnDisk, finished_runs, log_run
from runners.dashboard.summary_run import log_summary
from runners.record import wandb_attempts as attempts
from runners.record.run_folder import ResultsError, RunFolder

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LoggedExperiment:
    """The numbers of runs that were logged now, had been before, are in use or damaged, or that W&B did not take."""

    logged: int = 0
    before: int = 0
    skipped: int = 0
    failed: int = 0
    summary: bool = False


def log_experiment(
    experiment: Path,
    mode: str,
    again: bool = False,
    runs: Sequence[RunOnDisk] | None = None,
    watched: Callable[[list[RunOnDisk]], Iterable[RunOnDisk]] = iter,
) -> LoggedExperiment:
    """Log the finished runs in the folder of an experiment that W&B does not have yet, and the summary if it is new.

    Args:
        experiment: folder of the experiment.
        mode: `online` or `offline`; nothing happens if it is `disabled`.
        again: True also for what W&B has already, as new runs.
        runs: those to log; None for all. The summary is about all of the experiment.
        watched: gives the runs one after another, and may show how far it is.
    """
    if mode == "disabled":
        return LoggedExperiment()
    known = finished_runs(experiment)
    wanted = {run.folder for run in known} if runs is None else {run.folder for run in runs}
    counts = {"before": 0, "logged": 0, "skipped": 0, "failed": 0}
    whole, missing = [], []
    for run in known:
        try:
            logged = run.is_logged and not again
            run.shown  # noqa: B018  # reads its settings
        except DAMAGED as error:
            counts["skipped"] += 1
            logger.warning("%s is not logged, it cannot be read: %s", run.folder, error)
            continue
        whole.append(run)
        if run.folder in wanted:
            counts["before"] += logged
            missing += [] if logged else [run]
    for run in watched(missing):
        counts[_logged(run, mode)] += 1
        if counts["failed"]:  # W&B takes none of the others either, and each would wait for it
            left = len(missing) - counts["logged"] - counts["skipped"]
            logger.warning("W&B took %d of %d runs; runners.backfill tries the others", counts["logged"], len(missing))
            counts["failed"] = left
            return LoggedExperiment(**counts, summary=False)
    return LoggedExperiment(**counts, summary=log_summary(experiment, whole, mode, again))


def log_sweep(experiment: Path, finished: Iterable[Path], mode: str, console: Console) -> None:
    """Log what is left of a sweep: the runs in the folders `finished` that were copied, or that W&B lost; a summary.

    Nothing is done, or said again, where W&B is not installed.
    """
    if importlib.util.find_spec("wandb") is None:
        return
    log_experiment(experiment, mode, runs=[RunOnDisk(path) for path in finished], watched=on(console, experiment.name))


def log_copies(source: Path, copies: Iterable[Path], mode: str) -> None:
    """Log copies of a run in other experiments if W&B has the run itself; what is left, `log_sweep` logs."""
    if mode != "disabled" and RunOnDisk(source).is_logged:
        for path in copies:
            run = RunOnDisk(path)
            if not run.is_logged and _logged(run, mode) != "logged":
                return


def on(console: Console, name: str) -> Callable[[list[RunOnDisk]], Iterator[RunOnDisk]]:
    """A bar for several runs on a terminal, for `log_experiment`."""

    def watched(runs: list[RunOnDisk]) -> Iterator[RunOnDisk]:
        shown = console.is_terminal and len(runs) > 1
        yield from track(runs, f"W&B: {name}", console=console, disable=not shown, transient=True)

    return watched


def _logged(run: RunOnDisk, mode: str) -> str:
    """`logged`, `failed` if W&B did not take the run, or `skipped` if it is in use or damaged."""
    before = attempts.read_note(run.folder)
    try:
        with RunFolder(run.folder).opened():
            log_run(run, mode)
    except (ResultsError, *DAMAGED) as error:
        logger.warning("%s is not logged: %s", run.folder, error)
        return "skipped"
    return "logged" if run.is_logged and attempts.read_note(run.folder) != before else "failed"
