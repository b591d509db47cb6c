"""executor=ray for outsourced runs: curator and modeler in an actor each; either may die at any moment.

The driver keeps what each party was told. A party that died is placed anew and told it again; both answer what they
answered before, so the records are those of a run without deaths. Only the release, indices and measurements pass from
the curator's actor to the modeler's.
"""

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import ray
from torch import Tensor

from dpfbo.federated.federation import Result
from dpfbo.federated.server import RoundOutput
from dpfbo.outsourced.curator import Measured
from dpfbo.outsourced.loop import Parties
from runners.compose.outsourced import Outsourced
from runners.executor.deployment import ExecutorError, Spent
from runners.executor.ray.cluster import connected
from runners.executor.ray.curator import CuratorActor
from runners.executor.ray.modeler import ModelerActor
from runners.executor.ray.supervision import Actor, RayActors, beside_driver, strategy
from runners.record.run_folder import RunFolder

logger = logging.getLogger(__name__)


@contextmanager
def ray_deployment(experiment: Outsourced, folder: RunFolder, done: Result) -> Iterator["RayParties"]:
    """Curator and modeler of a run on a Ray cluster, which is started here if there is none."""
    with connected(experiment.settings["executor"]):
        parties = RayParties(experiment, folder, done)
        try:
            parties.place()
            yield parties
        finally:
            parties.remove()


class RayParties(RayActors):
    """The two actors of one outsourced run."""

    def __init__(self, experiment: Outsourced, folder: RunFolder, done: Result) -> None:
        settings, here = experiment.settings, os.getcwd()
        super().__init__(settings["executor"], done)
        self.num_cpus = _modeler_cpus(self.executor)
        options = {"num_cpus": self.num_cpus, "scheduling_strategy": strategy(self.executor["placement"])}
        curator = Actor("the curator", CuratorActor, beside_driver(), (settings, str(folder.path), here))
        self.server = RayCurator(self, curator, ())
        brief = (experiment.brief(), here, self.executor["threads"])
        self.modeler = RayModeler(self, Actor("the modeler", ModelerActor, options, ()), brief)
        self.population = Parties(experiment.problem, self.server, self.modeler, experiment.streams, experiment.n_init)

    def place(self) -> None:
        """Create both actors, and repeat the rounds that are done."""
        logger.info("executor=ray: a curator, and a modeler with %g CPUs", self.num_cpus)
        self._start(self._actors())
        self.population.restore(self.done.rounds, self.done.first_broadcast)

    def spent(self) -> Spent:
        spent: Spent = self.ask(self.server.actor, "spent")
        return spent

    def placed(self) -> dict[str, Any]:
        return {"name": "ray", "shards": 2, "num_cpus": self.num_cpus, "num_gpus": 0, **self._look()}

    def _actors(self) -> list[Actor]:
        return [self.server.actor, self.modeler.actor]

    def _begin(self, actor: Actor) -> list[Any]:
        party = self.server if actor is self.server.actor else self.modeler
        answers: list[Any] = []
        for method, arguments in [("start", party.given), *party.told]:
            refs = getattr(actor.handle, method).remote(*arguments)
            answers += refs if isinstance(refs, list) else [refs]
        return answers


class RayParty:
    """A party in an actor. given: for its start; told: the calls since then, to be repeated by another one."""

    def __init__(self, parties: RayParties, actor: Actor, given: tuple[Any, ...]) -> None:
        self.parties, self.actor, self.given = parties, actor, given
        self.told: list[tuple[str, tuple[Any, ...]]] = []

    def tell(self, method: str, *arguments: Any) -> Any:
        """Call a method now, and again whenever the actor is placed again."""
        answer = self.parties.ask(self.actor, method, *arguments)
        self.told.append((method, arguments))
        return answer


class RayCurator(RayParty):
    """The curator's actor, as `Parties` and `federation.run` see it."""

    uses_messages = False
    _released: RoundOutput | None = None

    def round(self, t: int, messages: None) -> RoundOutput:
        """The release, asked for once: an actor placed again makes the same one, or has kept it."""
        if self._released is None or t != 0:
            broadcast, record, diagnostics = self.tell("round", t)
            self._released = broadcast, record, diagnostics
        return self._released

    def resume(self, values: Tensor) -> None:
        self.tell("resume", values)

    def measure(self, t: int, indices: Sequence[int]) -> Measured:
        measured: Measured = self.tell("measure", t, indices)
        return measured


class RayModeler(RayParty):
    """The modeler's actor, as `Parties` sees it."""

    def start(self, values: Tensor) -> int:
        n_candidates: int = self.tell("receive", values)
        return n_candidates

    def propose(self, t: int, uniform: float) -> int:
        index: int = self.tell("propose", t, uniform)
        return index

    def observe(self, t: int, indices: Sequence[int], y: Sequence[float]) -> None:
        self.tell("observe", t, indices, y)


def _modeler_cpus(executor: dict[str, Any]) -> float:
    """CPUs of the modeler's actor: at most one unless more are asked for.

    Raises ExecutorError for more than a node has.
    """
    most = max(node["Resources"].get("CPU", 0.0) for node in ray.nodes() if node["Alive"])
    wanted: float | None = executor["num_cpus"]
    if wanted is None:
        return min(1.0, most)
    if wanted > most:
        raise ExecutorError(f"executor.num_cpus={wanted:g} of the modeler is more than any node has ({most:g} CPUs)")
    return wanted
