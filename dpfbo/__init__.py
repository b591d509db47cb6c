"""Private federated Bayesian optimisation: tensors in, tensors out.

`import dpfbo` gives the public names. Each is imported from its module at its first use, so that the process of an
agent or a modeler loads no problem and no accountant.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING

# MKL may round by where a matrix lies in memory, and so by which agents share a process (dpfbo/gp/batches.py); in this
# mode it does not. It reads the variable at its first call; the speed is the same.
os.environ.setdefault("MKL_CBWR", "AUTO")

_NAMES = {  # public names by file
    "checkpoint": "Checkpoint",
    "checks": "SettingError",
    "records": "RoundRecord ServerRecord rounds_table server_table",
    "rng": "Streams",
    "run_result": "Result Round",
    "extensions": "Message",
    "gp/acquisition": "Acquisition",
    "gp/design": "Design",
    "space/domain": "Box Grid",
    "gp/draws": "OwnDraw",
    "gp/features": "RandomFeatures block_features shared_features",
    "gp/own_gp": "OwnGP",
    "space/parameters": "Categorical Fixed Float Integer Ordinal Space",
    "space/regions": "Regions",
    "privacy/accounting": "Accountant UnsupportedEvent accountant_named default_delta",
    "privacy/budget": "Budget BudgetSpent EpsilonCurve",
    "privacy/entropy": "SeededEntropy SystemEntropy",
    "privacy/ledger": "Ledger LedgerError",
    "privacy/noise": "DiscreteGaussian Gaussian",
    "privacy/plan": "PrivacyPlan",
    "privacy/release": "Diagnostics Release",
    "federated/population/agents": "Agents",
    "federated/broadcast": "SharedPrior",
    "federated/controls": "RandomServer SobolServer",
    "federated/dropout": "Dropout",
    "federated/federation": "FederatedResult LocalPopulation",
    "federated/mechanism": "SubsampledGaussian WeightedAverage",
    "federated/peer_exchange": "PeerExchange",
    "federated/prior/model": "PriorModel",
    "federated/prior_server": "PriorServer",
    "federated/server": "Server",
    "federated/weights/decay": "Decay",
    "federated/weights/power": "Power",
    "federated/weights/softmax": "Softmax",
    "federated/weights/uniform": "Uniform",
    "protocol/agent": "Agent",
    "protocol/coordinator": "Coordinator",
    "protocol/journal": "StateError",
    "protocol/wire": "WireError",
    "study/algorithm": "Algorithm",
    "study/create": "create_study optimize run_study",
    "study/optimization": "Best Optimization",
    "study/presets": "Preset algorithm_named",
    "study/study": "Study",
    "outsourced/curator": "Curator",
    "outsourced/loop": "Brief LocalModeler OutsourcedResult Setup",
    "outsourced/modeler": "Belief Policy",
    "outsourced/table": "CandidateProblem Table",
    "outsourced/transforms/cover": "Cover",
    "outsourced/transforms/gaussian": "GaussianNoise",
    "outsourced/transforms/histogram": "Histogram",
    "outsourced/transforms/plain": "Plain",
    "outsourced/transforms/random_projection": "RandomProjection",
    "problems": "Problem",
    "problems/activity": "Activity",
    "problems/botorch_function": "BotorchFunction",
    "problems/branin": "Branin",
    "problems/branin_grid": "BraninGrid",
    "problems/custom": "Custom EvaluationError",
    "problems/digits": "Digits",
    "problems/grid_gp": "GridGP",
    "problems/landmine": "Landmine",
    "problems/loans": "Loans",
    "problems/property": "Property",
    "problems/school": "School",
    "problems/synthetic": "Synthetic",
    "problems/synthetic_heterogeneous": "SyntheticHeterogeneous",
}
_PLACES = {name: (file, name) for file, names in _NAMES.items() for name in names.split()}
_PLACES |= {"run_federated": ("federated/federation", "run"), "run_outsourced": ("outsourced/loop", "run")}

__all__ = [
    "Accountant", "Acquisition", "Activity", "Agent", "Agents", "Algorithm", "Belief", "Best", "BotorchFunction", "Box",
    "Branin", "BraninGrid", "Brief", "Budget", "BudgetSpent", "CandidateProblem", "Categorical", "Checkpoint",
    "Coordinator", "Cover", "Curator", "Custom", "Decay", "Design", "Diagnostics", "Digits", "DiscreteGaussian",
    "Dropout", "EpsilonCurve", "EvaluationError", "FederatedResult", "Fixed", "Float", "Gaussian", "GaussianNoise",
    "Grid", "GridGP", "Histogram", "Integer", "Landmine", "Ledger", "LedgerError", "Loans", "LocalModeler",
    "LocalPopulation", "Message", "Optimization", "Ordinal", "OutsourcedResult", "OwnDraw", "OwnGP", "PeerExchange",
    "Plain", "Policy", "Power", "Preset", "PriorModel", "PriorServer", "PrivacyPlan", "Problem", "Property",
    "RandomFeatures", "RandomProjection", "RandomServer", "Regions", "Release", "Result", "Round", "RoundRecord",
    "School", "SeededEntropy", "Server", "ServerRecord", "SettingError", "Setup", "SharedPrior", "SobolServer",
    "Softmax", "Space", "StateError", "Streams", "Study", "SubsampledGaussian", "Synthetic", "SyntheticHeterogeneous",
    "SystemEntropy", "Table", "Uniform", "UnsupportedEvent", "WeightedAverage", "WireError", "accountant_named",
    "algorithm_named", "block_features", "create_study", "default_delta", "optimize", "rounds_table", "run_federated",
    "run_outsourced", "run_study", "server_table", "shared_features",
]  # fmt: skip

if TYPE_CHECKING:
    from dpfbo.checkpoint import Checkpoint
    from dpfbo.checks import SettingError
    from dpfbo.extensions import Message
    from dpfbo.federated.broadcast import SharedPrior
    from dpfbo.federated.controls import RandomServer, SobolServer
    from dpfbo.federated.dropout import Dropout
    from dpfbo.federated.federation import FederatedResult, LocalPopulation
    from dpfbo.federated.federation import run as run_federated
    from dpfbo.federated.mechanism import SubsampledGaussian, WeightedAverage
    from dpfbo.federated.peer_exchange import PeerExchange
    from dpfbo.federated.population.agents import Agents
    from dpfbo.federated.prior.model import PriorModel
    from dpfbo.federated.prior_server import PriorServer
    from dpfbo.federated.server import Server
    from dpfbo.federated.weights.decay import Decay
    from dpfbo.federated.weights.power import Power
    from dpfbo.federated.weights.softmax import Softmax
    from dpfbo.federated.weights.uniform import Uniform
    from dpfbo.gp.acquisition import Acquisition
    from dpfbo.gp.design import Design
    from dpfbo.gp.draws import OwnDraw
    from dpfbo.gp.features import RandomFeatures, block_features, shared_features
    from dpfbo.gp.own_gp import OwnGP
    from dpfbo.outsourced.curator import Curator
    from dpfbo.outsourced.loop import Brief, LocalModeler, OutsourcedResult, Setup
    from dpfbo.outsourced.loop import run as run_outsourced
    from dpfbo.outsourced.modeler import Belief, Policy
    from dpfbo.outsourced.table import CandidateProblem, Table
    from dpfbo.outsourced.transforms.cover import Cover
    from dpfbo.outsourced.transforms.gaussian import GaussianNoise
    from dpfbo.outsourced.transforms.histogram import Histogram
    from dpfbo.outsourced.transforms.plain import Plain
    from dpfbo.outsourced.transforms.random_projection import RandomProjection
    from dpfbo.privacy.accounting import Accountant, UnsupportedEvent, accountant_named, default_delta
    from dpfbo.privacy.budget import Budget, BudgetSpent, EpsilonCurve
    from dpfbo.privacy.entropy import SeededEntropy, SystemEntropy
    from dpfbo.privacy.ledger import Ledger, LedgerError
    from dpfbo.privacy.noise import DiscreteGaussian, Gaussian
    from dpfbo.privacy.plan import PrivacyPlan
    from dpfbo.privacy.release import Diagnostics, Release
    from dpfbo.problems import Problem
    from dpfbo.problems.activity import Activity
    from dpfbo.problems.botorch_function import BotorchFunction
    from dpfbo.problems.branin import Branin
    from dpfbo.problems.branin_grid import BraninGrid
    from dpfbo.problems.custom import Custom, EvaluationError
    from dpfbo.problems.digits import Digits
    from dpfbo.problems.grid_gp import GridGP
    from dpfbo.problems.landmine import Landmine
    from dpfbo.problems.loans import Loans
    from dpfbo.problems.property import Property
    from dpfbo.problems.school import School
    from dpfbo.problems.synthetic import Synthetic
    from dpfbo.problems.synthetic_heterogeneous import SyntheticHeterogeneous
    from dpfbo.protocol.agent import Agent
    from dpfbo.protocol.coordinator import Coordinator
    from dpfbo.protocol.journal import StateError
    from dpfbo.protocol.wire import WireError
    from dpfbo.records import RoundRecord, ServerRecord, rounds_table, server_table
    from dpfbo.rng import Streams
    from dpfbo.run_result import Result, Round
    from dpfbo.space.domain import Box, Grid
    from dpfbo.space.parameters import Categorical, Fixed, Float, Integer, Ordinal, Space
    from dpfbo.space.regions import Regions
    from dpfbo.study.algorithm import Algorithm
    from dpfbo.study.create import create_study, optimize, run_study
    from dpfbo.study.optimization import Best, Optimization
    from dpfbo.study.presets import Preset, algorithm_named
    from dpfbo.study.study import Study
else:

    def __getattr__(name: str) -> object:
        if name not in _PLACES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        file, attribute = _PLACES[name]
        value = globals()[name] = getattr(import_module(f"{__name__}.{file.replace('/', '.')}"), attribute)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
