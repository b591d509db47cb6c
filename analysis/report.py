"""python -m analysis.report: one HTML file with every figure, table and verdict; it needs no network and no script."""

import argparse
import os
import platform
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from jinja2 import Environment, StrictUndefined
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from analysis.arguments import parsed
from analysis.claims import claims, judge
from analysis.drawing.files import writable
from analysis.drawing.page import unbroken
from analysis.evidence import verdict_table
from analysis.evidence.claim import JudgedClaim
from analysis.evidence.verdicts import NOT_RUN
from analysis.html import privacy as report_privacy
from analysis.html.sections import Section, section
from analysis.load import LoadError, with_parts

TEMPLATE = Path(__file__).parent / "html" / "report.html.j2"
SHIPPED = ("demo", "school")  # experiments of this package that no published claim is about
PACKAGES = ("torch", "numpy", "scipy", "gpytorch", "scikit-learn", "dp-accounting", "matplotlib")

HELP = """One HTML file with the figures, tables, privacy and verdicts of all experiments in the results folder.
It needs no network and no script, and may be sent as it is."""

EXIT_CODES = """Exit code: 0; 1 where there is nothing to show (no file is written), or where the report says of an
experiment that it cannot be read or drawn; 2 for unknown options."""


def experiments(results_dir: Path, names: Sequence[str]) -> list[str]:
    """The experiments with finished runs, all or the named ones: first the user's own.

    The others follow in the order of the paper.

    Raises LoadError if there is none, or a named one is missing.
    """
    claimed = {claim.experiment for claim in claims()}
    found = sorted(
        {path.parts[-4] for path in results_dir.glob("*/*/*/summary.json")},
        key=lambda name: (name in claimed or name in SHIPPED, _as_in_paper(name)),
    )
    if not found:
        raise LoadError(f"no finished run in {results_dir}: run python -m runners.sweep experiment=NAME")
    for name in names:
        if name not in found:
            raise LoadError(f"no finished run of {name!r} in {results_dir} (there are results of {', '.join(found)})")
    return [name for name in found if not names or name in names]


def judged(sections: Sequence[Section], names: Sequence[str]) -> tuple[list[JudgedClaim], list[str]]:
    """The claims, all or those of the named experiments, in the order of the paper, and what could not be judged.

    The claims about an experiment that cannot be read are left out.
    """
    found: list[JudgedClaim] = []
    notes = []
    runs = {s.experiment: s.runs for s in sections}
    for name in dict.fromkeys(claim.experiment for claim in claims(names or None)):
        try:
            found += judge({name: runs.get(name, ())}) if name not in runs or runs[name] else []
        except LoadError as error:
            notes.append(f"the claims about {name} are left out: {error}")
    return found, notes


@dataclass(frozen=True)
class ExperimentClaims:
    """The claims about one experiment. kinds: the counts of those that were judged."""

    experiment: str
    findings: tuple[JudgedClaim, ...]
    kinds: Sequence[tuple[str, dict[str, int]]]

    @property
    def figures(self) -> str:
        return " and ".join(dict.fromkeys(f.figure for f in self.findings))

    @property
    def judged(self) -> list[JudgedClaim]:
        return _judged_of(self.findings)

    @property
    def not_run(self) -> list[JudgedClaim]:
        return [f for f in self.findings if f.verdict == NOT_RUN]

    @property
    def run(self) -> bool:
        return bool(self.judged)


def _judged_of(found: Sequence[JudgedClaim]) -> list[JudgedClaim]:
    return [f for f in found if f.verdict != NOT_RUN]


def render(sections: Sequence[Section], found: Sequence[JudgedClaim], notes: Sequence[str], made: datetime) -> str:
    """The page. notes: what is missing in it, and why."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["whole"] = _whole
    by_experiment: dict[str, list[JudgedClaim]] = {}
    for claim in found:
        by_experiment.setdefault(claim.experiment, []).append(claim)
    about = [ExperimentClaims(k, tuple(v), verdict_table.kinds(_judged_of(v))) for k, v in by_experiment.items()]
    private = [(s.experiment, s.private) for s in sections if s.private]
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        made=made.strftime("%Y-%m-%d %H:%M UTC"),
        sections=sections,
        anchors={s.experiment: s.anchor for s in sections},
        notes=notes,
        commits=_commits(sections),
        kinds=verdict_table.kinds(_judged_of(found)),
        rule=verdict_table.RULE,
        remarks=verdict_table.notes(_judged_of(found)),
        claims={one.experiment: one for one in about},
        not_run=[one for one in about if one.not_run],
        privacy=report_privacy.table(private),
        covers=sorted({run.summary["epsilon_covers"] for s in sections for run in s.runs if run.summary["private"]}),
        executors=_executors(sections),
        machine=_machine(),
    )


def _whole(text: str) -> str:
    """No line ends in `P = 2`, in `1 − p_t` or after ε."""
    return unbroken(text).replace("ε ", "ε\u00a0")


def write(page: str, path: Path, private: bool = False) -> None:
    """Write the page whole or not at all. private: for its owner alone, as the records of real data are."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(page)
        os.chmod(temporary, 0o600 if private else 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _as_in_paper(name: str) -> tuple[bool, tuple[tuple[int, int | str], ...]]:
    """fig2c before fig10, and what is no figure last."""
    parts = re.findall(r"\d+|\D+", name)
    return not name.startswith("fig"), tuple((0, int(part)) if part.isdigit() else (1, part) for part in parts)


def _commits(sections: Sequence[Section]) -> list[tuple[str, bool, int]]:
    """Commit (12 characters, empty if not recorded), whether there were changes beside it, number of runs."""
    counts = Counter(run.summary.get("commit") or "" for s in sections for run in s.runs)
    return [(name.rstrip("+")[:12], name.endswith("+"), n) for name, n in counts.most_common()]


def _executors(sections: Sequence[Section]) -> list[tuple[str, int]]:
    """The executors that computed the agents, and the number of runs of each."""
    found: Counter[str] = Counter()
    for s in sections:
        for run in s.runs:
            executor = run.config.get("executor", {})
            parts = [str(executor.get("name", "not recorded")), str(executor.get("device", ""))]
            found[", ".join(filter(None, parts))] += 1
    return found.most_common()


def _machine() -> list[tuple[str, str]]:
    """The versions and the machine that make the report."""
    known = [("Python", platform.python_version())]
    for package in PACKAGES:
        try:
            known.append((package, version(package)))
        except PackageNotFoundError:
            known.append((package, "not installed"))
    system = f"{platform.system()} {platform.release()}, {platform.machine()}"
    return [*known, ("system", system), ("CPUs", str(os.cpu_count()))]


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m analysis.report", description=HELP, epilog=EXIT_CODES)
    parser.add_argument(
        "experiments", metavar="EXPERIMENT", nargs="*", help="folders in the results folder (default: all)"
    )
    parser.add_argument("--out", type=Path, default=Path("report.html"), help="file (default: report.html)")
    return parsed(parser, argv)


def _collect(results_dir: Path, names: Sequence[str]) -> list[Section]:
    """Read and draw, with a bar on stderr."""
    console = Console(file=sys.stderr)  # held: what figures say goes elsewhere meanwhile
    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}")
    progress = Progress(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False)
    with progress:
        task, sections = progress.add_task("", total=len(names)), []
        for name in names:
            progress.update(task, description=name.replace("[", r"\["))
            sections.append(section(results_dir, name))
            progress.advance(task)
    return sections


def main(argv: Sequence[str] | None = None) -> int:
    """Write the report and print its path; the exit code is 0, or 1 when something or all is missing."""
    args = _parse(argv)
    try:
        if args.out.is_dir():
            raise LoadError(f"--out must be a file, and {args.out} is a folder")
        writable(args.out.parent)
        asked = with_parts(args.results_dir, args.experiments)
        sections = _collect(args.results_dir, experiments(args.results_dir, asked))
        found, not_judged = judged(sections, asked)
        notes = [*(note for s in sections for note in s.notes), *not_judged]
        private = any(run.real for s in sections for run in s.runs)
        write(render(sections, found, notes, datetime.now(UTC)), args.out, private)
    except LoadError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(
            f"error: {args.out} cannot be written ({error.strerror or error}): give another file with --out",
            file=sys.stderr,
        )
        return 1
    except KeyboardInterrupt:
        return 130
    for note in notes:
        print(f"error: {note}", file=sys.stderr)
    print(args.out)
    return 1 if notes else 0


if __name__ == "__main__":
    sys.exit(main())
