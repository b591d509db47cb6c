"""Entries of summary.json and progress.json; null stands for "no finite value"."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from dpfbo.formats.curve_points import epsilon_before, shown_rounds
from dpfbo.formats.run_folder import Progress
from dpfbo.formats.summary import PERCENT
from dpfbo.privacy.accounting import finite_or_none
from dpfbo.privacy.plan import PrivacyPlan
from dpfbo.run_result import Result

MANY_AGENTS = 1000  # with more agents, the summary has quantiles of the final metric


def progress(result: Result, rounds: int, facts: Mapping[str, Any], before: float | None) -> Progress:
    """Return the progress of a run after its last finished round.

    facts: see `Progress`. before: epsilon before the run's first release; it is above 0 only if the caller counts
    earlier charges of the ledger, and None if it is not finite.
    """
    last, epsilons = result.rounds[-1], [finite_or_none(r.epsilon) for r in result.server]
    shown = [t for t in shown_rounds(rounds) if t <= last.round]
    curve: dict[str, list[Any]] = {
        "round": shown,
        "mean": [finite_or_none(result.rounds.means[t]) for t in shown],
        "epsilon": epsilon_before(shown, [r.round for r in result.server], epsilons, before),
    }
    return Progress(last.round, rounds, last.mean, epsilons[-1] if epsilons else before, dict(facts), curve)


def outcome(
    result: Result, plan: PrivacyPlan, seeded: bool, epsilons: Mapping[str, float | None], n_charges: int
) -> dict[str, Any]:
    """Return the summary's entries about a run's results.

    seeded: True in a simulation. epsilons: the epsilon of the ledger's charges, by accountant.
    """
    counts = _counts(result) if seeded else {}
    mean = [finite_or_none(value) for value in result.rounds.means]  # None: no agent has a value yet
    se = [finite_or_none(value) for value in result.rounds.standard_errors]
    return {
        "curve": {"round": list(range(len(mean))), "mean": mean, "se": se, "se_over": "agents"},
        "final": {"mean": mean[-1], "se": se[-1], **_spread(result)},
        "approximations": plan.approximations,
        "epsilon": dict(epsilons),
        "epsilon_covers": plan.covers,
        "simulation_only": ["curve", "final", "best", *counts, "release", "seconds"],
        "n_charges": n_charges,
        **counts,
        "seconds": {**result.seconds, "total": sum(result.seconds.values())},
    }


def _counts(result: Result) -> dict[str, float | None]:
    chosen = sum(d.n_chosen for d in result.diagnostics)
    return {
        "clip_fraction": sum(d.n_clipped for d in result.diagnostics) / chosen if chosen else None,
        "n_rejected": sum(d.n_rejected for d in result.diagnostics),
        "n_dropped": sum(d.n_dropped for d in result.diagnostics),
    }


def _spread(result: Result) -> dict[str, Any]:
    last = result.rounds[-1]
    if len(last.y) <= MANY_AGENTS or math.isnan(last.mean):
        return {}
    levels: Sequence[float] = [p / 100 for p in PERCENT]
    return {"quantiles": dict(zip(map(str, PERCENT), last.quantiles(levels), strict=True))}
