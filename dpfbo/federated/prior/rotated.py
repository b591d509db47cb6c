"""The agents' features in the coordinates of a shared prior, and their products: kept for each agent, or by grid point.

With `psi = X' phi` in the coordinates of the broadcast, an agent's Thompson sampling needs psi at its points, and the
products `psi' diag(spectrum) psi` (common) and `psi' psi` (own) of every two of them.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from dpfbo.federated.broadcast import SharedPrior
from dpfbo.gp import batches

MOST_POINTS = 4096  # of a grid whose products are a table: 128 MB each

Products = tuple[Tensor, Tensor, Tensor]  # psi, n x t x M; common and own, n x t x t


class Rotated:
    """Append-only buffers of n agents, on any domain.

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

    def products(self, t: int, features: Callable[[int, int], Tensor]) -> Products:
        """Those of the first t observations. features(a, b): n x (b - a) x M, of observations a..b-1."""
        while self.count < t:
            a = self.count
            b = a + 1 if a else min(self.n_init, t)
            self.psi[:, a:b] = batches.product(features(a, b), self.prior.rotation)
            new, all_ = self.psi[:, a:b], self.psi[:, :b]
            for products, rows in ((self.common, new * self.prior.spectrum), (self.own, new)):
                products[:, a:b, :b] = rows @ all_.mT
                products[:, :a, a:b] = products[:, a:b, :a].mT
            self.count = b
        return self.psi[:, :t], self.common[:, :t, :t], self.own[:, :t, :t]


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

    def products(self, index: Tensor) -> Products:
        """Those of observations at the points with these rows, n x t."""
        pairs = (index[:, :, None].long() * len(self.psi) + index[:, None, :]).flatten()
        shape = (*index.shape, index.shape[1])
        common, own = (table.view(-1).index_select(0, pairs).view(shape) for table in (self.common, self.own))
        return self.psi.index_select(0, index.flatten()).view(*index.shape, -1), common, own
