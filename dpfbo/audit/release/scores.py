"""Scores by which an adversary decides which of two tables a curator has released.

The adversary is assumed to know the order of the released rows, even if a curator keeps the order secret. So the rows
are put back into the table's order before a score is computed.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dpfbo.outsourced.transforms import Unreleased, centred
from dpfbo.privacy.entropy import Entropy
from dpfbo.privacy.noise import Gaussian
from dpfbo.privacy.release import Release

_ROUNDING = 1e-10  # tolerance, relative to the norm of a release
TINY = float(np.finfo(float).tiny)


@dataclass(frozen=True)
class ColumnSpace:
    """The score `log |Z - Q Q^T Z| - log |Z - Q' Q'^T Z|`, above 0 if Z fits the neighbour's column space better.

    Z is the centred release. bases: orthonormal bases Q, Q' of the centred columns of the table and of its neighbour,
    n x d.
    """

    bases: Sequence[Tensor]

    def __call__(self, values: Tensor) -> float:
        own, other = (math.log(max(self._outside(values, world), TINY)) for world in (0, 1))
        return own - other

    def contains(self, values: Tensor, world: int) -> bool:
        """Check if a release lies, up to rounding, in the column space that `world` selects.

        world: 0 for the table, 1 for its neighbour.
        """
        return self._outside(values, world) <= _ROUNDING * float(values.norm())

    def _outside(self, values: Tensor, world: int) -> float:
        Z, Q = centred(values), self.bases[world]
        return float((Z - Q @ (Q.T @ Z)).norm())


@dataclass(frozen=True)
class LikelihoodRatio:
    """The score `<z - (m + m') / 2, m' - m> / sigma^2`, the log-likelihood ratio of m' to m under Gaussian noise.

    The release z is either m + noise or m' + noise; no other score tells these two cases apart better. own: m, the
    noiseless release of the table. other: m', the noiseless release of the neighbour.
    """

    own: Tensor
    other: Tensor
    sigma: float

    def __call__(self, values: Tensor) -> float:
        middle, apart = (self.own + self.other) / 2, self.other - self.own
        return float(((values - middle) * apart).sum()) / self.sigma**2


class Silent(Gaussian):
    """A noise sampler that adds no noise."""

    def add(self, total: Tensor, sigma: float, sensitivity: float, entropy: Entropy, round: int) -> Tensor:
        return total


def in_table_order(release: Release, unreleased: Unreleased) -> Tensor:
    """Return the released values with the curator's secret order undone."""
    if unreleased.order is None:
        return release.values
    values = torch.empty_like(release.values)
    order = np.fromiter(unreleased.order, np.int64, len(values))  # takes a third of torch.tensor's time
    values[torch.from_numpy(order)] = release.values
    return values
