"""Scores of a curator's release that distinguish which of two tables was released.

They take rows in the order of the table: the adversary knows the secret order of the release.
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

_ROUNDING = 1e-10  # share of a release's norm
TINY = float(np.finfo(float).tiny)


@dataclass(frozen=True)
class ColumnSpace:
    """`log |Z - Q Q^T Z| - log |Z - Q' Q'^T Z|`: above 0 where Z fits the neighbour's column space better.

    bases: orthonormal bases Q, Q' of the centred columns of the table and of its neighbour, n x d. The curator's scale
    does not change a column space.
    """

    bases: Sequence[Tensor]

    def __call__(self, values: Tensor) -> float:
        own, other = (math.log(max(self._outside(values, world), TINY)) for world in (0, 1))
        return own - other

    def contains(self, values: Tensor, world: int) -> bool:
        """True if a release lies in the table's column space (world 0) or in its neighbour's (1), up to rounding."""
        return self._outside(values, world) <= _ROUNDING * float(values.norm())

    def _outside(self, values: Tensor, world: int) -> float:
        """The norm of the centred values' part outside a column space."""
        Z, Q = centred(values), self.bases[world]
        return float((Z - Q @ (Q.T @ Z)).norm())


@dataclass(frozen=True)
class LikelihoodRatio:
    """`<z - (m + m') / 2, m' - m> / sigma^2`, the optimal score where Gaussian noise is added to m, or to m'.

    own, other: m and m', the noiseless releases of the table and of its neighbour, both of one shape.
    """

    own: Tensor
    other: Tensor
    sigma: float

    def __call__(self, values: Tensor) -> float:
        middle, apart = (self.own + self.other) / 2, self.other - self.own
        return float(((values - middle) * apart).sum()) / self.sigma**2


class Silent(Gaussian):
    """A noise distribution that adds nothing."""

    def add(self, total: Tensor, sigma: float, sensitivity: float, entropy: Entropy, round: int) -> Tensor:
        return total


def in_table_order(release: Release, unreleased: Unreleased) -> Tensor:
    """The released values with the curator's secret order undone."""
    if unreleased.order is None:
        return release.values
    values = torch.empty_like(release.values)
    order = np.fromiter(unreleased.order, np.int64, len(values))  # takes a third of torch.tensor's time
    values[torch.from_numpy(order)] = release.values
    return values
