"""Writing of pictures, their numbers and texts to files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.drawing.page_style import SCREEN, PageStyle
from analysis.load import LoadError
from dpfbo.formats.files import replace_file, replace_text

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

UNDATED: dict[str, dict[str, Any]] = {"png": {}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}
USUAL = ("png", "pdf")  # default formats


def writable(folder: Path) -> None:
    """Raise LoadError if a folder is not writable.

    A folder that does not exist counts as writable if it can be created.
    """
    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not nearest.is_dir():
        raise LoadError(f"nothing can be written to {folder}: {nearest} is a file; give another place with --out")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise LoadError(f"nothing can be written to {folder}: {nearest} is not yours to write; give another with --out")


def save(
    figure: Figure, table: pd.DataFrame, claims: Sequence[str], out: Path, name: str, formats: Sequence[str] = USUAL,
    style: PageStyle = SCREEN, private: bool = False,
) -> list[Path]:  # fmt: skip
    """Write a picture in each format, its numbers as CSV, and title, caption and claims as Markdown.

    Writes are atomic, and equal data give equal bytes. private: True for files that only their owner can read.
    """
    import matplotlib as mpl  # imported here, so that command lines do not load it

    from analysis.drawing.page import words

    out.mkdir(parents=True, exist_ok=True)
    mode = 0o600 if private else 0o644
    title, caption = words(figure)
    text = "\n\n".join(filter(None, (f"# {title}", caption, "\n".join(f"- {claim}" for claim in claims)))) + "\n"
    with mpl.rc_context(style.rc):
        for kind in formats:
            look: dict[str, Any] = {"format": kind, "dpi": style.dpi, "metadata": UNDATED[kind]}
            replace_file(out / f"{name}.{kind}", partial(figure.savefig, **look), False, mode)
    replace_text(out / f"{name}.csv", table.to_csv(index=False, float_format="%.6g"), False, mode)
    replace_text(out / f"{name}.md", text, False, mode)
    return [out / f"{name}.{kind}" for kind in (*formats, "csv", "md")]
