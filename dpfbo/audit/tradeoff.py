"""What charged events promise, as a trade-off curve: how small both error rates of a test may be at once.

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

_EPSILONS = 300  # of a curve
_DELTAS = np.logspace(-9, math.log10(0.5), 24)  # of an accountant that gives one epsilon for one delta
_INTERVAL = {True: 5e-3, False: 1e-3}  # of the discretised loss, rounded upwards (to second order) or downwards
_SMALLEST_MULTIPLIER = 0.05  # of a family; a round at this one costs hundreds of epsilon


@dataclass(frozen=True)
class Profile:
    """A set of promises (eps_i, delta_i), all of which hold of a mechanism that is what it claims to be."""

    epsilons: np.ndarray
    deltas: np.ndarray

    def tradeoff(self, fpr: np.ndarray) -> np.ndarray:
        """The curve f above at false-positive rates (any shape), as far as these promises go."""
        alpha = np.asarray(fpr, dtype=float)[..., None]
        left = 1 - self.deltas - self._grown * alpha
        right = np.exp(-self.epsilons) * (1 - self.deltas - alpha)
        return np.maximum(np.maximum(left, right).max(-1), 0.0)

    def broken(self, fpr: float, fnr: float) -> tuple[float, float] | None:
        """The promise that a test with error rates of at most these breaks most clearly; None if it breaks none."""
        gap = np.maximum(1 - self.deltas - self._grown * fpr - fnr, 1 - self.deltas - self._grown * fnr - fpr)
        worst = int(gap.argmax())
        return (float(self.epsilons[worst]), float(self.deltas[worst])) if gap[worst] > 0 else None

    @property
    def _grown(self) -> np.ndarray:
        """`e^eps`; beyond the largest number, that one."""
        return np.exp(np.minimum(self.epsilons, 700.0))


class Family(Protocol):
    """Mechanisms that differ from the claimed one in how much noise they have: every multiplier times `scale`."""

    @property
    def scales(self) -> tuple[float, float]:
        """The least and the largest scale that can be analysed."""

    def profile(self, scale: float) -> Profile:
        """What such a mechanism promises, rounded to less privacy."""

    def epsilon(self, scale: float, delta: float) -> float:
        """Its epsilon, rounded to more privacy: for a lower bound."""


@dataclass(frozen=True)
class GaussianFamily:
    """Composed Gaussian mechanisms without subsampling: `f(alpha) = Phi(Phi^-1(1 - alpha) - mu)`.

    mu: `sqrt(sum_t 1 / z_t^2)` as claimed; `mu / scale` of the others. Closed forms, exact.

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

    rounds: (q, z) of each event, and how often.
    """

    rounds: tuple[tuple[tuple[float, float], int], ...]

    @cached_property
    def scales(self) -> tuple[float, float]:
        smallest = min(z for (_, z), _ in self.rounds)
        return min(1.0, _SMALLEST_MULTIPLIER / smallest), 64.0

    def profile(self, scale: float) -> Profile:
        return _profile(self.rounds, scale)

    def epsilon(self, scale: float, delta: float) -> float:
        return float(_composed(self.rounds, scale, False).get_epsilon_for_delta(delta))


_Rounds = tuple[tuple[tuple[float, float], int], ...]


@lru_cache(maxsize=512)
def _profile(rounds: _Rounds, scale: float) -> Profile:
    loss = _composed(rounds, scale, True)
    top = max(loss.get_epsilon_for_delta(1e-9), 1e-3)
    epsilons = np.linspace(0, top if math.isfinite(top) else 100.0, _EPSILONS)
    return Profile(epsilons, np.asarray(loss.get_delta_for_epsilon(epsilons.tolist())))


def _composed(rounds: _Rounds, scale: float, pessimistic: bool) -> pld.PrivacyLossDistribution:
    """The loss of all rounds, with multipliers `scale` times what is claimed.

    On a grid that is coarser where noise is small, and finer where the loss itself is.
    """
    size = min(q / (scale * z) for (q, z), _ in rounds)
    smallest = scale * min(z for (_, z), _ in rounds)
    usual = _INTERVAL[pessimistic]
    interval = max(1e-6, min(usual, 0.05 * size), usual / (2 * smallest) ** 2 if smallest < 0.5 else 0.0)
    total = None
    for (q, z), times in rounds:
        one = pld.from_gaussian_mechanism(
            scale * z, sampling_prob=q, value_discretization_interval=interval, pessimistic_estimate=pessimistic,
            use_connect_dots=pessimistic, neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_SPECIAL,
        )  # fmt: skip
        several = one.self_compose(times)
        total = several if total is None else total.compose(several)
    return total


def family_of(events: Sequence[dp_accounting.DpEvent]) -> GaussianFamily | SampledGaussianFamily | None:
    """The family of the events; None where one has no trade-off curve that can be computed, as fixed-size subsets."""
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
    """What an accountant promises of the events, at several deltas."""
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
