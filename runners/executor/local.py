"""executor=local: a run in this process."""

from dataclasses import dataclass
from typing import Any, BinaryIO

import torch

from dpfbo.checkpoint import Checkpoint
from dpfbo.federated import federation
from dpfbo.federated.federation import Aggregator, FederatedResult, LocalPopulation
from dpfbo.federated.population.shard import Shard
from dpfbo.outsourced import loop
from dpfbo.outsourced.curator import Curator
from dpfbo.outsourced.loop import LocalModeler, OutsourcedResult
from dpfbo.privacy.ledger import Ledger
from dpfbo.run_result import OnRound
from runners.compose.composition import Experiment
from runners.compose.federated import FederatedExperiment
from runners.compose.outsourced import OutsourcedExperiment
from runners.executor.deployment import Spent, device, use_threads
from runners.record.run_folder import RunFolder


@dataclass(frozen=True)
class Local:
    """A run in this process, of either family."""

    experiment: Experiment
    ledger: Ledger

    def spent(self) -> Spent:
        return Spent(self.experiment.plan.epsilons(self.ledger.events()), len(self.ledger.charges))

    def placed(self) -> dict[str, Any]:
        return {"name": "local", "shards": 1}


@dataclass(frozen=True)
class LocalFederation(Local):
    """All agents in one batch, and the server."""

    population: LocalPopulation
    server: Aggregator | None
    done: FederatedResult

    @staticmethod
    def of(
        experiment: FederatedExperiment, folder: RunFolder, done: FederatedResult, held: BinaryIO
    ) -> "LocalFederation":
        executor = experiment.settings.executor
        use_threads(executor.threads)
        where = device(executor.device, given_gpu=torch.cuda.is_available())
        ids = torch.arange(experiment.problem.n_agents, device=where)
        shard = Shard(experiment.problem, experiment.agents, ids, executor.threads)
        shard.restore(done.rounds, done.observed)
        ledger = Ledger(folder.ledger_path, held)
        server = experiment.server(ledger, experiment.kept_release(Checkpoint(folder.checkpoint_path)))
        return LocalFederation(
            experiment, ledger, LocalPopulation(shard, experiment.study.algorithm.aggregates), server, done
        )

    def run(self, on_round: OnRound, broadcasts: int | None = None) -> None:
        federation.run(self.population, self.server, self.experiment.rounds, on_round, self.done, broadcasts)


@dataclass(frozen=True)
class LocalOutsourced(Local):
    """The curator and the modeler of an outsourced run."""

    curator: Curator
    modeler: LocalModeler
    setup: loop.Setup
    done: OutsourcedResult

    @staticmethod
    def of(
        experiment: OutsourcedExperiment, folder: RunFolder, done: OutsourcedResult, held: BinaryIO
    ) -> "LocalOutsourced":
        use_threads(experiment.settings.executor.threads)
        ledger = Ledger(folder.ledger_path, held)
        curator = experiment.curator(ledger, experiment.kept_release(Checkpoint(folder.checkpoint_path)))
        modeler, setup = LocalModeler(experiment.brief()), experiment.setup
        loop.restore(curator, modeler, setup, done)
        return LocalOutsourced(experiment, ledger, curator, modeler, setup, done)

    def run(self, on_round: OnRound, broadcasts: int | None = None) -> None:
        loop.run(self.curator, self.modeler, self.setup, on_round, self.done)
