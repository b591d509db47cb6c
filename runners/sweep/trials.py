"""Read and write the files of a sweep: the plan, and the records from which the state of each trial follows.

results/<experiment>/sweep.json                    the planned trials
results/<experiment>/<setting>/<seed>/failure.json the error of a trial, until it runs again
                                     preemptions.jsonl a line for every time that the trial's node or process went away
                                     stopped.json      the last round, if `sweep.scheduler` stopped the trial early
"""

import json
import math
import socket
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

from dpfbo.formats.bounded import read_object
from dpfbo.formats.files import replace_text
from dpfbo.formats.run_folder import ResultsError, RunFolder
from runners.identity.places import labelled_folders, trial_folder

Phase = Literal["done", "running", "interrupted", "failed", "waiting"]
PHASES: tuple[Phase, ...] = ("done", "running", "interrupted", "failed", "waiting")

PLAN = "sweep.json"
FAILURE, STOPPED = "failure.json", "stopped.json"
_LONGEST_NAME, _LARGEST_SEED = 200, 10**18  # limits of the names of settings' and seeds' folders


@dataclass(frozen=True)
class Trial:
    """A run of an experiment: one setting (a configuration without its seed) with one seed.

    label: the setting's overrides, shortened. setting: the setting's hash. rounds, metric, rng: each None if unknown.
    """

    label: str
    overrides: tuple[str, ...]
    setting: str
    seed: int
    rounds: int | None
    metric: str | None
    rng: str | None = None

    @property
    def key(self) -> tuple[str, int]:
        """The identity of a trial within its experiment."""
        return self.setting, self.seed

    def folder(self, experiment: Path, labelled: Sequence[str] | None = None) -> RunFolder:
        """Return the trial's run folder, given its experiment's folder.

        labelled: the names of all folders `LABEL-SETTING` with this trial's setting and any LABEL; None to look them
        up in `experiment`.
        """
        if (experiment / self.setting).exists():
            return RunFolder(experiment / self.setting / str(self.seed))
        return trial_folder(experiment, self.setting, self.seed, self.rounds, labelled)


@dataclass(frozen=True)
class TrialState:
    """The state of a trial; an unknown value is None.

    mean: the mean of the metric over the agents after `round`. epsilon: the epsilon spent so far, computed by
    `accountant`; it can be inf. delta, relation, accountant: known for finished trials. preemptions: the number of
    times that the trial's node or process went away. quantiles: the quantiles of the agents' final metric, with
    percents as keys; only finished trials of many agents have them. stopped_by: the scheduler that stopped the trial
    early; the phase is then "interrupted".
    """

    phase: Phase
    round: int | None = None
    mean: float | None = None
    epsilon: float | None = None
    delta: float | None = None
    relation: str | None = None
    accountant: str | None = None
    error: str | None = None
    preemptions: int = 0
    quantiles: dict[str, float] | None = None
    stopped_by: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the fields as a dict; the phase has the key `state`, and an epsilon that is not finite is None."""
        fields = asdict(self)
        finite = self.epsilon is not None and math.isfinite(self.epsilon)
        return {"state": fields.pop("phase"), **fields, "epsilon": self.epsilon if finite else None}


States = dict[tuple[str, int], TrialState]  # by the key of the trial


def folders_of(experiment: Path, trials: Iterable[Trial]) -> dict[tuple[str, int], RunFolder]:
    """Map the key of each trial to its run folder."""
    labelled = labelled_folders(experiment)
    return {t.key: t.folder(experiment, labelled.get(t.setting, ())) for t in trials}


def states_of(experiment: Path, trials: Iterable[Trial]) -> States:
    return {key: state(folder) for key, folder in folders_of(experiment, trials).items()}


def state(folder: RunFolder) -> TrialState:
    """Return the state of the trial whose records are in `folder`."""
    summary = read_object(folder.path / "summary.json")
    if summary is not None and (done := finished(summary)) is not None:
        return done
    progress, failure = folder.progress(), read_object(folder.path / FAILURE)
    reached: dict[str, Any] = {"preemptions": folder.preemptions()}
    if progress is not None:
        reached |= {"round": progress.round, "mean": progress.mean, "epsilon": _or_inf(progress.epsilon)}
    if folder.busy():
        return TrialState("running", **reached)
    if failure is not None:
        return TrialState("failed", **reached, error=str(failure.get("error", "not recorded")))
    if (stopped := read_object(folder.path / STOPPED)) is not None:
        return _stopped(stopped, reached)
    return TrialState("waiting" if progress is None else "interrupted", **reached)


def _stopped(stopped: dict[str, Any], reached: dict[str, Any]) -> TrialState:
    values = {name: stopped[name] for name in ("round", "mean") if isinstance(stopped.get(name), int | float)}
    return TrialState("interrupted", **{**reached, **values}, stopped_by=str(stopped.get("by")))


def finished(summary: dict[str, Any]) -> TrialState | None:
    """Return the state of a finished trial from its summary.json; None if that is not a summary."""
    try:
        accountant = summary["accountant"]
        return TrialState(
            "done", summary["rounds"], summary["final"]["mean"], _or_inf(summary["epsilon"][accountant]),
            summary["delta"], summary["relation"], accountant, preemptions=summary.get("preemptions", 0),
            quantiles=quantiles_in(summary),
        )  # fmt: skip
    except (KeyError, TypeError):
        return None


def quantiles_in(summary: dict[str, Any]) -> dict[str, float] | None:
    """Return the quantiles of the agents' final metric from a summary.json; None if absent or invalid."""
    final = summary.get("final")
    found = final.get("quantiles") if isinstance(final, dict) else None
    if not isinstance(found, dict) or not found:
        return None
    known = {str(p): float(v) for p, v in found.items() if isinstance(v, int | float) and math.isfinite(v)}
    return known if len(known) == len(found) else None


def record_failure(folder: RunFolder, error: str, traceback: str) -> None:
    """Write failure.json: the error in one sentence, its traceback, the time and the host."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    record = {"error": error, "traceback": traceback, "time": now, "host": socket.gethostname()}
    folder.path.mkdir(parents=True, exist_ok=True)
    replace_text(folder.path / FAILURE, json.dumps(record, indent=1) + "\n", mode=0o600)  # it may quote private points


def record_preemption(folder: RunFolder, reason: str) -> None:
    """Add a line to preemptions.jsonl: time, last round and reason."""
    progress = folder.progress()
    after = None if progress is None else progress.round
    now = datetime.now(UTC).isoformat(timespec="seconds")
    folder.path.mkdir(parents=True, exist_ok=True)
    with open(folder.preemptions_path, "a") as file:
        file.write(json.dumps({"time": now, "after_round": after, "reason": reason}) + "\n")


def record_stop(folder: RunFolder, scheduler: str, last: TrialState) -> None:
    """Write stopped.json: the scheduler, the last round, and the mean metric after it."""
    record = {"by": scheduler, "round": last.round, "mean": last.mean}
    replace_text(folder.path / STOPPED, json.dumps(record) + "\n")


def forget_failure(folder: RunFolder) -> None:
    """Remove failure.json and stopped.json."""
    for name in (FAILURE, STOPPED):
        (folder.path / name).unlink(missing_ok=True)


def write_plan(experiment: Path, trials: Iterable[Trial]) -> None:
    """Add trials to those in sweep.json; a planned trial with the same key is replaced.

    A sweep.json without a valid plan is overwritten. Raises ResultsError if the folder cannot be written.
    """
    merged = {trial.key: trial for trial in (*read_plan(experiment), *trials)}
    content = {"experiment": experiment.name, "trials": [asdict(trial) for trial in merged.values()]}
    try:
        experiment.mkdir(parents=True, exist_ok=True)
        replace_text(experiment / PLAN, json.dumps(content, indent=1) + "\n")
    except OSError as error:
        raise ResultsError(f"results folder {experiment} cannot be written: {error.strerror}") from error


def read_plan(experiment: Path) -> list[Trial]:
    """Return the trials of sweep.json; [] if the file is missing or unreadable, or if any trial is invalid."""
    found = _planned(experiment)
    return found if all(map(_names_a_folder, found)) else []


def names_no_folders(experiment: Path) -> bool:
    """Return True if a trial in sweep.json has a setting or seed that cannot be the name of a folder.

    Returns True also if the label or the number of rounds of a trial has a wrong type. In both cases, `read_plan`
    ignores the whole file.
    """
    return not all(map(_names_a_folder, _planned(experiment)))


def _planned(experiment: Path) -> list[Trial]:
    content = read_object(experiment / PLAN) or {}
    try:
        return [Trial(**{**entry, "overrides": tuple(entry["overrides"])}) for entry in content.get("trials", [])]
    except (TypeError, KeyError):
        return []


def _names_a_folder(trial: Trial) -> bool:
    name, seed = trial.setting, trial.seed
    if not isinstance(name, str) or not isinstance(seed, int) or not isinstance(trial.label, str):
        return False
    plain = name.isprintable() and 0 < len(name) <= _LONGEST_NAME and "/" not in name and name not in (".", "..")
    return plain and 0 <= seed < _LARGEST_SEED and isinstance(trial.rounds, int | None)


def known_trials(experiment: Path) -> list[Trial]:
    """Return the planned trials of an experiment, then the runs in its folder that no sweep planned."""
    planned = read_plan(experiment)
    known = {folder.path for folder in folders_of(experiment, planned).values()}
    others = (folder for folder in sorted(experiment.glob("*/*")) if folder not in known)
    return [*planned, *(_found(folder) for folder in others if holds_a_run(folder))]


def seeds_in_words(seeds: Sequence[int]) -> str:
    """Return the seeds as ranges, such as `0..4, 7`."""
    runs = groupby(enumerate(sorted(seeds)), key=lambda pair: pair[1] - pair[0])  # constant over consecutive seeds
    ends = [(run[0][1], run[-1][1]) for run in (list(group) for _, group in runs)]
    return ", ".join(str(first) if first == last else f"{first}..{last}" for first, last in ends)


def holds_a_run(folder: Path) -> bool:
    names = ("summary.json", "progress.json", "ledger.jsonl", "checkpoint", FAILURE, ".lock")
    return folder.name.isdecimal() and any((folder / name).exists() for name in names)


def _found(folder: Path) -> Trial:
    """Create a Trial from the folder of a run that no sweep planned."""
    setting, summary = folder.parent.name, read_object(folder / "summary.json") or {}
    progress = RunFolder(folder).progress()
    rounds = summary.get("rounds", progress.rounds if progress is not None else None)
    label, _, name = setting.rpartition("-")  # only a run outside of a sweep has a label before the hash
    words = [str(summary[key]) for key in ("problem", "algorithm") if key in summary]
    label = summary.get("label") or label or " ".join(words)
    return Trial(f"{label} {name[:6]}".strip(), (), setting, int(folder.name), rounds, summary.get("metric"))


def _or_inf(epsilon: float | None) -> float:
    return math.inf if epsilon is None else epsilon
