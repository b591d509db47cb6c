"""All checks of a target but the replay of two worlds."""

from collections.abc import Callable

import torch

from dpfbo.audit.server import charging, claims, laws, message_path, neighbours, post_processing, randomness, whole_runs
from dpfbo.audit.server.repeated_rounds import CheckResult, RepeatedRounds
from dpfbo.audit.server.target import Target

CHECKS: dict[str, Callable[[RepeatedRounds], CheckResult]] = {
    "moved": neighbours.moved,
    "additive": neighbours.additive,
    "unusable": neighbours.unusable,
    "finite": neighbours.finite,
    "noise": randomness.noise,
    "shape": randomness.shape,
    "fresh": randomness.fresh,
    "chosen": randomness.chosen,
    "independent": randomness.independent,
    "every round": whole_runs.every_round,
    "streams": whole_runs.streams,
    "law of S_t": laws.law_of_choice,
    "law of noise": laws.law_of_noise,
    "bits": laws.bits,
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
    target: Target, seed: int = 0, on_check: Callable[[], None] = lambda: None, thorough: bool = False
) -> list[CheckResult]:
    """The results of all checks, in the order of `CHECKS`. on_check: called after each. thorough: see `RepeatedRounds`.

    Raises ValueError if no round to check is charged.
    """
    with torch.inference_mode():
        rounds = RepeatedRounds(target, seed, thorough)
        if not rounds.examined:
            raise ValueError("no broadcast of the server under audit is charged, so that nothing is claimed of any")
        findings = []
        for check in CHECKS.values():
            findings.append(check(rounds))
            on_check()
        return findings
