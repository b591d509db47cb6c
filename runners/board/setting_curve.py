"""The mean over seeds of one setting, and what epsilon it spent."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from runners.board.experiment_folder import ReadSetting
from runners.board.trial_reading import BoardPhase, TrialFacts, TrialReading
from runners.record.curve_points import shown_rounds

_COUNTED: tuple[BoardPhase, ...] = ("done", "running", "interrupted")  # phases of trials whose rounds count


@dataclass(frozen=True)
class MeanOverSeeds:
    """Mean over n seeds, and its standard error; None for a single seed."""

    mean: float
    se: float | None
    n: int


@dataclass(frozen=True)
class SettingCurve:
    """By shown round, over the n seeds that have reached it: mean, standard error, and the largest epsilon before it.

    NaN: no standard error of a single seed; no mean; no finite or no known epsilon.
    """

    rounds: np.ndarray
    mean: np.ndarray
    se: np.ndarray
    n: np.ndarray
    epsilon: np.ndarray


@dataclass(frozen=True)
class SpentEpsilon:
    """The largest epsilon of a setting's seeds. value: inf if there is no finite one. so_far: no seed is finished."""

    value: float
    so_far: bool


def curve(setting: ReadSetting) -> SettingCurve | None:
    """The curve of a setting; None while no seed has one."""
    found = [r for r in setting.readings if r.phase in _COUNTED and r.curve is not None and r.rounds is not None]
    longest = max((r.rounds for r in found if r.rounds is not None), default=0)
    found = [r for r in found if r.rounds == longest]  # a shorter one would have other rounds
    if not found:
        return None
    rounds = np.array(shown_rounds(longest))
    means = _stacked([r.curve.mean for r in found if r.curve is not None], len(rounds))
    epsilons = _stacked([r.curve.epsilon for r in found if r.curve is not None], len(rounds))
    n = (~np.isnan(means)).sum(0)
    reached = n > 0
    mean, se, epsilon = (np.full(len(rounds), math.nan) for _ in range(3))
    mean[reached] = np.nansum(means[:, reached], 0) / n[reached]
    many = n > 1
    squares = np.nansum((means[:, many] - mean[many]) ** 2, 0)
    se[many] = np.sqrt(squares / (n[many] - 1) / n[many])
    known = ~np.isnan(epsilons).all(0)
    epsilon[known] = np.nanmax(epsilons[:, known], 0)
    last = max(np.flatnonzero(reached | known), default=-1) + 1
    return SettingCurve(rounds[:last], mean[:last], se[:last], n[:last], epsilon[:last])


def final(setting: ReadSetting) -> MeanOverSeeds | None:
    """The final metric over the finished seeds; None while there is none."""
    return mean_over([r.mean for r in setting.readings if r.phase == "done"])


def spread(setting: ReadSetting) -> dict[str, float] | None:
    """Quantiles over the agents of the final metric, mean over the finished seeds that have them; None if none has."""
    known = [r.quantiles for r in setting.readings if r.phase == "done" and r.quantiles]
    if not known or any(q.keys() != known[0].keys() for q in known):
        return None
    return {percent: math.fsum(q[percent] for q in known) / len(known) for percent in known[0]}


def so_far(setting: ReadSetting) -> MeanOverSeeds | None:
    """The metric that the begun seeds have now."""
    return mean_over([r.mean for r in setting.readings if r.phase in _COUNTED])


def mean_over(values: Sequence[float | None]) -> MeanOverSeeds | None:
    """Mean and standard error of the values that are known."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    n, mean = len(known), math.fsum(known) / len(known)
    se = math.sqrt(math.fsum((value - mean) ** 2 for value in known) / (n - 1) / n) if n > 1 else None
    return MeanOverSeeds(mean, se, n)


def spent(setting: ReadSetting) -> SpentEpsilon | None:
    """The largest epsilon of all seeds, unfinished and failed ones included; None if nothing is known."""
    known = [r.epsilon for r in setting.readings if r.epsilon is not None]
    done = any(r.phase == "done" for r in setting.readings)
    return SpentEpsilon(max(known), not done) if known else None


def facts_of(setting: ReadSetting) -> TrialFacts:
    """The facts of the setting's seed of which most is known: a finished one, else one that has begun."""

    def known(reading: TrialReading) -> tuple[bool, bool]:
        return reading.phase == "done", reading.facts.accountant is not None

    return max(setting.readings, key=known).facts


def _stacked(rows: Sequence[np.ndarray], width: int) -> np.ndarray:
    """Rows of different lengths as one matrix, NaN at their ends."""
    matrix = np.full((len(rows), width), math.nan)
    for row, values in zip(matrix, rows, strict=True):
        row[: len(values)] = values[:width]
    return matrix
