"""Cached reading of an experiment's folder."""

import hashlib
import math
import os
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dpfbo.formats.run_folder import RunFolder
from runners.board.trial_reading import TrialReading, UnreadableFile, epsilon_curve, limits_in_config, read_trial
from runners.sweep.trials import PLAN, Trial, folders_of, holds_a_run, known_trials, names_no_folders

_SETTLED_SECONDS = 5.0  # a list of trials is reused if its folders have not changed for this time


@dataclass(frozen=True)
class ReadSetting:
    """The trials of one setting with the contents of their files.

    name: the setting's hash, with the number of rounds T appended if trials with this hash differ in T.
    """

    name: str
    label: str
    trials: Sequence[Trial]
    readings: Sequence[TrialReading]


class ExperimentFolder:
    """The trials of one experiment, with cached contents of their files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.key = hashlib.sha256(str(path.absolute()).encode()).hexdigest()[:10]  # the same in every run of the board
        self.fault: str | None = None  # a sentence on why sweep.json cannot be used
        self._trials: list[Trial] = []
        self._listed: object = None  # the folders, with times of change, for which `_trials` was listed
        self._folders: dict[tuple[str, int], RunFolder] = {}  # by key of a trial
        self._finished: dict[Path, tuple[object, TrialReading]] = {}
        self._epsilons: dict[tuple[object, ...], list[float | None]] = {}
        self._limits: dict[str, dict[str, Any]] = {}

    def read(self) -> list[ReadSetting]:
        """Return all settings in the order of their first trials; [] if the folder does not exist."""
        self._list_trials()
        by_length: dict[tuple[str, int | None], list[tuple[Trial, TrialReading]]] = {}
        for trial in self._trials:
            reading = self._reading(trial)
            rounds = trial.rounds if reading.rounds is None else reading.rounds
            by_length.setdefault((trial.setting, rounds), []).append((trial, reading))
        lengths = Counter(setting for setting, _ in by_length)  # plain runs of one setting may differ in T
        labels = Counter(map(_label, by_length.values()))
        found = []
        for (setting, rounds), pairs in by_length.items():
            name = setting if lengths[setting] == 1 else f"{setting}, T={rounds}"
            label = _label(pairs)
            trials, readings = zip(*pairs, strict=True)
            found.append(ReadSetting(name, label if labels[label] == 1 else f"{label} ({name[-6:]})", trials, readings))
        return found

    def completed(self, setting: ReadSetting) -> ReadSetting:
        """Add the target epsilon, the budget, and the epsilon before each round to a setting's finished trials.

        `read` leaves these values out, because they take longer to read.
        """
        return replace(setting, readings=list(map(self._completed, setting.trials, setting.readings)))

    def folder_of(self, trial: Trial) -> Path:
        return self._folders[trial.key].path

    def _list_trials(self) -> None:
        try:
            with os.scandir(self.path) as entries:
                found = {e.name: e.stat().st_mtime_ns for e in entries if e.name == PLAN or e.is_dir()}
        except OSError:  # it does not exist, or was removed just now
            self._trials, self._listed = [], None
            return
        if found == self._listed:
            return
        self.fault, self._trials = None, []
        try:
            self._trials = known_trials(self.path)
            if names_no_folders(self.path):
                self.fault = f"{PLAN} names trials that cannot be in this folder"
        except (TypeError, ValueError, AttributeError, RecursionError, OSError):
            self.fault = f"{PLAN} cannot be read"
        self._folders = folders_of(self.path, self._trials)
        settled = time.time_ns() - max(found.values(), default=0) > _SETTLED_SECONDS * 1e9
        self._listed = found if settled else None  # a run's folder appears before its first file

    def _reading(self, trial: Trial) -> TrialReading:
        folder = self._folders[trial.key]
        try:
            found = (folder.path / "summary.json").stat()
            stamp: object = (found.st_mtime_ns, found.st_size, found.st_ino)
        except OSError:
            return read_trial(trial, folder)
        known = self._finished.get(folder.path)
        if known is None or known[0] != stamp:
            known = self._finished[folder.path] = stamp, read_trial(trial, folder)
        return known[1]

    def _completed(self, trial: Trial, reading: TrialReading) -> TrialReading:
        if reading.phase != "done":
            return reading
        folder = self.folder_of(trial)
        if trial.setting not in self._limits:
            self._limits[trial.setting] = limits_in_config(folder / "config.yaml")
        facts = replace(reading.facts, **self._limits[trial.setting])
        if reading.curve is None or reading.rounds is None or reading.epsilon == math.inf:
            return replace(reading, facts=facts)
        # epsilon follows from setting and number of charges, so seeds that agree in both need one file to be read
        key = trial.setting, reading.rounds, reading.epsilon, reading.n_charges
        if key not in self._epsilons:
            try:
                self._epsilons[key] = epsilon_curve(folder / "server.parquet", reading.rounds, reading.n_charges)
            except UnreadableFile as error:
                return replace(reading, facts=facts, fault=str(error))
        return replace(reading, facts=facts, curve={**reading.curve, "epsilon": self._epsilons[key]})


def experiments_in(path: Path) -> list[Path]:
    """Return the experiments in a folder; return the folder itself if it is an experiment or contains none."""
    try:
        return [path] if _is_experiment(path) else sorted(filter(_is_experiment, path.iterdir())) or [path]
    except OSError:  # it does not exist, or was removed just now
        return [path]


def _is_experiment(path: Path) -> bool:
    return (path / PLAN).is_file() or any(map(holds_a_run, path.glob("*/*")))


def _label(pairs: Sequence[tuple[Trial, TrialReading]]) -> str:
    trial = pairs[0][0]
    found = next((reading.facts.label for _, reading in pairs if reading.facts.label), None)
    return trial.label if trial.overrides or found is None else found
