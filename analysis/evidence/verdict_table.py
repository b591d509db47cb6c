"""The table of verdicts, as Markdown, as CSV and on the terminal."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from analysis.evidence.claim import REIMPLEMENTATION, JudgedClaim
from analysis.evidence.verdicts import (
    CONTRARY,
    HOLDS,
    LEVEL,
    LOOKS,
    MOST_ADDED,
    NEAR,
    NOT_RUN,
    OPEN,
    SAME,
    SHARP,
    VERDICTS,
)
from dpfbo.formats.files import replace_text

WIDTH = 150  # least characters in a line if the output is no terminal
COLOURS = {HOLDS: "green", CONTRARY: "red", SAME: "cyan", OPEN: "yellow", NOT_RUN: "dim"}

FAMILIES = f"""The claims about one figure or table are a family: the chance that any of its verdicts is wrong is at
most {100 * LEVEL:g} % (Holm's correction at {100 * LEVEL / LOOKS:g} %, because seeds may be added once for claims that
were not decided; at a third or a quarter of {100 * LEVEL:g} % if the experiment was judged three or four times).
"Holds" and "contrary" are significant differences in the claimed or the opposite direction; "level within m" is a
difference that is significantly smaller than the fraction m of the number that was to be beaten. All else is "not
decided", with the number of seeds or functions that would decide it with 80 % power."""
RULE = f"""Tests are one-sided t tests of differences between settings, seed by seed. The independent unit is a
function, or a seed with its own split of real data; the number of a unit is the mean over its agents. A slope per step
is the least-squares slope over the ranks of the settings, the best as claimed first; it is level if the whole change
from first to last is. "Servers that query blindly" send random points, and Sobol points where these were run, in the
same sub-regions. The claims of a family share their runs, so their errors are dependent, which Holm's correction
allows. A claim of no difference, or of no harm, holds if the difference is significantly inside the stated margin. A
number lies in a band ("above", "below") if its mean is significantly inside each end. A published number is contrary if
one of its points is excluded (two-sided). It holds if all points are within {NEAR:g} standard errors of the difference
(from both errors; a missing published one is replaced by our spread over the published number of runs), if ours are as
precise (as many units, and at most twice the published error or, without one, an error of the difference of less than
{100 * SHARP:g} % of the number), and if no published effect of its setting has the other sign here. Fewer than three
units decide nothing. The seeds of the last test are as many as the undecided claims need, up to {MOST_ADDED} times the
earlier number. With this rule the last test errs less often than its level allows. Units that are all equal decide
only claims of no harm. Standard errors: the estimate divided by its own, positive in support of the claim; for a margin
or a band, the distance to the nearer end; for a published number, minus the distance."""

KINDS = {
    "effect": "published effects",
    "agreement": "agreement with published numbers",
    "epsilon": "printed privacy losses",
    "reimplementation": "findings and numbers of another, unpublished reimplementation",
    "control": "controls: sharing against servers that send random points",
    "outsourced": "own findings on outsourced optimisation",
    "own": "own findings on the private prior",
}
REIMPLEMENTED = (
    "Reimplementation: a program written independently of this one, with the paper's settings; its numbers were never "
    "published, and stand here as a second opinion. A finding that contradicts a published effect is the same "
    "test, shown in both lines."
)


def distinct(found: Sequence[JudgedClaim]) -> list[JudgedClaim]:
    """Return one claim of each group of repeated claims, the claim with the most evidence.

    A claim with the verdict "not run" has the least evidence. Among the other claims, the number of estimates with a
    standard error decides. If these numbers are equal, the sample size (number of independent seeds, functions or
    splits) decides.
    """
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
    """Return the number of claims with each verdict; repeated claims count once."""
    once = distinct(found)
    return {verdict: sum(f.verdict == verdict for f in once) for verdict in VERDICTS}


def kinds(found: Sequence[JudgedClaim]) -> list[tuple[str, dict[str, int]]]:
    """Return the counts by verdict for each kind of claim."""
    by_kind: dict[str, list[JudgedClaim]] = {kind: [] for kind in KINDS}
    for f in found:
        outsourced = f.kind == "own" and f.experiment.startswith("po_")
        by_kind[f.source if f.source == REIMPLEMENTATION else "outsourced" if outsourced else f.kind].append(f)
    return [(KINDS[kind], counts(judged)) for kind, judged in by_kind.items() if judged]


def summary(found: Sequence[JudgedClaim]) -> list[str]:
    """Return a line such as `Published effects: 12 holds, 3 contrary.` for each kind, and one for all."""
    lines = [f"{words[0].upper()}{words[1:]}: {_in_words(n)}." for words, n in kinds(found)]
    return [*lines, f"All together: {_in_words(counts(found))}."]


def _in_words(n: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {verdict}" for verdict, number in n.items() if number) or "none"


def notes(found: Sequence[JudgedClaim]) -> list[str]:
    """Return sentences on repeated claims, the data, and the sources of the claims."""
    result = _repeats(found, len(found) - len(distinct(found)))
    if any("same data" in f.units for f in found):
        result.append("Seeds on the same data: a verdict is about these data sets, not about others like them.")
    if any(f.source == REIMPLEMENTATION for f in found):
        result.append(REIMPLEMENTED)
    if any(f.verdict != NOT_RUN and f.source == "paper" for f in found):
        result.append(
            "Published effects were selected for being visible, so smaller ones are to be expected here. The wording "
            "of claims is a summary of each figure's message, not a quotation."
        )
    return result


def _repeats(found: Sequence[JudgedClaim], n: int) -> list[str]:
    same, result = sum(bool(f.repeats) and f.kind == "own" for f in found), []
    if same:
        words = "own findings repeat" if same > 1 else "own finding repeats"
        result.append(f"{same} {words} another one on identical runs, which counts once.")
    if n > same:
        result.append(
            f"{n - same} claim{'s repeat' if n - same > 1 else ' repeats'} a claim about another figure on the same "
            "settings, which counts once, with the verdict over most controls and units."
        )
    return result


def markdown(found: Sequence[JudgedClaim], facts: Mapping[str, str] | None = None, pictures: Path | None = None) -> str:
    """Return the page of verdicts as Markdown.

    facts: a sentence on the runs of each experiment, by the experiment's name. pictures: folder of the pictures.
    """
    *kinds_of_claims, together = summary(found)
    lines = ["# Claims", "", " ".join(FAMILIES.split()), "", f"**{together}**", ""]
    lines += [f"- {line}" for line in kinds_of_claims]
    lines += ["", "| figure | verdicts | what is claimed or compared |", "|---|---|---|"]
    figures: dict[str, list[JudgedClaim]] = {}
    for f in found:
        if f.verdict != NOT_RUN:
            figures.setdefault(f.figure, []).append(f)
    for figure, claims in figures.items():
        lines.append(f"| [{figure}](#{_anchor(figure)}) | {_in_words(counts(claims))} | {claims[0].shows} |")
    shown: set[Path] = set()
    for figure, claims in figures.items():
        experiment = claims[0].experiment
        lines += ["", f'<a id="{_anchor(figure)}"></a>', "", f"## {figure}", ""]
        lines += [f"{claims[0].shows}." if claims[0].shows else ""]
        lines += [f"**{_in_words(counts(claims))}.** {(facts or {}).get(experiment, '')}".rstrip(), ""]
        picture = None if pictures is None else _picture(pictures, experiment)
        if picture is not None and picture not in shown:
            lines += [f"![{figure}]({picture.parent.name}/{picture.name})", ""]
            shown.add(picture)
        lines += [f"<details markdown><summary>{len(claims)} claim{'s' * (len(claims) > 1)}</summary>", ""]
        lines += ["| verdict | claim | ours ± SE | published | n | SEs |", "|---|---|---|---|---|---|"]
        for f in claims:
            claim, published, ours, n, errors = (cell.replace("|", "\\|") for cell in _cells(f))
            lines.append(f"| **{f.in_words}** | {claim} | {ours} | {published} | {n} | {errors} |")
        lines += ["", "</details>"]
    lines += ["", "## How a verdict is reached", "", " ".join(RULE.split()), *(f"\n{note}" for note in notes(found))]
    missing = _not_run(found)
    if missing:
        lines += ["", "## Not run", "", *(f"- {line}" for line in missing)]
    return "\n".join(lines) + "\n"


def _picture(folder: Path, experiment: str) -> Path | None:
    paths = [folder / f"{experiment}{kind}.png" for kind in ("", "_regret_by_r", "_regret_by_iteration")]
    return next(filter(Path.exists, paths), None)


def _anchor(figure: str) -> str:
    return "-".join("".join(c if c.isalnum() else " " for c in figure.lower()).split())


def write(found: Sequence[JudgedClaim], out: Path, facts: Mapping[str, str]) -> list[Path]:
    """Write claims.md and claims.csv; return their paths."""
    import pandas as pd  # imported here, so that --help does not load it

    table = pd.DataFrame([asdict(f) for f in found]).to_csv(index=False)
    out.mkdir(parents=True, exist_ok=True)
    for name, text in (("claims.md", markdown(found, facts, out / "figures")), ("claims.csv", table)):
        replace_text(out / name, text, durable=False, mode=0o644)
    return [out / "claims.md", out / "claims.csv"]


def show(found: Sequence[JudgedClaim], paths: Sequence[Path]) -> None:
    """Print the table of claims; a claim with the verdict "not run" has no row.

    Below the table, print the summary of all claims, the notes and the paths of the files.
    """
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
        table.add_row(*map(Text, _cells(f)), Text(f.in_words, COLOURS[f.verdict]))
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
    """Return lines that list the claims with the verdict "not run".

    If an experiment also has claims with other verdicts, each claim that was not run has its own line. Otherwise, the
    experiment's claims about the same figure or table share one line, which gives the number of these claims.
    """
    begun = {f.experiment for f in found if f.verdict != NOT_RUN}
    lines = []
    for f in found:
        if f.verdict != NOT_RUN:
            continue
        n = sum((other.experiment, other.figure) == (f.experiment, f.figure) for other in found)
        whole = f"{f.figure}: {n} claim{'s' * (n > 1)} about {f.experiment}"
        if f.ours.startswith("results cannot be read"):
            whole += f" ({f.ours})"
        lines.append(f"{f.figure}: {f.claim}{_source(f)} ({f.ours})" if f.experiment in begun else whole)
    return list(dict.fromkeys(lines))


def _source(finding: JudgedClaim) -> str:
    return "" if finding.source == "paper" else f" ({finding.source})"
