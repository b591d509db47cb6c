"""Layout of a page with a title, legends, panels and a caption."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.textpath import TextPath
from matplotlib.transforms import Bbox

from analysis.drawing.looks import plain
from analysis.drawing.page_style import SCREEN, PageStyle

# inches at 10-point text: left of panels, between them, right of them, padding, and the axis below a panel
LEFT, GAP, RIGHT, PAD, AXIS = 0.85, 0.75, 0.15, 0.08, 0.54
# heights of rows in inches per point of text: of the title, a panel's title, a legend, and a second line of a label
TITLE_ROW, HEAD_ROW, ROW, LINE = 0.22 / 12, 0.024, 0.2 / 9, 1.25 / 72
CAPTION_ROW, LETTER = 0.155 / 8.5, 1 / (15.6 * 8.5)  # inches per point of text: height of a row, width of a letter
HANDLE, HANDLE_GAP, COLUMN_GAP = 0.48 / 9, 0.14 / 9, 0.25 / 9  # inches per point of a legend's text
MARGIN = 1.03  # ratio of the width of drawn text to that of its outline
TITLE, CAPTION = "title", "caption"  # gids of the texts on a page


@dataclass(frozen=True)
class PanelHead:
    """The title, legend entries and horizontal axis label of a panel."""

    title: str = ""
    entries: Sequence[Line2D] = ()
    x_label: str = ""


@dataclass(frozen=True)
class _Legend:
    """A legend whose labels are broken into lines. height: in inches."""

    entries: Sequence[Line2D]
    columns: int
    height: float


def page(
    title: str, shared: Sequence[Line2D], heads: Sequence[PanelHead | None], caption: str,
    style: PageStyle = SCREEN, columns: int | None = None,
) -> Figure:  # fmt: skip
    """Make a page with a title, legends, a caption, and empty axes in the order of the panels.

    shared: entries of the legend above all panels. heads: the panels, row by row; None leaves a gap. columns: number of
    panels per row; by default, all panels are in one row. Panels that stand side by side are at least `style.beside`
    inches wide. If `columns` panels of this width do not fit side by side, each row has fewer panels, and None leaves
    no gap.
    """
    u, count = style.unit, sum(head is not None for head in heads)
    width = style.width if count == 1 else style.wide
    left, gap = LEFT * u, GAP * u
    wanted = columns or len(heads)
    fits = (n for n in range(wanted, 0, -1) if (width - left - RIGHT - gap * (n - 1)) / n >= style.beside)
    across = next(fits, 1)
    places = list(heads) if across == wanted else [head for head in heads if head is not None]
    panel = (width - left - RIGHT - gap * (across - 1)) / across
    tall = max(style.panel, 0.5 * panel)
    room = width - left - RIGHT
    unbroken_labels = all(text_width(str(e.get_label()), style.legend) <= room - _handle(style) for e in shared)
    indent = left if unbroken_labels else RIGHT
    above = _laid_out(shared, width - indent - RIGHT, style)
    rows = [places[i : i + across] for i in range(0, len(places), across)]
    placed = [[_Placed.of(head or PanelHead(), panel, style) for head in row] for row in rows]
    heights = [max(p.above for p in row) + tall + max(p.below for p in row) for row in placed]
    titles = _wrapped(title, room, style.title) if style.titled else []
    letters = int((width - 0.3) / (LETTER * style.caption))
    lines = textwrap.wrap(unbroken(caption), letters, break_on_hyphens=False) if style.captioned else []
    below = PAD + (CAPTION_ROW * style.caption * len(lines) + PAD if lines else 0.0)
    over = TITLE_ROW * style.title * len(titles) + 2.5 * PAD * u if titles else PAD
    between = 2 * PAD * u
    height = over + above.height + PAD * u + sum(heights) + between * (len(rows) - 1) + below
    figure = Figure(figsize=(width, height))
    _text(figure, "\n".join(titles), left, height - 1.5 * PAD * u, style.title, "top", gid=TITLE).set_label(title)
    _draw_legend(figure, above, indent, height - over, style)
    top = height - over - above.height - PAD * u
    for heads_of_row, row, row_height in zip(rows, placed, heights, strict=True):
        bottom = top - max(p.above for p in row) - tall
        for i, (head, p) in enumerate(zip(heads_of_row, row, strict=True)):
            if head is not None:
                x = left + i * (panel + gap)
                axes = figure.add_axes((x / width, bottom / height, panel / width, tall / height))
                axes.set_xlabel(plain("\n".join(p.label)))
                _text(figure, "\n".join(p.title), x, top, style.font, "top", linespacing=1.15)
                _draw_legend(figure, p.legend, x, top - HEAD_ROW * style.font * len(p.title), style)
        top -= row_height + between
    text = _text(figure, "\n".join(lines), 0.15, PAD, style.caption, "bottom", linespacing=1.25, gid=CAPTION)
    text.set(color="#444444", label=caption)
    return figure


def _text(figure: Figure, text: str, x: float, y: float, size: float, vertical: str, **look: Any) -> Text:
    """Add text at a position in inches from the lower left corner of the page."""
    width, height = figure.get_size_inches()
    return figure.text(x / width, y / height, plain(text), fontsize=size, verticalalignment=vertical, **look)


@dataclass(frozen=True)
class _Placed:
    """The texts of a panel, broken into lines, and the inches they need above and below the axes."""

    title: Sequence[str]
    legend: _Legend
    label: Sequence[str]
    above: float
    below: float

    @staticmethod
    def of(head: PanelHead, panel: float, style: PageStyle) -> "_Placed":
        """Break the texts into lines. panel: width of the panel in inches."""
        title, label = (_wrapped(text, panel, style.font) for text in (head.title, head.x_label))
        legend, extra = _laid_out(head.entries, panel, style), LINE * style.font * max(0, len(label) - 1)
        above = HEAD_ROW * style.font * len(title) + legend.height + PAD * style.unit
        return _Placed(title, legend, label, above, AXIS * style.unit + extra)


def words(figure: Figure) -> tuple[str, str]:
    """Return the title and caption of a picture, even if its style hides them."""
    texts = {text.get_gid(): str(text.get_label()) for text in figure.texts}
    return texts[TITLE], texts[CAPTION]


def apart(figure: Figure) -> tuple[str, Bbox]:
    """Return the caption of a picture, and the area above the caption as a box in inches."""
    (caption,) = [text for text in figure.texts if text.get_gid() == CAPTION]
    width, height = figure.get_size_inches()
    top = caption.get_window_extent().y1 / figure.dpi if caption.get_text() else 0.0
    return str(caption.get_label()), Bbox.from_extents(0.0, top, width, height)


def unbroken(text: str) -> str:
    """Put non-breaking spaces in formulas such as `P = 2`."""
    return text.replace(" = ", "\u00a0=\u00a0").replace("1 − ", "1\u00a0−\u00a0")


def _wrapped(text: str, width: float, size: float) -> list[str]:
    """Break the text into lines of at most `width` inches; a wider word is cut."""
    lines: list[str] = []
    for part in unbroken(text).split(" ") if text else []:
        if lines and text_width(f"{lines[-1]} {part}", size) <= width:
            lines[-1] = f"{lines[-1]} {part}"
            continue
        while len(part) > 1 and text_width(part, size) > width:
            fits = next((k for k in range(len(part) - 1, 0, -1) if text_width(part[:k], size) <= width), 1)
            lines.append(part[:fits])
            part = part[fits:]
        lines.append(part)
    return [line.replace("\u00a0", " ") for line in lines]


@lru_cache(maxsize=4096)
def text_width(text: str, size: float) -> float:
    """Return the width in inches of a line of text of `size` points."""
    drawn = plain(text.replace("\u00a0", " "))
    # from the outline's control points: the exact extents, hardly smaller, take ten times as long
    return MARGIN * float(np.ptp(TextPath((0, 0), drawn, size=size).vertices[:, 0])) / 72 if text.strip() else 0.0


def _handle(style: PageStyle) -> float:
    """Return the width in inches of the line and gap before a legend's label."""
    return (HANDLE + HANDLE_GAP) * style.legend


def _laid_out(entries: Sequence[Line2D], width: float, style: PageStyle) -> _Legend:
    """Break the labels into lines, and choose as many columns as fit, at most 4."""
    size = style.legend
    labels = [_wrapped(str(entry.get_label()), width - _handle(style), size) for entry in entries]
    if not entries:
        return _Legend(entries, 1, 0.0)
    for entry, lines in zip(entries, labels, strict=True):
        entry.set_label(plain("\n".join(lines)))
    widths = [max((text_width(line, size) for line in lines), default=0.0) + _handle(style) for lines in labels]
    fits = (
        n
        for n in range(min(4, len(entries)), 0, -1)
        if sum(part.max() for part in np.array_split(widths, n)) + COLUMN_GAP * size * (n - 1) <= width
    )
    columns = next(fits, 1)
    heights = [ROW * size + LINE * size * (max(1, len(lines)) - 1) for lines in labels]
    return _Legend(entries, columns, max(float(part.sum()) for part in np.array_split(heights, columns)))


def _draw_legend(figure: Figure, legend: _Legend, left: float, top: float, style: PageStyle) -> None:
    """Draw a legend.

    left: inches from the page's left edge to the legend. top: inches from the page's bottom to the top of the legend.
    """
    if not legend.entries:
        return
    width, height = figure.get_size_inches()
    figure.legend(
        handles=list(legend.entries), loc="upper left", bbox_to_anchor=(left / width, top / height),
        ncols=legend.columns, fontsize=style.legend, borderaxespad=0.0, borderpad=0.0, handlelength=72 * HANDLE,
        handletextpad=72 * HANDLE_GAP, columnspacing=72 * COLUMN_GAP, labelspacing=72 * ROW - 1.1,
    )  # fmt: skip
