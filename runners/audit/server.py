"""The audit of an experiment's server: checks, then a replay in two worlds that differ in one agent's messages."""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from dpfbo.audit.bounds import CONFIDENCE
from dpfbo.audit.findings import CheckResult
from dpfbo.audit.server import two_world
from dpfbo.audit.server.colluders import attacked_view, worst_case
from dpfbo.audit.server.examine import CHECKS, examine
from dpfbo.audit.server.target import AgentsSide, Target
from dpfbo.audit.server.two_world import Replay
from dpfbo.federated.distributed import DistributedGaussian
from dpfbo.federated.prior_server import PriorServer
from dpfbo.federated.server import Server
from dpfbo.formats.words import delta_in_symbols, delta_in_words, epsilon_in_words
from dpfbo.privacy.ledger import Ledger
from runners.audit import picture
from runners.audit.report import AuditReport, table, verdict_as_json
from runners.compose.federated import FederatedExperiment

_MOST_SITES = 40  # most sites of an audited secure sum, unless its dropouts and colluders need more


def target_of(experiment: FederatedExperiment) -> Target:
    """Return the experiment's server as the target of an audit of all broadcasts that the run can make.

    Raises ValueError if the experiment claims no privacy, if its accountant's epsilon is no guarantee, or if it has no
    server that adds up messages.
    """
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


def n_checks(experiment: FederatedExperiment) -> int:
    """Return the number of checks in an audit."""
    if not isinstance(experiment.study.mechanism, DistributedGaussian):
        return len(CHECKS)
    from dpfbo.audit.secure.examine import SITE_CHECKS

    return len(CHECKS) + len(SITE_CHECKS)


def _of_sites(target: Target, on_step: Callable[[], None]) -> list[CheckResult]:
    """Check the sites of a secure sum; return no results if the server is trusted."""
    (N, _, M), mechanism = target.shape, target.mechanism
    if not isinstance(mechanism, DistributedGaussian):
        return []
    from dpfbo.audit.secure.examine import examine_sites
    from dpfbo.audit.secure.sums import SumTarget

    fewest = 2 * mechanism.max_dropouts + mechanism.colluders + 1
    return examine_sites(SumTarget(mechanism, min(N, max(fewest, _MOST_SITES)), M), on_step)


def audit(
    experiment: FederatedExperiment, rounds: int, trials: int, seed: int, on_step: Callable[[], None],
    thorough: bool = False,
) -> AuditReport:  # fmt: skip
    """Check the whole run; if trials > 0, also replay its first rounds in two worlds.

    The worlds differ in one agent's messages. thorough: True to let the checks draw many more samples.
    on_step: called after each check and each trial (a replay in both worlds).
    """
    begin, whole = time.monotonic(), target_of(experiment)
    target = worst_case(whole)
    if rounds > target.rounds:
        raise ValueError(f"--rounds must be at most the {target.rounds} broadcasts of the run, got {rounds}")
    findings = [*examine(target, seed, on_step, thorough), *_of_sites(whole, on_step)]
    (N, P, M), name, accountant = target.shape, experiment.settings.algorithm.name, experiment.plan.chosen
    made = two_world.replay(replace(target, rounds=rounds), trials, seed, on_step) if trials else None
    worlds = None if made is None else {**verdict_as_json(made.verdict), "charges_vary": made.varying}
    found = AuditReport(
        title=f"{name}: {N} agents, {P} sub-regions, {M} features, {target.rounds} broadcasts",
        sound=all(f.holds for f in findings) and (made is None or made.holds),
        checks=("checks of the release, the noise, S_t and the ledger", findings),
        answer={
            "algorithm": name, "n_agents": N, "regions": P, "features": M, "broadcasts": target.rounds,
            "rounds": rounds, "accountant": accountant, "delta": target.delta,
            "relation": target.accountant.relation, "attacked": attacked_view(target), "two_worlds": worlds,
            "seconds": round(time.monotonic() - begin, 2),
        },
    )  # fmt: skip
    return found if made is None else _with_two_worlds(found, made)


def _with_two_worlds(report: AuditReport, made: Replay) -> AuditReport:
    v, name, accountant, rounds = made.verdict, *(report.answer[key] for key in ("algorithm", "accountant", "rounds"))
    claimed, bound = epsilon_in_words(v.claim.epsilon, 3), f"{v.epsilon:.3f}"
    broadcasts, relation = f"{rounds} broadcast{'s' * (rounds > 1)}", v.claim.accountant.relation
    words = "holds" if v.holds else "[bold]VIOLATED[/bold]"
    if v.broken is not None:
        words += f" at epsilon {v.broken[0]:.3f}, delta {v.broken[1]:.2g}"
    row = (claimed, bound, words + ", charges vary" * made.varying)
    attacked = report.answer["attacked"]
    names = ("without the canary's message", "with it")
    if made.opposite:
        names = ("with the opposite message", "with the message")
    title = f"epsilon of {broadcasts}, claimed and bounded from below"
    score = "score of a run (log-likelihood ratio of its releases)"
    return replace(
        report,
        tables=[table(title, ("claimed", "bound", "claim"), [row])],
        notes=[
            f"claimed: {accountant} from the ledger, {delta_in_words(v.claim.delta)}, relation {relation}, user level",
            f"bounds: {v.trials} runs in each world, Clopper-Pearson, confidence {CONFIDENCE:.0%} for a whole row",
            *([] if attacked is None else [f"attacked: {attacked}"]),
        ],
        picture_title=f"{name}, {broadcasts}: claimed ε = {claimed} ({accountant}, {delta_in_symbols(v.claim.delta)}, "
        f"{relation}); lower bound {bound} ({CONFIDENCE:.0%})",
        panels=[
            partial(picture.scores, verdict=v, names=names, score=score, title=f"{v.trials} runs in each world"),
            partial(picture.tradeoff, verdict=v),
        ],
    )
