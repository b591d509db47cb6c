"""Where a run's agents and server are: in this process, or in Ray actors. One name each in `conf/executor/`."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from dpfbo.checkpoint import Checkpoint
from dpfbo.federated.federation import Aggregator, Population, Result, Together
from dpfbo.federated.shard import Shard
from dpfbo.outsourced.loop import ModelerHere, Parties
from dpfbo.privacy.ledger import Ledger
from runners.compose.experiment import AnyExperiment, Experiment, use_threads
from runners.compose.outsourced import Outsourced
from runners.record.run_folder import RunFolder


class ExecutorError(RuntimeError):
    """The agents and the server could not be placed, or died too often."""


@dataclass(frozen=True)
class Spent:
    """What the server's ledger says. epsilons: by accountant, None where there is no finite one."""

    epsilons: dict[str, float | None]
    n_charges: int


class Deployment(Protocol):
    """The agents and the server of one run, placed."""

    @property
    def population(self) -> Population: ...

    @property
    def server(self) -> Aggregator | None: ...

    def spent(self) -> Spent: ...

    def placed(self) -> dict[str, Any]:
        """What was chosen, for the summary."""


@contextmanager
def deployed(experiment: AnyExperiment, folder: RunFolder, done: Result) -> Iterator[Deployment]:
    """Place the agents and the server of an experiment whose rounds `done` are over; taken down at the end."""
    executor = experiment.settings["executor"]
    if executor["name"] == "ray":
        try:
            if isinstance(experiment, Outsourced):
                from runners.executor.ray.outsourced import ray_deployment
            else:
                from runners.executor.ray.federated import ray_deployment  # type: ignore[assignment]
        except ModuleNotFoundError as error:
            raise ExecutorError(f"executor=ray needs Ray ({error}): pip install 'dpfbo[ray]'") from error
        with ray_deployment(experiment, folder, done) as deployment:  # type: ignore[arg-type]
            yield deployment
    else:
        with folder.hold_ledger():
            if isinstance(experiment, Outsourced):
                yield LocalParties.of(experiment, folder, done)
            else:
                yield LocalDeployment.of(experiment, folder, done)


def device(wanted: str, given_gpu: bool) -> torch.device:
    """The device of a process's tensors. wanted: auto takes a GPU if the process was given one.

    Raises ValueError if a GPU is wanted and torch sees none.
    """
    if wanted == "cpu" or (wanted == "auto" and not given_gpu):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ValueError(
            f"executor.device={wanted} needs a GPU here and torch sees none; executor.device=cpu uses none"
        )
    return torch.device("cuda")


@dataclass(frozen=True)
class LocalDeployment:
    """All agents one batch in this process, the server beside them."""

    experiment: Experiment
    population: Together
    server: Aggregator | None
    ledger: Ledger

    @staticmethod
    def of(experiment: Experiment, folder: RunFolder, done: Result) -> "LocalDeployment":
        executor = experiment.settings["executor"]
        use_threads(executor["threads"])
        where = device(executor["device"], given_gpu=torch.cuda.is_available())
        shard = Shard(experiment.problem, experiment.agents, torch.arange(experiment.problem.n_agents, device=where))
        shard.restore(done.rounds)
        ledger = Ledger(folder.ledger_path)
        server = experiment.server(ledger, Checkpoint(folder.checkpoint_path).release_file())
        return LocalDeployment(experiment, Together(shard), server, ledger)

    def spent(self) -> Spent:
        return Spent(self.experiment.accounts.epsilons(self.ledger.events()), len(self.ledger.charges))

    def placed(self) -> dict[str, Any]:
        return {"name": "local", "shards": 1}


@dataclass(frozen=True)
class LocalParties:
    """Curator and modeler of an outsourced run in this process."""

    experiment: Outsourced
    population: Parties
    server: Aggregator
    ledger: Ledger

    @staticmethod
    def of(experiment: Outsourced, folder: RunFolder, done: Result) -> "LocalParties":
        use_threads(experiment.settings["executor"]["threads"])
        ledger = Ledger(folder.ledger_path)
        curator = experiment.curator(ledger, Checkpoint(folder.checkpoint_path).curator_file())
        modeler = ModelerHere(experiment.brief())
        parties = Parties(experiment.problem, curator, modeler, experiment.streams, experiment.n_init)
        parties.restore(done.rounds, done.first_broadcast)
        return LocalParties(experiment, parties, curator, ledger)

    def spent(self) -> Spent:
        return Spent(self.experiment.accounts.epsilons(self.ledger.events()), len(self.ledger.charges))

    def placed(self) -> dict[str, Any]:
        return {"name": "local", "shards": 1}
