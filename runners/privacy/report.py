"""The terminal output of runners.privacy: tables of epsilon with delta, relation and accountant."""

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from dpfbo.formats.words import METHODS, RELATIONS, REPLACE_ONE, delta_in_words, neighbours
from dpfbo.privacy.plan import PrivacyPlan


def facts(plan: PrivacyPlan) -> dict[str, Any]:
    """Epsilon of a plan by every accountant (None if infinite), with delta and relation."""
    return {
        "epsilon": plan.totals(), "approximations": plan.approximations, "delta": plan.delta, "relation": plan.relation,
    }  # fmt: skip


def title(answer: dict[str, Any]) -> str:
    """The settings of a plan in a line."""
    z = answer["z"]
    noise = f"z = {', '.join(f'{v:g}' for v in z)}" if isinstance(z, list) else f"z = {z:g}"
    noise += f" (t + 1)^{answer['growth']:g}" if answer["growth"] else ""
    k = f", {answer['subset'][0]} of them a round" if answer["subset"] else ""
    low, high = min(answer["charged_multipliers"]), max(answer["charged_multipliers"])
    charged = "" if answer["charge"] == "nominal" else f", charged at {low:.4g}" + f" to {high:.4g}" * (high > low)
    return f"{answer['agents']} agents{k}, {answer['rounds']} rounds, q = {answer['q']:g}, {noise}{charged}"


def by_accountant(answer: dict[str, Any]) -> Table:
    """Epsilon of one plan, or of ledgers, one row for each accountant."""
    result = Table()
    result.add_column("accountant")
    result.add_column("epsilon", justify="right")
    result.add_column()
    for name, value in answer["epsilon"].items():
        result.add_row(name, _in_words(value), METHODS.get(name, ""))
    return result


def grid(answers: Sequence[dict[str, Any]]) -> Table:
    """Epsilon of several plans, one row each."""
    result = Table()
    names = list(answers[0]["epsilon"])
    rough = answers[0]["approximations"]
    for name in ("q", "z", "T", *(f"epsilon\n{name}{' (≈)' * (name in rough)}" for name in names)):
        result.add_column(name, justify="right")
    for a in answers:
        result.add_row(*(f"{a[key]:g}" for key in ("q", "z", "rounds")), *(_in_words(a["epsilon"][n]) for n in names))
    if rough:
        result.caption = f"≈ {', '.join(rough)}: an approximation, not a guarantee"
    return result


def caption(answer: dict[str, Any]) -> list[str]:
    """Sentences on delta, relation, and what epsilon covers."""
    relation = answer["relation"]
    words = (
        f"relation {relation} ({RELATIONS[relation]}), user level" if relation in RELATIONS else neighbours(relation)
    )
    if all(epsilon is None for epsilon in answer["epsilon"].values()):
        words = "no epsilon is finite, whatever the relation"
    lines = [f"at {delta_in_words(answer['delta'])}, {words}"]
    if relation == REPLACE_ONE:
        lines.append(
            "z is noise over what one message can add; two messages can be twice as far apart, which is counted"
        )
    if "covers" in answer:
        lines.append(f"it covers {answer['covers']}")
    return lines


def _in_words(epsilon: float | None) -> str:
    if epsilon is None:
        return "none"
    return f"{epsilon:.2f}" if 0.1 <= epsilon < 1e4 else f"{epsilon:.3g}"
