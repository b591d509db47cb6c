"""Control servers, which ignore the agents and send them random or Sobol points."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from dpfbo.federated.broadcast import Points
from dpfbo.federated.mechanism import Messages
from dpfbo.federated.server import RoundOutput, ServerKind
from dpfbo.rng import Streams
from dpfbo.space.domain import Domain, Grid
from dpfbo.space.mixed import MixedBox


@dataclass(frozen=True)
class RandomServer(ServerKind):
    """Sends each agent a uniform random point, as a control; receives no messages and releases nothing.

    Args:
        n_agents: N.
        domain: The search space.
        streams: The random numbers that choose the points.

    Example:
        >>> import dpfbo
        >>> points, _, _ = RandomServer(3, dpfbo.Box((0.0,), (1.0,)), Streams(0)).round(0, messages=None)
        >>> points.values.shape  # N x D
        torch.Size([3, 1])
    """

    n_agents: int
    domain: Domain
    streams: Streams

    def round(self, t: int, messages: Messages | None, late: Tensor | None = None) -> RoundOutput:
        u = self.streams.uniform("control", torch.arange(self.n_agents, device="cpu"), t, self.domain.dimension)
        return Points(_on_domain(u, self.domain)), None, None


@dataclass(frozen=True)
class SobolServer(ServerKind):
    """Sends each agent a Sobol point, as a control; receives no messages and releases nothing.

    Args:
        n_agents: N.
        domain: The search space.
        streams: The random numbers that shift the sequence differently for each agent.
        rounds: T, the number of points in the sequence.

    Example:
        >>> import dpfbo
        >>> points, _, _ = SobolServer(3, dpfbo.Box((0.0,), (1.0,)), Streams(0), rounds=5).round(4, messages=None)
        >>> points.values.shape  # N x D
        torch.Size([3, 1])
    """

    n_agents: int
    domain: Domain
    streams: Streams
    rounds: int

    @cached_property
    def _sequence(self) -> Tensor:
        engine = torch.quasirandom.SobolEngine(self.domain.dimension)
        return engine.draw(self.rounds, dtype=torch.float64)

    def round(self, t: int, messages: Messages | None, late: Tensor | None = None) -> RoundOutput:
        shift = self.streams.uniform("control", torch.arange(self.n_agents, device="cpu"), 0, self.domain.dimension)
        return Points(_on_domain((self._sequence[t] + shift) % 1, self.domain)), None, None


def _on_domain(u: Tensor, domain: Domain) -> Tensor:
    if not isinstance(domain, Grid):
        return domain.snap(u) if isinstance(domain, MixedBox) else u
    points = domain.unit_points
    if domain.dimension == 1:
        order = torch.argsort(points[:, 0], stable=True)
        return points[order[(u[:, 0] * len(order)).long()]]
    return points[torch.cdist(u, points).argmin(1)]
