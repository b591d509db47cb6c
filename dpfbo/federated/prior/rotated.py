"""The agents' observed points in the coordinates of a shared prior: kept for each agent, or looked up on a grid.

With `psi = X' phi` in the coordinates of the broadcast, an agent's Thompson sampling needs the functions `psi . r` at
its points, sums over its points, and the products `psi' diag(spectrum) psi` (common) and `psi' psi` (own) of every two.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from dpfbo.federated.broadcast import SharedPrior
from dpfbo.gp import batches

MOST_POINTS = 4096  # of a grid whose products are a table: 128 MB each


class Observed(Protocol):
    """The observed points of n agents, t each."""

    @property
    def common(self) -> Tensor:
        """`Psi diag(spectrum) Psi'`, n x t x t."""

    @property
    def own(self) -> Tensor:
        """`Psi Psi'`, n x t x t."""

    def values(self, r: Tensor) -> Tensor:
        """`Psi r`, `n x M -> n x t`, also of one function for all, `1 x M`."""

    def sums(self, v: Tensor) -> Tensor:
        """`Psi' v`, `n x t -> n x M`."""

    def select(self, rows: Tensor) -> "Observed":
        """The points of some agents."""


@dataclass(frozen=True)
class ObservedRows:
    """Points on any domain. psi: n x t x M."""

    psi: Tensor
    common: Tensor
    own: Tensor

    def values(self, r: Tensor) -> Tensor:
        return (self.psi @ r.expand(len(self.psi), -1).unsqueeze(-1)).squeeze(-1)

    def sums(self, v: Tensor) -> Tensor:
        return (self.psi.mT @ v.unsqueeze(-1)).squeeze(-1)

    def select(self, rows: Tensor) -> "ObservedRows":
        return ObservedRows(self.psi[rows], self.common[rows], self.own[rows])


class Rotated:
    """Append-only buffers of n agents for `ObservedRows`.

    psi: n x capacity x M; common, own: n x capacity x capacity; the first `count` rows are in use. Rows are computed in
    the same portions whenever they are: the design, then one by one.
    """

    def __init__(self, prior: SharedPrior, n: int, capacity: int, n_init: int) -> None:
        self.prior, self.n_init, self.count = prior, n_init, 0
        like = prior.rotation
        self.psi = torch.zeros(n, capacity, len(like), dtype=like.dtype, device=like.device)
        self.common, self.own = (
            torch.zeros(n, capacity, capacity, dtype=like.dtype, device=like.device) for _ in range(2)
        )

    def observed(self, t: int, features: Callable[[int, int], Tensor]) -> ObservedRows:
        """The first t observations. features(a, b): n x (b - a) x M, of observations a..b-1."""
        while self.count < t:
            a = self.count
            b = a + 1 if a else min(self.n_init, t)
            self.psi[:, a:b] = batches.product(features(a, b), self.prior.rotation)
            new, all_ = self.psi[:, a:b], self.psi[:, :b]
            for products, rows in ((self.common, new * self.prior.spectrum), (self.own, new)):
                products[:, a:b, :b] = rows @ all_.mT
                products[:, :a, a:b] = products[:, a:b, :a].mT
            self.count = b
        return ObservedRows(self.psi[:, :t], self.common[:, :t, :t], self.own[:, :t, :t])


@dataclass(frozen=True)
class OnGrid:
    """Tables over the G points of a grid, which all agents share. psi: G x M; common, own: G x G."""

    prior: SharedPrior
    psi: Tensor
    common: Tensor
    own: Tensor

    @staticmethod
    def of(prior: SharedPrior, features: Tensor) -> "OnGrid":
        """features: G x M, of all points."""
        psi = batches.product(features, prior.rotation)
        return OnGrid(prior, psi, (psi * prior.spectrum) @ psi.T, psi @ psi.T)

    def functions(self, r: Tensor) -> Tensor:
        """`psi . r` on the whole grid, `n x M -> n x G`."""
        return batches.product(r, self.psi.T)

    def observed(self, index: Tensor) -> "ObservedOnGrid":
        """The points with these rows, n x t."""
        pairs = (index[:, :, None].long() * len(self.psi) + index[:, None, :]).flatten()
        shape = (*index.shape, index.shape[1])
        common, own = (table.view(-1).index_select(0, pairs).view(shape) for table in (self.common, self.own))
        return ObservedOnGrid(self, index, common, own)


@dataclass(frozen=True)
class ObservedOnGrid:
    """Points of a grid. index: n x t, their rows. Products of whole functions cost less than each agent's own psi."""

    tables: OnGrid
    index: Tensor
    common: Tensor
    own: Tensor

    def values(self, r: Tensor) -> Tensor:
        return self.tables.functions(r).expand(len(self.index), -1).gather(1, self.index.long())

    def sums(self, v: Tensor) -> Tensor:
        return embedding_bag(self.index, self.tables.psi, per_sample_weights=v.contiguous(), mode="sum")

    def select(self, rows: Tensor) -> "ObservedOnGrid":
        return ObservedOnGrid(self.tables, self.index[rows], self.common[rows], self.own[rows])
