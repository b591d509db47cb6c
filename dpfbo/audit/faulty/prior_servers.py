"""Agents, mechanisms and servers of the private prior with one fault each; all other code is inherited."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from dpfbo.federated.broadcast import SharedPrior
from dpfbo.federated.mechanism import Messages, SubsampledGaussian
from dpfbo.federated.messages import accept, clip
from dpfbo.federated.population.agents import Agents, AgentsState, Query
from dpfbo.federated.population.shard import Shard
from dpfbo.federated.prior_server import PriorServer
from dpfbo.federated.server import RoundOutput, Server
from dpfbo.gp.design import Design
from dpfbo.gp.features import RandomFeatures
from dpfbo.privacy.ledger import Ledger
from dpfbo.problems.problem import Problem
from dpfbo.space.domain import Domain
from dpfbo.space.regions import Regions

_STEP = 0.05  # distance of a point that follows the best one so far


class ClipsVectorAlone(SubsampledGaussian):
    """A mechanism that clips the statistics' vector and adds the scalar as it comes."""

    def bounded(self, received: Tensor, P: int) -> tuple[Tensor, int]:
        clipped, n_clipped = clip(received[:, :-1], self.message_norm(P))
        return torch.cat([clipped, received[:, -1:]], 1), n_clipped


class NoiseOfTheMean(SubsampledGaussian):
    """A mechanism whose noise is divided by N once more, as if `1 / N` were not in the weights already."""

    def sensitivity(self, weights: Tensor) -> float:
        return super().sensitivity(weights) / weights.shape[1]

    def tight_sensitivity(self, weights: Tensor) -> float:
        return super().tight_sensitivity(weights) / weights.shape[1]


@dataclass(frozen=True)
class GreedyAgents(Agents):
    """Agents that choose their last initial point beside the best of the others. observed: their objectives."""

    observed: Problem | None = None

    def initial_query(self, state: AgentsState) -> Query:
        query = super().initial_query(state)
        assert self.observed is not None
        first = query.u[:, :-1]
        y = self.observed.evaluate(state.ids, self.domain.to_natural(first), self.streams, 0)
        return Query(_beside(first, y, self.domain), query.source)


class GreedyShard(Shard):
    """A shard whose agents see their first observations before they choose the last initial point."""

    def __init__(self, problem: Problem, agents: Agents, ids: Tensor) -> None:
        super().__init__(problem, GreedyAgents(**_settings(agents), observed=problem), ids)


@dataclass(frozen=True)
class ReportedDesign(Design):
    """The points that agents reported, in place of those of the public seed. reported: N x n_init x D."""

    reported: Tensor | None = None

    def points(self, agents: Tensor) -> Tensor:
        assert self.reported is not None
        return self.reported[agents]


class PoolingAgents(Agents):
    """Agents that subtract the mean observation of all agents, not their own."""

    def messages(self, state: AgentsState, t: int) -> Tensor:
        assert self.prior is not None
        z = (state.y - state.y.mean()) / self.prior.scale
        linear = (self.features_at(state.points).mT @ z.unsqueeze(-1)).squeeze(-1)
        scalar = self.prior.statistics.kappa(self.n_init) * (z * z).sum(1, keepdim=True)
        return torch.cat([linear, scalar], 1)


class PoolingShard(Shard):
    """A shard of agents that centre their observations together."""

    def __init__(self, problem: Problem, agents: Agents, ids: Tensor) -> None:
        super().__init__(problem, PoolingAgents(**_settings(agents)), ids)


class _KnowsTheSum(PriorServer, ABC):
    """A server that broadcasts `replacement` in place of the prior. received: clipped messages, N x (M + 1)."""

    def round(self, t: int, messages: Messages | None, late: Tensor | None = None) -> RoundOutput:
        broadcast, record, private = super().round(t, messages, late)
        if not isinstance(broadcast, SharedPrior) or record is None:
            return broadcast, record, private
        received = _accepted(messages, self.server, self.clip_norm)
        return self.replacement(broadcast, record.sigma, received), record, private

    @abstractmethod
    def replacement(self, broadcast: SharedPrior, sigma: float, received: Tensor) -> SharedPrior:
        """The value that takes the place of the real one."""


class OwnStatisticsInPublic(_KnowsTheSum):
    """The server takes each agent's statistics out of the mean itself, and broadcasts one mean an agent."""

    def replacement(self, broadcast: SharedPrior, sigma: float, received: Tensor) -> SharedPrior:
        return replace(broadcast, mean=broadcast.mean - received[:, :-1] @ broadcast.gain.mT)


class RawScalar(_KnowsTheSum):
    """The server takes the scalar of the evidence from the sum without noise."""

    def replacement(self, broadcast: SharedPrior, sigma: float, received: Tensor) -> SharedPrior:
        values = broadcast.values.clone()
        values[0, -1] = received[:, -1].mean()
        return replace(self.infer(values, sigma), values=broadcast.values)


class RawSums(_KnowsTheSum):
    """The server infers mean and gain from the sum without noise, and broadcasts the noisy one beside them."""

    def replacement(self, broadcast: SharedPrior, sigma: float, received: Tensor) -> SharedPrior:
        return replace(self.infer(received.mean(0, keepdim=True), sigma), values=broadcast.values)


@dataclass(frozen=True)
class FollowingDesign(Design):
    """A design whose last point follows the agent's message. received: N x (M + 1); features: the shared map."""

    received: Tensor | None = None
    features: RandomFeatures | None = None

    def points(self, agents: Tensor) -> Tensor:
        assert self.received is not None and self.features is not None
        public = super().points(agents)
        worth = self.features(public) @ self.received[agents, :-1, None]  # n x n_init x 1
        return _beside(public[:, :-1], worth[:, :-1, 0], self.domain)


class SecondReleaseFree(PriorServer):
    """A server that releases again in round 1, over points that follow the messages, and charges the first alone."""

    def round(self, t: int, messages: Messages | None, late: Tensor | None = None) -> RoundOutput:
        if t:
            received = _accepted(messages, self.server, self.clip_norm)
            design = FollowingDesign(**_settings(self.design), received=received, features=self.features)
            object.__setattr__(self, "design", design)
            object.__setattr__(self, "server", replace(self.server, ledger=Ledger()))
            self.__dict__.pop("sums", None)
        return super().round(t, messages, late)


def _accepted(messages: Messages | None, server: Server, norm: float) -> Tensor:
    """All messages as the server counts them, N x (M + 1)."""
    sent = [None] * server.n_agents if messages is None else messages
    received, _ = accept(sent, torch.arange(server.n_agents), server.message_size)  # type: ignore[arg-type]
    return clip(received, norm)[0]


def _beside(points: Tensor, worth: Tensor, domain: Domain) -> Tensor:
    """The points (n x k x D) and one more beside the one of largest worth (n x k)."""
    best = points[torch.arange(len(points)), worth.argmax(1)][:, None]  # n x 1 x D
    region = torch.zeros(len(points), dtype=torch.long)
    more = Regions(1, domain.dimension).uniform_points(region, (best + _STEP) % 1, domain)
    return torch.cat([points, more], 1)


def _settings(settings: Agents | Design) -> dict[str, Any]:
    """The fields of the real class, for one that is derived from it."""
    real = Agents if isinstance(settings, Agents) else Design
    return {f.name: getattr(settings, f.name) for f in fields(real)}
