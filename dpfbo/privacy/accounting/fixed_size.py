"""The accountant for subsets of a fixed size, drawn without replacement; it composes Rényi divergences."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import dp_accounting
import numpy as np

from dpfbo.formats.words import REPLACE_ONE
from dpfbo.privacy.accounting import UnsupportedEvent, accounted_multiplier
from dpfbo.privacy.accounting.additive import AdditiveAccountant
from dpfbo.privacy.accounting.rdp import divergences_of, epsilon_of

# Rényi orders: integers, because the bound is linear between them; orders below 2 serve subsets of all agents
ORDERS = (
    1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8, 1.9, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 16, 18, 20, 24, 28, 32, 40, 48,
    64, 128, 512,
)  # fmt: skip
_LARGEST_PRECISION = 1e8  # sum of 1 / m^2, beyond which epsilon counts as infinite


@dataclass(frozen=True)
class FixedSize(AdditiveAccountant):
    """Composes Rényi divergences of rounds that sample k of N agents (Wang, Balle, Kasiviswanathan 2019, Thm. 27).

    Guarantee. Neighbouring relation: all messages of one agent are replaced by any other clipped messages
    (replace-one); N is public. Event: each round is a Gaussian mechanism on a uniform subset of k of the N agents
    (`SampledWithoutReplacementDpEvent`). Sensitivity: 2 D, where `D = C max_n ||phi_n|| / q` is the largest norm that
    one agent's message can add to the weighted sum. C is the clip norm, phi_n holds agent n's weights, and q is the
    sampling probability. The noise multiplier z is at most sigma / D, so a round's event has multiplier
    `z / 2 <= sigma / (2 D)` (`events.round_event`). Epsilon is an upper bound; do not compare it with an epsilon for
    zero-out.

    Epsilon is the lesser of two upper bounds: that of Thm. 27, and the exact epsilon of the same events without
    sampling (Balle, Wang 2018). The second bound is valid because sampling does not increase epsilon: a round whose
    subset lacks the replaced agent costs nothing, and any other round costs as much as without sampling.
    """

    relation: ClassVar[str] = REPLACE_ONE

    def check(self, event: dp_accounting.DpEvent) -> None:
        _subset(event)

    def _kinds(self, events: Sequence[dp_accounting.DpEvent]) -> list[tuple[int, int, float]]:
        return list(map(_subset, events))

    def _cost(self, N: int, k: int, multiplier: float) -> np.ndarray:
        """Return the event's Rényi divergences at `ORDERS`, followed by the number `1 / multiplier^2`.

        Each divergence is the lesser of two bounds: that of Thm. 27, and the divergence without sampling. The second is
        a bound because a mixture over subsets diverges no more than its worst component.
        """
        if multiplier == 0:
            return np.full(len(ORDERS) + 1, np.inf)
        event = dp_accounting.SampledWithoutReplacementDpEvent(N, k, dp_accounting.GaussianDpEvent(multiplier))
        bound = divergences_of(event, dp_accounting.NeighboringRelation.REPLACE_ONE, ORDERS)
        return np.append(np.minimum(bound, np.array(ORDERS) / (2 * multiplier**2)), multiplier**-2)

    def _epsilon_of(self, total: np.ndarray, delta: float) -> float:
        precision, plain = float(total[-1]), math.inf
        if precision <= _LARGEST_PRECISION:
            plain = float(dp_accounting.get_epsilon_gaussian(precision**-0.5, delta))
        return min(epsilon_of(ORDERS, total[:-1], delta), plain)


def _subset(event: dp_accounting.DpEvent) -> tuple[int, int, float]:
    """Return (N, k, multiplier) of an event; multiplier 0 means no noise."""
    if isinstance(event, dp_accounting.NonPrivateDpEvent):
        return 1, 1, 0.0
    if isinstance(event, dp_accounting.SampledWithoutReplacementDpEvent):
        inner, N, k = event.event, event.source_dataset_size, event.sample_size
        if not 1 <= k <= N:
            raise UnsupportedEvent(f"fixed_size needs a subset of 1 to {N} of {N} agents, got {k}")
        if isinstance(inner, dp_accounting.GaussianDpEvent):
            return N, k, accounted_multiplier(inner.noise_multiplier)
    raise UnsupportedEvent(
        f"fixed_size cannot analyse {type(event).__name__} under the {REPLACE_ONE} relation: use "
        "sampling=fixed_size, or another accountant"
    )
