"""executor=local: the agents and the server of a run in this process."""

from dataclasses import dataclass
from typing import Any

import torch

from dpfbo.checkpoint import Checkpoint
from dpfbo.federated.federation import Aggregator, Result, Together
from dpfbo.federated.shard import Shard
from dpfbo.outsourced.loop import ModelerHere, Parties
from dpfbo.privacy.ledger import Ledger
from runners.compose.federated import FederatedExperiment
from runners.compose.outsourced import OutsourcedExperiment
from runners.executor.deployment import Spent, device, use_threads
from runners.record.run_folder import RunFolder


@dataclass(frozen=True)
class LocalDeployment:
    """All agents one batch in this process, the server beside them."""

    experiment: FederatedExperiment
    population: Together
    server: Aggregator | None
    ledger: Ledger

    @staticmethod
    def of(experiment: FederatedExperiment, folder: RunFolder, done: Result) -> "LocalDeployment":
        executor = experiment.settings.executor
        use_threads(executor.threads)
        where = device(executor.device, given_gpu=torch.cuda.is_available())
        shard = Shard(experiment.problem, experiment.agents, torch.arange(experiment.problem.n_agents, device=where))
        shard.restore(done.rounds)
        ledger = Ledger(folder.ledger_path)
        server = experiment.server(ledger, Checkpoint(folder.checkpoint_path).release_file())
        return LocalDeployment(experiment, Together(shard), server, ledger)

    def spent(self) -> Spent:
        return Spent(self.experiment.plan.epsilons(self.ledger.events()), len(self.ledger.charges))

    def placed(self) -> dict[str, Any]:
        return {"name": "local", "shards": 1}


@dataclass(frozen=True)
class LocalParties:
    """Curator and modeler of an outsourced run in this process."""

    experiment: OutsourcedExperiment
    population: Parties
    server: Aggregator
    ledger: Ledger

    @staticmethod
    def of(experiment: OutsourcedExperiment, folder: RunFolder, done: Result) -> "LocalParties":
        use_threads(experiment.settings.executor.threads)
        ledger = Ledger(folder.ledger_path)
        curator = experiment.curator(ledger, Checkpoint(folder.checkpoint_path).curator_file())
        modeler = ModelerHere(experiment.brief())
        parties = Parties(experiment.problem, curator, modeler, experiment.streams, experiment.n_init)
        parties.restore(done.rounds, done.first_broadcast)
        return LocalParties(experiment, parties, curator, ledger)

    def spent(self) -> Spent:
        return Spent(self.experiment.plan.epsilons(self.ledger.events()), len(self.ledger.charges))

    def placed(self) -> dict[str, Any]:
        return {"name": "local", "shards": 1}
