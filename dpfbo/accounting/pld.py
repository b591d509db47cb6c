"""Privacy-loss-distribution accountant, the default: usually the tightest of the three."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import dp_accounting
from dp_accounting.pld import privacy_loss_distribution

from dpfbo.accounting import check_delta, sampled_gaussian

_INTERVAL = 1e-3  # of the discretised loss, finer where the loss itself is small; rounding is upwards
_FINEST = 1e-6


@dataclass(frozen=True)
class Pld:
    """Numerical composition of privacy-loss distributions by FFT (Koskela et al. 2020; Doroshenko et al. 2022).

    Guarantee: an upper bound of epsilon for Poisson-sampled Gaussian events (all rounding is pessimistic).
    """

    def curve(self, events: Sequence[dp_accounting.DpEvent], delta: float) -> list[float]:
        check_delta(delta)
        settings = [sampled_gaussian(event) for event in events]
        finite = [setting for setting in settings if setting[1] > 0]
        finest = max(_FINEST, min([_INTERVAL] + [0.05 * q / z for q, z in finite]))  # q / z: size of a round's loss
        interval = max([finest] + [_INTERVAL / (2 * z) ** 2 for _, z in finite if z < 0.5])
        one = {s: _one_round(*s, interval) for s in set(finite)}
        total, epsilons = None, []
        for setting in settings:
            if setting[1] == 0 or math.inf in epsilons:
                epsilons.append(math.inf)
                continue
            total = one[setting] if total is None else total.compose(one[setting])
            epsilons.append(float(total.get_epsilon_for_delta(delta)))
        return epsilons


def _one_round(q: float, z: float, interval: float) -> privacy_loss_distribution.PrivacyLossDistribution:
    return privacy_loss_distribution.from_gaussian_mechanism(
        z, sampling_prob=q, value_discretization_interval=interval,
        neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_SPECIAL,
    )  # fmt: skip
