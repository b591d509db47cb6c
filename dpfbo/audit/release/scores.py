"""Scores of a curator's release that tell which of two tables was released.

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
from dpfbo.privacy.release import Release

_ROUNDING = 1e-10  # share of a release's norm
_TINY = float(np.finfo(float).tiny)


@dataclass(frozen=True)
class ColumnSpace:
    """`log |Z - Q Q^T Z| - log |Z - Q' Q'^T Z|`: above 0 where Z fits the neighbour's column space better.

    own, other: orthonormal bases of the centred columns of the table and of its neighbour, n x d (a thin QR). The
    curator's scale does not change a column space.
    """

    own: Tensor
    other: Tensor

    @staticmethod
    def of(rows: Tensor, neighbour: Tensor) -> "ColumnSpace":
        own, other = (torch.linalg.qr(centred(r)).Q for r in (rows, neighbour))
        return ColumnSpace(own, other)

    def __call__(self, values: Tensor) -> float:
        own, other = (max(_outside(values, Q), _TINY) for Q in (self.own, self.other))
        return math.log(own) - math.log(other)

    def contains(self, values: Tensor, neighbours: bool) -> bool:
        """True if a release lies in the table's column space (or in its neighbour's), up to rounding."""
        return _outside(values, self.other if neighbours else self.own) <= _ROUNDING * float(values.norm())


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


class Silent:
    """A noise distribution that adds nothing."""

    def check(self, sigma: float, sensitivity: float) -> None:
        pass

    def inflation(self, size: int) -> float:
        return 1.0

    def add(self, total: Tensor, sigma: float, sensitivity: float, entropy: Entropy, round: int) -> Tensor:
        return total


def order_of(release: Release, unreleased: Unreleased) -> Sequence[int]:
    """The row number in the table of each released row."""
    return range(len(release.values)) if unreleased.order is None else unreleased.order


def in_table_order(release: Release, unreleased: Unreleased) -> Tensor:
    """The released values with the curator's secret order undone."""
    if unreleased.order is None:
        return release.values
    values = torch.empty_like(release.values)
    order = np.fromiter(unreleased.order, np.int64, len(values))  # takes a third of torch.tensor's time
    values[torch.from_numpy(order)] = release.values
    return values


def _outside(values: Tensor, Q: Tensor) -> float:
    """The norm of the centred values' part outside the span of orthonormal columns Q."""
    Z = centred(values)
    return float((Z - Q @ (Q.T @ Z)).norm())
