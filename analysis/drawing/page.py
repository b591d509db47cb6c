"""A page with a title, legends, panels side by side and a caption: all in inches, so that nothing meets."""

import math
import os
import tempfile
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.textpath import TextPath
from matplotlib.transforms import Bbox

from analysis.drawing.looks import plain
from analysis.load import LoadError

DPI = 250  # 1800 pixels wide, to be shown at 900
FORMATS = ("png", "pdf")
WIDTH, WIDE = 7.2, 10.4  # inches, of a page with one panel and with several
PLOT_HEIGHT, LEFT, GAP, RIGHT = 3.6, 0.85, 0.75, 0.15
TITLE, HEAD, ROW, PAD, AXIS = 0.42, 0.24, 0.2, 0.08, 0.54  # page title, panel title, row of a legend, space, x axis
CAPTION = "caption"  # the gid of its text
TITLE_ROW = 0.22  # of a title in several lines
TITLE_SIZE, LEGEND_SIZE, CAPTION_SIZE = 12.0, 9.0, 8.5  # points
HANDLE, COLUMN_GAP = 0.62, 0.25  # inches of a legend's line with its distance to the text, and between columns
CAPTION_ROW, CAPTION_LETTERS = 0.155, 15.6  # inches, and letters an inch


def page(
    title: str,
    shared: Sequence[Line2D],
    heads: Sequence[tuple[str, Sequence[Line2D]]],
    caption: str,
    margin: float = LEFT,
) -> tuple[Figure, list[Axes]]:
    """An empty page. shared: legend above all panels; heads: title and own legend of each panel; margin: inches
    to the left of the panels."""
    width = WIDTH if len(heads) == 1 else WIDE
    panel = (width - margin - RIGHT - GAP * (len(heads) - 1)) / len(heads)
    for entry in (*shared, *(entry for _, own in heads for entry in own)):
        entry.set_label(plain(str(entry.get_label())))
    titles = _wrapped(plain(title), width - LEFT - RIGHT)
    lines = textwrap.wrap(unbroken(caption), int(CAPTION_LETTERS * (width - 0.3)), break_on_hyphens=False)
    below = AXIS + PAD + CAPTION_ROW * len(lines) + PAD
    shared_columns = _columns(shared, width - LEFT)
    columns = [_columns(own, panel) for _, own in heads]
    legends = max(_rows(own, n) for (_, own), n in zip(heads, columns, strict=True))
    head = (HEAD if any(text for text, _ in heads) else 0.0) + ROW * legends + PAD
    above = TITLE + TITLE_ROW * (len(titles) - 1)
    height = below + PLOT_HEIGHT + head + ROW * _rows(shared, shared_columns) + PAD + above
    figure = Figure(figsize=(width, height))
    figure.text(LEFT / width, 1 - 0.12 / height, "\n".join(titles), fontsize=TITLE_SIZE, verticalalignment="top")
    _legend(figure, shared, shared_columns, LEFT, height - above)
    found = []
    for i, ((text, own), n) in enumerate(zip(heads, columns, strict=True)):
        left, top = margin + i * (panel + GAP), below + PLOT_HEIGHT + head
        found.append(figure.add_axes((left / width, below / height, panel / width, PLOT_HEIGHT / height)))
        figure.text(left / width, top / height, plain(text), fontsize=10, verticalalignment="top")
        _legend(figure, own, n, left, top - (HEAD if text else 0.0))
    write_below(figure, lines, caption)
    return figure, found


def write_below(figure: Figure, lines: Sequence[str], caption: str) -> None:
    """The caption, in lines, in the lower left corner."""
    width, height = figure.get_size_inches()
    text = figure.text(
        0.15 / width, PAD / height, plain("\n".join(lines)), fontsize=CAPTION_SIZE, color="#444444",
        verticalalignment="bottom", linespacing=1.25, gid=CAPTION,
    )  # fmt: skip
    text.set_label(caption)


def apart(figure: Figure) -> tuple[str, Bbox]:
    """The caption's words, and the part of the page above them (inches), to be saved as a picture without them."""
    (caption,) = [text for text in figure.texts if text.get_gid() == CAPTION]
    width, height = figure.get_size_inches()
    top = caption.get_window_extent().y1 / figure.dpi if caption.get_text() else 0.0
    return str(caption.get_label()), Bbox.from_extents(0.0, top, width, height)


def unbroken(text: str) -> str:
    """No line ends in `P = 2` or `1 − p_t`."""
    return text.replace(" = ", "\u00a0=\u00a0").replace("1 − ", "1\u00a0−\u00a0")


def writable(folder: Path) -> None:
    """Raise LoadError where nothing can be written into a folder, which need not be there yet."""
    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not nearest.is_dir():
        raise LoadError(f"nothing can be written to {folder}: {nearest} is a file; give another place with --out")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise LoadError(f"nothing can be written to {folder}: {nearest} is not yours to write; give another with --out")


def save(figure: Figure, table: pd.DataFrame, out: Path, name: str) -> list[Path]:
    """Write a picture as PNG and PDF, and the numbers behind it as CSV: each whole or not at all."""
    paths = [_whole(out / f"{name}.{kind}", lambda path: figure.savefig(path, dpi=DPI)) for kind in FORMATS]
    csv = _whole(out / f"{name}.csv", lambda path: table.to_csv(path, index=False, float_format="%.6g"))
    return [*paths, csv]


def _whole(path: Path, write: Callable[[str], object]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=path.suffix)
    os.close(descriptor)
    try:
        write(temporary)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    return path


def _wrapped(title: str, width: float) -> list[str]:
    """The title in as few lines as fit."""
    letters = len(title)
    while letters > 1:
        lines = textwrap.wrap(title, letters, break_on_hyphens=False)
        if all(_width(line, TITLE_SIZE) <= width for line in lines):
            return lines
        letters -= 1
    return [title]


def _width(text: str, size: float) -> float:
    """Inches."""
    return float(TextPath((0, 0), text, size=size).get_extents().width) / 72 if text.strip() else 0.0


def _columns(entries: Sequence[Line2D], width: float) -> int:
    """As many as the widest label allows, at most 4."""
    if not entries:
        return 1
    widest = max(_width(str(entry.get_label()), LEGEND_SIZE) for entry in entries)
    return max(1, min(4, len(entries), int((width + COLUMN_GAP) / (widest + HANDLE + COLUMN_GAP))))


def _rows(entries: Sequence[Line2D], columns: int) -> int:
    return math.ceil(len(entries) / columns)


def _legend(figure: Figure, entries: Sequence[Artist], columns: int, left: float, top: float) -> None:
    """A legend whose upper left corner lies `left` and `top` inches from the page's lower left one."""
    if not entries:
        return
    width, height = figure.get_size_inches()
    letter = LEGEND_SIZE / 72
    figure.legend(
        handles=list(entries), loc="upper left", bbox_to_anchor=(left / width, top / height), ncols=columns,
        fontsize=LEGEND_SIZE, borderaxespad=0.0, borderpad=0.0, handlelength=0.48 / letter,
        handletextpad=(HANDLE - 0.48) / letter, columnspacing=COLUMN_GAP / letter,
        labelspacing=ROW / letter - 1.1,
    )  # fmt: skip
