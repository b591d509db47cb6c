"""Reports of epsilon: as JSON, as a table, and in sentences."""

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from dpfbo.formats.words import METHODS, RELATIONS, REPLACE_ONE, delta_in_words, epsilon_in_words, neighbours
from dpfbo.privacy.plan import PrivacyPlan


def facts(plan: PrivacyPlan) -> dict[str, Any]:
    """Return epsilon by every accountant (None if infinite), delta, neighbouring relation, and what epsilon covers."""
    return {
        "epsilon": plan.totals(), "approximations": plan.approximations, "delta": plan.delta, "relation": plan.relation,
        "covers": plan.covers,
    }  # fmt: skip


def by_accountant(answer: dict[str, Any]) -> Table:
    """Return a table of epsilon with a row for each accountant."""
    result = Table("accountant", "epsilon", "")
    result.columns[1].justify = "right"
    for name, value in answer["epsilon"].items():
        result.add_row(name, epsilon_in_words(value), METHODS.get(name, ""))
    return result


def by_setting(answers: Sequence[dict[str, Any]]) -> Table:
    """Return a table of epsilon with a row for each plan."""
    result, rough = Table(), answers[0]["approximations"]
    names = list(answers[0]["epsilon"])
    for name in ("q", "z", "T", *(f"epsilon\n{name}{' (≈)' * (name in rough)}" for name in names)):
        result.add_column(name, justify="right")
    for a in answers:
        epsilons = (epsilon_in_words(a["epsilon"][name]) for name in names)
        result.add_row(*(f"{a[key]:g}" for key in ("q", "z", "rounds")), *epsilons)
    if rough:
        result.caption = f"≈ {', '.join(rough)}: an approximation, not a guarantee"
    return result


def caption(answer: dict[str, Any]) -> list[str]:
    """Return sentences on delta, the neighbouring relation, and what epsilon covers."""
    relation = answer["relation"]
    words = neighbours(relation)
    if relation in RELATIONS:
        words = f"relation {relation} ({RELATIONS[relation]}), user level"
    if all(epsilon is None for epsilon in answer["epsilon"].values()):
        words = "no epsilon is finite, whatever the relation"
    lines = [f"at {delta_in_words(answer['delta'])}, {words}", f"it covers {answer['covers']}"]
    if relation == REPLACE_ONE:
        lines.append(
            "z is noise over what one message can add; two messages may differ by twice that, which epsilon includes"
        )
    return lines
