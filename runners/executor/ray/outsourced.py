"""executor=ray of an outsourced run: curator and modeler are one actor each, and either may die at any moment.

The driver keeps the calls to each actor. It places a dead actor again and repeats the calls to it; the answers are the
same, so the records are those of a run without deaths. Only the release, indices and measurements pass from the
curator's actor to the modeler's.
"""

import logging
import os
from collections.abc import Sequence
from typing import Any

import ray
from torch import Tensor

from dpfbo.outsourced.curator import CuratorOutput, Measured
from dpfbo.outsourced.loop import OutsourcedResult, restore, run
from dpfbo.run_result import OnRound
from runners.compose.outsourced import OutsourcedExperiment
from runners.compose.settings import RayExecutor
from runners.executor.deployment import ExecutorError, Spent
from runners.executor.ray.actors import CuratorActor
from runners.executor.ray.modeler import ModelerActor
from runners.executor.ray.supervision import Actor, RayActors, beside_driver, strategy
from runners.record.run_folder import RunFolder

logger = logging.getLogger(__name__)


class RayOutsourced(RayActors):
    """The two actors of one outsourced run."""

    done: OutsourcedResult

    def __init__(self, experiment: OutsourcedExperiment, folder: RunFolder, done: OutsourcedResult) -> None:
        settings, here = experiment.settings, os.getcwd()
        super().__init__(settings.ray, done)
        self.num_cpus = _modeler_cpus(self.executor)
        options = {"num_cpus": self.num_cpus, "scheduling_strategy": strategy(self.executor.placement)}
        curated = (settings, str(folder.path), here)
        curator = Actor("the curator", CuratorActor, beside_driver(), curated, opens_ledger=True)
        self.curator = RayCurator(self, curator, ())
        brief = (experiment.brief(), here, self.executor.threads)
        self.modeler = RayModeler(self, Actor("the modeler", ModelerActor, options, ()), brief)
        self.setup = experiment.setup
        self.actors = [curator, self.modeler.actor]

    def place(self) -> None:
        """Create both actors, and repeat the finished rounds."""
        logger.info("executor=ray: a curator, and a modeler with %g CPUs", self.num_cpus)
        self._start(self.actors)
        restore(self.curator, self.modeler, self.setup, self.done)

    def run(self, on_round: OnRound, broadcasts: int | None = None) -> None:
        run(self.curator, self.modeler, self.setup, on_round, self.done)

    def spent(self) -> Spent:
        return self.ask(self.curator.actor, "spent")

    def placed(self) -> dict[str, Any]:
        return {"name": "ray", "shards": 2, "num_cpus": self.num_cpus, "num_gpus": 0, **self._places()}

    def _begin(self, actor: Actor) -> list[Any]:
        replayed = self.curator if actor is self.curator.actor else self.modeler
        answers: list[Any] = []
        for method, arguments in [("start", replayed.given), *replayed.told]:
            refs = getattr(actor.handle, method).remote(*arguments)
            answers += refs if isinstance(refs, list) else [refs]
        return answers


class ReplayedActor:
    """An actor that gets all its calls again when it is placed again.

    given: the arguments of its start. told: method and arguments of each later call.
    """

    def __init__(self, deployment: RayOutsourced, actor: Actor, given: tuple[Any, ...]) -> None:
        self.deployment, self.actor, self.given = deployment, actor, given
        self.told: list[tuple[str, tuple[Any, ...]]] = []

    def tell(self, method: str, *arguments: Any) -> Any:
        """Call a method now, and again whenever the actor is placed again."""
        answer = self.deployment.ask(self.actor, method, *arguments)
        self.told.append((method, arguments))
        return answer


class RayCurator(ReplayedActor):
    """The curator's actor (a `dpfbo.outsourced.loop.AnyCurator`)."""

    def release(self) -> CuratorOutput:
        """The release; an actor that was placed again makes the same one, or reads it from its file."""
        return tuple(self.tell("release"))

    def resume(self, values: Tensor) -> None:
        self.tell("resume", values)

    def measure(self, t: int, indices: Sequence[int]) -> Measured:
        return self.tell("measure", t, indices)


class RayModeler(ReplayedActor):
    """The modeler's actor (a `dpfbo.outsourced.loop.AnyModeler`)."""

    def start(self, values: Tensor) -> int:
        return self.tell("receive", values)

    def propose(self, t: int, uniform: float) -> int:
        return self.tell("propose", t, uniform)

    def observe(self, t: int, indices: Sequence[int], y: Sequence[float]) -> None:
        self.tell("observe", t, indices, y)


def _modeler_cpus(executor: RayExecutor) -> float:
    """CPUs of the modeler's actor, by default at most 1. Raises ExecutorError for more than any node has."""
    most = max(node["Resources"].get("CPU", 0.0) for node in ray.nodes() if node["Alive"])
    wanted: float | None = executor.num_cpus
    if wanted is None:
        return min(1.0, most)
    if wanted > most:
        raise ExecutorError(f"executor.num_cpus={wanted:g} of the modeler is more than any node has ({most:g} CPUs)")
    return wanted
