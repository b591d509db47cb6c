"""The audit of an experiment's server: all checks, then the two worlds."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from dpfbo.audit import bounds
from dpfbo.audit.bounds import Verdict
from dpfbo.audit.server import two_world
from dpfbo.audit.server.agents_side import AgentsSide
from dpfbo.audit.server.examine import examine
from dpfbo.audit.server.repeated_rounds import CheckResult
from dpfbo.audit.server.target import Target
from dpfbo.federated.prior_server import PriorServer
from dpfbo.federated.server import Server
from dpfbo.privacy.ledger import Ledger
from runners.compose.federated import FederatedExperiment

Step = Callable[[], None]


@dataclass(frozen=True)
class Repetition:
    """One repetition of the two worlds."""

    replay: two_world.Replay
    verdict: Verdict


@dataclass(frozen=True)
class Audit:
    """The result of one audit. rounds: broadcasts that the two worlds replayed, of target.rounds in all."""

    name: str
    accountant: str
    target: Target
    rounds: int
    findings: tuple[CheckResult, ...]
    repetitions: tuple[Repetition, ...]
    seconds: float

    @property
    def sound(self) -> bool:
        return all(f.holds for f in self.findings) and all(
            a.verdict.holds and not a.replay.varying for a in self.repetitions
        )


def target_of(experiment: FederatedExperiment) -> Target:
    """The experiment's server with its claim over all broadcasts. Raises ValueError if it claims nothing."""
    name, plan = experiment.settings.algorithm.name, experiment.plan
    if not experiment.private:
        raise ValueError(f"algorithm={name} claims no privacy: there is nothing to audit")
    if plan.accountant.approximation:
        raise ValueError(
            f"an audit needs an accountant whose epsilon is a guarantee, got privacy.accountant={plan.chosen}"
        )
    server = experiment.server(Ledger())
    if not isinstance(server, Server | PriorServer):
        raise ValueError(f"algorithm={name} has no server that adds up messages")
    side = AgentsSide(experiment.problem, experiment.agents) if isinstance(server, PriorServer) else None
    return Target(server, experiment.broadcasts, plan.accountant, plan.delta, side)


def audit(
    experiment: FederatedExperiment,
    rounds: int,
    trials: int,
    repetitions: int,
    seed: int,
    others: str,
    confidence: float,
    on_step: Step,
    thorough: bool = False,
) -> Audit:
    """Check the whole run, then repeat the two worlds of its first rounds, unless trials = 0.

    thorough: a hundred times the draws of noise and S_t. on_step: called after each check, and after each trial of both
    worlds.
    """
    begin, target = time.monotonic(), target_of(experiment)
    if rounds > target.rounds:
        raise ValueError(f"--rounds must be at most the {target.rounds} broadcasts of the run, got {rounds}")
    findings = examine(target, seed, on_step, thorough)
    short, audited = replace(target, rounds=rounds), []
    for repetition in range(repetitions if trials else 0):
        replay = two_world.replay(short, two_world.Canary.of(short, others, seed), trials, seed, repetition, on_step)
        verdict = bounds.verdict(replay.without, replay.with_message, replay.claim, confidence)
        audited.append(Repetition(replay, verdict))
    name, chosen = experiment.settings.algorithm.name, experiment.plan.chosen
    return Audit(name, chosen, target, rounds, tuple(findings), tuple(audited), time.monotonic() - begin)
