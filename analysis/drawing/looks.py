"""Colour, line and marker of each method, the same in all pictures."""

import zlib
from dataclasses import dataclass
from typing import Any

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
    "pdf.fonttype": 42,  # fonts are embedded as TrueType, so that text can be searched and edited
    "svg.fonttype": "path",  # text as outlines, which look the same whatever fonts are installed
    "svg.hashsalt": "dpfbo",  # fixed, so that names inside the file do not change
}
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h", "*")

Line = tuple[float, tuple[float, ...]]  # matplotlib's offset and lengths of dashes and gaps


@dataclass(frozen=True)
class Style:
    """The colour, line and marker of a setting."""

    colour: str
    line: Line
    marker: str


ALGORITHMS = {
    "ts": Style("#000000", (0, (6, 2)), "o"),
    "local": Style("#444444", (0, (2, 2, 8, 2)), "h"),
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
}  # Okabe and Ito's colours, without yellow, and six more
ONE_RUN = "#0072B2"  # colour of a picture of the agents of one run
OUTSOURCED = {
    "gp_ucb": Style("#000000", (0, (1, 1)), "D"),
    "random_rows": Style("#8C8C8C", (0, (1, 2.5)), "v"),
    "cover_gp_ucb": Style("#A6761D", (0, (5, 1.5, 1, 1.5)), "p"),
    "po_gp_ucb": Style("#D55E00", (0, (5, 2)), "o"),
    "gaussian_gp_ucb": Style("#0072B2", (0, ()), "s"),
    "histogram_gp_ucb": Style("#009E73", (0, ()), "^"),
}  # dashed: a claimed epsilon; solid: a guaranteed one
UNAWARE = Style("#56B4E9", (0, ()), "X")  # for modelers that do not know the noise in Gaussian rows
OTHERS = ("#CC79A7", "#332288", "#117733", "#661100")  # of methods that are not in the tables
OTHER_LINES: tuple[Line, ...] = ((0, (3, 1, 1, 1)), (0, (4, 1, 4, 2)), (0, (2, 1, 6, 1)))
LIGHTER, DARKER = 0.42, 0.42  # share of white in the lightest tone of a colour, and of black in the darkest
BLACK = 0.1  # a colour whose RGB parts are at most this has no darker tones


def of_algorithm(name: str) -> Style:
    """Return the look of a method; that of an unknown method depends on its name."""
    known = ALGORITHMS | OUTSOURCED
    if name in known:
        return known[name]
    number = zlib.crc32(name.encode())
    line = OTHER_LINES[number // len(OTHERS) % len(OTHER_LINES)]
    return Style(OTHERS[number % len(OTHERS)], line, MARKERS[number // 64 % len(MARKERS)])


def variants(look: Style, n: int) -> list[Style]:
    """Return n variants of a look, from light to dark and with different markers."""
    if n == 1:
        return [look]
    first = MARKERS.index(look.marker)
    return [Style(_tone(look.colour, i / (n - 1)), look.line, MARKERS[(first + i) % len(MARKERS)]) for i in range(n)]


def stretched(look: Style, i: int) -> Style:
    """Return the look with longer dashes for larger i."""
    offset, dashes = look.line
    return Style(look.colour, (offset, tuple((1 + 0.6 * i) * length for length in dashes)), look.marker)


def plain(text: str) -> str:
    """Escape `$` for matplotlib."""
    return text.replace("$", r"\$")


def _tone(colour: str, position: float) -> str:
    """Return a tone of a colour, from light at position 0 to dark at position 1; for black, from grey to black."""
    from matplotlib.colors import to_hex, to_rgb  # imported here, so that command lines do not load it

    rgb = to_rgb(colour)
    light, dark = (LIGHTER, DARKER) if max(rgb) > BLACK else (1.5 * LIGHTER, 0.0)
    share = light - (light + dark) * position  # of white or, if negative, of black
    towards = 1.0 if share > 0 else 0.0
    red, green, blue = (part + (towards - part) * abs(share) for part in rgb)
    return to_hex((red, green, blue))
