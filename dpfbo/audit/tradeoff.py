"""The trade-off curve that charged events promise: the least false-negative rate at every false-positive rate.

`f(alpha)`: the least false-negative rate of any test of "the canary sent nothing" against "it sent its message" whose
false-positive rate is alpha (Dong, Roth, Su 2022). A mechanism is (eps, delta)-private iff, for every alpha,
`f(alpha) >= max(0, 1 - delta - e^eps alpha, e^-eps (1 - delta - alpha))`.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Protocol

import dp_accounting
import numpy as np
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr, ndtri

from dpfbo import checks
from dpfbo.privacy.accounting import Accountant, UnsupportedEvent, sampled_gaussian

_EPSILONS = 300  # points of a curve
_DELTAS = np.logspace(-9, math.log10(0.5), 24)  # points of a curve where an accountant gives one epsilon for one delta
_INTERVAL = {True: 5e-3, False: 1e-3}  # grid of the loss: rounded upwards (exact to second order), or downwards
_SMALLEST_MULTIPLIER = 0.05  # noise multiplier; a round at this one costs hundreds of epsilon

_Rounds = tuple[tuple[tuple[float, float], int], ...]


@dataclass(frozen=True)
class Profile:
    """Pairs (eps_i, delta_i); a mechanism that keeps its claim is private at all of them."""

    epsilons: np.ndarray
    deltas: np.ndarray

    def tradeoff(self, fpr: np.ndarray) -> np.ndarray:
        """The lower bound of f at false-positive rates (any shape) that these pairs give."""
        alpha = np.asarray(fpr, dtype=float)[..., None]
        left = 1 - self.deltas - self._grown * alpha
        right = np.exp(-self.epsilons) * (1 - self.deltas - alpha)
        return np.maximum(np.maximum(left, right).max(-1), 0.0)

    def broken(self, fpr: float, fnr: float) -> tuple[float, float] | None:
        """The pair that a test with error rates of at most these contradicts most; None if it contradicts none."""
        gap = np.maximum(1 - self.deltas - self._grown * fpr - fnr, 1 - self.deltas - self._grown * fnr - fpr)
        worst = int(gap.argmax())
        return (float(self.epsilons[worst]), float(self.deltas[worst])) if gap[worst] > 0 else None

    @property
    def _grown(self) -> np.ndarray:
        """`e^eps`, with eps cut at 700 to stay finite."""
        return np.exp(np.minimum(self.epsilons, 700.0))


class Family(Protocol):
    """The mechanisms with every noise multiplier of the claimed one times `scale`."""

    @property
    def scales(self) -> tuple[float, float]:
        """The least and the largest scale that can be analysed."""

    def profile(self, scale: float) -> Profile:
        """The promises of the mechanism at this scale, rounded to less privacy."""

    def epsilon(self, scale: float, delta: float) -> float:
        """Epsilon at this scale, rounded to more privacy, for a lower bound."""


@dataclass(frozen=True)
class GaussianFamily:
    """Composed Gaussian mechanisms without subsampling: `f(alpha) = Phi(Phi^-1(1 - alpha) - mu)`.

    mu: `sqrt(sum_t 1 / z_t^2)` as claimed, `mu / scale` at another scale. All forms are closed and exact.

    Raises ValueError for a mu that is not above 0.
    """

    mu: float
    scales = (1e-3, 1e3)

    def __post_init__(self) -> None:
        checks.positive("mu", self.mu)

    def profile(self, scale: float) -> Profile:
        mu = self.mu / scale
        epsilons = np.linspace(0, mu * mu / 2 + 8 * mu, _EPSILONS)
        return Profile(epsilons, gaussian_delta(mu, epsilons))

    def epsilon(self, scale: float, delta: float) -> float:
        return gaussian_epsilon(self.mu / scale, delta)


@dataclass(frozen=True)
class SampledGaussianFamily:
    """Composed Poisson-sampled Gaussian mechanisms, by dp-accounting's privacy-loss distributions.

    rounds: ((q, z), number of rounds) of each kind of event.
    """

    rounds: _Rounds

    @cached_property
    def scales(self) -> tuple[float, float]:
        smallest = min(z for (_, z), _ in self.rounds)
        return min(1.0, _SMALLEST_MULTIPLIER / smallest), 64.0

    def profile(self, scale: float) -> Profile:
        return _profile(self.rounds, scale)

    def epsilon(self, scale: float, delta: float) -> float:
        return float(_composed(self.rounds, scale, False).get_epsilon_for_delta(delta))


@lru_cache(maxsize=512)
def _profile(rounds: _Rounds, scale: float) -> Profile:
    loss = _composed(rounds, scale, True)
    top = max(loss.get_epsilon_for_delta(1e-9), 1e-3)
    epsilons = np.linspace(0, top if math.isfinite(top) else 100.0, _EPSILONS)
    return Profile(epsilons, np.asarray(loss.get_delta_for_epsilon(epsilons.tolist())))


def _composed(rounds: _Rounds, scale: float, pessimistic: bool) -> pld.PrivacyLossDistribution:
    """The privacy loss of all rounds, with multipliers `scale` times the claimed ones.

    Its grid is coarser where the noise is small, and finer where the loss is small.
    """
    size = min(q / (scale * z) for (q, z), _ in rounds)
    smallest = scale * min(z for (_, z), _ in rounds)
    usual = _INTERVAL[pessimistic]
    interval = max(1e-6, min(usual, 0.05 * size), usual / (2 * smallest) ** 2 if smallest < 0.5 else 0.0)
    total = None
    for (q, z), times in rounds:
        single = pld.from_gaussian_mechanism(
            scale * z, sampling_prob=q, value_discretization_interval=interval, pessimistic_estimate=pessimistic,
            use_connect_dots=pessimistic, neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_SPECIAL,
        )  # fmt: skip
        repeated = single.self_compose(times)
        total = repeated if total is None else total.compose(repeated)
    return total


def family_of(events: Sequence[dp_accounting.DpEvent]) -> GaussianFamily | SampledGaussianFamily | None:
    """The family of the events; None if the curve of one cannot be computed, such as that of fixed-size subsets."""
    try:
        rounds = Counter(sampled_gaussian(event) for event in events)
    except UnsupportedEvent:
        return None
    if not rounds or any(z == 0 for _, z in rounds):
        return None
    if all(q == 1 for q, _ in rounds):
        return GaussianFamily(math.sqrt(sum(times / z**2 for (_, z), times in rounds.items())))
    return SampledGaussianFamily(tuple(sorted(rounds.items())))


def promised(accountant: Accountant, events: Sequence[dp_accounting.DpEvent]) -> Profile:
    """Epsilon of the events by an accountant at 24 deltas."""
    epsilons = [accountant.epsilon(events, float(delta)) for delta in _DELTAS]
    finite = np.isfinite(epsilons)
    return Profile(np.array(epsilons)[finite], _DELTAS[finite])


def gaussian_delta(mu: float, epsilon: np.ndarray) -> np.ndarray:
    """`delta(eps) = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu)` (Balle, Wang 2018, Thm. 8; mu = 1/z)."""
    return ndtr(mu / 2 - epsilon / mu) - np.exp(epsilon + log_ndtr(-mu / 2 - epsilon / mu))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The inverse of `gaussian_delta`, at least 0."""
    if gaussian_delta(mu, np.array(0.0)) <= delta:
        return 0.0
    top = mu * mu / 2 - mu * float(ndtri(delta)) + 1.0  # Phi(mu/2 - eps/mu) alone is below delta there
    return float(brentq(lambda e: float(gaussian_delta(mu, np.array(e))) - delta, 0.0, top, xtol=1e-10))
