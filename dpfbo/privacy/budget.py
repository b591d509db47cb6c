"""The budget for the joint epsilon of all releases, and the curve of epsilon over releases."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

from dpfbo import checks
from dpfbo.privacy.accounting import Accountant

if TYPE_CHECKING:
    import dp_accounting

    Events = Sequence[dp_accounting.DpEvent]


@lru_cache(maxsize=32)
def _curve(accountant: Accountant, events: tuple[dp_accounting.DpEvent, ...], delta: float) -> list[float]:
    return accountant.curve(events, delta)


class EpsilonCurve:
    """Computes the joint epsilon after each charge of a run; fast as long as the charges follow the plan.

    Args:
        accountant: The accountant that computes epsilon.
        planned: The events that the run plans to charge, in order.
        delta: The delta of every epsilon.

    Example:
        >>> import dpfbo
        >>> from dpfbo.privacy.accounting.events import round_event
        >>> planned = [round_event(q=0.1, z=1.0)] * 10
        >>> curve = dpfbo.privacy.EpsilonCurve(dpfbo.accountant_named("pld"), planned, delta=1e-5)
        >>> [round(curve.after(planned[:k]), 2) for k in (0, 1, 10)]
        [0.0, 1.68, 2.85]
    """

    def __init__(self, accountant: Accountant, planned: Events, delta: float) -> None:
        self._accountant, self._delta = accountant, delta
        self._planned, self._events = list(planned), list(planned)

    def prepare(self) -> None:
        """Compute the planned curve now rather than at the first charge."""
        self._curve  # noqa: B018

    @cached_property
    def _curve(self) -> list[float]:
        return _curve(self._accountant, tuple(self._events), self._delta)  # type: ignore[arg-type]

    def after(self, charged: Events, then: Events = ()) -> float:
        """Return the joint epsilon of all events in `charged` and `then` together."""
        both = [*charged, *then]
        if not both:
            return 0.0
        if self._events[: len(both)] != both:
            events = [*both, *self._planned[self._n_charged(both) :]]  # a curve for the rest of the run, too
            # if this raises, nothing has changed
            curve = _curve(self._accountant, tuple(events), self._delta)  # type: ignore[arg-type]
            self._events, self._curve = events, curve
        return self._curve[len(both) - 1]

    def _n_charged(self, charged: Events) -> int:
        """Return the least n >= 1 for which the last n charges equal the first n planned events; 0 if there is none."""
        lengths = range(1, min(len(charged), len(self._planned)) + 1)
        return next((n for n in lengths if list(charged[-n:]) == self._planned[:n]), 0)


class BudgetSpent(RuntimeError):
    """The next broadcast would exceed the budget; it was not released."""


@dataclass(frozen=True)
class Budget:
    """Limits the joint epsilon of all releases in a ledger.

    Args:
        epsilon: The limit.
        spent: The curve that gives epsilon after each charge, at the budget's delta.
        when_spent: `refuse` raises BudgetSpent in the first round that would exceed the limit; `stop` releases nothing
            from that round on, and agents continue without broadcasts.

    Raises:
        SettingError: Epsilon is not positive, or `when_spent` is unknown.

    Example:
        >>> import dpfbo
        >>> from dpfbo.privacy.accounting.events import round_event
        >>> planned = [round_event(q=0.1, z=1.0)] * 10
        >>> budget = dpfbo.Budget(2.0, dpfbo.privacy.EpsilonCurve(dpfbo.accountant_named("pld"), planned, delta=1e-5))
        >>> budget.allows(planned[:2]), budget.allows(planned)
        (True, False)
        >>> budget.number_allowed([], planned)
        2
    """

    epsilon: float
    spent: EpsilonCurve
    when_spent: str = "refuse"

    def __post_init__(self) -> None:
        checks.positive("epsilon", self.epsilon)
        checks.one_of("when_spent", self.when_spent, ("refuse", "stop"))

    def allows(self, events: Events, then: Events = ()) -> bool:
        """Return True if the epsilon of `events` followed by `then` is within the budget."""
        return self.spent.after(events, then) <= self.epsilon

    def number_allowed(self, events: Events, then: Events) -> int:
        """Return how many of the next events (`then`, in order) the budget still allows once `events` are charged."""
        numbers = range(1, len(then) + 1)
        return bisect_left(numbers, True, key=lambda n: not self.allows(events, then[:n]))
