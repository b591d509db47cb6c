"""The default accountant, by privacy-loss distributions (PLD); it is usually the tightest."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import ClassVar

import dp_accounting
import numpy as np
from dp_accounting.pld import pld_pmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr

from dpfbo.formats.words import ZERO_OUT
from dpfbo.privacy.accounting import check_delta, kinds_of, sampled_gaussian

_INTERVAL = 1e-3  # largest interval of the grid on which the loss is discretised, rounded up
_FINEST = 1e-6  # smallest interval of the grid
_MOST_POINTS = 1_000_000  # most grid points of a round's loss
_PRECISION = 1e-9  # of epsilon, which is rounded up
_LOST, _LOST_A_ROUND = 1e-14, 1e-16  # delta set aside for rounding errors of the FFT: once, and per round
_EACH, _STEPS = 200, 60  # a curve of more than _EACH rounds is solved at no more than _STEPS of them


@dataclass(frozen=True)
class Pld:
    """Composes privacy-loss distributions numerically by FFT (Koskela et al. 2020; Doroshenko et al. 2022).

    Guarantee: an upper bound of epsilon for Poisson-sampled Gaussian events (all rounding is pessimistic). To allow for
    rounding errors, 1e-14 plus 1e-16 per round is subtracted from delta; if little or nothing of delta remains, epsilon
    is loose or infinite. If there are more than 200 events, `curve` divides them into at most 60 blocks of consecutive
    events. For every event of a block, `curve` returns the epsilon after the last event of that block. This value is an
    upper bound for the earlier events of the block, because epsilon never decreases.
    """

    relation: ClassVar[str] = ZERO_OUT
    approximation: ClassVar[bool] = False

    def check(self, event: dp_accounting.DpEvent) -> None:
        sampled_gaussian(event)

    def curve(self, events: Sequence[dp_accounting.DpEvent], delta: float) -> list[float]:
        check_delta(delta)
        kinds = kinds_of(events)
        one, total, epsilons, step = _one_round_each(set(kinds)), None, [0.0], 1
        if len(kinds) > _EACH:
            step = math.ceil(len(kinds) / _STEPS)
        for first in range(0, len(kinds), step):
            several = kinds[first : first + step]
            if epsilons[-1] < math.inf and all(kind in one for kind in several):
                total = _composed(total, one, Counter(several))
                spent = _epsilon(total, delta, first + len(several), at_least=epsilons[-1])
            else:
                spent = math.inf
            epsilons += [spent] * len(several)
        return epsilons[1:]

    def epsilon(self, events: Sequence[dp_accounting.DpEvent], delta: float) -> float:
        check_delta(delta)
        kinds = kinds_of(events)
        return _epsilon_of_all(tuple(Counter(kinds).items()), delta) if kinds else 0.0


@lru_cache(maxsize=4096)
def _epsilon_of_all(times: tuple[tuple[tuple[float, float], int], ...], delta: float) -> float:
    one = _one_round_each(kind for kind, _ in times)
    if any(kind not in one for kind, _ in times):
        return math.inf
    return _epsilon(_composed(None, one, dict(times)), delta, sum(n for _, n in times))


def _composed(
    total: PrivacyLossDistribution | None,
    one: Mapping[tuple[float, float], PrivacyLossDistribution],
    kinds: Mapping[tuple[float, float], int],
) -> PrivacyLossDistribution:
    """Return the loss `total` composed with `kinds[q, z]` rounds of each kind (q, z)."""
    parts = [one[kind] if times == 1 else one[kind].self_compose(times) for kind, times in kinds.items()]
    parts = parts if total is None else [total, *parts]
    while len(parts) > 1:
        rest = parts[len(parts) // 2 * 2 :]
        parts = [first.compose(second) for first, second in zip(parts[::2], parts[1::2], strict=False)] + rest
    return parts[0]


class _SampledGaussian(GaussianPrivacyLoss):
    """dp-accounting's privacy loss of one round; computes delta for a whole grid of epsilons at once.

    `adjacency_type` says whether the loss is that of removing or of adding one agent's message. Delta is
    `delta(eps) = U(x) - e^eps L(x)`, where U and L are the distribution functions of the outputs for two neighbours,
    and x is the output whose privacy loss is eps. With `g(eps) = log((e^eps - (1 - q)) / q)`, or -inf if undefined,

        remove: `U = q N(-1, z^2) + (1 - q) N(0, z^2)`, `L = N(0, z^2)`, `x = -1/2 - z^2 g(eps)`
        add:    `U = N(0, z^2)`, `L = q N(1, z^2) + (1 - q) N(0, z^2)`, `x = 1/2 + z^2 g(-eps)`
    """

    def get_delta_for_epsilon(self, epsilon: np.ndarray) -> np.ndarray:
        q, z, add = self.sampling_prob, self.standard_deviation, self.adjacency_type == AdjacencyType.ADD
        with np.errstate(divide="ignore"):
            log_rest, log_q = np.log1p(-q), np.log(q)
            signed = -epsilon if add else epsilon
            g = signed - log_q + np.log(np.maximum(-np.expm1(log_rest - signed), 0.0))
            if add:
                x = 0.5 + z * z * g
                log_lower = np.logaddexp(log_rest + log_ndtr(x / z), log_q + log_ndtr((x - 1) / z))
                upper = ndtr(x / z)
            else:
                x = -0.5 - z * z * g
                upper, log_lower = (1 - q) * ndtr(x / z) + q * ndtr((x + 1) / z), log_ndtr(x / z)
        return np.clip(upper - np.exp(epsilon + log_lower), 0.0, 1.0)

    @cached_property
    def span(self) -> tuple[float, float]:
        bounds = self.connect_dots_bounds()
        return bounds.epsilon_lower, bounds.epsilon_upper

    def discretised(self, interval: float) -> pld_pmf.PLDPmf:
        first, last = math.floor(self.span[0] / interval), math.ceil(self.span[1] / interval)
        deltas = self.get_delta_for_epsilon(np.arange(first, last + 1) * interval)
        return pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(interval, first, last, deltas)


def _one_round_each(kinds: Iterable[tuple[float, float]]) -> dict[tuple[float, float], PrivacyLossDistribution]:
    """Return the privacy loss of one round of each kind (q, z), all on one grid; kinds without noise are left out."""
    losses = {(q, z): _losses(q, z) for q, z in kinds if z > 0}
    interval = _interval([loss for both in losses.values() for loss in both])
    return {
        kind: PrivacyLossDistribution(*(loss.discretised(interval) for loss in both)) for kind, both in losses.items()
    }


def _losses(q: float, z: float) -> list[_SampledGaussian]:
    directions = (AdjacencyType.REMOVE, AdjacencyType.ADD) if q < 1 else (AdjacencyType.REMOVE,)
    return [_SampledGaussian(z, sampling_prob=q, adjacency_type=direction) for direction in directions]


def _interval(losses: Sequence[_SampledGaussian]) -> float:
    """Return the spacing of the grid: small if q / z is small, but larger if the losses span a wide range."""
    fine = min([_INTERVAL, *(0.05 * loss.sampling_prob / loss.standard_deviation for loss in losses)])
    coarse = [_INTERVAL / (2 * loss.standard_deviation) ** 2 for loss in losses if loss.standard_deviation < 0.5]
    return max([fine, _FINEST, *coarse, *((loss.span[1] - loss.span[0]) / _MOST_POINTS for loss in losses)])


def _epsilon(total: PrivacyLossDistribution, delta: float, rounds: int, at_least: float = 0.0) -> float:
    """Return the epsilon of `total` at delta, or `at_least` if that is larger; inf if delta is too small."""
    lost = _LOST + _LOST_A_ROUND * rounds

    def excess(epsilon: float) -> float:
        return float(total.get_delta_for_epsilon(epsilon)) + lost - delta

    if excess(math.inf) > 0:
        return math.inf
    if excess(at_least) <= 0:
        return at_least
    low, high = at_least, at_least + 1.0
    while excess(high) > 0:
        low, high = high, 2 * high
    return float(brentq(excess, low, high, xtol=_PRECISION)) + _PRECISION
