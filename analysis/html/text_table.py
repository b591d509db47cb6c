"""A table of the report, as text."""

from dataclasses import dataclass


@dataclass(frozen=True)
class RowGroup:
    """Rows of cells, the first of each its heading. experiment: that they belong to, or empty; words: about all."""

    rows: tuple[tuple[str, ...], ...]
    experiment: str = ""
    words: str = ""


@dataclass(frozen=True)
class TextTable:
    """A table of text. caption: above it, may be empty."""

    caption: str
    columns: tuple[str, ...]
    groups: tuple[RowGroup, ...]


def number(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, int | float) else "–"
