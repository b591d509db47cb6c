"""A table of the report, as text, and how its values are written."""

from collections.abc import Iterable
from dataclasses import dataclass

from analysis.load import SettingRuns


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


def epsilon(group: SettingRuns, accountant: str) -> str:
    """Epsilon of a setting: none if it is not finite, – if the accountant does not apply; or what is only claimed."""
    if (claimed := group.first.claimed_epsilon) is not None:
        return f"claimed {claimed:.2f}, no guarantee"
    if accountant not in group.first.summary["epsilon"]:
        return "–"
    value = group.epsilon(accountant)
    return "none" if value is None else f"{value:.2f}" if value else "0"


def number(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, int | float) else "–"


def ranges(numbers: Iterable[int]) -> str:
    """`0–4, 7` for 0, 1, 2, 3, 4, 7."""
    spans: list[list[int]] = []
    for n in sorted(set(numbers)):
        if spans and n == spans[-1][1] + 1:
            spans[-1][1] = n
        else:
            spans.append([n, n])
    return ", ".join(f"{low}" if low == high else f"{low}–{high}" for low, high in spans)
