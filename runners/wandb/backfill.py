"""Log finished runs to W&B from their files, as a tracker would have logged them while they ran.

Only two numbers are missing: the seconds of each round, and the predicted seconds to the end. As in a live run,
the setting `tracker.wandb.show` decides whether W&B gets all metrics, or only those that outsiders may see.
"""

import importlib.util
import logging
from collections.abc import Container, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

from dpfbo.formats.run_folder import ResultsError, RunFolder
from runners.wandb.attempts import read_note
from runners.wandb.finished_runs import DAMAGED, RunOnDisk, finished_runs
from runners.wandb.summary_run import log_summary
from runners.wandb.tracker import WandbTracker

logger = logging.getLogger(__name__)


@dataclass
class LoggedExperiment:
    """Numbers of runs that were logged now, logged before, skipped (in use or damaged), or not accepted by W&B."""

    logged: int = 0
    before: int = 0
    skipped: int = 0
    failed: int = 0
    summary: bool | None = False  # whether the summary was logged; None if W&B did not accept it


def log_run(run: RunOnDisk, mode: str, artifacts: bool = False) -> None:
    """Log a finished run; a failure of W&B is logged as a warning.

    The caller must hold the lock of the run's folder. artifacts: True to log also the run's records.
    """
    summary, show = run.summary, "all" if run.shown else "released"
    asked = {"mode": mode, "show": show, **({"artifacts": True} if artifacts else {})}
    tracker = WandbTracker(**{**run.config["tracker"]["wandb"], **asked})
    problem, name, setting = (str(summary[key]) for key in ("problem", "algorithm", "setting"))
    tracker.start(
        run.config, run.folder, f"{problem}-{name}-{setting}-{summary['seed']}", summary["experiment"],
        [problem, name], summary["commit"], summary["epsilon_before"], setting, summary["label"],
        folder=run.folder.parents[1],
    )  # fmt: skip
    for number, metrics in enumerate(run.rounds()):
        tracker.log_round(number, metrics)
    tracker.finish(summary)


def log_experiment(
    experiment: Path, mode: str, again: bool = False, only: Container[Path] | None = None,
    console: Console | None = None, settings: Mapping[str, Any] | None = None, ended: str = "",
) -> LoggedExperiment:  # fmt: skip
    """Log the finished runs of an experiment that were not logged before, and the summary if it has changed.

    again: log also runs that were logged before, as new W&B runs. only: folders of the runs to log, None for all; the
    summary covers the whole experiment. console: for a progress bar. settings: the section `tracker.wandb` of a
    configuration, with which the summary is logged; None to take this section from the first run's configuration. If
    `settings` has `artifacts: true`, the runs' records are logged, too. ended: text of an alert at the end of a sweep;
    empty to send no alert.
    """
    found = LoggedExperiment()
    if mode == "disabled":
        return found
    whole, missing = [], []
    for run in finished_runs(experiment):
        try:
            logged, _ = run.is_logged, run.shown  # these read its summary and its settings
        except DAMAGED as error:
            logger.warning("%s is not logged, it cannot be read: %s", run.folder, error)
            found.skipped += 1
            continue
        whole.append(run)
        if only is None or run.folder in only:
            found.before += logged and not again
            if again or not logged:
                missing.append(run)
    hidden = console is None or not console.is_terminal or len(missing) < 2
    watched = track(missing, f"W&B: {experiment.name}", console=console, disable=hidden, transient=True)
    for number, run in enumerate(watched):
        done = log_finished(run, mode, bool(settings and settings.get("artifacts")))
        found.logged += done is True
        found.skipped += done is None
        if done is False:  # W&B would accept none of the others either, each after a wait
            found.failed = len(missing) - number
            said = "W&B accepted %d of %d runs; use runners.wandb backfill for the others"
            logger.warning(said, found.logged, len(missing))
            return found
    if settings is None:
        settings = whole[0].config["tracker"]["wandb"] if whole else {}
    found.summary = log_summary(experiment, whole, {**settings, "mode": mode}, again, ended)
    return found


def log_sweep(
    experiment: Path, finished: Container[Path], settings: Mapping[str, Any], console: Console, ended: str = ""
) -> None:
    """If W&B is installed, log the runs in `finished` that were not logged before, and the summary of the sweep.

    settings: `tracker.wandb`. ended: text of an alert at the end of the sweep; empty to send no alert.
    """
    if importlib.util.find_spec("wandb") is not None:
        log_experiment(experiment, settings["mode"], only=finished, console=console, settings=settings, ended=ended)


def log_finished(run: RunOnDisk, mode: str, artifacts: bool = False) -> bool | None:
    """Log a finished run; return True if W&B accepted it.

    If the run is in use or damaged, logs a warning and returns None.
    """
    before = read_note(run.folder)
    try:
        with RunFolder(run.folder).opened():
            log_run(run, mode, artifacts)
        return run.is_logged and read_note(run.folder) != before
    except (ResultsError, *DAMAGED) as error:
        logger.warning("%s is not logged: %s", run.folder, error)
        return None
