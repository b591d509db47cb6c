"""The pictures of `analysis.figures`, made small enough to lie inside the report."""

import base64
import io
import tempfile
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from analysis import figures, tables
from analysis.html.table import spaced
from analysis.load import LoadError, Setting

COLOURS = 256  # of an embedded picture: half its size or less; with 128, lines of like colours become one colour


@dataclass(frozen=True)
class Picture:
    """A PNG in base64, its size in pixels, and its words for who does not see it."""

    alt: str
    png: str
    width: int
    height: int


def pictures(results_dir: Path, experiment: str, groups: Sequence[Setting]) -> tuple[Picture, ...]:
    """What `analysis.figures` draws of an experiment.

    Raises LoadError with its sentence where it draws nothing.
    """
    said = io.StringIO()
    with tempfile.TemporaryDirectory() as folder:
        with redirect_stdout(io.StringIO()), redirect_stderr(said):
            code = _draw(["--results-dir", str(results_dir), "--out", folder, "--", experiment])
        if code == 130:
            raise KeyboardInterrupt
        if code:
            raise LoadError(said.getvalue().strip().removeprefix("error: "))
        return tuple(_embedded(path, experiment, groups) for path in sorted(Path(folder).glob("*.png"), key=_order))


def _draw(arguments: list[str]) -> int:
    try:
        return figures.main(arguments)
    except Exception as error:  # whatever a picture trips over, the tables can be shown
        raise LoadError(f"{type(error).__name__}: {error}") from error


def _order(path: Path) -> tuple[bool, str]:
    """Regret by iteration comes first."""
    return "by_iteration" not in path.stem, path.name


def _embedded(path: Path, experiment: str, groups: Sequence[Setting]) -> Picture:
    small = io.BytesIO()
    with Image.open(path) as image:
        palette = image.convert("RGB").quantize(COLOURS, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    palette.save(small, "PNG", optimize=True)
    what = spaced(path.stem.removeprefix(experiment)).strip() or "regret"
    alt = f"{experiment}, {what}: {'; '.join(g.label for g in groups)}. {'. '.join(tables.caption(groups))}."
    return Picture(alt, base64.b64encode(small.getvalue()).decode(), *palette.size)
