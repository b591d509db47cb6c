"""A table of the report, whose cells are text."""

from dataclasses import dataclass


@dataclass(frozen=True)
class RowGroup:
    """Rows of cells; the first cell of a row is its heading.

    experiment: the experiment of all rows, or empty; words: the values that all rows share.
    """

    rows: tuple[tuple[str, ...], ...]
    experiment: str = ""
    words: str = ""


@dataclass(frozen=True)
class TextTable:
    """A table of text; its caption may be empty."""

    caption: str
    columns: tuple[str, ...]
    groups: tuple[RowGroup, ...]


def number(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, int | float) else "–"
