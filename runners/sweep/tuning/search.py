"""A search for settings: the values to try next, given what the earlier ones gave.

A search has no state of its own. sweep.json lists the settings that were suggested, the run folders have their metrics,
and the next suggestions are a function of these and of `sweep.search_seed`. So a killed search goes on.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from random import Random
from statistics import fmean

from hydra.core.override_parser.types import IntervalSweep

from dpfbo import checks
from dpfbo.extras import needing
from dpfbo.formats.bounded import read_object
from dpfbo.formats.run_folder import RunFolder
from runners.sweep.trials import TrialState

SEARCHES, OBJECTIVES = ("optuna", "random"), ("final", "curve")
_DIGITS = 4  # of a number from an interval, so that labels stay short


@dataclass(frozen=True)
class SearchOptions:
    """The keys of a sweep that say how to search. batch: settings suggested together, before any has its metric."""

    search: str
    num_samples: int
    objective: str
    batch: int
    seed: int

    def __post_init__(self) -> None:
        checks.one_of("sweep.search", self.search, (None, *SEARCHES))
        checks.integer("sweep.num_samples", self.num_samples, minimum=1)
        checks.one_of("sweep.objective", self.objective, OBJECTIVES)
        checks.integer("sweep.search_batch", self.batch, minimum=1)
        checks.integer("sweep.search_seed", self.seed, minimum=0)


@dataclass(frozen=True)
class Interval:
    """Numbers from `low` to `high`; whole ones, or spread evenly over the logarithm."""

    low: float
    high: float
    log: bool

    @staticmethod
    def of(name: str, sweep: IntervalSweep) -> "Interval":
        """The interval(), int(interval()) or tag(log, interval()) that Hydra parsed; `name` is its key."""
        low, high, log = sweep.start, sweep.end, "log" in sweep.tags
        ok = low is not None and high is not None and math.isfinite(high - low) and low < high
        if not ok or (log and low <= 0):  # type: ignore[operator]
            rule = "0 < low < high" if log else "low < high"
            raise ValueError(f"{name} must be an interval(low, high) with {rule}, got interval({low}, {high})")
        return Interval(low, high, log)  # type: ignore[arg-type]

    @property
    def whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)

    def word(self, number: float) -> str:
        """The number as an override has it, rounded."""
        return str(round(number)) if self.whole else repr(self._inside(float(f"{number:.{_DIGITS}g}")))

    def draw(self, random: Random) -> str:
        if self.whole and not self.log:
            return str(random.randint(int(self.low), int(self.high)))
        low, high = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
        number = random.uniform(low, high)
        return self.word(self._inside(math.exp(number) if self.log else number))

    def number(self, word: str) -> float:
        return int(word) if self.whole else float(word)

    def __contains__(self, word: str) -> bool:
        try:
            return self.low <= self.number(word) <= self.high
        except ValueError:
            return False

    def _inside(self, number: float) -> float:
        return min(max(number, self.low), self.high)


Space = Mapping[str, Interval | tuple[str, ...]]  # by key: an interval, or the values in words
Words = dict[str, str]  # by key: a value in words


@dataclass(frozen=True)
class SettingOutcome:
    """The outcome of a setting. value: the mean of its seeds' objectives; None if a seed failed or has none.

    stopped: the first round after which a scheduler stopped a seed; None if none was stopped.
    """

    value: float | None
    stopped: int | None = None

    @staticmethod
    def of(objective: str, trials: Sequence[tuple[RunFolder, TrialState]]) -> "SettingOutcome":
        """The outcome of the trials of a setting, which have ended, in these folders and states."""
        values = [_objective(objective, folder, state) for folder, state in trials if state.phase != "failed"]
        known = [value for value in values if value is not None and math.isfinite(value)]
        stopped = [state.round or 0 for _, state in trials if state.stopped_by is not None]
        return SettingOutcome(fmean(known) if len(known) == len(trials) else None, min(stopped, default=None))


def suggestions(
    options: SearchOptions, space: Space, found: Sequence[tuple[Words, SettingOutcome]], lower_is_better: bool
) -> Iterator[Words]:
    """Values to try after those `found`, without end; the same ones may come again."""
    if options.search == "optuna":
        return _by_optuna(f"{options.seed} {len(found)}", space, found, lower_is_better)
    return _at_random(options.seed, space, len(found))


def _at_random(seed: int, space: Space, first: int) -> Iterator[Words]:
    for number in count(first):
        random = Random(f"{seed} {number}")
        yield {k: v.draw(random) if isinstance(v, Interval) else random.choice(v) for k, v in space.items()}


def _by_optuna(
    seed: str, space: Space, found: Sequence[tuple[Words, SettingOutcome]], lower_is_better: bool
) -> Iterator[Words]:
    """Suggestions of Optuna's TPE sampler; those that have no metric yet count as poor, so that they differ."""
    with needing("optuna", "sweep.search=optuna"):
        import optuna
        from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
    optuna.logging.set_verbosity(optuna.logging.WARNING)

    def distribution(values: Interval | tuple[str, ...]) -> BaseDistribution:
        if not isinstance(values, Interval):
            return CategoricalDistribution(values)
        if values.whole:
            return IntDistribution(int(values.low), int(values.high), values.log)
        return FloatDistribution(values.low, values.high, values.log)

    distributions = {key: distribution(values) for key, values in space.items()}
    sampler = optuna.samplers.TPESampler(seed=Random(seed).getrandbits(32), constant_liar=True)
    study = optuna.create_study(direction="minimize" if lower_is_better else "maximize", sampler=sampler)
    states = optuna.trial.TrialState
    for words, outcome in found:
        params = {k: v.number(words[k]) if isinstance(v, Interval) else words[k] for k, v in space.items()}
        ended = states.FAIL if outcome.value is None else states.COMPLETE if outcome.stopped is None else states.PRUNED
        told = {} if outcome.stopped is None or outcome.value is None else {outcome.stopped: outcome.value}
        study.add_trial(
            optuna.create_trial(
                state=ended, value=outcome.value, params=params, distributions=distributions, intermediate_values=told
            )
        )
    while True:
        asked = study.ask(distributions).params
        yield {k: v.word(asked[k]) if isinstance(v, Interval) else asked[k] for k, v in space.items()}


def _objective(objective: str, folder: RunFolder, state: TrialState) -> float | None:
    if objective == "final" or state.phase != "done":
        return state.mean
    try:
        return fmean((read_object(folder.path / "summary.json") or {})["curve"]["mean"])
    except (KeyError, TypeError, ValueError):
        return None
