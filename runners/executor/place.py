"""Deployment of an experiment by its executor: in this process, or on Ray."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from dpfbo.checkpoint import Checkpoint
from dpfbo.extras import needing
from dpfbo.federated import federation
from dpfbo.federated.federation import LocalPopulation
from dpfbo.federated.population.shard import Shard
from dpfbo.outsourced import loop
from dpfbo.outsourced.loop import LocalModeler
from dpfbo.privacy.ledger import Ledger
from dpfbo.run_result import OnRound, Result
from runners.compose.composition import Experiment
from runners.compose.federated import FederatedExperiment
from runners.compose.outsourced import OutsourcedExperiment
from runners.executor.deployment import Deployment, Spent, device, use_threads
from runners.record.run_folder import RunFolder

Rounds = Callable[[OnRound, int | None], object]  # runs the remaining rounds


@contextmanager
def deployed(experiment: Experiment, folder: RunFolder, done: Result) -> Iterator[Deployment]:
    """Place all parts of an experiment, and remove them at the end. done: finished rounds; `run` adds the others."""
    if experiment.settings.executor.name == "ray":
        with needing("ray", "executor=ray"):
            from runners.executor.ray.cluster import connected
            from runners.executor.ray.federated import RayFederation
            from runners.executor.ray.outsourced import RayOutsourced
        kind: Any = RayFederation if isinstance(experiment, FederatedExperiment) else RayOutsourced
        with connected(experiment.settings.ray):
            deployment = kind(experiment, folder, done)
            try:
                deployment.place()
                yield deployment
            finally:
                deployment.remove()
        return
    use_threads(experiment.settings.executor.threads)
    with folder.hold_ledger() as held:
        ledger, checkpoint = Ledger(folder.ledger_path, held), Checkpoint(folder.checkpoint_path)
        if isinstance(experiment, FederatedExperiment):
            rounds = _agents_and_server(experiment, ledger, checkpoint, done)
        else:
            rounds = _curator_and_modeler(experiment, ledger, checkpoint, done)
        yield LocalDeployment(experiment, ledger, rounds)


@dataclass(frozen=True)
class LocalDeployment:
    """A run in this process."""

    experiment: Experiment
    ledger: Ledger
    rounds: Rounds

    def run(self, on_round: OnRound, broadcasts: int | None = None) -> None:
        self.rounds(on_round, broadcasts)

    def spent(self) -> Spent:
        return Spent.of(self.experiment.plan, self.ledger)

    def placed(self) -> dict[str, Any]:
        return {"name": "local", "shards": 1}


def _agents_and_server(experiment: FederatedExperiment, ledger: Ledger, checkpoint: Checkpoint, done: Any) -> Rounds:
    """All agents as one batch, and the server."""
    executor = experiment.settings.executor
    where = device(executor.device, given_gpu=torch.cuda.is_available())
    ids = torch.arange(experiment.problem.n_agents, device=where)
    shard = Shard(experiment.problem, experiment.agents, ids, executor.threads)
    shard.restore(done.rounds, done.observed)
    server = experiment.server(ledger, checkpoint)
    population = LocalPopulation(shard, experiment.settings.algorithm.aggregates)
    return lambda on_round, most: federation.run(population, server, experiment.rounds, on_round, done, most)


def _curator_and_modeler(experiment: OutsourcedExperiment, ledger: Ledger, checkpoint: Checkpoint, done: Any) -> Rounds:
    curator, modeler, setup = experiment.curator(ledger, checkpoint), LocalModeler(experiment.brief()), experiment.setup
    loop.restore(curator, modeler, setup, done)
    return lambda on_round, most: loop.run(curator, modeler, setup, on_round, done)
