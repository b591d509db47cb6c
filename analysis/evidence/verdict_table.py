"""The table of verdicts: Markdown and CSV on disk, and on the terminal."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from analysis.evidence import verdicts
from analysis.evidence.claim import REIMPLEMENTATION, JudgedClaim
from analysis.evidence.verdicts import FAILS, HOLDS, LEVEL, NEAR, NOT_RUN, OPEN, SHARP, VERDICTS
from dpfbo.formats.files import replace_text

TOGETHER = 0.05  # chance of one wrong verdict among those that stand together
WIDTH = 150  # columns, where there is no terminal to ask
COLOURS = {HOLDS: "green", FAILS: "red", OPEN: "yellow", NOT_RUN: "dim"}

RULE = f"""How a verdict is reached. The unit is an independent function, or a seed where the data are the same for all;
a unit's number is the mean over its agents. Settings are compared seed by seed. Student's t with n − 1 degrees of
freedom, one-sided at {LEVEL:g}: significantly as claimed, "holds"; significantly the other way, "does not hold". A
slope per step is the least-squares slope over the ranks of the settings, the best as claimed first. "Beats blind
servers" must hold against the random server and against the Sobol server where it was run on at least half of the units
(and two); n and standard errors are those of the comparison that decides. A claim of no difference, or of no harm,
holds where the difference is significantly inside the stated margin, and does not where it is significantly outside. A
number lies in a band ("above", "below") where its mean is significantly inside each end, and does not where it is
significantly outside one (the level divided by the number of ends). A published number holds where all its points are
within {NEAR:g} standard errors of the difference (both errors; without a published one, our spread over the published
number of runs, or of functions where ours differ) and we are as precise: as many units, and at most twice the published
error, or without one an error of the difference of less than {100 * SHARP:g} % of the number. It does not hold where a
point is excluded at {LEVEL:g} (two-sided, corrected for the number of points). All else is "not decided": with few
units that is the common answer, and says nothing against a claim. Fewer than three units decide nothing, nor do units
that are all equal. The t test takes differences to be without much skew: where a few functions decide, verdicts by
chance are more than one in a hundred in one direction and fewer in the other. Standard errors: the estimate in its own,
positive in support of the claim; inside a margin or a band, to its nearer end; of a published number, minus the
distance."""

KINDS = {
    "effect": "published effects",
    "agreement": "agreement with published numbers",
    "epsilon": "printed privacy losses",
    "reimplementation": "findings and numbers of the reimplementation",
    "control": "controls: sharing against blind servers",
    "outsourced": "own findings on outsourced optimisation",
    "own": "own findings on the private prior",
}
REIMPLEMENTED = (
    "Reimplementation: a program written independently of this one, with the paper's settings; its numbers were never "
    "published, and stand here as a second opinion. A finding that is the contrary of a published effect is one "
    "test, in both lines."
)


def distinct(found: Sequence[JudgedClaim]) -> list[JudgedClaim]:
    """One of the claims that ask the same of the same settings: the one over the most controls, then the most units."""
    best: dict[str, JudgedClaim] = {}
    for f in found:
        asked = f.repeats or f.id
        if asked not in best or _evidence(f) > _evidence(best[asked]):
            best[asked] = f
    return list(best.values())


def _evidence(finding: JudgedClaim) -> tuple[bool, int, int]:
    n = finding.units.split()[0]
    return finding.verdict != NOT_RUN, finding.ours.count("±"), int(n) if n.isdecimal() else 0


def counts(found: Sequence[JudgedClaim]) -> dict[str, int]:
    """The number of claims with each verdict; those that ask the same of the same settings count once."""
    once = distinct(found)
    return {verdict: sum(f.verdict == verdict for f in once) for verdict in VERDICTS}


def kinds(found: Sequence[JudgedClaim]) -> list[tuple[str, dict[str, int]]]:
    """The counts for each kind of claim: effects, agreement, printed losses, reimplementation, controls, own."""
    by_kind: dict[str, list[JudgedClaim]] = {kind: [] for kind in KINDS}
    for f in found:
        outsourced = f.kind == "own" and f.experiment.startswith("po_")
        by_kind[f.source if f.source == REIMPLEMENTATION else "outsourced" if outsourced else f.kind].append(f)
    return [(KINDS[kind], counts(judged)) for kind, judged in by_kind.items() if judged]


def summary(found: Sequence[JudgedClaim]) -> list[str]:
    """`Published effects: 12 hold, 3 do not hold, ...`, a line for each kind, and one for all together."""
    lines = [f"{words[0].upper()}{words[1:]}: {_in_words(n)}." for words, n in kinds(found)]
    return [*lines, f"All together: {_in_words(counts(found))}."]


def _in_words(n: Mapping[str, int]) -> str:
    return (
        f"{n[HOLDS]} hold{'s' * (n[HOLDS] == 1)}, {n[FAILS]} do{'es' * (n[FAILS] == 1)} not hold, "
        f"{n[OPEN]} {'is' if n[OPEN] == 1 else 'are'} not decided, {n[NOT_RUN]} {'was' if n[NOT_RUN] == 1 else 'were'} "
        "not run"
    )


def notes(found: Sequence[JudgedClaim]) -> list[str]:
    """Notes for the reader: what counts once, one rule for chance among many tests, and what these data are."""
    once = distinct(found)
    result = _repeats(found, len(found) - len(once))
    if chance := _chance(once):
        result.append(chance)
    if any("same data" in f.units for f in found):
        result.append("Seeds on the same data: a verdict is about these data sets, not about others like them.")
    if any(f.source == REIMPLEMENTATION for f in found):
        result.append(REIMPLEMENTED)
    if any(f.verdict != NOT_RUN and f.source == "paper" for f in found):
        result.append(
            "Published effects were published because they were seen: smaller ones here are to be expected. The "
            "wording of claims is a summary of each figure's message, not a quotation."
        )
    return result


def _chance(once: Sequence[JudgedClaim]) -> str:
    """The rule for chance among many tests, with its numbers; empty where there is no test that something is better."""
    tests = [
        (f.verdict == HOLDS, f.p)
        for f in once
        if f.form == "superiority" and f.p is not None and f.standard_errors is not None
    ]
    if not tests:
        return ""
    n, held = len(tests), sum(holds for holds, _ in tests)
    rejected = sorted(p for _, p in tests)[: verdicts.holm([p for _, p in tests], TOGETHER)]
    stand = sum(holds and p in rejected for holds, p in tests)
    are = f"Here are {n} tests" if n > 1 else "Here is 1 test"
    text = (
        'Chance. Each test is made on its own: a claim that is wrong comes out as "holds" with a chance of at most '
        f"{LEVEL:g}. {are} that something is better: if nothing were better anywhere, at most {n * LEVEL:.1f} would "
        f"hold on average; {held} {'holds' if held == 1 else 'hold'}. "
    )
    if held:
        text += (
            f"Holm's correction, which keeps the chance of even one wrong verdict among all of them at {TOGETHER:g} or "
            f"less, leaves {stand} of the {held} standing. "
        )
    text += "The table has the verdicts of the single tests"
    others = sum(f.form in ("margin", "band") and f.p is not None for f in once)
    if others:
        text += f"; {others} more, of no difference or of a band, are not among the {n}"
    return f"{text}."


def _repeats(found: Sequence[JudgedClaim], n: int) -> list[str]:
    """Why n of the findings do not count."""
    same, result = sum(bool(f.repeats) and f.kind == "own" for f in found), []
    if same:
        words = "own findings are" if same > 1 else "own finding is"
        result.append(f"{same} {words} about runs that are the same as those of another, which counts once.")
    if n > same:
        result.append(
            f"{n - same} claim{'s ask' if n - same > 1 else ' asks'} what another figure's claim asks, of the same "
            "settings: it counts once, with the answer over most controls and units."
        )
    return result


def markdown(found: Sequence[JudgedClaim]) -> str:
    """The table, with the counts above, and below the rule, the notes, and what was not run."""
    head = ("figure", "claim", "published", "ours ± SE", "n", "standard errors", "verdict")
    *kinds_of_claims, together = summary(found)
    lines = ["# Claims", "", *(f"- {line}" for line in kinds_of_claims), "", together, ""]
    lines += [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for f in found:
        if f.verdict != NOT_RUN:
            cells = (f.figure, *_cells(f), f"**{f.verdict}**")
            lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    lines += ["", " ".join(RULE.split()), *(f"\n{note}" for note in notes(found))]
    missing = _not_run(found)
    if missing:
        lines += ["", "## Not run", "", *(f"- {line}" for line in missing)]
    return "\n".join(lines) + "\n"


def write(found: Sequence[JudgedClaim], out: Path) -> list[Path]:
    """Write claims.md, and claims.csv with a row of all fields for each finding."""
    table = pd.DataFrame([asdict(f) for f in found]).to_csv(index=False)
    out.mkdir(parents=True, exist_ok=True)
    for name, text in (("claims.md", markdown(found)), ("claims.csv", table)):
        replace_text(out / name, text, durable=False, mode=0o644)
    return [out / "claims.md", out / "claims.csv"]


def show(found: Sequence[JudgedClaim], paths: Sequence[Path]) -> None:
    """The findings with a verdict, on the terminal."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=max(WIDTH, console.width))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name, ratio in (("claim", 5), ("published", 2), ("ours ± SE", 4), ("n", 1)):
        table.add_column(name, ratio=ratio)
    table.add_column("SEs", no_wrap=True, justify="right")
    table.add_column("verdict", no_wrap=True)
    shown = [f for f in found if f.verdict != NOT_RUN]
    for k, f in enumerate(shown):
        if not k or shown[k - 1].figure != f.figure:
            table.add_section()
            table.add_row(Text(f.figure, "bold"))
        table.add_row(*map(Text, _cells(f)), Text(f.verdict, COLOURS[f.verdict]))
    if shown:
        console.print(table)
    for line in [*summary(found), *notes(found)]:
        console.print(line, markup=False, soft_wrap=not console.is_terminal)
    for path in paths:
        console.print(str(path), markup=False, soft_wrap=True)


def _cells(finding: JudgedClaim) -> tuple[str, ...]:
    f = finding
    errors = "–" if f.standard_errors is None else f"{f.standard_errors:+.1f}".replace("-", "−")
    return f.claim + _source(f), f.published, f.ours, f.units, errors


def _not_run(found: Sequence[JudgedClaim]) -> list[str]:
    """A line for each claim that was not run, one for all of an experiment without any verdict."""
    begun = {f.experiment for f in found if f.verdict != NOT_RUN}
    lines = []
    for f in found:
        if f.verdict != NOT_RUN:
            continue
        n = sum(other.experiment == f.experiment for other in found)
        whole = f"{f.figure}: {n} claim{'s' * (n > 1)} about {f.experiment}"
        if f.ours.startswith("results cannot be read"):
            whole += f" ({f.ours})"
        lines.append(f"{f.figure}: {f.claim}{_source(f)} ({f.ours})" if f.experiment in begun else whole)
    return list(dict.fromkeys(lines))


def _source(finding: JudgedClaim) -> str:
    return "" if finding.source == "paper" else f" ({finding.source})"
