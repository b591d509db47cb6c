"""A small private prior: agents and servers with one fault each; all other code is inherited from the real ones."""

from dataclasses import dataclass, fields, replace

import torch

from dpfbo.audit.server.target import AgentsSide, Target, seeded
from dpfbo.federated.broadcast import SharedPrior
from dpfbo.federated.mechanism import SubsampledGaussian
from dpfbo.federated.messages import accept, clip
from dpfbo.federated.population.agents import Agents, Query
from dpfbo.federated.population.shard import Shard
from dpfbo.federated.prior import DesignSums, centred
from dpfbo.federated.prior_server import PriorServer
from dpfbo.federated.server import Server
from dpfbo.federated.weights.uniform import Uniform
from dpfbo.gp.averaged_gp import AveragedGP
from dpfbo.gp.design import Design
from dpfbo.gp.nystrom import NystromFeatures
from dpfbo.privacy.accounting.pld import Pld
from dpfbo.privacy.budget import EpsilonCurve
from dpfbo.privacy.ledger import Ledger
from dpfbo.problems.problem import Problem
from dpfbo.problems.synthetic import Synthetic
from dpfbo.rng import Streams
from dpfbo.space.regions import Regions
from tests.planted import mechanisms

N, N_FEATURES, N_INIT, DELTA = 12, 8, 4, 1e-2
Z, S = 1.0, 1.0
LENGTHSCALES = (0.1, 0.4)
TIGHT = (1.0, Z, S, "tight")
_STEP = 0.05  # distance of a point that follows the best one so far


def sound(mechanism=None, kind=PriorServer, shard=Shard, rounds=1):
    """A target with exactly the claimed noise: 12 agents with 4 points each, a message of 8 numbers."""
    accountant = Pld()
    problem = Synthetic(n_agents=N, grid_size=50, lengthscale=0.2)
    agents = Agents(
        problem.domain, Regions(1, 1), NystromFeatures.of(problem.domain, N_FEATURES, LENGTHSCALES), Streams(7),
        rounds=1, n_init=N_INIT, message_noise=0.01, follow="always", message="scores", design_kind="sobol",
        averaged_gp=AveragedGP(LENGTHSCALES),
    )  # fmt: skip
    server = Server(
        N, agents.message_size, Regions(1, 1), Uniform(), mechanism or SubsampledGaussian(*TIGHT), seeded("prior"),
        Ledger(), EpsilonCurve(accountant, [], DELTA),
    )  # fmt: skip
    return Target(
        kind(server, agents.design, agents.features), rounds, accountant, DELTA, AgentsSide(problem, agents, shard)
    )


@dataclass(frozen=True)
class GreedyAgents(Agents):
    """Agents that choose their last initial point beside the best of the others. observed: their objectives."""

    observed: Problem | None = None

    def initial_query(self, state):
        query = super().initial_query(state)
        first = query.u[:, :-1]
        y = self.observed.evaluate(state.ids, self.domain.to_natural(first), self.streams, 0)
        return Query(_beside(first, y, self.domain), query.source)


class GreedyShard(Shard):
    def __init__(self, problem, agents, ids):
        super().__init__(problem, GreedyAgents(**_settings(agents), observed=problem), ids)


class PoolingAgents(Agents):
    """Agents that rank their observations among those of all agents, not among their own."""

    def messages(self, state, t):
        ranks = state.y.flatten().argsort().argsort().view_as(state.y)
        linear = centred(self.features_at(state.points)).mT @ ranks.double().unsqueeze(-1)  # n x M x 1
        return linear[..., 0] / linear.norm(dim=1)


class PoolingShard(Shard):
    def __init__(self, problem, agents, ids):
        super().__init__(problem, PoolingAgents(**_settings(agents)), ids)


class BareAgents(Agents):
    """Agents that send observations in their own unit, and do not divide messages by their norm."""

    def messages(self, state, t):
        return (centred(self.features_at(state.points)).mT @ state.y.unsqueeze(-1))[..., 0]


class BareShard(Shard):
    def __init__(self, problem, agents, ids):
        super().__init__(problem, BareAgents(**_settings(agents)), ids)


@dataclass(frozen=True)
class ReportedDesign(Design):
    """The points that agents reported, in place of those of the public seed. reported: N x n_init x D."""

    reported: torch.Tensor | None = None

    def points(self, agents):
        return self.reported[agents]


def with_reported_design(target):
    """The server takes the agents' word for their points."""
    design = ReportedDesign(**vars(target.server.design), reported=target.agents.first_turn().record.u)
    return replace(target, server=replace(target.server, design=design))


class _KnowsTheSum(PriorServer):
    """A server that broadcasts `replacement` in place of the prior. received: clipped messages, N x M."""

    def round(self, t, messages, late=None):
        broadcast, record, private = super().round(t, messages, late)
        if not isinstance(broadcast, SharedPrior):
            return broadcast, record, private
        received = _accepted(messages, self.server, S)
        return self.replacement(broadcast, record.sigma, received), record, private


class OwnStatisticsInPublic(_KnowsTheSum):
    """The server takes each agent's message out of the sum, and broadcasts one mean an agent."""

    def replacement(self, broadcast, sigma, received):
        without = [self.infer(broadcast.values - message / N, sigma).mean for message in received]
        return replace(broadcast, mean=torch.stack(without))


class RawEvidence(_KnowsTheSum):
    """The server takes the evidence of length-scales and shares of variance from the sum without noise."""

    def replacement(self, broadcast, sigma, received):
        raw = self.infer(received.mean(0, keepdim=True), sigma)
        return replace(raw, values=broadcast.values, mean=broadcast.mean, covariance=broadcast.covariance)


class RawSums(_KnowsTheSum):
    """The server infers everything from the sum without noise, and broadcasts the noisy one beside it."""

    def replacement(self, broadcast, sigma, received):
        return replace(self.infer(received.mean(0, keepdim=True), sigma), values=broadcast.values)


class SumsOfSenders(_KnowsTheSum):
    """The server sums the designs of those agents alone whose messages arrived."""

    def replacement(self, broadcast, sigma, received):
        who = received.any(1).nonzero()[:, 0]
        if len(who) == 0:
            return broadcast
        design = ReportedDesign(**_settings(self.design), reported=self.design.points(who))
        copy = replace(self)
        copy.__dict__["sums"] = replace(DesignSums.of(design, self.features, len(who)), n_agents=N)
        return copy.infer(broadcast.values, sigma)


class FeaturesOfMessages(_KnowsTheSum):
    """The features have the one length-scale that fits the messages best."""

    def replacement(self, broadcast, sigma, received):
        evidence = self.infer(received.mean(0, keepdim=True), sigma).evidence
        best = LENGTHSCALES[int(evidence.argmax())]
        features = NystromFeatures.of(self.design.domain, N_FEATURES, (best,))
        return replace(self, features=features).infer(broadcast.values, sigma)


@dataclass(frozen=True)
class FollowingDesign(Design):
    """A design whose last point follows the agent's message. received: N x M; features: the shared map."""

    received: torch.Tensor | None = None
    features: NystromFeatures | None = None

    def points(self, agents):
        public = super().points(agents)
        worth = self.features(public) @ self.received[agents, :, None]  # n x n_init x 1
        return _beside(public[:, :-1], worth[:, :-1, 0], self.domain)


class SecondReleaseFree(PriorServer):
    """A server that releases again in round 1, over points that follow the messages, and charges the first alone."""

    def round(self, t, messages, late=None):
        if t:
            received = _accepted(messages, self.server, S)
            design = FollowingDesign(**_settings(self.design), received=received, features=self.features)
            object.__setattr__(self, "design", design)
            object.__setattr__(self, "server", replace(self.server, ledger=Ledger()))
            self.__dict__.pop("sums", None)
        return super().round(t, messages, late)


def planted():
    """(name, words, target) of every fault of the private prior."""
    greedy = with_reported_design(sound(shard=GreedyShard))
    unclipped = mechanisms.NoClipping(*TIGHT)
    return [
        ("messages unclipped", "messages are summed as they come", sound(unclipped)),
        ("messages without a bound", "in units of observations, and not clipped", sound(unclipped, shard=BareShard)),
        ("noise of the mean", "the noise is divided by N once too often", sound(mechanisms.NoiseOfTheMean(*TIGHT))),
        ("design from data", "an agent chooses its last initial point by what it observed at the others", greedy),
        ("ranked together", "observations are ranked among those of all agents", sound(shard=PoolingShard)),
        ("own statistics in public", "the broadcast has a prior mean of each agent", sound(kind=OwnStatisticsInPublic)),
        (
            "evidence from raw sums", "evidence and shares of variance are computed from the noise-free sum",
            sound(kind=RawEvidence),
        ),
        ("inference from raw sums", "all but the release comes from the sum without noise", sound(kind=RawSums)),
        ("designs of senders", "public matrices leave out agents that sent nothing", sound(kind=SumsOfSenders)),
        (
            "features from messages", "features have the length-scale that fits the messages best",
            sound(kind=FeaturesOfMessages),
        ),
        (
            "second release free", "a second, uncharged release over points that depend on messages",
            sound(kind=SecondReleaseFree, rounds=2),
        ),
    ]  # fmt: skip


def _accepted(messages, server, norm):
    """All messages as the server counts them, N x M."""
    sent = [None] * server.n_agents if messages is None else messages
    received, _ = accept(sent, torch.arange(server.n_agents), server.message_size)
    return clip(received, norm)[0]


def _beside(points, worth, domain):
    """The points (n x k x D) and one more beside the one of largest worth (n x k)."""
    best = points[torch.arange(len(points)), worth.argmax(1)][:, None]  # n x 1 x D
    region = torch.zeros(len(points), dtype=torch.long)
    more = Regions(1, domain.dimension).uniform_points(region, (best + _STEP) % 1, domain)
    return torch.cat([points, more], 1)


def _settings(settings):
    """The fields of the real class, for one that is derived from it."""
    real = Agents if isinstance(settings, Agents) else Design
    return {f.name: getattr(settings, f.name) for f in fields(real)}
