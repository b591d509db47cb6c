"""Styles of pictures for a screen, a column of a paper, a talk and a web page."""

from dataclasses import dataclass, replace
from typing import Any

from analysis.drawing.looks import LOOK

WIDEST = 30.0  # inches


@dataclass(frozen=True)
class PageStyle:
    """The sizes of a page, in inches or, for text, in points.

    width, wide: widths of a page with one panel and with several; least: the smallest allowed width of a page. font:
    size of the axes' text; legend, title, caption: sizes of these texts. panel: the smallest height of a panel; beside:
    the smallest width of each panel in a row of several. titled, captioned: whether the picture shows these texts.
    """

    name: str
    width: float
    wide: float
    least: float
    font: float
    legend: float
    title: float
    caption: float
    panel: float
    beside: float
    line: float
    marker: float
    dpi: int
    titled: bool
    captioned: bool

    @property
    def unit(self) -> float:
        """The ratio of this style's text size to 10 points.

        Lengths designed for text of 10 points are multiplied by this ratio.
        """
        return self.font / 10

    @property
    def rc(self) -> dict[Any, Any]:
        """The rc settings of matplotlib."""
        return LOOK | {
            "font.size": self.font,
            "lines.linewidth": self.line,
            "lines.markersize": self.marker,
            "axes.linewidth": self.line / 2,
            "grid.linewidth": 0.375 * self.line,
            "xtick.major.width": self.line / 2,
            "ytick.major.width": self.line / 2,
            "xtick.minor.width": self.line / 3,
            "ytick.minor.width": self.line / 3,
        }

    def of_width(self, width: float | None) -> "PageStyle":
        """Return this style with pages of `width`. Raises ValueError if it is below `least` or above `WIDEST`."""
        if width is None:
            return self
        if not self.least <= width <= WIDEST:
            raise ValueError(f"--width must be {self.least:g} to {WIDEST:g} inches in style {self.name}, got {width:g}")
        return replace(self, width=width, wide=width)


SCREEN = PageStyle(
    "screen", 7.2, 10.4, 5.0, font=10, legend=9, title=12, caption=8.5, panel=3.6, beside=2.6, line=1.6, marker=5,
    dpi=250, titled=True, captioned=True,
)  # fmt: skip
PAPER = PageStyle(
    "paper", 3.25, 6.75, 2.5, font=8, legend=8, title=8, caption=8, panel=1.9, beside=2.1, line=1.0, marker=3.5,
    dpi=400, titled=False, captioned=False,
)  # fmt: skip
TALK = PageStyle(
    "talk", 10.0, 13.33, 7.0, font=16, legend=14, title=20, caption=12, panel=4.2, beside=4.6, line=2.6, marker=9,
    dpi=150, titled=True, captioned=True,
)  # fmt: skip
WEB = replace(SCREEN, name="web", dpi=100)
STYLES = {style.name: style for style in (SCREEN, PAPER, TALK, WEB)}
