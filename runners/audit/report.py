"""The report of an audit of a server: tables on the terminal, JSON, and the picture."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from dpfbo.audit.bounds import Rates, Verdict
from dpfbo.audit.server.repeated_rounds import CheckResult
from dpfbo.formats.files import replace_file
from dpfbo.formats.words import delta_in_symbols, delta_in_words, epsilon_in_words
from dpfbo.privacy.accounting import finite_or_none
from runners.audit import server_picture
from runners.audit.run import Audit


def show(audit: Audit, files: Sequence[Path]) -> None:
    """Print checks, bounds, the paths of the files and the verdict."""
    console = Console(highlight=False)
    N, P, M = audit.target.shape
    console.print(f"{audit.name}: {N} agents, {P} sub-regions, {M} features, {audit.target.rounds} broadcasts")
    console.print(_checks(audit.findings))
    if audit.repetitions:
        console.print(_bounds(audit))
        for line in _notes(audit):
            console.print(line, soft_wrap=True)
    for file in files:
        console.print(f"written: {file}", soft_wrap=True)
    console.print("nothing found" if audit.sound else "the claim does NOT hold", style=None if audit.sound else "bold")


def _checks(findings: Sequence[CheckResult]) -> Table:
    table = Table(title="checks with equal randomness, and of noise, S_t and ledger", title_justify="left")
    for column in ("check", "", "worst that was seen"):
        table.add_column(column)
    for f in findings:
        table.add_row(f.check, "holds" if f.holds else "[bold]FAILS[/bold]", f.words)
    return table


def _bounds(audit: Audit) -> Table:
    title = f"epsilon of {audit.rounds} broadcast{'s' * (audit.rounds > 1)}, claimed and bounded from below"
    table = Table(title=title, title_justify="left")
    for column in ("repetition", "claimed", "bound", "bound by fit", "claim"):
        table.add_column(column, justify="left" if column in ("repetition", "claim") else "right")
    for number, (v, varying) in enumerate(((a.verdict, a.replay.varying) for a in audit.repetitions), start=1):
        fit = "–" if v.fit_epsilon is None else f"{v.fit_epsilon:.3f}"
        words = "holds" if v.holds else "[bold]VIOLATED[/bold]" + _broken_at(v)
        claimed = epsilon_in_words(v.claim.epsilon, 3)
        table.add_row(str(number), claimed, f"{v.epsilon:.3f}", fit, words + ", charges vary" * varying)
    return table


def _broken_at(verdict: Verdict) -> str:
    if verdict.broken is None:
        return ""
    return f" at epsilon {verdict.broken[0]:.3f}, delta {verdict.broken[1]:.2g}"


def _notes(audit: Audit) -> list[str]:
    v = audit.repetitions[0].verdict
    notes = [
        f"claimed: {audit.accountant} of the ledger, {delta_in_words(v.claim.delta)}, relation "
        f"{v.claim.relation}, user level",
        f"bounds: {v.trials} runs in each world, Clopper-Pearson, confidence {v.confidence:.0%} for all of a row",
    ]
    if v.fit_epsilon is not None:
        notes.append("fit: a bound only for mechanisms of the claimed kind, with another amount of noise")
    return notes


def as_json(audit: Audit, overrides: Sequence[str]) -> dict[str, Any]:
    """The contents of audit.json."""
    N, P, M = audit.target.shape
    return {
        "algorithm": audit.name,
        "overrides": list(overrides),
        "n_agents": N,
        "regions": P,
        "features": M,
        "broadcasts": audit.target.rounds,
        "rounds": audit.rounds,
        "accountant": audit.accountant,
        "delta": audit.target.delta,
        "relation": audit.target.accountant.relation,
        "sound": audit.sound,
        "checks": [_finding(f) for f in audit.findings],
        "repetitions": [{**_verdict(a.verdict), "charges_vary": a.replay.varying} for a in audit.repetitions],
        "seconds": round(audit.seconds, 2),
    }


def _finding(f: CheckResult) -> dict[str, Any]:
    return {
        "check": f.check, "holds": f.holds, "words": f.words, "measured": finite_or_none(f.measured),
        "allowed": finite_or_none(f.allowed),
    }  # fmt: skip


def _verdict(v: Verdict) -> dict[str, Any]:
    return {
        "claimed_epsilon": finite_or_none(v.claim.epsilon),
        "bound": v.epsilon,
        "bound_by_fit": v.fit_epsilon,
        "confidence": v.confidence,
        "trials": v.trials,
        "holds": v.holds,
        "violated_at": None if v.broken is None else {"epsilon": v.broken[0], "delta": v.broken[1]},
        "tests": [_rates(test) for test in v.tests],
    }


def _rates(r: Rates) -> dict[str, float | None]:
    return {"threshold": finite_or_none(r.threshold), "fpr_at_most": r.fpr, "fnr_at_most": r.fnr}


def write(audit: Audit, answer: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write audit.json and, where there are two worlds, audit.png; returns their paths."""
    text = json.dumps(answer, indent=1) + "\n"
    files = [folder / "audit.json"]
    replace_file(files[0], lambda file: file.write(text.encode()))
    if audit.repetitions:
        first = audit.repetitions[0]
        v = first.verdict
        fit = "" if v.fit_epsilon is None else f", {v.fit_epsilon:.3f} by fit"
        title = (
            f"{audit.name}, {audit.rounds} broadcast{'s' * (audit.rounds > 1)}: "
            f"claimed ε = {epsilon_in_words(v.claim.epsilon, 3)} "
            f"({audit.accountant}, {delta_in_symbols(v.claim.delta)}, {v.claim.relation}); "
            f"lower bound {v.epsilon:.3f}{fit} ({v.confidence:.0%})"
        )
        files.append(server_picture.draw(first.replay, v, title, folder / "audit.png"))
    return files
