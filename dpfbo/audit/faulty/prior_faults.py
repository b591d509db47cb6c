"""A small setting of the private prior, and its planted faults."""

from collections.abc import Callable
from dataclasses import replace
from typing import cast

from dpfbo.audit.faulty import prior_servers
from dpfbo.audit.faulty.mechanisms import NoClipping
from dpfbo.audit.server.agents_side import AgentsSide
from dpfbo.audit.server.target import Target, seeded
from dpfbo.federated.mechanism import SubsampledGaussian
from dpfbo.federated.population.agents import Agents
from dpfbo.federated.population.shard import Shard
from dpfbo.federated.prior.model import PriorModel
from dpfbo.federated.prior_server import PriorServer
from dpfbo.federated.server import Server
from dpfbo.federated.weights.uniform import Uniform
from dpfbo.gp.features import block_features
from dpfbo.privacy.accounting.pld import Pld
from dpfbo.privacy.budget import EpsilonCurve
from dpfbo.privacy.ledger import Ledger
from dpfbo.problems.problem import Problem
from dpfbo.problems.synthetic import Synthetic
from dpfbo.rng import Streams
from dpfbo.space.regions import Regions

N, N_FEATURES, N_INIT, DELTA = 12, 8, 4, 1e-2
Z, S = 1.0, 2.6
TIGHT = (1.0, Z, S, "tight")


def sound(
    mechanism: SubsampledGaussian | None = None,
    kind: Callable[..., PriorServer] = PriorServer,
    shard: type[Shard] = Shard,
    rounds: int = 1,
) -> Target:
    """A small private prior with exactly the claimed noise: 12 agents with 4 points each, a message of 9 numbers."""
    model, streams = PriorModel(lengthscales=(0.1, 0.4), scale=0.25), Streams(7)
    accountant = Pld()
    problem = Synthetic(n_agents=N, grid_size=50, lengthscale=0.2)
    agents = Agents(
        domain=problem.domain, regions=Regions(1, 1), streams=streams, rounds=1, n_init=N_INIT,
        features=block_features(N_FEATURES, 1, model.lengthscales, streams.generator("features")), message_noise=0.01,
        follow="always", message="statistics", design_kind="sobol", prior=model,
    )  # fmt: skip
    server = Server(
        N, agents.message_size, Regions(1, 1), Uniform(), mechanism or SubsampledGaussian(*TIGHT), seeded("prior"),
        Ledger(), EpsilonCurve(accountant, [], DELTA),
    )  # fmt: skip
    prior = kind(server, model, agents.design, agents.features, S)
    return Target(prior, rounds, accountant, DELTA, AgentsSide(cast(Problem, problem), agents, shard))


def with_reported_design(target: Target) -> Target:
    """The server takes the agents' word for their points."""
    assert isinstance(target.server, PriorServer) and target.agents is not None
    reported = target.agents.first_turn().record.u
    design = prior_servers.ReportedDesign(**vars(target.server.design), reported=reported)
    return replace(target, server=replace(target.server, design=design))


def planted() -> dict[str, tuple[str, Target]]:
    """Every fault of the private prior, by name: its description and the setting."""
    servers = prior_servers
    greedy = with_reported_design(sound(shard=servers.GreedyShard))
    return {
        "statistics unclipped": ("an agent's statistics are summed as they come", sound(NoClipping(*TIGHT))),
        "scalar unclipped": ("the vector is clipped without the scalar", sound(servers.ClipsVectorAlone(*TIGHT))),
        "noise of the mean": ("noise of the sum divided by N twice", sound(servers.NoiseOfTheMean(*TIGHT))),
        "design from data": ("the last initial points follow the first observations", greedy),
        "centred together": ("the mean of all agents' observations is subtracted", sound(shard=servers.PoolingShard)),
        "own statistics in public": ("broadcast: each agent's prior", sound(kind=servers.OwnStatisticsInPublic)),
        "evidence from raw sums": ("tau from the scalar without noise", sound(kind=servers.RawScalar)),
        "inference from raw sums": ("mean and gain from the sum without noise", sound(kind=servers.RawSums)),
        "second release free": (
            "a second one over points that follow messages",
            sound(kind=servers.SecondReleaseFree, rounds=2),
        ),
    }
