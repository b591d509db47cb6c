"""Ray actors that may die at any moment, placed and placed again: of a federated run, or of an outsourced one."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError
from ray.util.placement_group import get_current_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from dpfbo.run_result import Result
from runners.compose.settings import RayExecutor
from runners.executor.deployment import ExecutorError
from runners.executor.ray.process import Placement

logger = logging.getLogger(__name__)

_VAIN = 3  # calls that fail in a row although every actor answers: it is not a death, and will not pass
_REASON = 400  # characters of Ray's own words


@dataclass
class Actor:
    """One actor of the run and how to place it again."""

    name: str
    cls: Any
    options: dict[str, Any]
    arguments: tuple[Any, ...]
    handle: Any = None
    restarts: int = 0

    def create(self) -> None:
        self.handle = self.cls.options(**self.options).remote(*self.arguments)

    def kill(self) -> None:
        if self.handle is not None:
            ray.kill(self.handle)
            self.handle = None

    def alive(self) -> bool:
        """Waits for whatever the actor is doing."""
        try:
            ray.get(self.handle.where.remote())
        except RayError:
            return False
        return True


class RayActors(ABC):
    """The actors of one run: placed, and placed again when they die. done: the rounds that are, as they go by."""

    def __init__(self, executor: RayExecutor, done: Result) -> None:
        self.executor, self.done = executor, done
        self.wheres: dict[str, Placement] = {}
        self.n_restarts = self._in_vain = 0

    @abstractmethod
    def _actors(self) -> Sequence[Actor]: ...

    @abstractmethod
    def _begin(self, actor: Actor) -> list[Any]:
        """Tell an actor that was just created all that it has to know. The first answer is where it is."""

    def remove(self) -> None:
        for actor in self._actors():
            actor.kill()

    def ask(self, actor: Actor, method: str, *arguments: Any) -> Any:
        """What an actor answers, however often it dies; for methods that may be repeated."""
        while True:
            try:
                reply = answer(getattr(actor.handle, method).remote(*arguments))
            except RayError as error:
                self.heal(error)
            else:
                self._in_vain = 0
                return reply

    def heal(self, error: RayError) -> None:
        """Place what has died anew, after a call failed with `error`.

        Raises ExecutorError when an actor dies too often or finds no place, or when calls fail and nobody is dead.
        """
        logger.debug("round %d: %s", len(self.done.rounds), error)
        dead = [actor for actor in self._actors() if not actor.alive()]
        self._in_vain = 0 if dead else self._in_vain + 1
        if self._in_vain > _VAIN:
            reason = " ".join(str(error).split())[:_REASON]
            raise ExecutorError(
                f"Ray failed in round {len(self.done.rounds)} and no actor is dead: {reason}"
            ) from error
        for actor in dead:
            actor.restarts += 1
            self.n_restarts += 1
            if actor.restarts > self.executor.max_restarts:
                raise ExecutorError(
                    f"the actor of {actor.name} died {actor.restarts} times, more than executor.max_restarts="
                    f"{self.executor.max_restarts}: the same command goes on after round {len(self.done.rounds) - 1}"
                )
            logger.warning("the actor of %s died in round %d: placed again", actor.name, len(self.done.rounds))
            actor.kill()
        self._start(dead)

    def _look(self) -> dict[str, Any]:
        """Where the actors are now, for the summary."""
        for actor in self._actors():
            with suppress(RayError):  # dead by now: what it said at its start stays
                self.wheres[actor.name] = answer(actor.handle.where.remote())
        return {
            "nodes": len({w.node for w in self.wheres.values()}),
            "devices": sorted({w.device for w in self.wheres.values()}), "restarts": self.n_restarts,
            "memory_per_actor": max(w.memory for w in self.wheres.values()),
        }  # fmt: skip

    def _start(self, actors: Sequence[Actor]) -> None:
        """Create actors, and tell them what they have to know."""
        asked = []
        for actor in actors:
            actor.create()
            asked.append(self._begin(actor))
        for actor, (first, *others) in zip(actors, asked, strict=True):
            try:
                self.wheres[actor.name] = self._answer(actor, first)
                answer(others)
            except RayError as error:  # died again, or half told: the next call to it fails, and `heal` counts it
                logger.debug("the actor of %s died at its start: %s", actor.name, error)
                ray.kill(actor.handle)

    def _answer(self, actor: Actor, ref: Any) -> Any:
        """The first answer of an actor, which may have to wait for its place."""
        limit = self.executor.placement_timeout
        try:
            return answer(ref, limit)
        except GetTimeoutError as error:
            raise ExecutorError(
                f"the actor of {actor.name} found no place within executor.placement_timeout={limit:g} s: "
                f"it asks for {actor.options['num_cpus']:g} CPUs and {actor.options.get('num_gpus', 0):g} GPUs"
            ) from error


def answer(refs: Any, timeout: float | None = None) -> Any:
    """ray.get that raises what the actor's code raised; RayError where an actor, a node or an object was lost."""
    try:
        return ray.get(refs, timeout=timeout)
    except RayTaskError as error:
        if isinstance(error.cause, RayError):  # a message was lost on its way to the server
            raise error.cause from error
        raise error.cause from None


def beside_driver() -> dict[str, Any]:
    """Options of the actor that writes the ledger: where the records are, not on a node that may take it away."""
    node = ray.get_runtime_context().get_node_id()
    return {"num_cpus": 0, "scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False)}


def strategy(placement: str) -> str:
    """Ray's scheduling strategy; inside a placement group (a Tune trial's) never that group, which has no room."""
    inside = placement == "DEFAULT" and get_current_placement_group() is not None
    return "SPREAD" if inside else placement
