"""The knowledge of some agents: observations and hyper-parameters, and what they keep of a shared prior.

An agent takes `(n_init + T) (D + 1)` numbers of 8 bytes, 4 bytes a point more on a grid, and its hyper-parameters.
Features and Cholesky factors are computed when they are needed, in blocks that fit the cache: to keep them would take
a hundred times the memory, and reading them as long as computing them. With a shared prior an agent keeps its prior
mean and that mean at its points; on other domains than grids also its points in the prior's coordinates
(`prior.received`).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from dpfbo.federated.prior.received import Received
from dpfbo.gp.own_gp import AnyHyperparameters
from dpfbo.space.domain import Domain, Grid


@dataclass
class History:
    """Append-only buffers of observations: `append` writes in place.

    Rows that are in use do not change again, but for the stand-ins of failed evaluations of agents that had no value
    (`replace_values`).

    x: n x capacity x D unit-cube points; y: n x capacity; index: n x capacity, the points' rows in a grid, None on
    other domains; the first `count` rows are in use. received: a cache, of the last prior.
    """

    domain: Domain
    x: Tensor
    y: Tensor
    index: Tensor | None
    count: int = 0
    received: Received | None = None

    @staticmethod
    def empty(n: int, capacity: int, domain: Domain, device: torch.device) -> "History":
        """Buffers for n agents without observations."""
        x = torch.zeros(n, capacity, domain.dimension, dtype=torch.float64, device=device)
        y = torch.zeros(n, capacity, dtype=torch.float64, device=device)
        index = torch.zeros(n, capacity, dtype=torch.int32, device=device) if isinstance(domain, Grid) else None
        return History(domain, x, y, index)

    def append(self, u: Tensor, y: Tensor) -> int:
        """Write k observations y (n x k) at u (n x k x D); returns the new count.

        Raises ValueError for a point outside the grid.
        """
        a, b = self.count, self.count + y.shape[1]
        if self.index is not None and isinstance(self.domain, Grid):
            self.index[:, a:b] = self.domain.index_of(u)
        self.x[:, a:b], self.y[:, a:b] = u, y
        self.count = b
        return b

    def replace_values(self, agents: Tensor, y: Tensor) -> None:
        """Write one value for all observations so far of some agents. agents: n, booleans; y: n."""
        self.received = None  # what was told of these values is in it
        self.y[:, : self.count] = torch.where(agents[:, None], y[:, None], self.y[:, : self.count])


@dataclass(frozen=True)
class AgentsState:
    """The knowledge of some agents after `count` observations each.

    ids: n; hyper: each agent's own GP. The observations are the first `count` rows of a history that later states
    share and append to; this state never changes.
    """

    ids: Tensor
    history: History
    count: int
    hyper: AnyHyperparameters

    @property
    def x(self) -> Tensor:
        return self.history.x[:, : self.count]

    @property
    def y(self) -> Tensor:
        return self.history.y[:, : self.count]

    @property
    def index(self) -> Tensor | None:
        """The observed points' rows in the grid, n x count; None on other domains."""
        return None if self.history.index is None else self.history.index[:, : self.count]

    @property
    def points(self) -> Tensor:
        """The observed points as features take them: rows in the grid, n x count, else n x count x D."""
        return self.x if self.index is None else self.index

    def select(self, rows: Tensor) -> "AgentsState":
        """A copy of what some agents know; nothing can be appended to it."""
        index = None if self.index is None else self.index[rows]
        history = History(self.history.domain, self.x[rows], self.y[rows], index, self.count)
        return AgentsState(self.ids[rows], history, self.count, self.hyper.select(rows))


@dataclass(frozen=True)
class Query:
    """The queries of one round. u: n x k x D unit-cube points; source: n x k, values of `Source`."""

    u: Tensor
    source: Tensor
