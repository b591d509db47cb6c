"""All checks of a server under audit, except the attack in `two_world`."""

from collections.abc import Callable, Iterable

import torch

from dpfbo.audit.findings import CheckResult, checked
from dpfbo.audit.server import charging, claims, laws, message_path, neighbours, post_processing, whole_runs
from dpfbo.audit.server.rounds import RepeatedRounds
from dpfbo.audit.server.target import Target

CHECKS: dict[str, Callable[[RepeatedRounds], str]] = {
    "moved": neighbours.moved,
    "unusable": neighbours.unusable,
    "every round": whole_runs.every_round,
    "streams": whole_runs.streams,
    "noise": laws.noise,
    "law of noise": laws.law_of_noise,
    "bits": laws.bits,
    "law of S_t": laws.law_of_choice,
    "charged": charging.charged,
    "before leaving": charging.before_leaving,
    "budget": charging.budget,
    "reported": claims.reported,
    "accountant": claims.accountant,
    "kept": claims.kept,
    "post-processing": post_processing.post_processing,
    "public design": message_path.public_design,
    "own data": message_path.own_data,
}


def examine(
    target: Target,
    seed: int = 0,
    on_check: Callable[[], None] = lambda: None,
    thorough: bool = False,
    names: Iterable[str] = CHECKS,
) -> list[CheckResult]:
    """Run the named checks and return their results. on_check: called after each. thorough: see `RepeatedRounds`.

    Raises ValueError if none of the rounds to check has a charge.
    """
    with torch.inference_mode():
        rounds = RepeatedRounds(target, seed, thorough)
        if not rounds.examined:
            raise ValueError("no broadcast of the server under audit is charged, so there is no claim to check")
        found = []
        for name in names:
            found.append(checked(name, CHECKS[name], rounds))
            on_check()
        return found
