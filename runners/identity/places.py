"""Find the folder of a run in the results of an experiment.

A new trial of a sweep gets the folder results/EXPERIMENT/SETTING/SEED/. Any other new run gets the folder
results/EXPERIMENT/LABEL-SETTING/SEED/.

A run's `lineage.json` holds digests of its setting, which leave out the number of rounds. So the run is found again
when this number changes.
"""

import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dpfbo.formats.bounded import MOST_RECORD, read_object, read_plain
from dpfbo.formats.run_folder import ResultsError, RunFolder

if TYPE_CHECKING:
    from runners.identity.setting import RunIdentity  # imports torch, which runners.status does not need

LINEAGE = "lineage.json"

logger = logging.getLogger(__name__)


def run_folder_of(run: "RunIdentity", single: bool) -> RunFolder:
    """Return the folder of a run, which need not exist yet.

    Outside a sweep (`single`), there may be an earlier run that differs only in the number of rounds. A new run then
    gets the folder of this earlier run.

    In a sweep, `run` is a trial. There may be an earlier run outside the sweep that was started with the trial's
    setting and seed. If the earlier run is unfinished, or has finished with the trial's number of rounds, the trial
    gets the folder of the earlier run. If the earlier run has finished with another number of rounds, a trial that is a
    simulation gets a folder of its own, but a real trial (rng `os`) raises ResultsError, because the trial would
    release more about the same data.
    """
    known = find_run(run.experiment, run.names.setting, run.settings.seed)
    if single:
        family = (path for path, family in _other_lengths(run) if family == run.names.family)
        return RunFolder(next(family, run.labelled_path) if known is None else known)
    folder = trial_folder(run.experiment, run.names.setting, run.settings.seed, run.settings.rounds)
    if known not in (None, folder.path) and not run.settings.privacy.seeded:
        raise ResultsError(f"{known} is this run with other rounds: a second run would add to its releases")
    return folder


def trial_folder(
    experiment: Path, setting: str, seed: int, rounds: int | None, labelled: Sequence[str] | None = None
) -> RunFolder:
    """Return the folder of a sweep's trial, which need not exist yet.

    If SETTING/SEED exists, this folder is returned. Otherwise, there may be an earlier run outside the sweep with the
    same setting and seed. The folder of this run, LABEL-SETTING/SEED, is returned if the run is unfinished, or has
    finished with `rounds` rounds (None: with any number). In all other cases, SETTING/SEED is returned.
    """
    known = find_run(experiment, setting, seed, labelled)
    if known is not None and rounds in (None, (read_object(known / "summary.json") or {}).get("rounds", rounds)):
        return RunFolder(known)
    return RunFolder(experiment / setting / str(seed))


def find_run(experiment: Path, setting: str, seed: int, labelled: Sequence[str] | None = None) -> Path | None:
    """Find the folder `SETTING/SEED` or `LABEL-SETTING/SEED` of an experiment; None if neither exists.

    labelled: names of the folders `LABEL-SETTING` (`labelled_folders`); None to list the folders now.
    """
    exact = experiment / setting / str(seed)
    if exact.exists():
        return exact
    names = sorted(path.name for path in experiment.glob(f"*-{setting}")) if labelled is None else sorted(labelled)
    return next((path for name in names if (path := experiment / name / str(seed)).exists()), None)


def labelled_folders(experiment: Path) -> dict[str, list[str]]:
    """Return the names of an experiment's folders `LABEL-SETTING`, by setting."""
    found: dict[str, list[str]] = {}
    for name in os.listdir(experiment) if experiment.is_dir() else ():
        label, _, setting = name.rpartition("-")
        if label:
            found.setdefault(setting, []).append(name)
    return found


def note_lineage(folder: RunFolder, run: "RunIdentity") -> None:
    """Write the digests of the run's setting to lineage.json, unless the file exists."""
    if not (folder.path / LINEAGE).exists():
        lineage = {"family": run.names.family, "any_noise": run.names.any_noise}
        folder.replace(LINEAGE, lambda file: file.write(json.dumps(lineage).encode()))


def check_noise_of_other_lengths(run: "RunIdentity", folder: RunFolder) -> None:
    """Warn if a new run has the setting and epsilon of an earlier run, but another number of rounds.

    With another number of rounds, the same epsilon needs another noise multiplier, so the new run cannot continue the
    earlier one. If the run is real (rng `os`), raises ResultsError instead of warning: the epsilons of the two runs add
    up, but each run would have a ledger of its own.
    """
    if run.settings.privacy.epsilon is None or folder.path.exists():
        return
    for path, _ in _other_lengths(run):
        said = f"{path} is a run of this setting with noise for another number of rounds than {run.settings.rounds}"
        if not run.settings.privacy.seeded:
            raise ResultsError(
                f"{said}: a separate run would add to its releases; give another experiment_name to pay for both"
            )
        logger.warning("%s: this run starts anew in a folder of its own", said)


def _other_lengths(run: "RunIdentity") -> list[tuple[Path, str]]:
    """Find the runs that equal `run`, ignoring the number of rounds and the noise multiplier.

    Returns the folder and the digest `family` of each run found. The run with the longest ledger comes first. Raises
    ResultsError if a lineage.json cannot be read.
    """
    found: list[tuple[int, str, str]] = []
    for path in run.experiment.glob(f"*/{run.settings.seed}/{LINEAGE}"):
        try:
            lineage = json.loads(read_plain(path, MOST_RECORD))
            family, any_noise = lineage["family"], lineage["any_noise"]
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            raise ResultsError(f"{path} cannot be read ({error}): restore it, or delete the folder") from error
        if any_noise == run.names.any_noise:
            ledger = path.with_name("ledger.jsonl")
            found.append((-ledger.stat().st_size if ledger.exists() else 0, str(path.parent), family))
    return [(Path(path), family) for _, path, family in sorted(found)]
