"""python -m analysis.report: one HTML file with every figure, table and verdict."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import Progress

from analysis.arguments import exit_code, parsed
from analysis.claims import claims, judge
from analysis.drawing.files import writable
from analysis.evidence import verdict_table
from analysis.evidence.claim import JudgedClaim, figure_number
from analysis.evidence.verdicts import NOT_RUN
from analysis.load import LoadError, Run, finished_experiments, with_parts
from dpfbo.formats.files import replace_text

if TYPE_CHECKING:
    from analysis.html.sections import Section  # not imported at run time: it loads matplotlib

TEMPLATE = Path(__file__).parent / "html" / "report.html.j2"
SHIPPED = ("demo", "school")  # experiments of this package without a published claim

HELP = """One HTML file with the figures, tables, privacy and verdicts of all experiments in the results folder.
It uses no script and no network, and can be sent as it is."""

EXIT_CODES = """Exit code: 0; 1 if there is nothing to show (no file is written), or if an experiment cannot be read or
drawn, which the report states; 2 for unknown options."""


def experiments(results_dir: Path, names: Sequence[str]) -> list[str]:
    """Return the experiments with finished runs: those in `names`, or all if `names` is empty.

    The user's own experiments come first. Raises LoadError if `results_dir` contains no finished run. Also raises
    LoadError if an experiment in `names` has no finished run.
    """
    claimed = {claim.experiment for claim in claims()}
    found = sorted(finished_experiments(results_dir), key=lambda n: (n in claimed or n in SHIPPED, figure_number(n), n))
    if not found:
        raise LoadError(f"no finished run in {results_dir}: run python -m runners.sweep experiment=NAME")
    for name in names:
        if name not in found:
            raise LoadError(f"no finished run of {name!r} in {results_dir} (there are results of {', '.join(found)})")
    return [name for name in found if not names or name in names]


def judged(sections: Sequence[Section], names: Sequence[str]) -> list[JudgedClaim]:
    """Judge the claims about the experiments in `names` (all if `names` is empty); skip unreadable experiments."""
    runs = {s.experiment: s.runs for s in sections}
    wanted = dict.fromkeys(claim.experiment for claim in claims(names or None))
    return judge({name: runs.get(name, ()) for name in wanted if name not in runs or runs[name]})


def render(sections: Sequence[Section], found: Sequence[JudgedClaim], notes: Sequence[str], made: datetime) -> str:
    """Return the HTML page. notes: sentences on what is missing in it."""
    from jinja2 import Environment, StrictUndefined

    from analysis.drawing.page import unbroken
    from analysis.html import privacy as report_privacy

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["whole"] = lambda text: unbroken(text).replace("ε ", "ε\u00a0")
    environment.filters["kinds"] = verdict_table.kinds
    known = [f for f in found if f.verdict != NOT_RUN]
    runs = [run for s in sections for run in s.runs]
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        made=made.strftime("%Y-%m-%d %H:%M UTC"),
        sections=sections,
        anchors={s.experiment: s.anchor for s in sections},
        notes=notes,
        commits=_commits(runs),
        families=verdict_table.FAMILIES,
        rule=verdict_table.RULE,
        remarks=verdict_table.notes(known),
        judged=known,
        claims=_by_experiment(known),
        not_run=_by_experiment([f for f in found if f.verdict == NOT_RUN]),
        privacy=report_privacy.table([(s.experiment, s.private) for s in sections if s.private]),
        covers=sorted({run.summary["epsilon_covers"] for run in runs if run.summary["private"]}),
        executors=Counter(map(_executor, runs)).most_common(),
        environments=Counter(map(_environment, runs)).most_common(),
    )


def _by_experiment(found: Sequence[JudgedClaim]) -> dict[str, list[JudgedClaim]]:
    names = dict.fromkeys(f.experiment for f in found)
    return {name: [f for f in found if f.experiment == name] for name in names}


def _commits(runs: Sequence[Run]) -> list[tuple[str, bool, int]]:
    """Count the runs by commit: (first 12 characters, True if the code had uncommitted changes, number of runs)."""
    counts = Counter(run.summary.get("commit") or "" for run in runs)
    return [(name.rstrip("+")[:12], name.endswith("+"), n) for name, n in counts.most_common()]


def _executor(run: Run) -> str:
    executor = run.config.get("executor", {})
    return ", ".join(filter(None, (str(executor.get("name", "not recorded")), str(executor.get("device", "")))))


def _environment(run: Run) -> tuple[tuple[str, str], ...]:
    found = run.summary.get("environment") or {}
    packages = found.get("packages") or {}
    rest = {key: value for key, value in found.items() if key != "packages"}
    return tuple((key, str(value)) for key, value in {**rest, **packages}.items())


def _collect(results_dir: Path, names: Sequence[str]) -> list[Section]:
    from analysis.html.sections import section

    console = Console(file=sys.stderr)  # kept: drawing may redirect sys.stderr meanwhile
    with Progress(console=console, transient=True, redirect_stdout=False, redirect_stderr=False) as progress:
        return [section(results_dir, name) for name in progress.track(names, description="experiments")]


@exit_code
def main(argv: Sequence[str] | None = None) -> int:
    """Write the report and print its path; return 1 if anything is missing in it, else 0."""
    parser = argparse.ArgumentParser(prog="python -m analysis.report", description=HELP, epilog=EXIT_CODES)
    parser.add_argument(
        "experiments", metavar="EXPERIMENT", nargs="*", help="folders in the results folder (default: all)"
    )
    parser.add_argument("--out", type=Path, default=Path("report.html"), help="file (default: report.html)")
    args = parsed(parser, argv)
    if args.out.is_dir():
        raise LoadError(f"--out must be a file, and {args.out} is a folder")
    writable(args.out.parent)
    asked = with_parts(args.results_dir, args.experiments)
    sections = _collect(args.results_dir, experiments(args.results_dir, asked))
    notes = [note for s in sections for note in s.notes]
    private = any(run.real for s in sections for run in s.runs)
    page = render(sections, judged(sections, asked), notes, datetime.now(UTC))
    try:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        replace_text(args.out, page, durable=False, mode=0o600 if private else 0o644)
    except OSError as error:
        why = error.strerror or error
        raise LoadError(f"{args.out} cannot be written ({why}): give another file with --out") from error
    for note in notes:
        print(f"error: {note}", file=sys.stderr)
    print(args.out)
    return 1 if notes else 0


if __name__ == "__main__":
    sys.exit(main())
