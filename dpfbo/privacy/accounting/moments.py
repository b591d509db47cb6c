"""The moments accountant of the paper (Abadi et al. 2016), integer moments 1 to 32."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import ClassVar

import dp_accounting
import numpy as np
from scipy.special import gammaln, logsumexp

from dpfbo.formats.words import ZERO_OUT
from dpfbo.privacy.accounting import MANY_DIFFERENT, check_delta, kinds_of, sampled_gaussian
from dpfbo.privacy.accounting.poisson_divergences import poisson_divergences

_MOMENTS = np.arange(1, 33)


@dataclass(frozen=True)
class Moments:
    """`eps = min_lambda (sum_t alpha_t(lambda) + log(1/delta)) / lambda`, lambda = 1..32 (Abadi et al. 2016, Thm. 2).

    The paper prints it beside its curves. Guarantee: an upper bound of epsilon for Poisson-sampled Gaussian events.
    """

    relation: ClassVar[str] = ZERO_OUT
    approximation: ClassVar[bool] = False

    def check(self, event: dp_accounting.DpEvent) -> None:
        sampled_gaussian(event)

    def curve(self, events: Sequence[dp_accounting.DpEvent], delta: float) -> list[float]:
        check_delta(delta)
        kinds, total, epsilons = kinds_of(events), np.zeros(len(_MOMENTS)), []
        moments = _log_moments_of(frozenset(kinds))
        for kind in kinds:
            total = total + moments[kind]
            epsilons.append(float(np.min((total + math.log(1 / delta)) / _MOMENTS)))
        return epsilons

    def epsilon(self, events: Sequence[dp_accounting.DpEvent], delta: float) -> float:
        check_delta(delta)
        if not events:
            return 0.0
        times = Counter(kinds_of(events))
        moments = _log_moments_of(frozenset(times))
        total = sum(n * moments[kind] for kind, n in times.items())
        return float(np.min((total + math.log(1 / delta)) / _MOMENTS))


@lru_cache(maxsize=8)
def _log_moments_of(kinds: frozenset[tuple[float, float]]) -> dict[tuple[float, float], np.ndarray]:
    """`log_moments` of each kind (q, z) of event; those of more than 128 all at once.

    `alpha(lambda)` is lambda times the Rényi divergence of order lambda + 1.
    """
    several = sorted(kind for kind in kinds if kind[1] > 0)
    if len(several) <= MANY_DIFFERENT:
        return {kind: log_moments(*kind) for kind in kinds}
    q, z = np.array(several).T
    alphas = poisson_divergences(q, z, (_MOMENTS + 1).tolist()) * _MOMENTS
    return {kind: log_moments(*kind) for kind in kinds if kind[1] == 0} | dict(zip(several, alphas, strict=True))


@cache
def log_moments(q: float, z: float) -> np.ndarray:
    """`alpha(lambda)` of the sampled Gaussian for lambda = 1..32.

    With k ~ Bin(lambda + 1, q): `alpha(lambda) = log E[exp((k^2 - k) / (2 z^2))]` (Mironov, Talwar, Zhang 2019,
    Sec. 3.3).
    """
    if z == 0:
        return np.full(len(_MOMENTS), math.inf)
    alphas = []
    for order in _MOMENTS + 1:
        k = np.arange(order + 1) if q < 1 else np.array([order])
        log_choose = gammaln(order + 1) - gammaln(k + 1) - gammaln(order - k + 1)
        log_outside = (order - k) * math.log1p(-q) if q < 1 else 0.0
        alphas.append(logsumexp(log_choose + k * math.log(q) + log_outside + (k * k - k) / (2 * z * z)))
    return np.array(alphas)
