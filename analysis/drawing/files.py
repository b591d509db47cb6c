"""The files of a picture: the picture itself, the numbers behind it, and the words beside it."""

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure

from analysis.drawing.page import words
from analysis.drawing.page_style import SCREEN, PageStyle
from analysis.load import LoadError

FORMATS = ("png", "pdf", "svg")
USUAL = ("png", "pdf")  # where none is asked for
UNDATED: dict[str, dict[str, Any]] = {
    "png": {}, "pdf": {"CreationDate": None}, "svg": {"Date": None}
}  # fmt: skip


def checked_formats(text: str) -> tuple[str, ...]:
    """`pdf,png` as names of formats. Raises ValueError for one that is not known."""
    names = tuple(dict.fromkeys(part.strip().lower() for part in text.split(",")))
    for name in names:
        if name not in FORMATS:
            raise ValueError(f"--format must name some of {', '.join(FORMATS)}, got {name!r}")
    return names


def writable(folder: Path) -> None:
    """Raise LoadError where nothing can be written into a folder, which need not be there yet."""
    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not nearest.is_dir():
        raise LoadError(f"nothing can be written to {folder}: {nearest} is a file; give another place with --out")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise LoadError(f"nothing can be written to {folder}: {nearest} is not yours to write; give another with --out")


def save(
    figure: Figure, table: pd.DataFrame, claims: str, out: Path, name: str, formats: Sequence[str] = USUAL,
    style: PageStyle = SCREEN, private: bool = False,
) -> list[Path]:  # fmt: skip
    """Write a picture in each format, its numbers as CSV, and title, caption and claims as Markdown.

    Each file is whole or not there. The same data make the same bytes: no file holds a date. private: for the owner
    alone, as the records of real data are.
    """
    with mpl.rc_context(style.rc):
        paths = [_whole(out / f"{name}.{kind}", _saved(figure, kind, style.dpi), private) for kind in formats]
    csv = _whole(out / f"{name}.csv", lambda path: table.to_csv(path, index=False, float_format="%.6g"), private)
    title, caption = words(figure)
    text = "\n\n".join(filter(None, (f"# {title}", caption, claims))) + "\n"
    md = _whole(out / f"{name}.md", lambda path: Path(path).write_text(text, encoding="utf-8"), private)
    return [*paths, csv, md]


def _saved(figure: Figure, kind: str, dpi: int) -> Callable[[str], object]:
    return lambda path: figure.savefig(path, format=kind, dpi=dpi, metadata=UNDATED[kind])


def _whole(path: Path, write: Callable[[str], object], private: bool) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=path.suffix)
    os.close(descriptor)
    try:
        write(temporary)
        os.chmod(temporary, 0o600 if private else 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    return path
