"""Run an outsourced experiment on Ray: the curator in the driver, the modeler in an actor.

The driver has the data and the ledger. If the actor dies, the driver replaces it and repeats all earlier calls.
"""

import logging
import os
from collections.abc import Sequence
from typing import Any

import ray
from torch import Tensor

from dpfbo.run_result import Result
from runners.compose.outsourced import OutsourcedExperiment
from runners.compose.settings import RayExecutor
from runners.executor.deployment import ExecutorError
from runners.executor.ray.modeler import ModelerActor
from runners.executor.ray.supervision import Actor, RayActors, strategy

logger = logging.getLogger(__name__)


def modeler_cpus(executor: RayExecutor) -> float:
    """Return the number of CPUs for the modeler. Raises ExecutorError if no node has them."""
    most = max(node["Resources"].get("CPU", 0.0) for node in ray.nodes() if node["Alive"])
    wanted = executor.num_cpus
    if wanted is not None and wanted > most:
        asked = f"executor.num_cpus={wanted:g}"
        raise ExecutorError(f"{asked} of the modeler is more than any node has ({most:g} CPUs)")
    return min(1.0, most) if wanted is None else wanted


class RayModeler(RayActors):
    """The modeler in a Ray actor (implements `dpfbo.outsourced.loop.AnyModeler`)."""

    def __init__(self, experiment: OutsourcedExperiment, done: Result) -> None:
        super().__init__(experiment.settings.ray, done)
        self.num_cpus = modeler_cpus(self.executor)
        options = {"num_cpus": self.num_cpus, "scheduling_strategy": strategy(self.executor.placement)}
        self.actors = [Actor("the modeler", ModelerActor, options, ())]
        self._calls: list[tuple[str, tuple[Any, ...]]] = [
            ("begin", (experiment.brief(), os.getcwd(), self.executor.threads))
        ]

    def place(self) -> None:
        logger.info("executor=ray: a modeler with %g CPUs", self.num_cpus)
        self._start(self.actors)

    def placed(self) -> dict[str, Any]:
        return {"name": "ray", "shards": 1, "num_cpus": self.num_cpus, "num_gpus": 0, **self._places()}

    def start(self, values: Tensor) -> int:
        return self._tell("start", values)

    def propose(self, t: int, uniform: float) -> int:
        return self._tell("propose", t, uniform)

    def observe(self, t: int, indices: Sequence[int], y: Sequence[float]) -> None:
        self._tell("observe", t, indices, y)

    def _tell(self, method: str, *arguments: Any) -> Any:
        """Call a method of the modeler, and record the call."""
        answer = self.ask(self.actors[0], method, *arguments)
        self._calls.append((method, arguments))
        return answer

    def _begin(self, actor: Actor) -> list[Any]:
        return [getattr(actor.handle, method).remote(*arguments) for method, arguments in self._calls]
