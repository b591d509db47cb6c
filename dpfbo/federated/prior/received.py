"""A shared prior as agents keep it, and their observed points in its coordinates: for each agent, or by grid point.

With `psi = X' phi` in the coordinates of the broadcast, an agent's Thompson sampling needs the functions `psi . r` at
its points, sums over its points, and the covariance of its observations under each model that it tries.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from dpfbo.federated.broadcast import SharedPrior
from dpfbo.federated.prior.model import PriorModel
from dpfbo.gp import batches

MOST_POINTS = 2048  # of a grid whose covariances are tables: 32 MB each


def models(model: PriorModel, prior: SharedPrior) -> tuple[Tensor, Tensor]:
    """The models that the features give: 1 with transfer or 0 without, and the factor of `X X'`; K each."""
    like = prior.spectrum
    factors = torch.tensor(model.residuals, dtype=like.dtype, device=like.device)
    shared = torch.ones_like(factors)
    if not model.tries("features"):
        return shared, factors
    return torch.cat([shared, 0 * shared[:1]]), torch.cat([factors, prior.alone[None]])


@dataclass(frozen=True)
class ObservedRows:
    """Observed points of n agents on any domain, t each.

    psi: n x t x M; common: `Psi diag(spectrum) Psi'`, own: `Psi Psi'`, n x t x t; models: as `models` gives them.
    """

    models: tuple[Tensor, Tensor]
    psi: Tensor
    common: Tensor
    own: Tensor

    def covariance(self, k: int) -> Tensor:
        """`Psi diag(shared_k spectrum + factor_k) Psi'`, without noise, n x t x t."""
        shared, factor = self.models
        return shared[k] * self.common + factor[k] * self.own

    def values(self, r: Tensor) -> Tensor:
        """`Psi r`, `n x M -> n x t`."""
        return (self.psi @ r.unsqueeze(-1)).squeeze(-1)

    def sums(self, v: Tensor) -> Tensor:
        """`Psi' v`, `n x t -> n x M`."""
        return (self.psi.mT @ v.unsqueeze(-1)).squeeze(-1)

    def select(self, rows: Tensor) -> "ObservedRows":
        return ObservedRows(self.models, self.psi[rows], self.common[rows], self.own[rows])


@dataclass(frozen=True)
class OnGrid:
    """Tables over the G points of a grid, which all agents share. psi: G x M; covariances: of each model, G x G."""

    prior: SharedPrior
    psi: Tensor
    covariances: list[Tensor]

    @staticmethod
    def of(model: PriorModel, prior: SharedPrior, features: Tensor) -> "OnGrid":
        """features: G x M, of all points."""
        psi = batches.product(features, prior.rotation)
        pairs = zip(*models(model, prior), strict=True)
        return OnGrid(prior, psi, [(psi * (s * prior.spectrum + factor)) @ psi.T for s, factor in pairs])

    def functions(self, r: Tensor) -> Tensor:
        """`psi . r` on the whole grid, `n x M -> n x G`."""
        return batches.product(r, self.psi.T)


@dataclass(frozen=True)
class ObservedOnGrid:
    """Points of a grid. index: n x t, their rows. Products of whole functions cost less than each agent's own psi."""

    tables: OnGrid
    index: Tensor

    def covariance(self, k: int) -> Tensor:
        pairs = self.index[:, :, None] * len(self.tables.psi) + self.index[:, None, :]
        return self.tables.covariances[k].view(-1).index_select(0, pairs.flatten()).view(pairs.shape)

    def values(self, r: Tensor) -> Tensor:
        return self.tables.functions(r).gather(1, self.index.long())

    def sums(self, v: Tensor) -> Tensor:
        return embedding_bag(self.index, self.tables.psi, per_sample_weights=v.contiguous(), mode="sum")

    def select(self, rows: Tensor) -> "ObservedOnGrid":
        return ObservedOnGrid(self.tables, self.index[rows])


Observed = ObservedRows | ObservedOnGrid


class Received:
    """The last prior of n agents, and append-only buffers of what it says of their observations.

    mean: n x M, each agent's prior mean in its coordinates; expected: n x capacity, that mean at the agent's points;
    and on domains without tables the parts of `ObservedRows`. The first `count` rows are in use; they are computed in
    the same portions whenever they are: the design, then one by one.
    """

    def __init__(
        self, model: PriorModel, prior: SharedPrior, mean: Tensor, capacity: int, n_init: int, tables: OnGrid | None
    ) -> None:
        self.prior, self.mean, self.tables, self._n_init, self._count = prior, mean, tables, n_init, 0
        n, M = mean.shape
        shapes = [(capacity,)] if tables else [(capacity,), (capacity, M), (capacity, capacity), (capacity, capacity)]
        buffers = [torch.zeros(n, *shape, dtype=mean.dtype, device=mean.device) for shape in shapes]
        self._expected, self._rows, self._models = buffers[0], buffers[1:], models(model, prior)

    def observed(self, t: int, features: Callable[[int, int], Tensor]) -> tuple[Observed, Tensor]:
        """The first t observed points, and their expected values, n x t.

        features(a, b): of observations a..b-1, n x (b - a) x M; with tables their rows in the grid, n x (b - a).
        """
        while self._count < t:
            a = self._count
            b = a + 1 if a else min(self._n_init, t)
            given = features(a, b)
            if self.tables is None:
                new = batches.product(given, self.prior.rotation)
                self._append(a, b, new)
            else:
                new = self.tables.psi.index_select(0, given.flatten()).view(*given.shape, -1)
            self._expected[:, a:b] = (new @ self.mean.unsqueeze(-1)).squeeze(-1)
            self._count = b
        expected = self._expected[:, :t]
        if self.tables is not None:
            return ObservedOnGrid(self.tables, features(0, t)), expected
        psi, common, own = self._rows
        return ObservedRows(self._models, psi[:, :t], common[:, :t, :t], own[:, :t, :t]), expected

    def _append(self, a: int, b: int, new: Tensor) -> None:
        psi, common, own = self._rows
        psi[:, a:b] = new
        for products, rows in ((common, new * self.prior.spectrum), (own, new)):
            products[:, a:b, :b] = rows @ psi[:, :b].mT
            products[:, :a, a:b] = products[:, a:b, :a].mT
