"""Gaussian differential privacy by the central limit theorem: a fast approximation, not a guarantee."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import dp_accounting
import numpy as np

from dpfbo.formats.words import ZERO_OUT
from dpfbo.privacy.accounting import check_delta, kinds_of, sampled_gaussian

_LARGEST_LOG_MU2 = 200.0  # log mu^2, beyond which epsilon, about mu^2 / 2, counts as infinite


@dataclass(frozen=True)
class Gdp:
    """Approximates all rounds by one Gaussian mechanism of multiplier 1/mu (Bu et al. 2020, after Dong et al. 2019).

        mu^2 = sum_t q_t^2 (exp(1/z_t^2) - 1),    delta = Phi(-eps/mu + mu/2) - e^eps Phi(-eps/mu - mu/2)

    The equations are the limit of many rounds T at fixed q sqrt(T). Epsilon is often below the true one: no guarantee.
    """

    relation: ClassVar[str] = ZERO_OUT
    approximation: ClassVar[bool] = True

    def check(self, event: dp_accounting.DpEvent) -> None:
        sampled_gaussian(event)

    def curve(self, events: Sequence[dp_accounting.DpEvent], delta: float) -> list[float]:
        check_delta(delta)
        terms = np.array([_log_mu2(*kind) for kind in kinds_of(events)])
        return [_epsilon(total, delta) for total in np.logaddexp.accumulate(terms).tolist()]

    def epsilon(self, events: Sequence[dp_accounting.DpEvent], delta: float) -> float:
        check_delta(delta)
        terms = [math.log(times) + _log_mu2(*kind) for kind, times in Counter(kinds_of(events)).items()]
        return _epsilon(float(np.logaddexp.reduce(terms)), delta)  # without terms, reduce returns -inf


def _log_mu2(q: float, z: float) -> float:
    """Return `log(q^2 (exp(1/z^2) - 1))` for one round; inf without noise."""
    if z == 0:
        return math.inf
    return 2 * math.log(q) + z**-2 + math.log(-math.expm1(-(z**-2)))


def _epsilon(log_mu2: float, delta: float) -> float:
    if log_mu2 > _LARGEST_LOG_MU2:
        return math.inf
    if log_mu2 < -_LARGEST_LOG_MU2:
        return 0.0
    with np.errstate(divide="ignore"):  # logarithms of tails that underflow to 0
        return float(dp_accounting.get_epsilon_gaussian(math.exp(-log_mu2 / 2), delta))
