"""Run a federated experiment on Ray: actors with some agents each, and a server actor, any of which may die.

The driver replaces a dead actor and repeats the round in progress. The records are the same as without deaths:
settings and seed determine the repeated round. If the noise of a release is not seeded, the server saves the release,
and sends it again in the repeated round.
"""

import logging
import math
import os
import time
from dataclasses import dataclass, field, replace
from typing import Any

import ray
import torch
from ray.exceptions import RayError

from dpfbo.clock import PhaseClock
from dpfbo.federated import federation
from dpfbo.federated.broadcast import Broadcast
from dpfbo.federated.federation import Aggregator, FederatedResult
from dpfbo.federated.population.shard import cut
from dpfbo.federated.server import RoundOutput
from dpfbo.formats.run_folder import PROBLEMS, RunFolder
from dpfbo.records import RoundRecord, joined
from dpfbo.run_result import OnRound, Round
from runners.compose.federated import FederatedExperiment
from runners.compose.settings import FederatedSettings
from runners.executor.deployment import Spent
from runners.executor.ray.actors import AgentActor, AgentReport, ServerActor
from runners.executor.ray.cluster import Layout, layout
from runners.executor.ray.supervision import Actor, RayActors, answer, beside_driver, strategy

_OBJECTIVE_SHARE = 0.3  # share of objectives in the rounds' time above which executor=local is not recommended

logger = logging.getLogger(__name__)


class RayFederation(RayActors):
    """The actors of one run.

    `federation.run` takes this object as its `Population` and, if the run has a server, also as its `Aggregator`.
    """

    done: FederatedResult
    seconds = agents_cpu_seconds = objective_seconds = 0.0  # totals of the rounds that this process has run

    def __init__(self, experiment: FederatedExperiment, folder: RunFolder, done: FederatedResult) -> None:
        settings, here = experiment.settings, os.getcwd()
        super().__init__(settings.ray, done)
        self.experiment = experiment
        self.layout: Layout = layout(self.executor, experiment)
        worker = _worker_settings(settings, self.layout)
        options = {
            "num_cpus": self.layout.num_cpus, "num_gpus": self.executor.num_gpus,
            "scheduling_strategy": strategy(self.executor.placement),
        }  # fmt: skip
        self.shards = [
            Actor(f"agents {a}..{b - 1}", AgentActor, options, (worker, a, b, here)) for a, b in self.layout.ranges
        ]
        served = (worker, str(folder.path), here)
        self.server = Actor("the server", ServerActor, beside_driver(), served, opens_ledger=True)
        self.has_server = settings.algorithm.server is not None
        self.uses_messages = settings.algorithm.sends
        self.actors = [*self.shards, self.server] if self.has_server else self.shards

    def place(self) -> None:
        """Create all actors; each agent actor receives the finished rounds of its agents."""
        logger.info("executor=ray: %s", self.layout.sentence)
        self._start(self.actors)

    def run(self, on_round: OnRound, broadcasts: int | None = None) -> None:
        server = self if self.has_server else None
        federation.run(self, server, self.experiment.rounds, on_round, self.done, broadcasts)

    def do_round(self, t: int, broadcast: Broadcast | None, server: Aggregator | None) -> Round:
        self._unexplained, begin = 0, time.perf_counter()
        send = server is not None and server.uses_messages
        step = RayStep(self, t, None if broadcast is None else ray.put(broadcast), send)
        step.begin()
        reply: RoundOutput = (None, None, None) if server is None else step.reported_to(server)
        done = Round(step.record(), *reply, {**step.phases, **step.clock.seconds})
        self.seconds += time.perf_counter() - begin
        self.objective_seconds += done.seconds.get("objective", 0.0)
        return done

    def round(self, t: int, messages: "RayStep | None") -> RoundOutput:
        """Do the server's part of a round. If an actor dies, replace the actor and repeat the round.

        messages: the `RayStep` in which the agents compute their messages; None if the server uses no messages.
        """
        while True:
            try:
                return tuple(answer(list(self._ask(t, messages))))
            except RayError as error:
                self.heal(error)
                if messages is not None:
                    messages.begin()  # the shards repeat the round before the server asks them for sums
                    ray.wait(messages.reports, num_returns=len(messages.reports))

    def _ask(self, t: int, step: "RayStep | None") -> Any:
        server, ranges, M = self.server.handle, self.layout.ranges, self.experiment.agents.message_size
        if step is None:
            return server.round.remote(t, None, M, [])
        late = None
        if not all(step.arrived):
            late = torch.cat([torch.full((b - a,), not ok) for ok, (a, b) in zip(step.arrived, ranges, strict=True)])
        if self.layout.tree:
            return server.round_by_shards.remote(t, late, [a for a, _ in ranges], [s.handle for s in self.shards])
        parts = [ref if ok else None for ref, ok in zip(step.sent, step.arrived, strict=True)]
        return server.round.remote(t, late, M, [b - a for a, b in ranges], *parts)

    def spent(self) -> Spent:
        return self.ask(self.server, "spent") if self.has_server else Spent(self.experiment.plan.epsilons([]), 0)

    def placed(self) -> dict[str, Any]:
        return {
            "name": "ray", "shards": len(self.shards), "num_cpus": self.layout.num_cpus,
            "num_gpus": self.executor.num_gpus, "tree": self.layout.tree, **self._places(),
            "seconds": self.seconds, "agents_cpu_seconds": self.agents_cpu_seconds,
            "faster_local": self._faster_local(),
        }  # fmt: skip

    def _faster_local(self) -> bool:
        """Return True if the CPU time of the agents' steps is less than the wall-clock time of the rounds.

        The result is always False if the actors have GPUs, or if objectives took a large share of the rounds' time.
        """
        waiting = self.objective_seconds > _OBJECTIVE_SHARE * self.seconds or self.executor.num_gpus
        return not waiting and self.agents_cpu_seconds < self.seconds

    def _begin(self, actor: Actor) -> list[Any]:
        if actor is self.server:
            return [actor.handle.start.remote()]
        ids, observed = torch.arange(*actor.arguments[1:3]), self.done.observed
        done = [cut(record, ids) for record in self.done.rounds]
        if observed is not None and observed.round < len(done):  # that round is finished by now
            observed = None
        return [actor.handle.start.remote(done, None if observed is None else cut(observed, ids))]


@dataclass
class RayStep:
    """A round that the agent actors have begun.

    broadcast, reports, sent: references to Ray objects. arrived: for each shard, True if its messages came in time.
    """

    deployment: RayFederation
    t: int
    broadcast: Any
    send: bool
    reports: list[Any] = field(default_factory=list)
    sent: list[Any] = field(default_factory=list)
    arrived: list[bool] = field(default_factory=list)
    phases: dict[str, float] = field(default_factory=dict)
    clock: PhaseClock = field(default_factory=PhaseClock)
    whole: RoundRecord | None = None

    def begin(self) -> None:
        """Start the round in every agent actor.

        An actor that has already done this round returns the same record and messages again.
        """
        send = self.send and not self.deployment.layout.tree  # with tree aggregation, the server asks for sums
        pairs = [s.handle.step.remote(self.t, self.broadcast, send) for s in self.deployment.shards]
        self.reports, self.sent = [p[0] for p in pairs], [p[1] for p in pairs]

    def reported_to(self, server: Aggregator) -> RoundOutput:
        if self.send:
            self._wait_for_messages()
        with self.clock("server"):
            return server.round(self.t, self if self.send else None)

    def _wait_for_messages(self) -> None:
        deadline = self.deployment.experiment.settings.dropout.deadline
        if deadline is None:
            self.record()
            self.arrived = [True] * len(self.sent)
        else:
            ready, _ = ray.wait(self.reports, num_returns=len(self.reports), timeout=deadline)
            self.arrived = [ref in ready and _has_answer(ref) for ref in self.reports]

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
                self.deployment.agents_cpu_seconds += report.cpu_seconds
                for phase, seconds in report.seconds.items():
                    self.phases[phase] = max(self.phases.get(phase, 0.0), seconds)
            self.whole = joined([report.record for report in reports])
        return self.whole


def _has_answer(ref: Any) -> bool:
    """Return True if a finished call has an answer, False if its actor died."""
    try:
        answer(ref)
    except RayError:
        return False
    return True


def _worker_settings(settings: FederatedSettings, layout: Layout) -> FederatedSettings:
    """Return the settings for actors, with a problem's `n_jobs` set to the CPUs of an actor."""
    node = settings.problem.node
    if "n_jobs" not in node:
        return settings
    node = {**node, "n_jobs": max(1, math.floor(layout.num_cpus))}
    return replace(settings, problem=replace(settings.problem, node=node))
