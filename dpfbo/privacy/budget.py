"""What all releases of a ledger together may cost, and the epsilon curve that it is checked against."""

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
    """Kept for the next run in this process with the same events: another seed, most often."""
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
        """Epsilon of the charged events: looked up where they are the planned ones, computed where not."""
        if not charged:
            return 0.0
        k = len(charged)
        if list(charged) != self._events[:k]:
            self._events = [*charged, *self._planned[self._begun(charged) :]]  # serves for the rest of the run
            self._curve = _curve(self._accountant, tuple(self._events), self._delta)  # type: ignore[arg-type]
        return self._curve[k - 1]

    def _begun(self, charged: Sequence[dp_accounting.DpEvent]) -> int:
        """How many of the planned events the charged ones end with, which are those of earlier runs and of this one."""
        lengths = range(1, min(len(charged), len(self._planned)) + 1)
        return next((n for n in lengths if list(charged[-n:]) == self._planned[:n]), 0)


class BudgetSpent(RuntimeError):
    """One more broadcast would cost more than the budget; nothing was released."""


@dataclass(frozen=True)
class Budget:
    """What all releases together may cost.

    epsilon: the limit. spent: epsilon of the charges, at the budget's delta. when_spent: `refuse`, the round that would
    go over it raises BudgetSpent; `stop`, nothing is released from it on, and the agents go on alone.

    Raises ValueError for an epsilon that is not above 0 or another name.
    """

    epsilon: float
    spent: EpsilonCurve
    when_spent: str = "refuse"

    def __post_init__(self) -> None:
        checks.positive("epsilon", self.epsilon)
        checks.one_of("when_spent", self.when_spent, ("refuse", "stop"))

    def allows(self, events: Sequence[dp_accounting.DpEvent]) -> bool:
        """Whether it pays for all of these."""
        return self.spent.after(events) <= self.epsilon
