"""The base class of accountants that add up costs over rounds."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, ClassVar

import dp_accounting
import numpy as np

from dpfbo.formats.words import ZERO_OUT
from dpfbo.privacy.accounting import check_delta, kinds_of, sampled_gaussian


class AdditiveAccountant(ABC):
    """Adds up one cost vector per round: divergences or moments at several orders.

    Subclasses define the cost of one kind of round and the epsilon that a sum implies.
    """

    relation: ClassVar[str] = ZERO_OUT
    approximation: ClassVar[bool] = False

    def check(self, event: dp_accounting.DpEvent) -> None:
        sampled_gaussian(event)

    def curve(self, events: Sequence[dp_accounting.DpEvent], delta: float) -> list[float]:
        check_delta(delta)
        total, epsilons = np.zeros(()), []
        for kind in self._kinds(events):
            total = total + _cost(self, kind)
            epsilons.append(self._epsilon_of(total, delta))
        return epsilons

    def epsilon(self, events: Sequence[dp_accounting.DpEvent], delta: float) -> float:
        check_delta(delta)
        if not events:
            return 0.0
        times = Counter(self._kinds(events))
        return self._epsilon_of(sum((n * _cost(self, kind) for kind, n in times.items()), np.zeros(())), delta)

    def _kinds(self, events: Sequence[dp_accounting.DpEvent]) -> list[tuple[Any, ...]]:
        """Return, for each event, the parameters on which its cost depends."""
        return list(kinds_of(events))

    @abstractmethod
    def _cost(self, *kind: Any) -> np.ndarray:
        """Return the cost vector of one event. kind: the parameters of the event that determine the cost."""

    @abstractmethod
    def _epsilon_of(self, total: np.ndarray, delta: float) -> float:
        """Return the epsilon that a sum of costs implies, possibly inf."""


@lru_cache(maxsize=16384)
def _cost(accountant: AdditiveAccountant, kind: tuple[Any, ...]) -> np.ndarray:
    return accountant._cost(*kind)
