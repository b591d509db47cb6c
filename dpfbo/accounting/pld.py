"""Privacy-loss-distribution accountant, the default: usually the tightest of the three."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import dp_accounting
from dp_accounting.pld import privacy_loss_distribution
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

from dpfbo.accounting import ZERO_OUT, check_delta, sampled_gaussian

_INTERVAL = 1e-3  # of the discretised loss, finer where the loss itself is small; rounding is upwards
_FINEST = 1e-6


@dataclass(frozen=True)
class Pld:
    """Numerical composition of privacy-loss distributions by FFT (Koskela et al. 2020; Doroshenko et al. 2022).

    Guarantee: an upper bound of epsilon for Poisson-sampled Gaussian events (all rounding is pessimistic).
    """

    relation: ClassVar[str] = ZERO_OUT
    approximation: ClassVar[bool] = False

    def check(self, event: dp_accounting.DpEvent) -> None:
        sampled_gaussian(event)

    def curve(self, events: Sequence[dp_accounting.DpEvent], delta: float) -> list[float]:
        check_delta(delta)
        one, total, epsilons = _one_round_each(events), None, []
        for event in events:
            if event not in one or math.inf in epsilons:
                epsilons.append(math.inf)
                continue
            total = one[event] if total is None else total.compose(one[event])
            epsilons.append(float(total.get_epsilon_for_delta(delta)))
        return epsilons

    def epsilon(self, events: Sequence[dp_accounting.DpEvent], delta: float) -> float:
        check_delta(delta)
        one, total = _one_round_each(events), None
        if any(event not in one for event in events):
            return math.inf
        for event, times in Counter(events).items():
            several = one[event].self_compose(times)
            total = several if total is None else total.compose(several)
        return 0.0 if total is None else float(total.get_epsilon_for_delta(delta))


def _one_round_each(events: Sequence[dp_accounting.DpEvent]) -> dict[dp_accounting.DpEvent, PrivacyLossDistribution]:
    """The loss of each kind of event that has noise, all on one grid."""
    settings = {event: sampled_gaussian(event) for event in events}
    finite = {event: (q, z) for event, (q, z) in settings.items() if z > 0}
    finest = max(
        _FINEST, min([_INTERVAL] + [0.05 * q / z for q, z in finite.values()])
    )  # q / z: size of a round's loss
    interval = max([finest] + [_INTERVAL / (2 * z) ** 2 for _, z in finite.values() if z < 0.5])
    return {event: _one_round(q, z, interval) for event, (q, z) in finite.items()}


def _one_round(q: float, z: float, interval: float) -> PrivacyLossDistribution:
    return privacy_loss_distribution.from_gaussian_mechanism(
        z, sampling_prob=q, value_discretization_interval=interval,
        neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_SPECIAL,
    )  # fmt: skip
