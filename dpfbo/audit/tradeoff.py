"""The trade-off curve of a ledger's events: the least false-negative rate at each false-positive rate.

`f(alpha)` is the least false-negative rate among all tests of "the agent sent nothing" against "the agent sent its
message" with false-positive rate alpha (Dong, Roth, Su 2022). A mechanism is (eps, delta)-private iff, for every alpha,
`f(alpha) >= max(0, 1 - delta - e^eps alpha, e^-eps (1 - delta - alpha))`.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import dp_accounting
import numpy as np
from dp_accounting import NeighboringRelation
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy.special import log_ndtr, ndtr

from dpfbo.privacy.accounting import Accountant, UnsupportedEvent, sampled_gaussian

_EPSILONS = 300  # points of a profile
_DELTAS = np.logspace(-9, math.log10(0.5), 24)  # points of a profile if only an accountant's epsilon is available
_INTERVAL = 5e-3  # grid step of the privacy loss, which is rounded upwards (exact to second order)

_ZERO_OUT = NeighboringRelation.REPLACE_SPECIAL

Rounds = tuple[tuple[tuple[float, float], int], ...]


@dataclass(frozen=True)
class Profile:
    """Pairs (eps_i, delta_i) of a claim; if the claim holds, the mechanism is (eps_i, delta_i)-private for every i."""

    epsilons: np.ndarray
    deltas: np.ndarray

    def tradeoff(self, fpr: np.ndarray) -> np.ndarray:
        """Return the least false-negative rate that all (epsilon, delta) together allow, for each `fpr` (any shape)."""
        alpha = np.asarray(fpr, dtype=float)[..., None]
        left = 1 - self.deltas - self._grown * alpha
        right = np.exp(-self.epsilons) * (1 - self.deltas - alpha)
        return np.maximum(np.maximum(left, right).max(-1), 0.0)

    def broken(self, fpr: float, fnr: float) -> tuple[float, float] | None:
        """Return the pair (eps_i, delta_i) that a test disproves by the largest margin; None if no pair is disproved.

        The test's false-positive rate is at most `fpr`, and its false-negative rate is at most `fnr`.
        """
        gap = 1 - self.deltas - np.minimum(self._grown * fpr + fnr, self._grown * fnr + fpr)
        worst = int(gap.argmax())
        return (float(self.epsilons[worst]), float(self.deltas[worst])) if gap[worst] > 0 else None

    @property
    def _grown(self) -> np.ndarray:
        return np.exp(np.minimum(self.epsilons, 700.0))


def promised(accountant: Accountant, events: Sequence[dp_accounting.DpEvent]) -> Profile:
    """Return the (eps, delta) pairs that the events of a ledger promise.

    If every event is a Poisson-sampled Gaussian with noise, a delta is computed for each epsilon of a grid: the exact
    delta if all sampling probabilities are 1, an upper bound if not. If any event is of another kind or without noise,
    the accountant computes an epsilon for each of 24 deltas.
    """
    try:
        rounds = Counter(sampled_gaussian(event) for event in events)
    except UnsupportedEvent:
        rounds = Counter()
    if not rounds or any(z == 0 for _, z in rounds):
        epsilons = np.array([accountant.epsilon(events, float(delta)) for delta in _DELTAS])
        return Profile(epsilons[np.isfinite(epsilons)], _DELTAS[np.isfinite(epsilons)])
    if all(q == 1 for q, _ in rounds):
        mu = math.sqrt(sum(times / z**2 for (_, z), times in rounds.items()))
        epsilons = np.linspace(0, mu * mu / 2 + 8 * mu, _EPSILONS)
        return Profile(epsilons, gaussian_delta(mu, epsilons))
    return _sampled(tuple(sorted(rounds.items())))


@lru_cache(maxsize=512)
def _sampled(rounds: Rounds) -> Profile:
    size, smallest = min(q / z for (q, z), _ in rounds), min(z for (_, z), _ in rounds)
    coarse = _INTERVAL / (2 * smallest) ** 2 if smallest < 0.5 else 0.0  # large losses need a coarser grid
    loss = composed(rounds, max(1e-6, min(_INTERVAL, 0.05 * size), coarse), pessimistic=True)
    top = max(loss.get_epsilon_for_delta(1e-9), 1e-3)
    epsilons = np.linspace(0, top if math.isfinite(top) else 100.0, _EPSILONS)
    return Profile(epsilons, np.asarray(loss.get_delta_for_epsilon(epsilons.tolist())))


def composed(
    rounds: Rounds, interval: float, pessimistic: bool, relation: NeighboringRelation = _ZERO_OUT
) -> pld.PrivacyLossDistribution:
    """Compose the privacy losses of rounds on a grid, rounded towards less privacy (pessimistic) or towards more.

    rounds: `((q, z), count)` for `count` rounds with sampling probability q and noise multiplier z.
    """
    total = None
    for (q, z), times in rounds:
        single = pld.from_gaussian_mechanism(
            z, sampling_prob=q, value_discretization_interval=interval, pessimistic_estimate=pessimistic,
            use_connect_dots=pessimistic, neighboring_relation=relation,
        )  # fmt: skip
        repeated = single.self_compose(times)
        total = repeated if total is None else total.compose(repeated)
    return total


def gaussian_delta(mu: float, epsilon: np.ndarray) -> np.ndarray:
    """Return the delta of a Gaussian mechanism at each epsilon (Balle, Wang 2018, Thm. 8).

    The equation is `delta = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu)`, where 1 / mu is the noise multiplier.
    """
    return ndtr(mu / 2 - epsilon / mu) - np.exp(epsilon + log_ndtr(-mu / 2 - epsilon / mu))
