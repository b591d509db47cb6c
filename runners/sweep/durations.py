"""Predict the duration and disk space of a trial from finished trials."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

from dpfbo.formats.bounded import read_object, read_yaml
from runners.sweep.trials import States, Trial

OVERHEAD = 0.5  # seconds of a trial that its summary does not count: composing, planning its epsilon, writing
_MOST = 5  # largest number of finished trials that are read for one setting
_NO_COST = {"preset", "data_dir", "n_jobs"}  # keys of a problem that are not part of a setting; `kind` ignores them


@dataclass(frozen=True)
class TrialCost:
    """The duration of a trial in seconds, and its size on disk in bytes."""

    seconds: float
    bytes: float

    def __mul__(self, factor: float) -> "TrialCost":
        return TrialCost(self.seconds * factor, self.bytes * factor)


def kind(config: Mapping[str, Any]) -> str:
    """Return a string that identifies the problem and algorithm. The time per round mainly depends on these two."""
    problem = {key: value for key, value in config["problem"].items() if key not in _NO_COST and "seed" not in key}
    return json.dumps([problem, config["algorithm"]["name"]], sort_keys=True, default=str)


class FinishedTrials:
    """The costs of finished trials. settings: folders of settings; at most five finished trials in each are read."""

    def __init__(self, settings: Iterable[Path]) -> None:
        self._by_setting: dict[str, list[TrialCost]] = {}
        self._by_names: dict[tuple[str, str], list[tuple[Path, TrialCost]]] = {}  # per round, by problem and algorithm
        self._kinds: dict[Path, str | None] = {}
        self._rounds = 0  # the sum over all these trials
        for folder in sorted(settings):
            for path in islice(folder.glob("*/summary.json"), _MOST):
                summary = read_object(path) or {}
                try:
                    total, rounds = float(summary["seconds"]["total"]), int(summary["rounds"])
                    setting, names = str(summary["setting"]), (str(summary["problem"]), str(summary["algorithm"]))
                    cost = TrialCost(total + OVERHEAD, sum(f.stat().st_size for f in path.parent.iterdir()))
                except (KeyError, TypeError, ValueError, OSError):
                    continue  # not a summary of dpfbo, or removed in the meantime
                self._by_setting.setdefault(setting, []).append(cost)
                self._rounds += max(rounds, 1)
                self._by_names.setdefault(names, []).append((path.parent, cost * (1 / max(rounds, 1))))

    def cost(self, setting: str, problem: str, config: Mapping[str, Any], rounds: int) -> TrialCost | None:
        """Predict the cost of a trial of `setting`; None if no finished trial has the same problem and algorithm.

        The prediction is the mean over the setting's finished trials. If there are none, it is `rounds` times the mean
        cost per round of the finished trials with the same problem and algorithm.
        """
        if setting in self._by_setting:
            return _mean(self._by_setting[setting])
        wanted = kind(config)
        alike = self._by_names.get((problem, str(config["algorithm"]["name"])), [])
        costs = [cost for folder, cost in alike if self._kind(folder) == wanted]
        return _mean(costs) * rounds if costs else None

    def seconds(self, setting: str, rounds: int | None) -> float | None:
        """Predict the seconds of a trial of `setting`; None if no trial has finished.

        The prediction is the mean over the setting's finished trials. If there are none, it is `rounds` times the mean
        time per round of all finished trials. If `rounds` is None too, it is the mean time of all finished trials.
        """
        if setting in self._by_setting:
            return _mean(self._by_setting[setting]).seconds
        costs = [cost for group in self._by_setting.values() for cost in group]
        if not costs or rounds is None:
            return _mean(costs).seconds if costs else None
        return rounds * sum(cost.seconds for cost in costs) / self._rounds

    def _kind(self, folder: Path) -> str | None:
        if folder.parent not in self._kinds:
            try:
                self._kinds[folder.parent] = kind(read_yaml(folder / "config.yaml"))
            except (OSError, ValueError, TypeError, KeyError, AttributeError):
                self._kinds[folder.parent] = None
        return self._kinds[folder.parent]


def seconds_left(experiment: Path, trials: Iterable[Trial], states: States) -> float | None:
    """Predict the seconds until all trials of an experiment have ended.

    The prediction assumes that the number of running trials stays the same. Returns None if no trial is running, or if
    none has finished.
    """
    running = sum(state.phase == "running" for state in states.values())
    finished = FinishedTrials(experiment.glob("*/")) if running else None
    if finished is None:
        return None
    left = 0.0
    for trial in trials:
        state = states[trial.key]
        if state.phase not in ("done", "failed"):
            usual = finished.seconds(trial.setting, trial.rounds)
            if usual is None:
                return None
            left += usual * (1 - (state.round or 0) / trial.rounds if trial.rounds else 1.0)
    return left / running


def _mean(costs: list[TrialCost]) -> TrialCost:
    return TrialCost(fmean(cost.seconds for cost in costs), fmean(cost.bytes for cost in costs))
