"""The files of a checkpoint: arrays and JSON entries with a digest of both, written atomically.

A round's file holds the k queries of each of N agents. The arrays `region`, `source`, `y`, `best` and `metric` have
shape N x k. The points, `u` in the unit cube and `x` in the problem's units, have shape N x k x D; one array `ux`
replaces both if they are equal.
"""

import hashlib
import io
import json
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from dpfbo.formats.bounded import npz_arrays
from dpfbo.formats.files import open_file, replace_file

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT = 4
SAME_POINTS = "ux"
_ARRAYS = {"regret": "metric"}  # the array of a column of rounds.parquet, if its name differs
WAY_OUT = "restore it, or delete the checkpoint (what was released stays in the ledger)"
_MOST_BYTES = 16 * 2**30  # the maximum size of all arrays of a file
# zipfile raises RuntimeError for an archive that is encrypted or of an unknown compression
UNREADABLE = (
    OSError, ValueError, KeyError, AttributeError, IndexError, TypeError, EOFError, RuntimeError, zipfile.BadZipFile,
    zlib.error,
)  # fmt: skip

Parsed = TypeVar("Parsed")


class FileContent(NamedTuple):
    """The entries and arrays of a file, and the digest of both."""

    meta: dict[str, Any]
    arrays: dict[str, np.ndarray]
    digest: str


class CheckpointError(Exception):
    """A checkpoint's file can be read but not used: it was edited, has another format, or belongs to another run."""


def round_path(folder: Path, t: int) -> Path:
    """Return the path of round t's file in the folder of a checkpoint."""
    return folder / f"round-{t:05d}.npz"


def queries_of(folder: Path, t: int, columns: Sequence[str]) -> "pa.Table | None":
    """Read a table of the queries of round t from the round's file; None if the file is absent or cannot be decoded.

    columns: the columns of the table, named as in rounds.parquet. Raises OSError if the file exists but cannot be
    opened or read. Raises CheckpointError if the file was edited (its digest does not match) or has another format.
    """
    from dpfbo.formats.record_tables import queries_table  # imported here, because PyArrow is optional

    def parse(file: FileContent) -> "pa.Table":
        arrays, (n, k) = file.arrays, file.arrays["y"].shape
        known = {"agent": np.repeat(np.arange(n), k), "round": np.full(n * k, t)}
        for name in columns:
            if name not in known:
                array = arrays[SAME_POINTS if name == "x" and "x" not in arrays else _ARRAYS.get(name, name)]
                known[name] = array.reshape(n * k, *array.shape[2:])
        return queries_table({name: known[name] for name in columns})

    return read_file(round_path(folder, t), parse)


def read_file(path: Path, parse: Callable[[FileContent], Parsed | None]) -> Parsed | None:
    """Read a file and return `parse` of its content; None if the file is absent or damaged.

    A file is damaged if decoding or `parse` raises one of the exceptions in `UNREADABLE`. Raises OSError if the file
    exists but cannot be opened or read. Raises CheckpointError if the file's format version is not `FORMAT`, or if its
    digest does not match its content (the file was edited).
    """
    try:
        with open_file(path, "rb") as file:
            content = file.read()
    except FileNotFoundError:
        return None
    try:
        return parse(_checked(content, path))
    except UNREADABLE:
        return None


def _checked(content: bytes, path: Path) -> FileContent:
    arrays = npz_arrays(io.BytesIO(content), _MOST_BYTES)
    if len(arrays) != int.from_bytes(content[-12:-10], "little"):  # the count in the last record of a zip archive
        raise ValueError("the archive has lost files, its directory was damaged")
    meta = json.loads(arrays.pop("meta").item())
    form, said = meta["format"], meta.pop("digest", None)
    if isinstance(form, bool) or not isinstance(form, int) or form < 1:
        raise ValueError(f"the file has format {form}")
    if form != FORMAT:
        raise CheckpointError(f"{path} is of format {form}, and this version reads {FORMAT}: use the one that wrote it")
    digest = _digest(meta, arrays)
    if said != digest:
        raise CheckpointError(f"{path} was edited and does not match its digest: {WAY_OUT}")
    return FileContent(meta, arrays, digest)


def write_file(path: Path, meta: Mapping[str, Any], arrays: Mapping[str, np.ndarray], durable: bool) -> str:
    """Write a file atomically, and return its digest."""
    meta = {"format": FORMAT, **meta}
    digest = _digest(meta, arrays)
    content = {"meta": np.array(json.dumps({**meta, "digest": digest}).encode()), **arrays}
    replace_file(path, lambda file: np.savez(file, **content), durable, mode=0o600)  # type: ignore[arg-type]
    return digest


def _digest(meta: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> str:
    whole = hashlib.sha256(json.dumps(meta, sort_keys=True).encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        whole.update(f"\n{name} {array.dtype.str} {arrays[name].shape}\n".encode())
        whole.update(array.data if array.size else b"")
    return whole.hexdigest()
