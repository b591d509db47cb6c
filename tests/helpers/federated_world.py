"""A small federated experiment, built by hand."""

import torch

from dpfbo.federated.population.agents import Agents
from dpfbo.federated.prior_server import PriorServer
from dpfbo.federated.server import Server
from dpfbo.federated.weights.decay import Decay
from dpfbo.federated.weights.softmax import Softmax
from dpfbo.federated.weights.uniform import Uniform
from dpfbo.gp.acquisition import Acquisition
from dpfbo.gp.averaged_gp import AveragedGP
from dpfbo.gp.draws import OwnDraw
from dpfbo.gp.features import shared_features
from dpfbo.gp.nystrom import NystromFeatures
from dpfbo.gp.own_gp import OwnGP
from dpfbo.privacy.accounting.pld import Pld
from dpfbo.privacy.budget import EpsilonCurve
from dpfbo.privacy.entropy import SeededEntropy
from dpfbo.privacy.ledger import Ledger
from dpfbo.problems.synthetic import Synthetic
from dpfbo.rng import Streams
from dpfbo.space.regions import Regions

T = 8
GIVEN = OwnGP("given", lengthscale=0.1, variance=1.0, noise=0.01)


def world(problem=None, P=2, follow="inverse_sqrt", method="rff", seed=0, own_gp=GIVEN, M=30):
    """(problem, agents, streams) of a small experiment."""
    problem = problem or Synthetic(n_agents=12, grid_size=60, lengthscale=0.1)
    streams = Streams(seed)
    D = problem.domain.dimension
    agents = Agents(
        problem.domain, Regions(P, D), shared_features(M, D, 0.1, streams.generator("features")), streams, T, 5, 0.01,
        follow, own_gp, OwnDraw(method), Acquisition(200, 5),
    )  # fmt: skip
    return problem, agents, streams


def server_for(problem, agents, mechanism, ledger=None, entropy=None):
    N, M = problem.n_agents, agents.features.frequencies.shape[1]
    curve = EpsilonCurve(Pld(), [mechanism.dp_event(torch.ones(1, N), 0)] * T, 1e-2)
    entropy = entropy or SeededEntropy(agents.streams)
    ledger = ledger if ledger is not None else Ledger()
    return Server(N, M, agents.regions, Softmax(Decay(3, 3)), mechanism, entropy, ledger, curve)


def prior_world(problem=None, n_init=4, M=40, seed=0, lengthscales=(0.1, 0.3), design="sobol", rounds=T, **gp):
    """(problem, agents) with the private prior. gp: settings of the agents' `AveragedGP`."""
    problem = problem or Synthetic(n_agents=12, grid_size=60, lengthscale=0.1)
    agents = Agents(
        problem.domain, Regions(1, problem.domain.dimension), NystromFeatures.of(problem.domain, M, lengthscales),
        Streams(seed), rounds, n_init, 0.01, "always", acquisition=Acquisition(200, 5), message="scores",
        design_kind=design, averaged_gp=AveragedGP(lengthscales, **gp),
    )  # fmt: skip
    return problem, agents


def prior_server_for(problem, agents, mechanism, ledger=None):
    """The server of `prior_world`. mechanism: with q = 1, or without privacy."""
    N = problem.n_agents
    curve = EpsilonCurve(Pld(), [mechanism.dp_event(torch.full((1, N), 1 / N), 0)], 1e-2)
    server = Server(
        N, agents.message_size, agents.regions, Uniform(), mechanism, SeededEntropy(agents.streams),
        Ledger() if ledger is None else ledger, curve,
    )  # fmt: skip
    return PriorServer(server, agents.design, agents.features)
