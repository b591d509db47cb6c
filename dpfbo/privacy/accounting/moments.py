"""The moments accountant of the paper (Abadi et al. 2016), integer moments 1 to 32."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np
from scipy.special import gammaln, logsumexp

from dpfbo.privacy.accounting import MANY_DIFFERENT
from dpfbo.privacy.accounting.additive import AdditiveAccountant
from dpfbo.privacy.accounting.poisson_divergences import poisson_divergences

_MOMENTS = np.arange(1, 33)


@dataclass(frozen=True)
class Moments(AdditiveAccountant):
    """`eps = min_lambda (sum_t alpha_t(lambda) + log(1/delta)) / lambda`, lambda = 1..32 (Abadi et al. 2016, Thm. 2).

    The paper prints it beside its curves. Guarantee: an upper bound of epsilon for Poisson-sampled Gaussian events.
    """

    def _costs(self, kinds: frozenset[tuple[float, float]]) -> Mapping[tuple[float, float], np.ndarray]:
        return _log_moments_of(kinds)

    def _epsilon_of(self, total: np.ndarray, delta: float) -> float:
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
    """`alpha(lambda) = log E[exp((k^2 - k) / (2 z^2))]`, k ~ Bin(lambda + 1, q) (Mironov, Talwar, Zhang 2019)."""
    if z == 0:
        return np.full(len(_MOMENTS), math.inf)
    alphas = []
    for order in _MOMENTS + 1:
        k = np.arange(order + 1) if q < 1 else np.array([order])
        log_choose = gammaln(order + 1) - gammaln(k + 1) - gammaln(order - k + 1)
        log_outside = (order - k) * math.log1p(-q) if q < 1 else 0.0
        alphas.append(logsumexp(log_choose + k * math.log(q) + log_outside + (k * k - k) / (2 * z * z)))
    return np.array(alphas)
