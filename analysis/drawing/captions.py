"""The words of a figure: its settings below it, epsilons in its legend, and the claims that hold, beside it."""

from collections.abc import Sequence
from typing import NamedTuple

from analysis.evidence.claim import JudgedClaim
from analysis.evidence.verdicts import FAILS, HOLDS, NOT_RUN, OPEN
from analysis.labels import NAMES, joined_by_or
from analysis.load import SettingRuns, seeds_phrase
from analysis.tables import stand_ins
from dpfbo.formats.words import epsilon_in_words, large_delta

SHARING = "Sharing helps: "  # begins every claim about a control, and the heading says as much
MOST = 6  # claims beside a figure that are told one by one
ACCOUNTANT = "pld"
SPENT = 0.02  # of a target: an epsilon that is less by no more than this is the target


class Kind(NamedTuple):
    """A kind of claim: before those that are told, and as one of those that are counted."""

    heading: str
    name: str


KINDS = {
    "effect": Kind("Claims of the paper", "published effect"),
    "control": Kind("Against servers that query blindly", "control"),
    "agreement": Kind("Numbers of the paper", "published number"),
    "reimplementation": Kind("Findings of the reimplementation", "reimplementation finding"),
    "epsilon": Kind("Printed epsilons", "printed epsilon"),
    "own": Kind("Own findings", "own finding"),
}


def settings_in_words(groups: Sequence[SettingRuns], accountant: str = ACCOUNTANT) -> str:
    """The settings for a reader: N, P, q, S, whose epsilon, delta, relation, and what the bands are."""
    s = groups[0].first.summary
    P = {g.first.config["algorithm"]["P"] for g in groups}
    private = [g for g in groups if g.private]
    parts = [f"N = {s['n_agents']} agents", f"P = {joined_by_or(P)} sub-region{'s' * (max(P) > 1)}"]
    if private:
        parts += [f"{key} = {joined_by_or(g.first.config['privacy'][key] for g in private)}" for key in ("q", "S")]
    text = f"{', '.join(parts)}. "
    if private:
        relations = sorted({g.first.summary["relation"] for g in private})
        warning = large_delta(g.first.summary["delta"] for g in private)
        names = dict.fromkeys(accountant_of(g, accountant) for g in private)
        by = " or ".join(accountant_in_words(name) for name in names)
        text += f"ε: {by} accountant, δ = {deltas(groups)}{warning}, {' or '.join(relations)}, user level. "
    return f"{text}{bands_in_words(groups)}"


def bands_in_words(groups: Sequence[SettingRuns]) -> str:
    """The units of means and errors: `Mean over agents and 3 seeds; bands and bars: ± one standard error, ...`."""
    over = "" if groups[0].first.outsourced else "over agents"
    if max(len(g.runs) for g in groups) == 1:
        return f"Mean {over}, one seed." if over else "One seed."
    joined = f"{over} and " if over else "over "
    return f"Mean {joined}seeds; bands and bars: ± one standard error over {seeds_phrase(groups)}."


def accountant_of(group: SettingRuns, wanted: str) -> str:
    """The accountant of a setting's epsilon: the wanted one, or its own where it was run without that."""
    return wanted if wanted in group.first.summary["epsilon"] else str(group.first.summary["accountant"])


def accountant_in_words(name: str) -> str:
    """`PLD`, `moments`, `fixed-size`."""
    return name.upper() if len(name) == 3 else name.replace("_", "-")


def with_epsilon(label: str, group: SettingRuns, epsilon: float | None, wanted: str = ACCOUNTANT) -> str:
    """The entry of a private setting in a legend: `DP-FTS, z = 1 (ε = 7.05)`; a label of others as it is.

    One whose label has its target epsilon is told apart only where it spent more, or much less.
    wanted: the picture's accountant; another one is named.
    """
    if not group.private:
        return label
    if epsilon is None:
        return f"{label} (no finite ε)"
    number = epsilon_in_words(epsilon)
    name, target = accountant_of(group, wanted), group.first.config["privacy"].get("epsilon")
    by = "" if name == wanted else f"{accountant_in_words(name)} accountant, {group.first.summary['relation']}"
    if by:
        return f"{label} (ε = {number}, {by})"
    if target is None:
        return f"{label} (ε = {number})"
    if name != group.first.summary["accountant"]:  # the target is by another
        return f"{label} ({accountant_in_words(name)}: {number})"
    is_target = (1 - SPENT) * target <= epsilon <= target * (1 + 1e-9)
    return label if is_target else f"{label} (spent: {number})"


def release_in_words(groups: Sequence[SettingRuns]) -> str:
    """The same of outsourced settings: what is claimed, what is guaranteed to which neighbours."""
    parts = [f"One curator, one modeler, T = {joined_by_or({g.rounds for g in groups})} rounds after the first point."]
    parts += [f"Data: {text}." for text in stand_ins(groups)]
    claimed = [g for g in groups if g.first.claimed_epsilon is not None]
    if claimed:
        delta = joined_by_or({g.first.config["transform"]["delta"] for g in claimed})
        parts.append(f"Dashed: claimed ε as published (δ = {delta}), no guarantee.")
    guaranteed = [g for g in groups if g.private]
    if guaranteed:
        relations = {g.first.summary["relation"]: NAMES.get(g.first.summary["algorithm"], "") for g in guaranteed}
        neighbours = " or ".join(f"{relation} ({name})" for relation, name in relations.items())
        warning = large_delta(g.first.summary["delta"] for g in guaranteed)
        parts.append(f"Guaranteed ε at δ = {deltas(groups)}{warning} for neighbours with {neighbours}.")
    return " ".join([*parts, bands_in_words(groups)])


def deltas(groups: Sequence[SettingRuns]) -> str:
    return joined_by_or(g.first.summary["delta"] for g in groups if g.private) or "–"


def verdicts(findings: Sequence[JudgedClaim]) -> str:
    """The decided claims one by one, effects first; the others counted by kind; neither those not run nor repeats.

    `Claims of the paper: FTS beats TS: holds (5.1 standard errors, 20 functions). Also 9 controls: none decided.`
    """
    ids = {f.id for f in findings}
    known = [f for f in findings if f.verdict != NOT_RUN and f.repeats not in ids]
    told = sorted((f for f in known if _is_told(f)), key=lambda f: (list(KINDS).index(_kind(f)), f.verdict != FAILS))
    told = told[:MOST]
    rest = [_counted(kind, known, told) for kind in KINDS]
    others = "; ".join(part for part in rest if part)
    also = f"{'Also ' if told else ''}{others}." if others else ""
    return " ".join(filter(None, (_one_by_one(told), also)))


def _one_by_one(told: Sequence[JudgedClaim]) -> str:
    text, before, measure, units = "", None, None, None
    for number, finding in enumerate(told):
        if _kind(finding) != before:
            before, measure = _kind(finding), None
            text += f" {KINDS[before].heading}:"
        claim, _, by = finding.claim.removeprefix(SHARING).rstrip(".").rpartition("; ")
        words = by if not claim else claim if by == measure else f"{claim}; {by}"  # said once for claims in a row
        measure = by if claim else None
        text += f" {words[0].upper()}{words[1:]}: {finding.verdict}"
        evidence = [] if finding.standard_errors is None else [_errors(finding.standard_errors, number == 0)]
        if finding.units != units:
            evidence.append(finding.units)
        text += f" ({', '.join(evidence)})." if any(evidence) else "."
        units = finding.units
    return text.strip()


def _kind(finding: JudgedClaim) -> str:
    return finding.kind if finding.source == "paper" else finding.source


def _is_told(finding: JudgedClaim) -> bool:
    """A printed epsilon that holds is one of many alike."""
    return finding.verdict == FAILS or (finding.verdict == HOLDS and _kind(finding) != "epsilon")


def _counted(kind: str, known: Sequence[JudgedClaim], told: Sequence[JudgedClaim]) -> str:
    """`9 controls: none decided`, of what is not told."""
    rest = [f for f in known if _kind(f) == kind and f not in told]
    if not rest:
        return ""
    counts = {verdict: sum(f.verdict == verdict for f in rest) for verdict in (HOLDS, FAILS, OPEN)}
    more = "more " * any(_kind(f) == kind for f in told)
    name = f"{len(rest)} {more}{KINDS[kind].name}{'s' * (len(rest) > 1)}"
    if len(rest) == 1:
        return f"{name}: {rest[0].verdict}"
    if counts[OPEN] == len(rest):
        return f"{name}: none decided"
    if counts[HOLDS] == len(rest):
        return f"{name}: all hold"
    one, many = {HOLDS: "holds", FAILS: "does not hold"}, {HOLDS: "hold", FAILS: "do not hold"}
    words = [f"{n} {(one if n == 1 else many).get(v, v)}" for v, n in counts.items() if n]
    return f"{name}: {', '.join(words)}"


def _errors(value: float, first: bool) -> str:
    number = f"{round(value, 1) + 0.0:.1f}".replace("-", "−")  # + 0.0: no negative zero
    return f"{number} standard errors" if first else number
