"""The pictures of `analysis.figures`, made small enough to lie inside the report."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass

from PIL import Image

from analysis import figures
from analysis.drawing.page import apart
from analysis.drawing.page_style import SCREEN
from analysis.html.text_table import spaced
from analysis.load import LoadError, Run, SettingRuns

COLOURS = 256  # of an embedded picture: half its size or less; with 128, lines of like colours become one colour


@dataclass(frozen=True)
class Picture:
    """A PNG in base64, its size in pixels, its words for who does not see it, the caption below it, and the claims."""

    alt: str
    png: str
    width: int
    height: int
    caption: str
    claims: str


def pictures(experiment: str, runs: Sequence[Run], groups: Sequence[SettingRuns]) -> tuple[Picture, ...]:
    """The pictures that `analysis.figures` draws of an experiment, each caption apart from its picture.

    The same claims stand below one picture only. Raises LoadError where nothing can be drawn.
    """
    try:
        drawn = figures.draw_experiment(experiment, runs)
        told = [one.claims in [before.claims for before in drawn[:i]] for i, one in enumerate(drawn)]
        return tuple(_embedded(one, experiment, groups, again) for one, again in zip(drawn, told, strict=True))
    except LoadError:
        raise
    except Exception as error:  # whatever a picture trips over, the tables can be shown
        raise LoadError(f"{type(error).__name__}: {error}") from error


def _embedded(drawn: figures.Drawn, experiment: str, groups: Sequence[SettingRuns], told: bool) -> Picture:
    """told: whether the claims stand below another picture."""
    large, small = io.BytesIO(), io.BytesIO()
    caption, above = apart(drawn.figure)
    drawn.figure.savefig(large, format="png", dpi=SCREEN.dpi, bbox_inches=above, pil_kwargs={"compress_level": 0})
    with Image.open(large) as image:
        palette = image.convert("RGB").quantize(COLOURS, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    palette.save(small, "PNG")  # optimize=True makes it 8 % smaller, in five times the time
    what = spaced(drawn.name.removeprefix(experiment)).strip() or "regret"
    alt = f"{experiment}, {what}: {'; '.join(g.label for g in groups)}."
    return Picture(
        alt, base64.b64encode(small.getvalue()).decode(), *palette.size, caption, "" if told else drawn.claims
    )
