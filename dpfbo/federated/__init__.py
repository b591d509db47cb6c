"""DP-FTS-DE and variants: agents (Algorithm 2 of the paper), servers (Algorithm 1), mechanisms, and the run loop."""

from typing import TYPE_CHECKING

from dpfbo import lazy

__all__ = [
    "Agents", "Decay", "Dropout", "FederatedResult", "LocalPopulation", "PeerExchange", "Power",
    "PriorServer", "RandomServer", "Server", "SharedPrior", "SobolServer", "Softmax", "SubsampledGaussian", "Uniform",
    "WeightedAverage", "run_federated",
]  # fmt: skip

if TYPE_CHECKING:
    from dpfbo.federated.broadcast import SharedPrior
    from dpfbo.federated.controls import RandomServer, SobolServer
    from dpfbo.federated.dropout import Dropout
    from dpfbo.federated.federation import FederatedResult, LocalPopulation
    from dpfbo.federated.federation import run as run_federated
    from dpfbo.federated.mechanism import SubsampledGaussian, WeightedAverage
    from dpfbo.federated.peer_exchange import PeerExchange
    from dpfbo.federated.population.agents import Agents
    from dpfbo.federated.prior_server import PriorServer
    from dpfbo.federated.server import Server
    from dpfbo.federated.weights.decay import Decay
    from dpfbo.federated.weights.power import Power
    from dpfbo.federated.weights.softmax import Softmax
    from dpfbo.federated.weights.uniform import Uniform
else:
    __getattr__, __dir__ = lazy.attach(__name__)
