"""Controls: what the agents follow when nothing is shared.

Every claim that federation helps is made against these and not against Thompson sampling alone: an agent that
leaves its own posterior now and then gains from the change itself.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from dpfbo.federated.broadcast import Points
from dpfbo.federated.messages import Messages
from dpfbo.federated.server import RoundOutput
from dpfbo.gp.domain import Domain, Grid
from dpfbo.rng import Streams


@dataclass(frozen=True)
class RandomServer:
    """The server branch queries a uniform point instead. Nothing is sent, nothing is released."""

    n_agents: int
    domain: Domain
    streams: Streams
    uses_messages: bool = False

    def round(self, t: int, messages: Messages | None, late: Tensor | None = None) -> RoundOutput:
        u = self.streams.uniform("control", torch.arange(self.n_agents), t, self.domain.dimension)
        return Points(_on_domain(u, self.domain)), None, None


@dataclass(frozen=True)
class SobolServer:
    """The server branch queries a quasi-random point instead: one Sobol sequence, shifted at random for each agent."""

    n_agents: int
    domain: Domain
    streams: Streams
    rounds: int
    uses_messages: bool = False

    @cached_property
    def _sequence(self) -> Tensor:
        engine = torch.quasirandom.SobolEngine(self.domain.dimension)
        return engine.draw(self.rounds, dtype=torch.float64)

    def round(self, t: int, messages: Messages | None, late: Tensor | None = None) -> RoundOutput:
        shift = self.streams.uniform("control", torch.arange(self.n_agents), 0, self.domain.dimension)
        return Points(_on_domain((self._sequence[t] + shift) % 1, self.domain)), None, None


def _on_domain(u: Tensor, domain: Domain) -> Tensor:
    """Uniform points of the cube as points of the domain: for a grid the point with that rank, axis 0 first."""
    if not isinstance(domain, Grid):
        return u
    order = torch.arange(len(domain.unit_points))
    for axis in reversed(range(domain.dimension)):
        order = order[torch.argsort(domain.unit_points[order, axis], stable=True)]
    if domain.dimension == 1:
        return domain.unit_points[order[(u[:, 0] * len(order)).long()]]
    nearest = torch.cdist(u, domain.unit_points).argmin(1)
    return domain.unit_points[nearest]
