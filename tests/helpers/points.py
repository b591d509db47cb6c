"""Points of a domain, made from points of the unit cube, and designs of given points."""

from dataclasses import dataclass

import torch
from torch import Tensor

from dpfbo.space.domain import Domain, Grid


def on_domain(domain: Domain, u: Tensor) -> Tensor:
    """The nearest points of a grid; on another domain the points themselves."""
    if not isinstance(domain, Grid):
        return u
    points = domain.unit_points
    return points[torch.cdist(u.reshape(-1, u.shape[-1]), points).argmin(1)].view(u.shape)


@dataclass(frozen=True)
class Listed:
    """A design of given points, n x n_init x D, in the place of `Design`."""

    given: Tensor

    @property
    def n_init(self) -> int:
        return self.given.shape[1]

    def points(self, agents: Tensor) -> Tensor:
        return self.given[agents]
