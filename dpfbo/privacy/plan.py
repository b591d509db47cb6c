"""The privacy plan: the epsilon of planned releases, their budget, and calibration."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from dpfbo import checks
from dpfbo.checks import SettingError
from dpfbo.privacy.accounting import (
    ACCOUNTANTS,
    Accountant,
    UnsupportedEvent,
    accountant_named,
    calibrate,
    check_delta,
    finite_or_none,
)
from dpfbo.privacy.budget import Budget, EpsilonCurve

if TYPE_CHECKING:
    import dp_accounting

    Events = Sequence[dp_accounting.DpEvent]


@dataclass(frozen=True)
class PrivacyPlan:
    """Computes the epsilon of the releases that a run plans to make, or has made.

    Args:
        events: The dp-accounting event of each release, in order.
        delta: The delta of every epsilon.
        accountants: The accountants that report epsilon, by name, all with one neighbouring relation.
        chosen: The accountant for the epsilon of each round, for the budget and for calibration.
        covers: A text that says what epsilon covers and what it leaves out.
        budget: The limit on the epsilon of all releases in a ledger; None for no limit.
        epsilon_of_nothing: The epsilon while no release is charged. It is 0; or None (infinite) if agents receive each
            other's messages unchanged.

    Raises:
        SettingError: Delta lies outside (0, 1), or `accountants` lacks the chosen one.

    Example:
        >>> import dpfbo
        >>> study = dpfbo.create_study(
        ...     {"x": dpfbo.Float(0, 1)}, n_agents=100, algorithm="dp_fts", noise_multiplier=1, delta=1e-3, rounds=10
        ... )
        >>> plan = study.plan
        >>> len(plan.events), round(plan.epsilon(), 2), plan.relation
        (10, 5.26, 'zero-out')
        >>> plan.limited(3.0).affordable()  # rounds that epsilon 3 pays for
        3
    """

    events: Events
    delta: float
    accountants: dict[str, Accountant]
    chosen: str
    covers: str
    budget: Budget | None = None
    epsilon_of_nothing: float | None = 0.0

    def __post_init__(self) -> None:
        check_delta(self.delta)
        checks.one_of("accountant", self.chosen, self.accountants)

    @property
    def accountant(self) -> Accountant:
        """The chosen accountant."""
        return self.accountants[self.chosen]

    @property
    def relation(self) -> str:
        """The name of the neighbouring relation of epsilon."""
        return self.accountant.relation

    @property
    def approximations(self) -> list[str]:
        """The accountants whose epsilon is not a guarantee."""
        return [name for name, accountant in self.accountants.items() if accountant.approximation]

    @cached_property
    def curve(self) -> EpsilonCurve:
        """The epsilon after each planned release, by the chosen accountant."""
        return EpsilonCurve(self.accountant, self.events, self.delta)

    def epsilon(self, charged: Events | None = None) -> float:
        """Return the chosen accountant's epsilon of the releases `charged` (None: all planned releases)."""
        return self.curve.after(self.events if charged is None else charged)

    def epsilons(self, charged: Events | None = None) -> dict[str, float | None]:
        """Return, by accountant's name, the joint epsilon that each accountant computes for all events in `charged`.

        charged: None for the events of all planned releases. An epsilon that is not finite is returned as None.
        """
        charged = self.events if charged is None else charged
        if not charged:
            return dict.fromkeys(self.accountants, self.epsilon_of_nothing)
        spent = {
            name: self.epsilon(charged) if name == self.chosen else accountant.epsilon(charged, self.delta)
            for name, accountant in self.accountants.items()
        }
        return {name: finite_or_none(epsilon) for name, epsilon in spent.items()}

    def totals(self) -> dict[str, float | None]:
        """Return the same as `epsilons()`, several times faster."""
        if not self.events:
            return dict.fromkeys(self.accountants, self.epsilon_of_nothing)
        totals = {name: accountant.epsilon(self.events, self.delta) for name, accountant in self.accountants.items()}
        return {name: finite_or_none(epsilon) for name, epsilon in totals.items()}

    def limited(self, epsilon: float, delta: float | None = None, when_spent: str = "refuse") -> PrivacyPlan:
        """Return a copy of this plan with a budget; planned events beyond the budget are left out.

        delta: the delta of the budget; None for the plan's. when_spent: as in `Budget`. Raises SettingError if the
        accountant's epsilon is not a guarantee, or if an argument is invalid.
        """
        if self.accountant.approximation:
            raise SettingError(
                "budget",
                f"needs an accountant whose epsilon is a guarantee, got accountant={self.chosen}, an approximation",
            )
        delta = self.delta if delta is None else delta
        check_delta(delta)
        plan = replace(self, budget=Budget(epsilon, EpsilonCurve(self.accountant, self.events, delta), when_spent))
        return replace(plan, events=self.events[: plan.affordable()])

    def affordable(self, spent: Events = (), done: int = 0) -> int:
        """Return how many planned releases the budget allows in total; if there is no budget, count all of them.

        done: the number of planned releases that `spent` already contains; the result includes them. spent: all events
        in the ledger, including those of other runs.
        """
        if self.budget is None:
            return len(self.events)
        return done + self.budget.number_allowed(spent, self.events[done:])

    def calibrate_noise(
        self, events_of: Callable[[float], Events], target: float, least: float = 1.0, guess: object = None
    ) -> float:
        """Return the least noise multiplier z, to four digits, with epsilon at most `target`.

        events_of: returns the events of all releases for a given z. least: the smallest factor by which a round
        multiplies z; 1 if every round uses z itself. guess: a value of z that is tried first. Raises ValueError if no
        multiplier meets the target.
        """
        epsilon_of = self._cost(events_of)
        if calibrate.is_noise_multiplier(guess, epsilon_of, target, least):
            return guess  # type: ignore[return-value]
        return calibrate.noise_multiplier(epsilon_of, target, least)

    def calibrate_sampling(self, events_of: Callable[[float], Events], target: float) -> float:
        """Return the largest sampling probability, to four digits, with epsilon at most `target`.

        events_of: returns the events of all releases for a sampling probability. Raises ValueError if no probability
        meets the target.
        """
        return calibrate.sampling_probability(self._cost(events_of), target)

    def calibrate_rounds(self, events_of: Callable[[int], Events], target: float) -> int:
        """Return the largest number of rounds with epsilon at most `target`.

        events_of: returns the events of all releases for a number of rounds. Raises ValueError if the result would be 0
        or too large.
        """
        return calibrate.rounds(self._cost(events_of), target)

    def _cost(self, events_of: Callable[..., Events]) -> Callable[[float], float]:
        return lambda value: self.accountant.epsilon(events_of(value), self.delta)


def analysing(
    events: Iterable[dp_accounting.DpEvent], chosen: str | None = None, names: Iterable[str] | None = None
) -> dict[str, Accountant]:
    """Return, by name, the accountants that can analyse all of these events and share one neighbouring relation.

    names: the accountants to try; None for all of `ACCOUNTANTS`. chosen: the accountant whose relation the others must
    share; None for the first of `names` that can analyse the events. If `chosen` is given, the other accountants must
    guarantee their epsilon, so approximations are left out.

    Raises UnsupportedEvent if the chosen accountant cannot analyse an event.
    """
    names = list(ACCOUNTANTS if names is None else names)
    if chosen is not None:
        checks.one_of("accountant", chosen, names)
    able, kinds = {}, set(events)
    for name in names:
        accountant = accountant_named(name)
        try:
            for event in kinds:
                accountant.check(event)
        except UnsupportedEvent:
            if name == chosen:
                raise
            continue
        able[name] = accountant
    relations = {name: accountant.relation for name, accountant in able.items()}
    relation = next(iter(relations.values()), None) if chosen is None else relations[chosen]
    left_out = {name for name, one in able.items() if one.approximation and name != chosen and chosen is not None}
    return {name: one for name, one in able.items() if one.relation == relation and name not in left_out}
