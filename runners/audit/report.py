"""The report of an audit: tables on the terminal, audit.json and audit.png."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from dpfbo.audit.bounds import CONFIDENCE, Verdict
from dpfbo.audit.findings import CheckResult
from dpfbo.formats.files import replace_text
from dpfbo.privacy.accounting import finite_or_none
from runners.audit import picture

_LEFT = ("check", "", "worst observation", "claim", "attack", "neighbour", "attacker")  # columns of words


@dataclass(frozen=True)
class AuditReport:
    """The result of an audit. title: what was audited.

    checks: a heading and the results. answer: audit.json's entries besides `sound` and `checks`. tables, notes: printed
    after the checks. picture_title, panels: the contents of audit.png.
    """

    title: str
    sound: bool
    checks: tuple[str, Sequence[CheckResult]]
    answer: dict[str, Any]
    tables: Sequence[Table] = ()
    notes: Sequence[str] = ()
    picture_title: str = ""
    panels: Sequence[Callable[[Any], None]] = ()

    def as_json(self, **settings: object) -> dict[str, Any]:
        """Return the contents of audit.json. settings: further entries."""
        return {**self.answer, **settings, "sound": self.sound, "checks": [asdict(f) for f in self.checks[1]]}

    def write(self, answer: dict[str, Any], folder: Path) -> list[Path]:
        """Write audit.json and, if there are panels, audit.png; return their paths."""
        files = [folder / "audit.json"]
        replace_text(files[0], json.dumps(answer, indent=1) + "\n")
        if self.panels:
            files.append(picture.draw(self.panels, self.picture_title, folder / "audit.png"))
        return files

    def show(self, files: Sequence[Path]) -> None:
        """Print checks, tables, notes, the paths of the files and the verdict."""
        console = Console(highlight=False)
        console.print(self.title)
        heading, findings = self.checks
        rows = [(f.check, "holds" if f.holds else "[bold]FAILS[/bold]", f.words) for f in findings]
        if rows:
            console.print(table(heading, ("check", "", "worst observation"), rows))
        for part in self.tables:
            console.print(part)
        for line in (*self.notes, *(f"written: {file}" for file in files)):
            console.print(line, soft_wrap=True)
        words, style = ("nothing found", None) if self.sound else ("the claim does NOT hold", "bold")
        console.print(words, style=style)


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Return a table for the terminal, with right-aligned numbers."""
    shown = Table(title=title, title_justify="left")
    for column in columns:
        shown.add_column(column, justify="left" if column in _LEFT else "right")
    for row in rows:
        shown.add_row(*row)
    return shown


def verdict_as_json(v: Verdict) -> dict[str, Any]:
    return {
        "claimed_epsilon": finite_or_none(v.claim.epsilon), "bound": v.epsilon,
        "confidence": CONFIDENCE, "trials": v.trials, "holds": v.holds,
        "violated_at": None if v.broken is None else {"epsilon": v.broken[0], "delta": v.broken[1]},
        "tests": [
            {"threshold": finite_or_none(t.threshold), "fpr_at_most": t.fpr, "fnr_at_most": t.fnr} for t in v.tests
        ],
    }  # fmt: skip
