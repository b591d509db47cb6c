"""The budget of all releases of a ledger together, and the epsilon curve that it is checked against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

from dpfbo import checks
from dpfbo.privacy.accounting import Accountant

if TYPE_CHECKING:
    import dp_accounting


@lru_cache(maxsize=32)
def _curve(accountant: Accountant, events: tuple[dp_accounting.DpEvent, ...], delta: float) -> list[float]:
    """Epsilon after each event, cached for the next run in this process with the same events (another seed)."""
    return accountant.curve(events, delta)


class EpsilonCurve:
    """Epsilon after k charges, for a run whose events are known beforehand; extended when more are charged."""

    def __init__(self, accountant: Accountant, planned: Sequence[dp_accounting.DpEvent], delta: float) -> None:
        self._accountant, self._delta = accountant, delta
        self._planned, self._events = list(planned), list(planned)

    def prepare(self) -> None:
        """Compute the planned curve now rather than at the first charge."""
        self._curve  # noqa: B018

    @cached_property
    def _curve(self) -> list[float]:
        return _curve(self._accountant, tuple(self._events), self._delta)  # type: ignore[arg-type]

    def after(self, charged: Sequence[dp_accounting.DpEvent]) -> float:
        """Epsilon of the charged events: looked up if they are the first planned ones, else computed."""
        if not charged:
            return 0.0
        k = len(charged)
        if list(charged) != self._events[:k]:
            self._events = [*charged, *self._planned[self._n_charged(charged) :]]  # valid for the rest of the run
            self._curve = _curve(self._accountant, tuple(self._events), self._delta)  # type: ignore[arg-type]
        return self._curve[k - 1]

    def _n_charged(self, charged: Sequence[dp_accounting.DpEvent]) -> int:
        """The number of planned events at the end of the charged ones, after those of earlier runs."""
        lengths = range(1, min(len(charged), len(self._planned)) + 1)
        return next((n for n in lengths if list(charged[-n:]) == self._planned[:n]), 0)


class BudgetSpent(RuntimeError):
    """One more broadcast would cost more than the budget; nothing was released."""


@dataclass(frozen=True)
class Budget:
    """The limit of epsilon for all releases together.

    epsilon: the limit. spent: epsilon of the charges, at the budget's delta. when_spent: `refuse` raises BudgetSpent in
    the first round that would exceed the limit; `stop` releases nothing from it on, and agents query alone.

    Raises ValueError for an epsilon that is not above 0, or another `when_spent`.
    """

    epsilon: float
    spent: EpsilonCurve
    when_spent: str = "refuse"

    def __post_init__(self) -> None:
        checks.positive("epsilon", self.epsilon)
        checks.one_of("when_spent", self.when_spent, ("refuse", "stop"))

    def allows(self, events: Sequence[dp_accounting.DpEvent]) -> bool:
        """True if the budget pays for all of these events."""
        return self.spent.after(events) <= self.epsilon
