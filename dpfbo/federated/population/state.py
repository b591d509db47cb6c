"""The state of a block of agents: observations and hyper-parameters."""

from dataclasses import dataclass

import torch
from torch import Tensor

from dpfbo.gp.own_gp import AnyHyperparameters
from dpfbo.space.domain import Domain, Grid


@dataclass
class AgentsState:
    """The state of n agents after `count` observations each; `append` writes to its buffers.

    ids: n. hyper: the hyper-parameters of each agent's own GP. all_x: n x capacity x D unit-cube points. all_y: n x
    capacity. all_index: n x capacity, the points' rows in a grid; None on other domains. Only the first `count` entries
    of these buffers are in use.
    """

    ids: Tensor
    domain: Domain
    hyper: AnyHyperparameters
    all_x: Tensor
    all_y: Tensor
    all_index: Tensor | None
    count: int = 0

    @staticmethod
    def empty(ids: Tensor, domain: Domain, hyper: AnyHyperparameters, capacity: int) -> "AgentsState":
        x = torch.zeros(len(ids), capacity, domain.dimension, dtype=torch.float64, device=ids.device)
        y = torch.zeros(len(ids), capacity, dtype=torch.float64, device=ids.device)
        on_grid = isinstance(domain, Grid)
        index = torch.zeros(len(ids), capacity, dtype=torch.int32, device=ids.device) if on_grid else None
        return AgentsState(ids, domain, hyper, x, y, index)

    @property
    def x(self) -> Tensor:
        return self.all_x[:, : self.count]

    @property
    def y(self) -> Tensor:
        return self.all_y[:, : self.count]

    @property
    def index(self) -> Tensor | None:
        """The row of each observed point in the grid, n x count; None if the domain is not a grid."""
        return None if self.all_index is None else self.all_index[:, : self.count]

    @property
    def points(self) -> Tensor:
        """The observed points: on a grid their row indices, n x count; otherwise unit-cube points, n x count x D."""
        return self.x if self.index is None else self.index

    def append(self, u: Tensor, y: Tensor) -> None:
        """Write k observations y (n x k) at u (n x k x D). Raises ValueError for a point outside the grid."""
        a, b = self.count, self.count + y.shape[1]
        if b > self.all_y.shape[1]:
            self._grow(b)
        if self.all_index is not None and isinstance(self.domain, Grid):
            self.all_index[:, a:b] = self.domain.index_of(u)
        self.all_x[:, a:b], self.all_y[:, a:b] = u, y
        self.count = b

    def _grow(self, least: int) -> None:
        more = max(least, 2 * self.all_y.shape[1]) - self.all_y.shape[1]
        for name in ("all_x", "all_y", "all_index"):
            if (old := getattr(self, name)) is not None:
                setattr(self, name, torch.cat([old, old.new_zeros(len(old), more, *old.shape[2:])], 1))

    def replace_values(self, agents: Tensor, y: Tensor) -> None:
        """Set all observations of agent i to the value `y[i]` if `agents[i]` is True. agents: n; y: n."""
        self.all_y[:, : self.count] = torch.where(agents[:, None], y[:, None], self.y)

    def select(self, rows: Tensor) -> "AgentsState":
        index = None if self.index is None else self.index[rows]
        hyper = self.hyper.select(rows)
        return AgentsState(self.ids[rows], self.domain, hyper, self.x[rows], self.y[rows], index, self.count)


@dataclass(frozen=True)
class Query:
    """The queries of one round. u: n x k x D unit-cube points; source: n x k, values of `Source`."""

    u: Tensor
    source: Tensor
