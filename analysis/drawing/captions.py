"""The text below a figure: its settings, and which published claims hold here."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from analysis.evidence.claim import JudgedClaim
from analysis.evidence.verdicts import FAILS, HOLDS, NOT_RUN, OPEN
from analysis.labels import NAMES, joined_by_or, large_delta
from analysis.load import SettingRuns, seeds_phrase
from analysis.tables import stand_ins

SHARING = "Sharing helps: "  # begins every claim about a control, and the heading says as much
MOST = 6  # claims in a caption that are told one by one

Telling = Callable[[Sequence[SettingRuns]], str]  # of the settings on a page, the claims about them


def no_claims(_: Sequence[SettingRuns]) -> str:
    """A page that tells none."""
    return ""


class Kind(NamedTuple):
    """A kind of claim: before those that are told, and as one of those that are counted."""

    heading: str
    name: str


KINDS = {
    "effect": Kind("Claims of the paper", "published effect"),
    "control": Kind("Against servers that query blindly", "control"),
    "agreement": Kind("Numbers of the paper", "published number"),
    "prototype": Kind("Findings of the prototype", "prototype finding"),
    "epsilon": Kind("Printed epsilons", "printed epsilon"),
    "own": Kind("Own findings", "own finding"),
}


def settings_in_words(groups: Sequence[SettingRuns]) -> str:
    """The settings for a reader: N, P, q, S, delta, and what the errors are over."""
    s = groups[0].first.summary
    P = {g.first.config["algorithm"]["P"] for g in groups}
    private = [g for g in groups if g.private]
    parts = [f"N = {s['n_agents']} agents", f"P = {joined_by_or(P)} sub-region{'s' * (max(P) > 1)}"]
    if private:
        parts += [f"{key} = {joined_by_or(g.first.config['privacy'][key] for g in private)}" for key in ("q", "S")]
        relations = sorted({g.first.summary["relation"] for g in private})
        warning = large_delta(g.first.summary["delta"] for g in private)
        parts.append(f"δ = {deltas(groups)}{warning} ({' or '.join(relations)}, user level)")
    text = f"{', '.join(parts)}. "
    if max(len(g.runs) for g in groups) == 1:
        return f"{text}Mean over the agents, one seed."
    return f"{text}Mean ± standard error over {seeds_phrase(groups)}."


def release_in_words(groups: Sequence[SettingRuns]) -> str:
    """The same of outsourced settings: what is claimed, what is guaranteed to which neighbours."""
    parts = [
        f"One curator, one modeler, T = {joined_by_or({g.rounds for g in groups})} rounds after the first measurement."
    ]
    parts += [f"Data: {text}." for text in stand_ins(groups)]
    claimed = [g for g in groups if g.first.claimed_epsilon is not None]
    if claimed:
        delta = joined_by_or({g.first.config["transform"]["delta"] for g in claimed})
        parts.append(f"Dashed: claimed ε as published (δ = {delta}), no guarantee.")
    guaranteed = [g for g in groups if g.private]
    if guaranteed:
        relations = {g.first.summary["relation"]: NAMES.get(g.first.summary["algorithm"], "") for g in guaranteed}
        neighbours = " or ".join(f"{relation} ({name})" for relation, name in relations.items())
        parts.append(f"Guaranteed ε at δ = {deltas(groups)} for neighbours with {neighbours}.")
    if max(len(g.runs) for g in groups) == 1:
        return " ".join([*parts, "One seed."])
    return " ".join([*parts, f"Mean ± standard error over {seeds_phrase(groups)}."])


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
