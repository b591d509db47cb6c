"""A small federated experiment, built by hand."""

import torch

from dpfbo.federated.agents import Agents
from dpfbo.federated.server import Server
from dpfbo.federated.weights.decay import Decay
from dpfbo.federated.weights.softmax import Softmax
from dpfbo.gp.acquisition import Acquisition
from dpfbo.gp.draws import OwnDraw
from dpfbo.gp.features import shared_features
from dpfbo.gp.own_gp import OwnGP
from dpfbo.gp.regions import Regions
from dpfbo.privacy.accounting.pld import Pld
from dpfbo.privacy.budget import EpsilonCurve
from dpfbo.privacy.entropy import SeededEntropy
from dpfbo.privacy.ledger import Ledger
from dpfbo.problems.synthetic import Synthetic
from dpfbo.rng import Streams

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
