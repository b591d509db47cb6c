"""A table of the report, whose cells are text."""

from dataclasses import dataclass


@dataclass(frozen=True)
class RowGroup:
    """Rows of cells; the first cell heads its row. experiment: that of all rows, or empty; words: what they share."""

    rows: tuple[tuple[str, ...], ...]
    experiment: str = ""
    words: str = ""


@dataclass(frozen=True)
class TextTable:
    """A table of text, with a caption above it that may be empty."""

    caption: str
    columns: tuple[str, ...]
    groups: tuple[RowGroup, ...]


def number(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, int | float) else "–"
