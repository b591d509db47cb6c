"""The tables of a soak: on the terminal, in Markdown and in JSON."""

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.soak.fuzzing import Fuzzed
from tests.soak.memory import GROWTH, SLACK, flat
from tests.soak.outcome import Outcome

KILLED = (
    "kind", "kills", "runs", "records identical", "ledger complete", "lost", "charged twice", "under-counted",
    "tracebacks", "seconds", "s a kill", "MB at a tenth", "MB at most",
)  # fmt: skip
DAMAGED = ("hostile input", "cases", "tracebacks", "hangs", "seconds")
_MB = 1e6


@dataclass
class Report:
    """The findings of a soak so far. planned: kills, cases. seconds: in all. interrupted: before its end."""

    planned: tuple[int, int]
    seed: int
    rows: list[Outcome] = field(default_factory=list)
    fuzzed: list[Fuzzed] = field(default_factory=list)
    memory: tuple[int, int] = (0, 0)
    seconds: float = 0.0
    interrupted: bool = False

    @property
    def passed(self) -> bool:
        """True if nothing was found in a whole soak."""
        return not self.interrupted and all(fine(row) for row in self.rows) and all(f.passed for f in self.fuzzed)

    @property
    def verdict(self) -> str:
        return "interrupted" if self.interrupted else "passed" if self.passed else "FAILED"


def fine(row: Outcome) -> bool:
    """True if records, ledger and memory are as they should be."""
    return row.passed and flat(row.memory)


def killed_cells(row: Outcome) -> list[str]:
    yes = ["yes" if flag else "NO" for flag in (row.records, row.ledger)]
    numbers = [str(n) for n in (row.lost, row.double, row.under, row.tracebacks)]
    cost = f"{row.seconds / row.kills:.1f}" if row.kills else ""
    memory = [f"{size / _MB:.0f}" for size in row.memory]
    return [row.kind, str(row.kills), str(row.runs), *yes, *numbers, f"{row.seconds:.0f}", cost, *memory]


def damaged_cells(row: Fuzzed) -> list[str]:
    return [row.kind, str(row.cases), str(row.tracebacks), str(row.hangs), f"{row.seconds:.0f}"]


def total(rows: Sequence[Outcome]) -> Outcome:
    """The sum of all rows."""
    found = Outcome("in all", records=True, ledger=True, runs=0)
    for row in rows:
        found.add(row)
        found.seconds += row.seconds
    found.notes = []
    return found


def summary(report: Report) -> str:
    """Both tables in Markdown, with what failed."""
    rows = [*report.rows, total(report.rows)]
    rows[-1].memory = report.memory
    lines = _markdown(KILLED, [killed_cells(row) for row in rows])
    if report.fuzzed:
        cells = [damaged_cells(row) for row in report.fuzzed]
        sums = [sum(getattr(f, name) for f in report.fuzzed) for name in ("cases", "tracebacks", "hangs", "seconds")]
        lines += ["", *_markdown(DAMAGED, [*cells, ["in all", *(f"{n:.0f}" for n in sums)]])]
    lines += ["", f"MB: of the process that drives all kinds; flat if at most {GROWTH:g} times that at a tenth of the"]
    lines += [
        f"time and {SLACK / _MB:.0f} MB more. Seed {report.seed}, {report.seconds:.0f} s, {os.cpu_count()} cores."
    ]
    lines += [f"{row.kind}: {note}" for row in report.rows if not row.passed for note in row.notes]
    lines += [f"{row.kind}: memory is not flat" for row in report.rows if not flat(row.memory)]
    lines += [f"{row.kind}: {row.note}" for row in report.fuzzed if row.note]
    return "\n".join([*lines, "", report.verdict, ""])


def as_json(report: Report) -> dict:
    """The contents of soak.json."""
    return {
        "planned_kills": report.planned[0], "planned_cases": report.planned[1], "seed": report.seed,
        "verdict": report.verdict, "seconds": report.seconds, "python": platform.python_version(),
        "cores": os.cpu_count(), "memory": report.memory,
        "killed": [vars(row) | {"passed": fine(row)} for row in report.rows],
        "hostile_input": [vars(row) | {"passed": row.passed} for row in report.fuzzed],
    }  # fmt: skip


def write(report: Report, folder: Path) -> None:
    """Write soak.md and soak.json."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "soak.md").write_text(f"# Soak\n\n{summary(report)}")
    (folder / "soak.json").write_text(json.dumps(as_json(report), indent=1) + "\n")


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table whose columns are aligned, so that it can be read on a terminal too."""
    widths = [max(len(row[k]) for row in [head, *rows]) for k in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        first, *others = (
            cell.ljust(w) if not k else cell.rjust(w) for k, (cell, w) in enumerate(zip(cells, widths, strict=True))
        )
        return "| " + " | ".join([first, *others]) + " |"

    rule = ["-" * widths[0], *("-" * (w - 1) + ":" for w in widths[1:])]
    return [line(head), line(rule), *(line(row) for row in rows)]
