"""Where data files lie on disk."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

DATA_DIR_VARIABLE = "DPFBO_DATA"
DEFAULT_DATA_DIR = "data"


class MissingData(FileNotFoundError):
    """A data file is not where it was looked for; the message says how to get it."""


def data_root(data_dir: str | Path | None = None) -> Path:
    """Absolute folder of data files: `data_dir`, else the environment's DPFBO_DATA, else `data`."""
    chosen = data_dir if data_dir is not None else os.environ.get(DATA_DIR_VARIABLE) or DEFAULT_DATA_DIR
    return Path(os.path.abspath(os.path.expanduser(chosen)))


def data_file(data_dir: str | Path | None, relative: str, fetch_name: str) -> Path:
    """Path of the data file `relative` under `data_root(data_dir)`.

    Args:
        data_dir: folder that holds the data; None for DPFBO_DATA, else `data`.
        relative: path inside that folder, for example `landmine/LandmineData.mat`.
        fetch_name: what `python -m runners.fetch` calls the file.

    Raises:
        MissingData: there is no such file.
    """
    root = data_root(data_dir)
    path = root / relative
    if path.is_file():
        return path
    command = f"python -m runners.fetch {fetch_name}"
    if root != data_root():
        command += f" --data-dir {shlex.quote(str(root))}"
    raise MissingData(
        f'data file {path} is missing: run "{command}", '
        f"or point data_dir (or {DATA_DIR_VARIABLE}) at the folder that holds it"
    )
