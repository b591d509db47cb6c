"""The exact epsilon of Gaussian releases without sampling, and the noise for a target epsilon."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

from dpfbo import checks
from dpfbo.checks import SettingError
from dpfbo.privacy.accounting import UnsupportedEvent, accounted_multiplier, check_delta, sampled_gaussian

if TYPE_CHECKING:
    import dp_accounting

_LARGEST_EPSILON = 1e6  # largest target: beyond it the search for z fails


@dataclass(frozen=True)
class AnalyticGaussian:
    """Computes the exact epsilon of Gaussian releases with noise multipliers z (Balle, Wang 2018, Theorem 8).

        delta(eps) = Phi(mu / 2 - eps / mu) - e^eps Phi(-mu / 2 - eps / mu),    mu^2 = sum 1 / z^2

    relation: the neighbouring relation to which epsilon and the multipliers refer.
    """

    relation: str
    approximation: ClassVar[bool] = False

    def check(self, event: dp_accounting.DpEvent) -> None:
        q, _ = sampled_gaussian(event)
        if q != 1:
            raise UnsupportedEvent(f"analytic_gaussian cannot analyse releases that are sampled with probability {q!r}")

    def curve(self, events: Sequence[dp_accounting.DpEvent], delta: float) -> list[float]:
        return [self.epsilon(events[: k + 1], delta) for k in range(len(events))]

    def epsilon(self, events: Sequence[dp_accounting.DpEvent], delta: float) -> float:
        check_delta(delta)
        for event in events:
            self.check(event)
        multipliers = [sampled_gaussian(event)[1] for event in events]
        if not multipliers:
            return 0.0
        return math.inf if 0.0 in multipliers else _epsilon(sum(z**-2 for z in multipliers) ** -0.5, delta)


@lru_cache(maxsize=1024)
def noise_multiplier(epsilon: float, delta: float) -> float:
    """Return the least noise multiplier that makes a release (epsilon, delta)-private, rounded up to eight digits.

    Raises ValueError if no multiplier is found.
    """
    import dp_accounting  # here: it imports SciPy

    checks.positive("epsilon", epsilon)
    check_delta(delta)
    if epsilon > _LARGEST_EPSILON:
        raise SettingError("epsilon", f"must be at most {_LARGEST_EPSILON:g}, got {epsilon!r}")
    z = float(dp_accounting.get_sigma_gaussian(epsilon, delta))
    step = 10.0 ** (math.floor(math.log10(z)) - 7)
    for ulps in range(1, 1000):
        rounded = float(f"{z + ulps * step:.8g}")
        if accounted_multiplier(rounded) == rounded and _epsilon(rounded, delta) <= epsilon:
            return rounded
    raise SettingError("epsilon", f"{epsilon!r} with delta {delta!r} needs more noise than can be accounted for")


def _epsilon(z: float, delta: float) -> float:
    import dp_accounting

    return float(dp_accounting.get_epsilon_gaussian(z, delta))
