"""Columns of csv files, plain or compressed."""

import csv
import io
from functools import lru_cache
from pathlib import Path

import numpy as np
import pandas as pd

from dpfbo.formats.bounded import unpacked
from dpfbo.problems.readers.data_files import reading

MOST_BYTES = 128 * 2**20  # in a file, unpacked
MOST_COLUMNS = 10_000


def read_columns(path: Path, numbers: tuple[str, ...], text: tuple[str, ...] = ()) -> pd.DataFrame:
    """Read some columns of a csv file with a header.

    Args:
        path: The file, plain or compressed.
        numbers: Names of columns to read as float64, NaN where a field is empty.
        text: Names of columns to read as strings.

    Raises:
        ValueError: The file is not csv, or unpacks to more than `MOST_BYTES`; a row has more fields than the header; a
            column is missing or repeated; or a field of `numbers` is neither empty nor a finite number.
    """
    status = path.stat()
    return _read(path, numbers, text, status.st_mtime_ns, status.st_size).copy()


def refuse(path: Path, name: str, bad: pd.Series, rule: str) -> None:
    """Raise ValueError for a column's first bad field; the message counts rows from 1, without the header."""
    if bad.any():
        raise ValueError(f"{path}, column {name}, row {int(bad.to_numpy().argmax()) + 1}: must be {rule}")


def refuse_tiny(path: Path, column: pd.Series) -> None:
    """Raise ValueError if a column has a number below 2.2e-308, such as 0 or -1.

    The error names the first row with such a number. 2.2e-308 is the smallest positive float64 of full precision.
    """
    smallest = np.finfo(np.float64).smallest_normal
    refuse(path, str(column.name), column < smallest, f"above 0, at least {smallest:.3g}")


@lru_cache(maxsize=8)
def _read(path: Path, numbers: tuple[str, ...], text: tuple[str, ...], mtime_ns: int, size: int) -> pd.DataFrame:
    # The header is read as a row: only then does pandas refuse rows that are too long anywhere in the file, and leave
    # the names unchanged. The file is read in one piece, because pandas does not check the first row of later pieces.
    with reading(path, "is not a csv file whose rows have as many fields as its header"):
        content = unpacked(path, MOST_BYTES)
        columns = len(next(csv.reader(io.TextIOWrapper(io.BytesIO(content), "utf-8", newline="")), []))
        if columns > MOST_COLUMNS:
            raise ValueError(f"it must have at most {MOST_COLUMNS} columns, got {columns}")
        fields = pd.read_csv(io.BytesIO(content), header=None, dtype=str, low_memory=False)
    header = fields.iloc[0].fillna("").tolist()
    for name in (*numbers, *text):
        if name not in header:
            got = ", ".join(header)
            got = got if got.isprintable() else ascii(got)
            raise ValueError(f"{path} must have a column {name!r}, got {got if len(got) <= 300 else got[:300] + ' ..'}")
        if header.count(name) > 1:
            raise ValueError(f"{path} must have one column {name!r}, got {header.count(name)}")
    table = pd.DataFrame({name: fields[header.index(name)][1:] for name in (*numbers, *text)}).reset_index(drop=True)
    for name in numbers:
        converted = pd.to_numeric(table[name], errors="coerce").astype(np.float64)
        refuse(path, name, table[name].notna() & ~np.isfinite(converted), "a finite number")
        table[name] = converted
    return table
