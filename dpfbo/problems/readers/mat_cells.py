"""Bounded reads of numeric cell arrays from MATLAB 5 files; element tags are checked before scipy reads a file."""

import io
import math
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from scipy.io import loadmat

from dpfbo.formats.bounded import read_plain

MOST_BYTES = 64 * 2**20
_MOST_ELEMENTS = 20_000  # of a file or a cell array
_HEADER = 128  # bytes
_MATRIX, _COMPRESSED = 14, 15  # kinds of elements
_CELL = 1
_NUMERIC = range(6, 16)  # classes of matrices: double, single and the integers


def read_cells(path: Path, names: Sequence[str]) -> list[list[np.ndarray]]:
    """Read named variables, each a 1 x n cell array of real matrices. ValueError or KeyError for unfit content."""
    content = read_plain(path, MOST_BYTES)
    if len(content) < _HEADER or content[126:128] not in (b"IM", b"MI"):
        raise ValueError("it must be a MATLAB file of version 5")
    order = "<" if content[126:128] == b"IM" else ">"
    left = MOST_BYTES
    for kind, payload in _elements(memoryview(content)[_HEADER:], order):
        if kind == _COMPRESSED:
            inflated = zlib.decompressobj().decompress(payload, left + 1)
            left -= len(inflated)
            if left < 0:
                raise ValueError(f"it must hold at most {MOST_BYTES} bytes, unpacked")
            for inner, unpacked in _elements(memoryview(inflated), order):
                _check_variable(inner, unpacked, order, names)
        else:
            _check_variable(kind, payload, order, names)
    data = loadmat(io.BytesIO(content), variable_names=list(names))  # type: ignore[arg-type]
    return [_matrices(name, data[name]) for name in names]


def _elements(data: memoryview, order: str) -> Iterator[tuple[int, memoryview]]:
    """Yield the kind and the content of each element; raise ValueError for an element that is cut off."""
    at, count = 0, 0
    while at < len(data):
        if at + 8 > len(data):
            raise ValueError("an element is cut off")
        kind, size = struct.unpack_from(f"{order}II", data, at)
        start = at + 8
        if kind >> 16:  # up to four bytes are in the tag
            kind, size, start = kind & 0xFFFF, kind >> 16, at + 4
        if start + size > len(data) or (start == at + 4 and size > 4):
            raise ValueError("an element is cut off")
        yield kind, data[start : start + size]
        at = max(at + 8, start + size if kind == _COMPRESSED else start + size + -(start + size) % 8)
        count += 1
        if count > _MOST_ELEMENTS:
            raise ValueError(f"it must have at most {_MOST_ELEMENTS} elements")


def _check_variable(kind: int, payload: memoryview, order: str, names: Sequence[str]) -> None:
    """Raise ValueError unless the element with this kind and payload is a matrix.

    A variable in `names` must be a cell array of numeric matrices.
    """
    if kind != _MATRIX:
        raise ValueError(f"a variable must be a matrix, got an element of kind {kind}")
    parts = _elements(payload, order)
    found, name, size = _head(parts, order)
    if name not in names:
        return
    if found != _CELL:
        raise ValueError(f"{name} must be a cell array, got a matrix of class {found}")
    for inner, cell in parts:
        inside = _head(_elements(cell, order), order)[0] if inner == _MATRIX and len(cell) else None
        if inside not in _NUMERIC:
            raise ValueError(f"the cells of {name} must be matrices of numbers, got one of class {inside}")
        size -= 1
    if size:
        raise ValueError(f"{name} must hold as many cells as it says, {size} are missing")


def _head(parts: Iterator[tuple[int, memoryview]], order: str) -> tuple[int, str, int]:
    """Read the class, the name and the number of entries of a matrix."""
    first = [payload for _, payload in (next(parts, (0, memoryview(b""))) for _ in range(3))]
    if len(first[0]) != 8:
        raise ValueError("a matrix has no flags")
    kind = struct.unpack_from(f"{order}I", first[0])[0] & 0xFF
    dimensions = struct.unpack_from(f"{order}{len(first[1]) // 4}i", first[1])
    return kind, bytes(first[2]).decode("latin-1"), math.prod(dimensions)


def _matrices(name: str, cells: np.ndarray) -> list[np.ndarray]:
    if cells.dtype != object or cells.ndim != 2 or cells.shape[0] != 1:
        raise ValueError(f"{name} must be one row of cells, got shape {cells.shape}")
    for matrix in cells[0]:
        if not isinstance(matrix, np.ndarray) or matrix.dtype.kind not in "biuf" or matrix.ndim != 2:
            raise ValueError(f"the cells of {name} must be matrices of real numbers")
    return list(cells[0])
