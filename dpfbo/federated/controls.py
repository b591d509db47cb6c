"""Controls: servers whose points depend on no message; agents gain already from leaving their posterior at times."""

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
    """The server branch queries a uniform point instead. Nothing is sent or released."""

    n_agents: int
    domain: Domain
    streams: Streams

    def round(self, t: int, messages: Messages | None, late: Tensor | None = None) -> RoundOutput:
        u = self.streams.uniform("control", torch.arange(self.n_agents, device="cpu"), t, self.domain.dimension)
        return Points(_on_domain(u, self.domain)), None, None


@dataclass(frozen=True)
class SobolServer(ServerKind):
    """The server branch queries a quasi-random point instead: one Sobol sequence, shifted at random for each agent."""

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
    """Uniform points of the cube as points of the domain; on a grid by rank if D = 1, else the nearest points."""
    if not isinstance(domain, Grid):
        return domain.snap(u) if isinstance(domain, MixedBox) else u
    points = domain.unit_points
    if domain.dimension == 1:
        order = torch.argsort(points[:, 0], stable=True)
        return points[order[(u[:, 0] * len(order)).long()]]
    return points[torch.cdist(u, points).argmin(1)]
