"""Columns of csv files, plain or compressed."""

from functools import lru_cache
from pathlib import Path

import numpy as np
import pandas as pd

from dpfbo.data import reading


def read_columns(path: Path, numbers: tuple[str, ...], text: tuple[str, ...] = ()) -> pd.DataFrame:
    """Some columns of a csv file with a header; a file that does not change is read once.

    Columns `numbers` are float64, NaN where a field is empty; columns `text` are strings. Raises ValueError, one
    sentence with file, column and rule, for a file that is no csv, a column that it does not have, or a field of
    `numbers` that is neither empty nor a finite number.
    """
    status = path.stat()
    return _read(path, numbers, text, status.st_mtime_ns, status.st_size).copy()


def refuse(path: Path, name: str, bad: pd.Series, rule: str) -> None:
    """Raise ValueError for the first field of a column that is marked; the row below the header is row 1."""
    if bad.any():
        raise ValueError(f"{path}, column {name}, row {int(bad.to_numpy().argmax()) + 1}: must be {rule}")


@lru_cache(maxsize=8)
def _read(path: Path, numbers: tuple[str, ...], text: tuple[str, ...], mtime_ns: int, size: int) -> pd.DataFrame:
    with reading(path, "is not a csv file"):
        header = pd.read_csv(path, nrows=0, index_col=False).columns
    for name in (*numbers, *text):
        if name not in header:
            raise ValueError(f"{path} must have a column {name!r}, got {', '.join(map(str, header))}")
    with reading(path, "is not a csv file"):
        types = dict.fromkeys(text, str)
        table = pd.read_csv(path, usecols=[*numbers, *text], dtype=types, index_col=False, low_memory=False)
    for name in numbers:
        converted = pd.to_numeric(table[name], errors="coerce").astype(np.float64)
        refuse(path, name, table[name].notna() & ~np.isfinite(converted), "a finite number")
        table[name] = converted
    return table
