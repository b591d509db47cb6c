"""An experiment's folder, read again and again; what cannot have changed since the last time is not read twice."""

import os
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from runners.board.trial_reading import (  # fmt: skip
    TrialCurve,
    TrialFacts,
    TrialReading,
    UnreadableFile,
    epsilon_curve,
    limits_in_config,
    read_trial,
)
from runners.record.run_folder import RunFolder
from runners.sweep.trials import PLAN, Trial, known_trials, names_no_folders

_SETTLED_SECONDS = 5.0  # after a folder's last change, before a list of its trials is used again
Stamp = tuple[int, int, int] | None


@dataclass(frozen=True)
class ReadSetting:
    """The trials of one setting with their readings. name: its folder's name, or its hash."""

    name: str
    label: str
    trials: tuple[Trial, ...]
    readings: tuple[TrialReading, ...]


class ExperimentFolder:
    """The trials of one experiment and what their files said the last time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fault: str | None = None  # a sentence about the plan, if it cannot be used
        self._trials: list[Trial] = []
        self._listed: object = None  # the folders of which `_trials` is the list
        self._names: set[str] = set()  # of the settings' folders
        self._hashes: set[str] = set()  # of those with a label in their names
        self._finished: dict[tuple[str, int], tuple[Stamp, TrialReading]] = {}
        self._epsilons: dict[tuple[str, float | None, int | None], np.ndarray] = {}
        self._limits: dict[str, TrialFacts] = {}

    @property
    def exists(self) -> bool:
        return self.path.is_dir()

    def read(self) -> list[ReadSetting]:
        """All settings in the order of their first trials; none if the folder is not there."""
        self._list_trials()
        by_length: dict[tuple[str, int | None], list[tuple[Trial, TrialReading]]] = {}
        for trial in self._trials:
            reading = self._reading(trial, self.folder_of(trial))
            rounds = trial.rounds if reading.rounds is None else reading.rounds
            by_length.setdefault((trial.setting, rounds), []).append((trial, reading))
        lengths = Counter(setting for setting, _ in by_length)  # a folder of plain runs may hold some of more rounds
        by_setting = {
            setting if lengths[setting] == 1 else f"{setting}, T={rounds}": pairs
            for (setting, rounds), pairs in by_length.items()
        }
        labels = [_label(pairs) for pairs in by_setting.values()]
        same = Counter(labels)
        return [
            ReadSetting(name, text if same[text] == 1 else f"{text} ({name[-6:]})", *_columns(pairs))
            for (name, pairs), text in zip(by_setting.items(), labels, strict=True)
        ]

    def completed(self, setting: ReadSetting) -> ReadSetting:
        """A setting with what takes longer to read: the limits of its epsilon, and epsilon by round."""
        pairs = zip(setting.trials, setting.readings, strict=True)
        return replace(setting, readings=tuple(self._completed(t, reading, self.folder_of(t)) for t, reading in pairs))

    def folder_of(self, trial: Trial) -> RunFolder:
        """`Trial.folder`, which lists the whole folder, only where a setting's folder has a label in its name."""
        if trial.setting not in self._names and trial.setting in self._hashes:
            return trial.folder(self.path)
        return RunFolder(self.path / trial.setting / str(trial.seed))

    def _list_trials(self) -> None:
        """Update the list of trials if a folder or the plan has changed."""
        found: dict[str, int] = {}
        try:
            with os.scandir(self.path) as entries:
                for entry in entries:
                    if entry.name == PLAN or entry.is_dir():
                        found[entry.name] = entry.stat().st_mtime_ns
        except OSError:  # not there, or removed at this moment
            self._trials, self._listed = [], None
            return
        newest = max(found.values(), default=0)
        if found != self._listed:
            self._names = found.keys() - {PLAN}
            self._hashes = {name.rpartition("-")[2] for name in self._names if "-" in name}
            self._trials = self._known_trials()
            settled = time.time_ns() - newest > _SETTLED_SECONDS * 1e9  # a run's folder appears before its first file
            self._listed = found if settled else None

    def _known_trials(self) -> list[Trial]:
        """The trials of the folder, without a plan that names what is no folder in it."""
        try:
            known, wrong = known_trials(self.path), names_no_folders(self.path)
        except (TypeError, ValueError, AttributeError, RecursionError, OSError):
            self.fault = f"{PLAN} cannot be read"
            return []
        self.fault = f"{PLAN} names trials that cannot be in this folder" if wrong else None
        return known

    def _reading(self, trial: Trial, folder: RunFolder) -> TrialReading:
        stamp = _stamp(folder.path / "summary.json")
        known = self._finished.get(trial.key)
        if stamp is not None and known is not None and known[0] == stamp:
            return known[1]
        reading = read_trial(trial, folder)
        if stamp is not None and reading.phase in ("done", "unreadable"):
            self._finished[trial.key] = stamp, reading
        return reading

    def _completed(self, trial: Trial, reading: TrialReading, folder: RunFolder) -> TrialReading:
        """A finished run's reading with its epsilon by round, and the limits of its setting."""
        if reading.phase != "done":
            return reading
        if trial.setting not in self._limits:
            target, budget, delta = limits_in_config(folder.path / "config.yaml")
            self._limits[trial.setting] = TrialFacts(target=target, budget=budget, budget_delta=delta)
        limits = self._limits[trial.setting]
        facts = replace(reading.facts, target=limits.target, budget=limits.budget, budget_delta=limits.budget_delta)
        reading = replace(reading, facts=facts)
        if reading.curve is None or reading.rounds is None or reading.epsilon in (None, np.inf):
            return reading
        # epsilon follows from the settings and the number of charges: seeds that agree in both share one file's content
        key = trial.setting, reading.epsilon, reading.n_charges
        if key not in self._epsilons:
            try:
                self._epsilons[key] = epsilon_curve(folder.path / "server.parquet", reading.rounds, reading.n_charges)
            except UnreadableFile as error:
                return replace(reading, fault=str(error))
        return replace(reading, curve=TrialCurve(reading.curve.mean, self._epsilons[key]))


def experiments_in(path: Path) -> list[Path]:
    """The folder itself if it is one of an experiment, else the experiments in it; itself if there are none."""
    try:
        return [path] if _is_experiment(path) else sorted(filter(_is_experiment, path.iterdir())) or [path]
    except OSError:  # not there, or removed at this moment
        return [path]


def _is_experiment(path: Path) -> bool:
    files = ("summary.json", "progress.json", "ledger.jsonl", ".lock")
    return (path / PLAN).is_file() or any(
        run.name.isdecimal() and any((run / name).exists() for name in files) for run in path.glob("*/*")
    )


def _label(pairs: list[tuple[Trial, TrialReading]]) -> str:
    """The plan's label; of a plain run the one in its files, where known."""
    trial = pairs[0][0]
    found = next((reading.facts.label for _, reading in pairs if reading.facts.label), None)
    return trial.label if trial.overrides or found is None else found


def _columns(pairs: list[tuple[Trial, TrialReading]]) -> tuple[tuple[Trial, ...], tuple[TrialReading, ...]]:
    return tuple(trial for trial, _ in pairs), tuple(reading for _, reading in pairs)


def _stamp(path: Path) -> Stamp:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
