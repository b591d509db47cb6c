"""Deploy an experiment with its executor: in this process, or on Ray."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from dpfbo.checkpoint import Checkpoint
from dpfbo.extras import needing
from dpfbo.federated import federation
from dpfbo.federated.federation import LocalPopulation
from dpfbo.federated.population.shard import Shard
from dpfbo.formats.run_folder import RunFolder
from dpfbo.outsourced import loop
from dpfbo.outsourced.loop import AnyModeler, LocalModeler
from dpfbo.privacy.ledger import Ledger
from runners.compose.composition import Experiment
from runners.compose.federated import FederatedExperiment
from runners.compose.outsourced import OutsourcedExperiment
from runners.executor.deployment import Deployment, Spent, device, use_threads


@contextmanager
def with_room(experiment: Experiment) -> Iterator[None]:
    """Connect to the experiment's Ray cluster until the end of the block; with `executor=local`, do nothing.

    Raises ExecutorError if no cluster answers, or if the actors do not fit.
    """
    if experiment.settings.executor.name == "local":
        yield
        return
    with needing("ray", "executor=ray"):
        from runners.executor.ray.cluster import connected, layout
        from runners.executor.ray.outsourced import modeler_cpus
    with connected(experiment.settings.ray):
        if isinstance(experiment, FederatedExperiment):
            layout(experiment.settings.ray, experiment)
        else:
            modeler_cpus(experiment.settings.ray)
        yield


@contextmanager
def deployed(experiment: Experiment, folder: RunFolder, done: Any) -> Iterator[Deployment]:
    """Start the agents and server, or the curator and modeler, and stop them when the block ends.

    The experiment's executor determines which of them run in this process, and which on Ray. Use this inside a
    `with_room` block. done: the finished rounds.
    """
    if experiment.settings.executor.name == "local":
        with folder.hold_ledger() as held:
            if isinstance(experiment, FederatedExperiment):
                yield _agents_and_server(experiment, Ledger(folder.ledger_path, held), folder, done)
            else:
                modeler = LocalModeler(experiment.brief())
                yield _curator_and(modeler, experiment, Ledger(folder.ledger_path, held), folder, done)
        return
    from runners.executor.ray.federated import RayFederation
    from runners.executor.ray.outsourced import RayModeler

    if isinstance(experiment, FederatedExperiment):
        with RayFederation(experiment, folder, done) as actors:
            yield Deployment(actors.run, actors.spent, actors.placed)
    else:
        with RayModeler(experiment, done) as actor, folder.hold_ledger() as held:
            local = _curator_and(actor, experiment, Ledger(folder.ledger_path, held), folder, done)
            yield Deployment(local.run, local.spent, actor.placed)


def _agents_and_server(experiment: FederatedExperiment, ledger: Ledger, folder: RunFolder, done: Any) -> Deployment:
    executor = experiment.settings.executor
    use_threads(executor.threads)
    ids = torch.arange(experiment.problem.n_agents, device=device(executor.device, given_gpu=torch.cuda.is_available()))
    shard = Shard(experiment.problem, experiment.agents, ids, executor.threads)
    shard.restore(done.rounds, done.observed)
    server = experiment.server(ledger, Checkpoint(folder.checkpoint_path))
    population = LocalPopulation(shard, experiment.settings.algorithm.aggregates)
    return Deployment(
        lambda on_round, most: federation.run(population, server, experiment.rounds, on_round, done, most),
        partial(Spent.of, experiment.plan, ledger),
        lambda: {"name": "local", "shards": 1},
    )


def _curator_and(
    modeler: AnyModeler, experiment: OutsourcedExperiment, ledger: Ledger, folder: RunFolder, done: Any
) -> Deployment:
    use_threads(experiment.settings.executor.threads)
    curator, setup = experiment.curator(ledger, Checkpoint(folder.checkpoint_path)), experiment.setup
    loop.restore(curator, modeler, setup, done)
    return Deployment(
        lambda on_round, most: loop.run(curator, modeler, setup, on_round, done),
        partial(Spent.of, experiment.plan, ledger),
        lambda: {"name": "local", "shards": 1},
    )
