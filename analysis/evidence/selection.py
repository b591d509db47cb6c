"""Which runs a claim is about: settings chosen by their configuration, and the independent units among their seeds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.load import LoadError, Run

# Where a claim does not say otherwise it is about the paper's algorithm as its problem's preset has it. A setting that
# lacks one of these keys (another weighting has no `a`) is not excluded by it.
_PAPER = {
    "algorithm.local_initialisation": True,
    "algorithm.message": "sample",
    "algorithm.message_center": False,
    "algorithm.message_normalize": False,
    "algorithm.momentum": 0.0,
    "algorithm.broadcasts": None,
    "weights._target_": "Softmax",
    "weights.a": 15.0,
    "privacy.schedule._target_": "Constant",
    "privacy.epsilon": None,
    "privacy.sensitivity": "paper",
    "privacy.sampling": "poisson",
    "dropout.probability": 0.0,
}
_PRESET = {
    "algorithm.follow": "follow",
    "algorithm.M": "message.M",
    "algorithm.lengthscale": "message.lengthscale",
    "algorithm.own_draw.method": "own_draw",
    "weights.decay.hold": "decay.hold",
    "n_init": "n_init",
}
_ABSENT = object()


class NotRun(Exception):
    """A setting has no finished run; its words."""


@dataclass(frozen=True)
class Case:
    """What a published claim is about: N agents, T rounds, a metric in words. Other runs do not count.

    variant: of the problem, by the names of its settings.
    """

    N: int
    T: int
    metric: str
    variant: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        return ", ".join([f"N = {self.N}", f"T = {self.T}", *(f"{key} = {value}" for key, value in self.variant)])

    def __contains__(self, run: Run) -> bool:
        size = run.summary["n_agents"], run.summary["rounds"]
        problem = run.config["problem"]
        return size == (self.N, self.T) and all(_alike(k, _value(problem, k), value) for k, value in self.variant)


@dataclass(frozen=True)
class Where:
    """A setting by what its configuration says. words: its name; keys: dotted names with values, or a test of them."""

    words: str
    keys: tuple[tuple[str, Any], ...]

    def but(self, words: str, keys: dict[str, Any]) -> "Where":
        """The same with other values, and words that say so."""
        return Where(f"{self.words}{words}", tuple((dict(self.keys) | keys).items()))

    def matches(self, run: Run) -> bool:
        given = dict(self.keys)
        config = run.config
        if not all(_alike(key, _value(config, key), wanted) for key, wanted in given.items()):
            return False
        preset = config["problem"].get("preset", {})
        defaults = _PAPER | {key: _value(preset, name) for key, name in _PRESET.items()}
        for key, wanted in defaults.items():
            found = _value(config, key)
            idle = key.startswith("privacy.") and not config["algorithm"]["private"]
            if key in given or idle or _ABSENT in (found, wanted):
                continue
            if not _alike(key, found, wanted):
                return False
        return True

    def among(self, runs: Sequence[Run]) -> list[Run]:
        """Its runs. Raises NotRun if there is none, LoadError if several settings are meant."""
        found = [run for run in runs if self.matches(run)]
        if not found:
            raise NotRun(self.words)
        if len(names := sorted({run.setting for run in found})) > 1:
            raise LoadError(
                f"{found[0].summary['experiment']}: {len(names)} settings are {self.words!r} ({', '.join(names)}): "
                "move the folders of all but one away"
            )
        return found


@dataclass(frozen=True)
class Measure:
    """A number of a run, the mean over its agents. words: what it is, with {metric} and {T} of the claim's case."""

    words: str
    of: Callable[[Run], float]

    def by_unit(self, runs: Sequence[Run]) -> dict[int, float]:
        """By independent unit: several starts of one function are one unit, their mean."""
        grouped: dict[int, list[float]] = {}
        for run in runs:
            grouped.setdefault(unit(run), []).append(self.of(run))
        return {key: float(np.mean(values)) for key, values in grouped.items()}


OVERALL = Measure("mean {metric} over rounds 1 to {T}", lambda run: float(np.mean(run.curve[1:])))
LATE = Measure(
    "mean {metric} over the second half of {T} rounds", lambda run: float(np.mean(run.curve[len(run.curve) // 2 :]))
)
LAST = Measure("{metric} after round {T}", lambda run: run.curve[-1])


def at(t: int) -> Measure:
    """The metric after round t."""
    return Measure(f"{{metric}} after round {t}", lambda run: run.curve[t])


def unit(run: Run) -> int:
    """What is independent: the function where the problem draws one, else the seed."""
    seed = run.config["problem"].get("function_seed")
    return run.seed if seed is None else int(seed)


def units_in_words(n: int, runs: Sequence[Run]) -> str:
    """`20 functions`, or seeds where all runs have the same data."""
    if runs[0].config["problem"].get("function_seed") is not None:
        return f"{n} function{'s' * (n != 1)}"
    return f"{n} seed{'s' * (n != 1)}, same data"


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
    if key.endswith("_target_"):
        return str(found).rsplit(".", 1)[-1] == wanted
    if isinstance(wanted, float | int) and isinstance(found, float | int):
        return abs(found - wanted) <= 1e-9 * max(1.0, abs(wanted))
    return bool(found == wanted)
