"""Suggest the settings that a search tries next.

The suggestions depend only on the search space, the outcomes so far and `sweep.search_seed`. A killed search can thus
be continued.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from random import Random
from statistics import fmean

from dpfbo import checks
from dpfbo.extras import needing
from dpfbo.formats.bounded import read_object
from dpfbo.formats.run_folder import RunFolder
from runners.compose.sweep_line import Interval, Space
from runners.sweep.trials import TrialState

SEARCHES, OBJECTIVES = ("optuna", "random"), ("final", "curve")


@dataclass(frozen=True)
class SearchOptions:
    """The values of the keys under `sweep` that control a search.

    batch: the number of settings that are suggested at once.
    """

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


Words = dict[str, str]  # the value of each key, as it stands in an override


@dataclass(frozen=True)
class SettingOutcome:
    """The outcome of a setting. value: the mean objective over its seeds; None if a seed failed or has no objective.

    stopped: the earliest round after which a scheduler stopped one of the seeds; None if none was stopped.
    """

    value: float | None
    stopped: int | None = None

    @staticmethod
    def of(objective: str, trials: Sequence[tuple[RunFolder, TrialState]]) -> "SettingOutcome":
        """Compute the outcome of a setting from the run folders and states of its trials, which have all ended."""
        values = [_objective(objective, folder, state) for folder, state in trials if state.phase != "failed"]
        known = [value for value in values if value is not None and math.isfinite(value)]
        stopped = [state.round or 0 for _, state in trials if state.stopped_by is not None]
        return SettingOutcome(fmean(known) if len(known) == len(trials) else None, min(stopped, default=None))


def suggestions(
    options: SearchOptions, space: Space, found: Sequence[tuple[Words, SettingOutcome]], lower_is_better: bool
) -> Iterator[Words]:
    """Yield values to try after those in `found`, without end and possibly with repetitions."""
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
    """Yield suggestions of Optuna's TPE sampler.

    The sampler learns from the outcomes in `found`, and assumes a poor outcome for each suggestion that it has yielded.
    So later suggestions tend to differ from the earlier ones.
    """
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
