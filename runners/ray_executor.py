"""executor=ray: the agents in actors of some agents each, the server in one; any of them may die at any moment.

The driver keeps the rounds that are done. An actor that died is placed anew, learns the rounds of its agents and
repeats the one in progress; all of it follows from settings and seed, so the records are those of a run without deaths.
"""

import logging
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import ray
import torch
from ray.exceptions import GetTimeoutError, RayError, RayTaskError
from ray.util.placement_group import get_current_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from dpfbo.broadcast import Broadcast
from dpfbo.federation import Aggregator, Result
from dpfbo.records import RoundRecord, joined
from dpfbo.server import ServerRecord
from dpfbo.shard import cut
from runners.executor import ExecutorError, Spent
from runners.experiment import Experiment
from runners.ray_actors import AgentActor, Report, ServerActor, Where
from runners.ray_cluster import Layout, connected, layout
from runners.results import RunFolder

logger = logging.getLogger(__name__)

_VAIN = 3  # calls that fail in a row although every actor answers: it is not a death, and will not pass
_REASON = 400  # characters of Ray's own words


@contextmanager
def ray_deployment(experiment: Experiment, folder: RunFolder, done: Result) -> Iterator["RayDeployment"]:
    """Agents and server of a run on a Ray cluster, which is started here if there is none."""
    with connected(experiment.settings["executor"]):
        deployment = RayDeployment(experiment, folder, done)
        try:
            deployment.place()
            yield deployment
        finally:
            deployment.remove()


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


class RayDeployment:
    """The actors of one run; also the `Population` and `Aggregator` that `federation.run` sees."""

    def __init__(self, experiment: Experiment, folder: RunFolder, done: Result) -> None:
        self.experiment, self.done = experiment, done
        settings = experiment.settings
        self.executor: dict[str, Any] = settings["executor"]
        self.layout: Layout = layout(self.executor, experiment)
        worker = _worker_settings(settings, self.layout)
        here = os.getcwd()
        options = {
            "num_cpus": self.layout.num_cpus, "num_gpus": self.executor["num_gpus"],
            "scheduling_strategy": _strategy(self.executor["placement"]),
        }  # fmt: skip
        self.shards = [
            Actor(f"agents {a}..{b - 1}", AgentActor, options, (worker, a, b, here)) for a, b in self.layout.ranges
        ]
        # the ledger is written where the records are: on the driver's node, not on one that may take it away
        at_driver = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        server_options = {"num_cpus": 0, "scheduling_strategy": at_driver}
        self._server = Actor("the server", ServerActor, server_options, (worker, str(folder.path), here))
        self.population = self
        self.wheres: dict[str, Where] = {}
        self.n_restarts = self._in_vain = 0

    @property
    def has_server(self) -> bool:
        return self.experiment.server_kind != "none"

    @property
    def server(self) -> Aggregator | None:
        if not self.has_server:
            return None
        uses_messages = self.experiment.server_kind in ("aggregate", "peer")
        return RayServer(self, uses_messages)

    @property
    def tree(self) -> bool:
        """Whether the shards add up for the server, which then gets P x M numbers of each."""
        return self.layout.tree

    def place(self) -> None:
        """Create all actors, and give the agents the rounds that are done."""
        logger.info("executor=ray: %s", self.layout.sentence)
        self._start(self._actors())

    def remove(self) -> None:
        for actor in [*self.shards, self._server]:
            actor.kill()

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
            if actor.restarts > self.executor["max_restarts"]:
                raise ExecutorError(
                    f"the actor of {actor.name} died {actor.restarts} times, more than executor.max_restarts="
                    f"{self.executor['max_restarts']}: the same command goes on after round {len(self.done.rounds) - 1}"
                )
            logger.warning("the actor of %s died in round %d: placed again", actor.name, len(self.done.rounds))
            actor.kill()
        self._start(dead)

    def step(self, t: int, broadcast: Broadcast | None, send: bool) -> "RayStep":
        self._in_vain = 0
        shared = None if broadcast is None else ray.put(broadcast)
        step = RayStep(self, t, shared, send)
        step.begin()
        return step

    def spent(self) -> Spent:
        if not self.has_server:
            return Spent(self.experiment.accounts.epsilons([]), 0)
        while True:
            try:
                return _get(self._server.handle.spent.remote())
            except RayError as error:
                self.heal(error)

    def placed(self) -> dict[str, Any]:
        for actor in self._actors():
            with suppress(RayError):  # dead by now: what it said at its start stays
                self.wheres[actor.name] = _get(actor.handle.where.remote())
        return {
            "name": "ray", "shards": len(self.shards), "nodes": len({w.node for w in self.wheres.values()}),
            "num_cpus": self.layout.num_cpus, "num_gpus": self.executor["num_gpus"], "tree": self.tree,
            "devices": sorted({w.device for w in self.wheres.values()}), "restarts": self.n_restarts,
            "memory_per_actor": max(w.memory for w in self.wheres.values()),
        }  # fmt: skip

    def server_handle(self) -> Any:
        return self._server.handle

    def _actors(self) -> list[Actor]:
        return [*self.shards, *([self._server] if self.has_server else [])]

    def _start(self, actors: list[Actor]) -> None:
        """Create actors and tell the agents' what they did in the rounds that are done."""
        asked = []
        for actor in actors:
            actor.create()
            if actor is self._server:
                asked.append(actor.handle.start.remote())
            else:
                ids = torch.arange(*actor.arguments[1:3])
                asked.append(actor.handle.start.remote([cut(record, ids) for record in self.done.rounds]))
        for actor, ref in zip(actors, asked, strict=True):
            try:
                self.wheres[actor.name] = self._answer(actor, ref)
            except RayError as error:  # died again: the next call to it fails, and `heal` counts it
                logger.debug("the actor of %s died at its start: %s", actor.name, error)

    def _answer(self, actor: Actor, ref: Any) -> Any:
        """The first answer of an actor, which may have to wait for its place."""
        limit = self.executor["placement_timeout"]
        try:
            return _get(ref, limit)
        except GetTimeoutError as error:
            raise ExecutorError(
                f"the actor of {actor.name} found no place within executor.placement_timeout={limit:g} s: "
                f"it asks for {actor.options['num_cpus']:g} CPUs and {actor.options.get('num_gpus', 0):g} GPUs"
            ) from error


@dataclass
class RayStep:
    """A round that the agent actors have begun."""

    deployment: RayDeployment
    t: int
    broadcast: Any
    send: bool
    reports: list[Any] = field(default_factory=list)
    sent: list[Any] = field(default_factory=list)
    phases: dict[str, float] = field(default_factory=dict)
    whole: RoundRecord | None = None

    def begin(self) -> None:
        """Ask every actor for the round; one that has done it already gives the same answer."""
        shards = self.deployment.shards
        pairs = [s.handle.step.remote(self.t, self.broadcast, self.send) for s in shards]
        self.reports, self.sent = [p[0] for p in pairs], [p[1] for p in pairs]

    def messages(self) -> "RayMessages | None":
        """The messages that are there at the deadline; without one, all."""
        if not self.send:
            return None
        deadline = self.deployment.experiment.settings["dropout"]["deadline"]
        if deadline is None:
            self.record()
            return RayMessages(self, [True] * len(self.sent))
        ready, _ = ray.wait(self.reports, num_returns=len(self.reports), timeout=deadline)
        return RayMessages(self, [ref in ready and _arrived(ref) for ref in self.reports])

    def record(self) -> RoundRecord:
        while self.whole is None:
            try:
                reports: list[Report] = _get(self.reports)
            except RayError as error:
                self.deployment.heal(error)
                self.begin()
                continue
            for report in reports:
                for phase, seconds in report.seconds.items():
                    self.phases[phase] = max(self.phases.get(phase, 0.0), seconds)
            self.whole = joined([report.record for report in reports])
        return self.whole

    def seconds(self) -> dict[str, float]:
        return self.phases


@dataclass(frozen=True)
class RayMessages:
    """The messages of a round in the object store. arrived: whether those of a shard came in time."""

    step: RayStep
    arrived: list[bool]

    def late(self, ranges: list[tuple[int, int]]) -> np.ndarray | None:
        if all(self.arrived):
            return None
        return np.concatenate([np.full(b - a, not ok) for ok, (a, b) in zip(self.arrived, ranges, strict=True)])


@dataclass(frozen=True)
class RayServer:
    """The server actor, as `federation.run` sees it."""

    deployment: RayDeployment
    uses_messages: bool

    def round(self, t: int, messages: RayMessages | None) -> tuple[Broadcast | None, ServerRecord | None]:
        while True:
            try:
                broadcast, record = _get(list(self._ask(t, messages)))
                return broadcast, record
            except RayError as error:
                self.deployment.heal(error)
                if messages is not None:
                    messages.step.begin()  # waited for: the server's own calls to the shards must not overtake it
                    ray.wait(messages.step.reports, num_returns=len(messages.step.reports))

    def _ask(self, t: int, messages: RayMessages | None) -> Any:
        d = self.deployment
        server, ranges = d.server_handle(), d.layout.ranges
        M = d.experiment.agents.features.frequencies.shape[1]
        if messages is None:
            return server.round.remote(t, None, M, [])
        late = messages.late(ranges)
        if d.tree:
            return server.round_by_shards.remote(t, late, [a for a, _ in ranges], [s.handle for s in d.shards])
        parts = [ref if ok else None for ref, ok in zip(messages.step.sent, messages.arrived, strict=True)]
        return server.round.remote(t, late, M, [b - a for a, b in ranges], *parts)


def _get(refs: Any, timeout: float | None = None) -> Any:
    """ray.get that raises what the actor's code raised; RayError where an actor, a node or an object was lost."""
    try:
        return ray.get(refs, timeout=timeout)
    except RayTaskError as error:
        if isinstance(error.cause, RayError):  # a message was lost on its way to the server
            raise error.cause from error
        raise error.cause from None


def _arrived(ref: Any) -> bool:
    """Whether a finished call has an answer; its actor may have died."""
    try:
        _get(ref)
    except RayError:
        return False
    return True


def _worker_settings(settings: dict[str, Any], layout: Layout) -> dict[str, Any]:
    """The settings for actors: an objective that starts processes of its own gets the CPUs of its actor."""
    if "n_jobs" not in settings["problem"]:
        return settings
    return {**settings, "problem": {**settings["problem"], "n_jobs": max(1, math.floor(layout.num_cpus))}}


def _strategy(placement: str) -> str:
    """Ray's scheduling strategy; inside a placement group (a Tune trial's) never that group, which has no room."""
    inside = placement == "DEFAULT" and get_current_placement_group() is not None
    return "SPREAD" if inside else placement
