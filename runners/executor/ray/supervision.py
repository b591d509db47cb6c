"""Start the Ray actors of a run, and replace actors that die."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError
from ray.util.placement_group import get_current_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from dpfbo.run_result import Result
from runners.compose.settings import RayExecutor
from runners.executor.deployment import ExecutorError
from runners.executor.ray.process import Placement

logger = logging.getLogger(__name__)

_MAX_UNEXPLAINED = 3  # failed calls in a row while every actor answers, after which the run ends
_MOST_EXCUSED = 10  # preemptions of an actor in one round; further ones count as restarts
_NO_MEMORY = ("NODE_OUT_OF_MEMORY", "low on memory")  # in Ray's error if its memory monitor killed a worker
_SILENT_SECONDS = 20.0  # after which an actor without a place is reported; most start within seconds
_REASON_CHARACTERS = 400  # longest quotation of Ray's error in a message


@dataclass
class Actor:
    """An actor of the run. options, arguments: for its creation. opens_ledger: True if its start opens the ledger."""

    name: str
    cls: Any
    options: dict[str, Any]
    arguments: tuple[Any, ...]
    opens_ledger: bool = False
    handle: Any = None
    restarts: int = 0
    death: RayError | None = None
    excused: tuple[int, int] = (0, 0)  # the last round with preemptions (`_excused`), and their number in it

    def create(self) -> None:
        self.handle = self.cls.options(**self.options).remote(*self.arguments)

    def kill(self) -> None:
        if self.handle is not None:
            ray.kill(self.handle)
            self.handle = None

    def alive(self) -> bool:
        """Return True if the actor answers; otherwise set `death` to Ray's error."""
        try:
            ray.get(self.handle.placement.remote())
        except RayError as error:
            self.death = error
            return False
        return True


class RayActors(ABC):
    """The actors of one run; dead actors are replaced. done: the result of the rounds finished so far."""

    def __init__(self, executor: RayExecutor, done: Result) -> None:
        self.executor, self.done = executor, done
        self.actors: list[Actor] = []
        self.placements: dict[str, Placement] = {}
        self.n_preemptions = self._unexplained = 0

    @abstractmethod
    def _begin(self, actor: Actor) -> list[Any]:
        """Start a new actor by remote calls; return references to the results. The first is the actor's Placement."""

    @abstractmethod
    def place(self) -> None:
        """Create and start all actors."""

    def __enter__(self) -> Self:
        try:
            self.place()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        for actor in self.actors:
            actor.kill()

    def ask(self, actor: Actor, method: str, *arguments: Any) -> Any:
        """Call a method of an actor and return its answer; repeat the call if the actor dies."""
        while True:
            try:
                reply = answer(getattr(actor.handle, method).remote(*arguments))
            except RayError as error:
                self.heal(error)
            else:
                self._unexplained = 0
                return reply

    def heal(self, error: RayError) -> None:
        """Replace dead actors after a call failed with `error`.

        Raises ExecutorError if an actor dies too often, a new actor finds no place, or calls fail repeatedly without a
        death.
        """
        t = len(self.done.rounds)
        logger.debug("round %d: %s", t, error)
        dead = [actor for actor in self.actors if not actor.alive()]
        self._unexplained = 0 if dead else self._unexplained + 1
        if self._unexplained > _MAX_UNEXPLAINED:
            reason = " ".join(str(error).split())[:_REASON_CHARACTERS]
            raise ExecutorError(f"Ray failed in round {t} and no actor is dead: {reason}") from error
        for actor in dead:
            if self._excused(actor):
                self.n_preemptions += 1
                what = "the node of %s went away, or ran out of memory, in round %d: the actor is replaced"
            else:
                actor.restarts += 1
                what = "the actor of %s died in round %d: it is replaced"
            if actor.restarts > self.executor.max_restarts:
                raise ExecutorError(
                    f"the actor of {actor.name} died {actor.restarts} times, more than executor.max_restarts="
                    f"{self.executor.max_restarts}: the same command goes on after round {t - 1}"
                )
            logger.warning(what, actor.name, t)
            actor.kill()
        self._start(dead)

    def _excused(self, actor: Actor) -> bool:
        """Return True if a death counts as a preemption: the node is gone, drains or is short of memory.

        At most `_MOST_EXCUSED` deaths of an actor in one round count as preemptions.
        """
        place, alive = self.placements.get(actor.name), {node["NodeID"] for node in ray.nodes() if node["Alive"]}
        lost = place is not None and place.node not in alive
        no_memory = any(words in str(actor.death) for words in _NO_MEMORY)
        if not (lost or no_memory or getattr(actor.death, "preempted", False)):
            return False
        self.placements.pop(actor.name, None)  # the new placement is unknown until the actor answers
        round, times = actor.excused
        actor.excused = len(self.done.rounds), times + 1 if round == len(self.done.rounds) else 1
        return actor.excused[1] <= _MOST_EXCUSED

    def _places(self) -> dict[str, Any]:
        for actor in self.actors:
            with suppress(RayError):  # a dead actor keeps the placement of its start
                self.placements[actor.name] = answer(actor.handle.placement.remote())
        places = self.placements.values()
        return {
            "nodes": len({p.node for p in places}), "devices": sorted({p.device for p in places}),
            "restarts": sum(actor.restarts for actor in self.actors), "preemptions": self.n_preemptions,
            "memory_per_actor": max(p.memory for p in places),
        }  # fmt: skip

    def _start(self, actors: Sequence[Actor]) -> None:
        """Create and start actors; the actor that opens the ledger starts last."""
        for actor in actors:
            actor.create()
        for opens_ledger in (False, True):  # the ledger last: a run without room for its actors leaves no ledger
            these = [actor for actor in actors if actor.opens_ledger is opens_ledger]
            asked = [self._begin(actor) for actor in these]
            for actor, (first, *others) in zip(these, asked, strict=True):
                try:
                    self.placements[actor.name] = self._placement(actor, first)
                    answer(others)
                except RayError as error:  # the next call to the actor fails, and `heal` counts this death
                    logger.debug("the actor of %s died at its start: %s", actor.name, error)
                    ray.kill(actor.handle)

    def _placement(self, actor: Actor, ref: Any) -> Placement:
        """Wait for an actor's Placement. Raises ExecutorError after the timeout."""
        limit = self.executor.placement_timeout
        needs = f"{actor.options['num_cpus']:g} CPUs and {actor.options.get('num_gpus', 0):g} GPUs"
        silent = min(limit, _SILENT_SECONDS)
        if ray.wait([ref], timeout=silent)[0]:
            return answer(ref)
        if limit > silent:
            logger.warning("the actor of %s waits, at most %g s, for a place with %s", actor.name, limit, needs)
        try:
            return answer(ref, limit - silent)
        except GetTimeoutError as error:
            raise ExecutorError(
                f"the actor of {actor.name} found no place within executor.placement_timeout={limit:g} s: "
                f"it asks for {needs}"
            ) from error


def answer(refs: Any, timeout: float | None = None) -> Any:
    """Call `ray.get`; raise the error of the actor's code, or RayError if an actor, node or object was lost."""
    try:
        return ray.get(refs, timeout=timeout)
    except RayTaskError as error:
        if isinstance(error.cause, RayError):  # a message was lost on its way to the server
            raise error.cause from error
        raise error.cause from None


def beside_driver() -> dict[str, Any]:
    """Return the options that place an actor on the driver's node."""
    node = ray.get_runtime_context().get_node_id()
    return {"num_cpus": 0, "scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False)}


def strategy(placement: str) -> str:
    """Return `placement` as Ray's scheduling strategy for actors; in a Tune trial, SPREAD replaces DEFAULT."""
    # the trial's placement group, in which DEFAULT would put the actors, has no room for them
    inside = placement == "DEFAULT" and get_current_placement_group() is not None
    return "SPREAD" if inside else placement
