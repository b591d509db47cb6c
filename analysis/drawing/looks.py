"""The looks of settings in every picture: a colour, a line and a marker for each algorithm, ramps for what is swept."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from matplotlib.colors import to_hex, to_rgb

LOOK: dict[Any, Any] = {
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 10,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 5,
    "pdf.fonttype": 42,
}
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h", "*")

Line = tuple[float, tuple[float, ...]]  # matplotlib's offset and lengths of dashes and gaps


@dataclass(frozen=True)
class Style:
    """The look of a setting: told apart by colour, and without it by line and marker."""

    colour: str
    line: Line
    marker: str


ALGORITHMS = {
    "ts": Style("#000000", (0, (6, 2)), "o"),
    "fts_original": Style("#999933", (0, (6, 1, 1, 1, 1, 1)), "p"),
    "fts": Style("#E69F00", (0, (5, 1.5, 1, 1.5)), "s"),
    "fts_de": Style("#56B4E9", (0, (9, 1.5)), "D"),
    "random_server": Style("#8C8C8C", (0, (1, 1)), "v"),
    "sobol_server": Style("#A6761D", (0, (1, 2.5)), "P"),
    "dp_fts": Style("#0072B2", (0, (9, 1.5, 1.5, 1.5)), "^"),
    "dp_fts_de": Style("#D55E00", (0, ()), "o"),
    "dp_fts_de_plus": Style("#009E73", (0, (3, 1)), "X"),
    "dp_prior": Style("#882255", (0, (14, 1)), ">"),
    "shared_prior": Style("#AA66CC", (0, (12, 2, 3, 2)), "<"),
}  # Okabe and Ito's colours, without yellow, and five more
OUTSOURCED = {
    "gp_ucb": Style("#000000", (0, (1, 1)), "D"),
    "random_rows": Style("#8C8C8C", (0, (1, 2.5)), "v"),
    "cover_gp_ucb": Style("#A6761D", (0, (5, 1.5, 1, 1.5)), "p"),
    "po_gp_ucb": Style("#D55E00", (0, (5, 2)), "o"),
    "gaussian_gp_ucb": Style("#0072B2", (0, ()), "s"),
    "histogram_gp_ucb": Style("#009E73", (0, ()), "^"),
}  # dashed: a claimed epsilon; solid: a guaranteed one
UNAWARE = Style("#56B4E9", (0, ()), "X")  # of the noise in Gaussian rows
UNKNOWN = Style("#CC79A7", (0, (3, 1, 1, 1)), "h")
QUALITATIVE = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#882255", "#E69F00", "#56B4E9")
PRIVATE_RAMP, RAMP_END = "plasma", 0.78  # its last part is too light for lines on white


def of_algorithm(name: str) -> Style:
    """The look of an algorithm that a figure has one setting of."""
    return (ALGORITHMS | OUTSOURCED).get(name, UNKNOWN)


def sequence(name: str, n: int, ordered: bool) -> list[Style]:
    """Looks for n settings of one algorithm: a ramp where they are ordered by a number; the same line, other markers.

    DP-FTS-DE is what most figures sweep: its ramp has many hues; the others' go from a light tone to a dark one.
    """
    if n == 1:
        return [of_algorithm(name)]
    line = of_algorithm(name).line
    if not ordered:
        colours: Sequence[str] = [QUALITATIVE[i % len(QUALITATIVE)] for i in range(n)]
    elif name == "dp_fts_de":
        colours = hues(n)
    else:
        colours = [_tone(of_algorithm(name).colour, i / (n - 1)) for i in range(n)]
    return [Style(colour, line, MARKERS[i % len(MARKERS)]) for i, colour in enumerate(colours)]


def another(look: Style, i: int) -> Style:
    """The look of the i-th line of one algorithm, 0 for its own: another tone, marker and length of dashes."""
    if i == 0:
        return look
    position = 0.5 + (-1) ** i * 0.35 / math.ceil(i / 2)
    offset, dashes = look.line
    stretched = (offset, tuple((1 + 0.6 * i) * length for length in dashes))
    marker = MARKERS[(MARKERS.index(look.marker) + 3 * i) % len(MARKERS)]
    return Style(_tone(look.colour, position), stretched, marker)


def hues(n: int) -> list[str]:
    """Colours of the ramp with many hues, from dark to light."""
    ramp = mpl.colormaps[PRIVATE_RAMP]
    return [to_hex(ramp(RAMP_END * i / max(1, n - 1))) for i in range(n)]


def plain(text: str) -> str:
    """Text that is drawn as it is: `$` begins no formula."""
    return text.replace("$", r"\$")


def _tone(colour: str, position: float) -> str:
    """From light (0) over the colour itself (.5) to dark (1)."""
    towards, share = (1.0, 0.5 - position) if position < 0.5 else (0.0, position - 0.5)
    red, green, blue = (part + (towards - part) * share for part in to_rgb(colour))
    return to_hex((red, green, blue))
