"""executor=ray of a federated run: agent actors with some agents each, and a server actor; any may die at any moment.

The driver keeps the finished rounds. It places a dead actor again, sends it the rounds of its agents and repeats the
round in progress. All of it follows from settings and seed, so the records are those of a run without deaths.
"""

import logging
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import ray
import torch
from ray.exceptions import RayError

from dpfbo.clock import PhaseClock
from dpfbo.federated import federation
from dpfbo.federated.broadcast import Broadcast
from dpfbo.federated.federation import Aggregator, FederatedResult
from dpfbo.federated.population.shard import cut
from dpfbo.federated.server import RoundOutput
from dpfbo.records import RoundRecord, joined
from dpfbo.run_result import OnRound, Round
from runners.compose.federated import FederatedExperiment
from runners.compose.settings import FederatedSettings
from runners.executor.deployment import Spent
from runners.executor.ray.actors import AgentActor, AgentReport, ServerActor
from runners.executor.ray.cluster import Layout, connected, layout
from runners.executor.ray.supervision import Actor, RayActors, answer, beside_driver, strategy
from runners.record.run_folder import PROBLEMS, RunFolder

logger = logging.getLogger(__name__)


@contextmanager
def ray_deployment(
    experiment: FederatedExperiment, folder: RunFolder, done: FederatedResult
) -> Iterator["RayFederation"]:
    """Place agents and server of a run on a Ray cluster, which is started if there is none."""
    with connected(experiment.settings.ray):
        deployment = RayFederation(experiment, folder, done)
        try:
            deployment.place()
            yield deployment
        finally:
            deployment.remove()


class RayFederation(RayActors):
    """The actors of one run, which are the `Population` of `federation.run`."""

    done: FederatedResult

    def __init__(self, experiment: FederatedExperiment, folder: RunFolder, done: FederatedResult) -> None:
        settings = experiment.settings
        super().__init__(settings.ray, done)
        self.experiment = experiment
        self.layout: Layout = layout(self.executor, experiment)
        worker = _worker_settings(settings, self.layout)
        here = os.getcwd()
        options = {
            "num_cpus": self.layout.num_cpus, "num_gpus": self.executor.num_gpus,
            "scheduling_strategy": strategy(self.executor.placement),
        }  # fmt: skip
        self.shards = [
            Actor(f"agents {a}..{b - 1}", AgentActor, options, (worker, a, b, here)) for a, b in self.layout.ranges
        ]
        self._parts: dict[str, list[Any]] = {}  # of the rounds, by actor, while actors start
        served = (worker, str(folder.path), here)
        self.server_actor = Actor("the server", ServerActor, beside_driver(), served, opens_ledger=True)

    @property
    def has_server(self) -> bool:
        return self.experiment.settings.algorithm.server is not None

    @property
    def server(self) -> Aggregator | None:
        if not self.has_server:
            return None
        return RayServer(self, self.experiment.settings.algorithm.sends)

    def place(self) -> None:
        """Create all actors, and give the agents their finished rounds."""
        logger.info("executor=ray: %s", self.layout.sentence)
        self._start(self._actors())

    def run(self, on_round: OnRound, broadcasts: int | None = None) -> None:
        federation.run(self, self.server, self.experiment.rounds, on_round, self.done, broadcasts)

    def round(self, t: int, broadcast: Broadcast | None, server: Aggregator | None) -> Round:
        self._unexplained = 0
        shared = None if broadcast is None else ray.put(broadcast)
        step = RayStep(self, t, shared, server is not None and server.uses_messages)
        step.begin()
        reply: RoundOutput = (None, None, None) if server is None else step.reported_to(server)
        return Round(step.record(), *reply, {**step.phases, **step.clock.seconds})

    def spent(self) -> Spent:
        if not self.has_server:
            return Spent(self.experiment.plan.epsilons([]), 0)
        spent: Spent = self.ask(self.server_actor, "spent")
        return spent

    def placed(self) -> dict[str, Any]:
        return {
            "name": "ray", "shards": len(self.shards), "num_cpus": self.layout.num_cpus,
            "num_gpus": self.executor.num_gpus, "tree": self.layout.tree, **self._places(),
        }  # fmt: skip

    def _actors(self) -> list[Actor]:
        return [*self.shards, *([self.server_actor] if self.has_server else [])]

    def _start(self, actors: Sequence[Actor]) -> None:
        """Create and start actors. Rounds that are not in memory are read once for all of them."""
        if not self.done.rounds.in_memory:
            agents = [actor for actor in actors if actor is not self.server_actor]
            self._parts = {actor.name: [] for actor in agents}
            for record in self.done.rounds:
                for actor in agents:  # the object store has room, on disk at the latest
                    self._parts[actor.name].append(ray.put(cut(record, torch.arange(*actor.arguments[1:3]))))
        super()._start(actors)
        self._parts = {}

    def _begin(self, actor: Actor) -> list[Any]:
        """Start an actor; an agent actor gets the finished rounds of its agents."""
        if actor is self.server_actor:
            return [actor.handle.start.remote()]
        ids = torch.arange(*actor.arguments[1:3])
        done = self._parts.get(actor.name) or [cut(record, ids) for record in self.done.rounds]
        observed = self.done.observed
        if observed is not None and observed.round < len(done):  # it is among the finished rounds by now
            observed = None
        return [actor.handle.start.remote(done, None if observed is None else cut(observed, ids))]


@dataclass
class RayStep:
    """A round that the agent actors have begun. broadcast, reports, sent: references to objects."""

    deployment: RayFederation
    t: int
    broadcast: Any
    send: bool
    reports: list[Any] = field(default_factory=list)
    sent: list[Any] = field(default_factory=list)
    phases: dict[str, float] = field(default_factory=dict)
    clock: PhaseClock = field(default_factory=PhaseClock)
    whole: RoundRecord | None = None

    def begin(self) -> None:
        """Ask every agent actor for the round; an actor that has done it already returns the same answer."""
        shards = self.deployment.shards
        send = self.send and not self.deployment.layout.tree  # in a tree the server asks for sums
        pairs = [s.handle.step.remote(self.t, self.broadcast, send) for s in shards]
        self.reports, self.sent = [p[0] for p in pairs], [p[1] for p in pairs]

    def reported_to(self, server: Aggregator) -> RoundOutput:
        messages = self._messages()
        with self.clock("server"):
            return server.round(self.t, messages)

    def _messages(self) -> "RayMessages | None":
        """The messages that have arrived by the deadline; all of them if there is none."""
        if not self.send:
            return None
        deadline = self.deployment.experiment.settings.dropout.deadline
        if deadline is None:
            self.record()
            return RayMessages(self, [True] * len(self.sent))
        ready, _ = ray.wait(self.reports, num_returns=len(self.reports), timeout=deadline)
        return RayMessages(self, [ref in ready and _arrived(ref) for ref in self.reports])

    def record(self) -> RoundRecord:
        while self.whole is None:
            try:
                reports: list[AgentReport] = answer(self.reports)
            except RayError as error:
                self.deployment.heal(error)
                self.begin()
                continue
            for report in reports:
                for sentence, traceback in report.failures:
                    logging.getLogger(PROBLEMS).warning("%s", sentence, extra={"traceback": traceback})
                for phase, seconds in report.seconds.items():
                    self.phases[phase] = max(self.phases.get(phase, 0.0), seconds)
            self.whole = joined([report.record for report in reports])
        return self.whole


@dataclass(frozen=True)
class RayMessages:
    """The messages of a round in the object store. arrived: by shard, True if they came in time."""

    step: RayStep
    arrived: list[bool]

    def late(self, ranges: list[tuple[int, int]]) -> np.ndarray | None:
        if all(self.arrived):
            return None
        return np.concatenate([np.full(b - a, not ok) for ok, (a, b) in zip(self.arrived, ranges, strict=True)])


@dataclass(frozen=True)
class RayServer:
    """The `Aggregator` of `federation.run` that asks the server actor."""

    deployment: RayFederation
    uses_messages: bool

    def round(self, t: int, messages: RayMessages | None) -> RoundOutput:
        while True:
            try:
                broadcast, record, diagnostics = answer(list(self._ask(t, messages)))
                return broadcast, record, diagnostics
            except RayError as error:
                self.deployment.heal(error)
                if messages is not None:
                    messages.step.begin()  # the server's own calls to the shards must come after it
                    ray.wait(messages.step.reports, num_returns=len(messages.step.reports))

    def _ask(self, t: int, messages: RayMessages | None) -> Any:
        d = self.deployment
        server, ranges = d.server_actor.handle, d.layout.ranges
        M = d.experiment.agents.message_size
        if messages is None:
            return server.round.remote(t, None, M, [])
        late = messages.late(ranges)
        if d.layout.tree:
            shards = [s.handle for s in d.shards]
            return server.round_by_shards.remote(t, late, [a for a, _ in ranges], shards, d.layout.fan_in)
        parts = [ref if ok else None for ref, ok in zip(messages.step.sent, messages.arrived, strict=True)]
        return server.round.remote(t, late, M, [b - a for a, b in ranges], *parts)


def _arrived(ref: Any) -> bool:
    """True if a finished call has an answer, False if its actor died."""
    try:
        answer(ref)
    except RayError:
        return False
    return True


def _worker_settings(settings: FederatedSettings, layout: Layout) -> FederatedSettings:
    """The settings for actors: an objective that starts processes starts one for each CPU of its actor."""
    node = settings.problem.node
    if "n_jobs" not in node:
        return settings
    node = {**node, "n_jobs": max(1, math.floor(layout.num_cpus))}
    return replace(settings, problem=replace(settings.problem, node=node))
