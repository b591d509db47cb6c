"""What stands below a figure: its settings, and which published claims hold here."""

from collections.abc import Sequence

from analysis.claims import Finding
from analysis.labels import several
from analysis.load import Setting, seeds_phrase

MOST = 6  # claims in a caption


def settings_in_words(groups: Sequence[Setting]) -> str:
    """What a reader needs to know of the settings: N, P, q, S, delta, and what the errors are over."""
    s = groups[0].first.summary
    P = {g.first.config["algorithm"]["P"] for g in groups}
    private = [g for g in groups if g.private]
    parts = [f"N = {s['n_agents']} agents", f"P = {several(P)} sub-region{'s' * (max(P) > 1)}"]
    if private:
        parts += [f"{key} = {several(g.first.config['privacy'][key] for g in private)}" for key in ("q", "S")]
        relations = sorted({g.first.summary["relation"] for g in private})
        parts.append(f"δ = {deltas(groups)} ({' or '.join(relations)}, user level)")
    text = f"{', '.join(parts)}. "
    if max(len(g.runs) for g in groups) == 1:
        return f"{text}Mean over the agents, one seed."
    return f"{text}Mean ± standard error over {seeds_phrase(groups)}."


def deltas(groups: Sequence[Setting]) -> str:
    return several(g.first.summary["delta"] for g in groups if g.private) or "–"


def verdicts(findings: Sequence[Finding]) -> str:
    """`Claims of the paper: FTS beats TS: holds (5.1 standard errors, 20 functions).`; those not run are left out."""
    known = [f for f in findings if f.verdict != "not run"]
    text, source, units = "", None, None
    for number, finding in enumerate(known[:MOST]):
        if finding.source != source:
            text += f" Claims of the {finding.source}."
        claim = finding.claim.rstrip(".")
        text += f" {claim[0].upper()}{claim[1:]}: {finding.verdict}"
        evidence = [] if finding.standard_errors is None else [_errors(finding.standard_errors, number == 0)]
        if finding.units != units:
            evidence.append(finding.units)
        text += f" ({', '.join(evidence)})." if any(evidence) else "."
        source, units = finding.source, finding.units
    if len(known) > MOST:
        text = f"{text[:-1]}; and {len(known) - MOST} more in claims.md."
    return text.strip()


def _errors(value: float, first: bool) -> str:
    number = f"{round(value, 1) + 0.0:.1f}".replace("-", "−")  # + 0.0: no negative zero
    return f"{number} standard errors" if first else number
