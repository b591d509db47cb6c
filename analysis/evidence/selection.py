"""Which runs a claim is about: settings chosen by their configuration, and the independent units among their seeds."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Any

import numpy as np

from analysis.load import Run

# A claim that does not say otherwise is about the paper's algorithm as its problem's preset has it. A setting that
# lacks one of these keys (another weighting has no `a`) is not excluded by it.
_PAPER = {
    "algorithm.local_initialisation": True,
    "algorithm.message": "sample",
    "algorithm.message_center": False,
    "algorithm.message_normalize": False,
    "algorithm.paired": False,
    "algorithm.momentum": 0.0,
    "algorithm.broadcasts": None,
    "algorithm.own_gp.kernel": "rbf",
    "algorithm.own_gp.ard": False,
    "algorithm.own_gp.warp": False,
    "algorithm.own_gp.priors": False,
    "algorithm.own_gp.standardize": False,
    "weights._target_": "Softmax",
    "weights.a": 15.0,
    "privacy.schedule._target_": "Constant",
    "privacy.noise._target_": "Gaussian",
    "privacy.epsilon": None,
    "privacy.sensitivity": "paper",
    "privacy.charge": "nominal",
    "privacy.sampling": "poisson",
    "dropout.probability": 0.0,
    "dropout.deadline": None,
    "problem.split_seed": 0,
    "algorithm.modeler.policy": "gp_ucb",
    "algorithm.modeler.delta_ucb": 0.05,
    "algorithm.modeler.noise_aware": True,
    "algorithm.modeler.fit": "given",
    "transform.inflation": "paper",
    "transform.cells": None,
}
_PRESET = {
    "algorithm.follow": "follow",
    "algorithm.M": "message.M",
    "algorithm.lengthscale": "message.lengthscale",
    "algorithm.message_noise": "message.noise",
    **{f"algorithm.own_gp.{key}": f"own_gp.{key}" for key in ("fit", "every", "lengthscale", "variance", "noise")},
    "algorithm.own_draw.method": "own_draw",
    "weights.decay.hold": "decay.hold",
    "weights.decay.steps": "decay.steps",
    "n_init": "n_init",
    "transform.delta": "delta",
    "algorithm.modeler.repeat": "repeat",
}
_METRICS = {
    "simple_regret": "regret",
    "one_minus_auc": "1 − AUC",
    "validation_error": "validation error",
    "nmse": "normalised MSE",
}
_ABSENT = object()


class NotRun(Exception):
    """A setting has no finished run; its words."""


class Unclear(Exception):
    """There are runs, and no telling what they say: why, in words."""


@dataclass(frozen=True)
class Case:
    """The subject of a published claim: a problem with N agents, T rounds and a metric. Other runs do not count.

    problem: its name, or with `_` at the end how the name begins. variant: by the names of the problem's settings.
    longest: the most rounds of a run that counts by its first T; T where not given.
    """

    problem: str
    N: int
    T: int
    metric: str
    variant: tuple[tuple[str, Any], ...] = ()
    longest: int | None = None

    def __post_init__(self) -> None:
        if self.metric not in _METRICS:
            raise ValueError(f"metric must be one of {', '.join(_METRICS)}, got {self.metric!r}")

    @property
    def metric_in_words(self) -> str:
        return _METRICS[self.metric]

    def __str__(self) -> str:
        return ", ".join([f"N = {self.N}", f"T = {self.T}", *(f"{key} = {value}" for key, value in self.variant)])

    def __contains__(self, run: Run) -> bool:
        found = [run.summary.get(key) for key in ("n_agents", "metric", "lower_is_better")]
        if not self.T <= run.summary["rounds"] <= (self.longest or self.T):
            return False
        if found != [self.N, self.metric, True] or not self._about(str(run.summary.get("problem"))):
            return False
        return all(_alike(k, _value(run.config, f"problem.{k}"), value) for k, value in self.variant)

    def _about(self, problem: str) -> bool:
        return problem.startswith(self.problem) if self.problem.endswith("_") else problem == self.problem


@dataclass(frozen=True)
class SettingFilter:
    """A setting by what its configuration says. words: its name; keys: dotted names with values, or a test of them."""

    words: str
    keys: tuple[tuple[str, Any], ...]

    def but(self, words: str, keys: dict[str, Any]) -> "SettingFilter":
        """The same with other values, and words that say so."""
        return SettingFilter(f"{self.words}{words}", tuple((dict(self.keys) | keys).items()))

    def matches(self, run: Run) -> bool:
        given = dict(self.keys)
        config = run.config
        if not all(_alike(key, _value(config, key), wanted) for key, wanted in given.items()):
            return False
        private = _value(config, "algorithm.private") is True
        for key, wanted in _defaults(config).items():
            found = _value(config, key)
            idle = key.startswith("privacy.") and not private
            if key in given or idle or _ABSENT in (found, wanted):
                continue
            if not _alike(key, found, wanted):
                return False
        return True

    def among(self, runs: Sequence[Run]) -> list[Run]:
        """Its runs. Raises NotRun if there is none, Unclear if several settings could be meant."""
        found = [run for run in runs if self.matches(run)]
        if not found:
            raise NotRun(self.words)
        if len(names := sorted({run.setting for run in found})) > 1:
            number = "two" if len(names) == 2 else str(len(names))
            raise Unclear(f"{number} settings could be meant: {', '.join(names)} are all {self.words}")
        return found


def named_in(test: object) -> Iterator[SettingFilter]:
    """The settings that a test is about, wherever in it they stand."""
    if isinstance(test, SettingFilter):
        yield test
    elif isinstance(test, tuple):
        for part in test:
            yield from named_in(part)
    elif is_dataclass(test):
        for field in fields(test):
            yield from named_in(getattr(test, field.name))


@dataclass(frozen=True)
class Measure:
    """A number of a run, the mean over its agents. words: what it is, with {metric} and {T} of the claim's case."""

    words: str
    of: Callable[[Run], float]

    def by_unit(self, runs: Sequence[Run]) -> dict[int, float]:
        """By independent unit: several starts of one function are one unit, their mean.

        Raises Unclear if a run lacks the number.
        """
        grouped: dict[int, list[float]] = {}
        for run in runs:
            grouped.setdefault(unit(run), []).append(self._number(run))
        return {key: float(np.mean(values)) for key, values in grouped.items()}

    def _number(self, run: Run) -> float:
        try:
            value = float(self.of(run))
        except (KeyError, IndexError, TypeError, ZeroDivisionError):
            value = math.nan
        if not math.isfinite(value):
            raise Unclear(f"a run without what is compared: {run.setting}, seed {run.seed}")
        return value


OVERALL = Measure("mean {metric} over rounds 1 to {T}", lambda run: float(np.mean(run.curve[1:])))
LATE = Measure(
    "mean {metric} over the second half of {T} rounds", lambda run: float(np.mean(run.curve[len(run.curve) // 2 :]))
)
LAST = Measure("{metric} after round {T}", lambda run: run.curve[-1])


@cache
def first_rounds(T: int) -> Measure:
    """The mean over the first T rounds of runs that may be longer; one object for each T, so that tests compare."""
    return Measure("mean {metric} over rounds 1 to {T}", lambda run: float(np.mean(run.curve[1 : T + 1])))


def at(t: int) -> Measure:
    """The metric after round t."""
    return Measure(f"{{metric}} after round {t}", lambda run: run.curve[t])


def unit(run: Run) -> int:
    """The independent unit: the function where the problem draws one, else the seed."""
    seed = run.config["problem"].get("function_seed")
    return run.seed if seed is None else int(seed)


def units_in_words(n: int, runs: Sequence[Run]) -> str:
    """`20 functions`, or seeds where runs have the same data, or samples of them."""
    if runs[0].config["problem"].get("function_seed") is not None:
        return f"{n} function{'s' * (n != 1)}"
    if n > 1 and all(run.own_sample for run in runs):
        return f"{n} samples of one file"
    return f"{n} seed{'s' * (n != 1)}, same data"


def _defaults(config: dict[str, Any]) -> dict[str, Any]:
    """The values of the paper and of the problem's preset, by dotted name; `_ABSENT` where they say nothing."""
    preset = _value(config, "problem.preset")
    P, S = _value(config, "algorithm.P"), _value(preset, "S")
    by_P = S.get(P, S.get("default", _ABSENT)) if isinstance(S, dict) else _ABSENT
    return _PAPER | {key: _value(preset, name) for key, name in _PRESET.items()} | {"privacy.S": by_P}


def _value(node: Any, dotted: str) -> Any:
    for part in dotted.split("."):
        if not isinstance(node, dict) or part not in node:
            return _ABSENT
        node = node[part]
    return node


def _alike(key: str, found: Any, wanted: Any) -> bool:
    if found is _ABSENT:
        return False
    if callable(wanted):
        return bool(wanted(found))
    if isinstance(wanted, float | int) and isinstance(found, float | int):
        return abs(found - wanted) <= 1e-9 * max(1.0, abs(wanted))
    return bool(found == wanted)
