"""The theory's numbers of a setting, from the `theory.json` beside its runs."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.html.text_table import RowGroup, TextTable, number
from analysis.load import LoadError, SettingRuns

ROUNDS = 5  # of all, that are shown


@dataclass(frozen=True)
class Bounds:
    """A table at a few rounds, what its columns are in words, Proposition 1, and what the numbers are."""

    setting: str
    table: TextTable
    columns: tuple[tuple[str, str], ...]
    proposition: str
    note: str


def bounds(group: SettingRuns) -> Bounds | None:
    """The theory of a setting, None where it was not computed.

    Raises LoadError for a file that cannot be read.
    """
    files = [file for run in group.runs if (file := run.path / "theory.json").is_file()]
    if not files:
        return None
    try:
        return _parsed(group.label, files[0])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise LoadError(f"{files[0]} cannot be read ({error!r}): run python -m runners.theory again") from error


def _parsed(label: str, file: Path) -> Bounds:
    theory: dict[str, Any] = json.loads(file.read_text())
    columns = {str(name): str(words) for name, words in theory["columns"].items()}
    rounds = theory["rounds"]
    chosen = sorted({round(i * (len(rounds) - 1) / (ROUNDS - 1)) for i in range(ROUNDS)}) if rounds else []
    rows = tuple((str(rounds[i]["round"]), *(number(rounds[i].get(name)) for name in columns)) for i in chosen)
    table = TextTable("", ("t", *columns), (RowGroup(rows),))
    return Bounds(label, table, tuple(columns.items()), theory["proposition_1"]["words"], theory["note"])
