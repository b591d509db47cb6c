"""The files of a checkpoint: arrays and entries with a digest of both, written atomically.

The file of a round holds its queries in the arrays `region`, `source`, `y`, `best` and `metric` (N x k), and `u` and
`x` (N x k x D), or instead of these two `ux` where they are the same points.
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
_ARRAYS = {"regret": "metric"}  # by column of rounds.parquet; without a reference the metric is no regret
WAY_OUT = "restore it, or delete the checkpoint, and what was released stays in the ledger"
_MOST_BYTES = 16 * 2**30  # of a file's arrays
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
    """A complete file of a checkpoint was edited, or is of another run or another format."""


def round_path(folder: Path, t: int) -> Path:
    """The file of round t in the folder of a checkpoint."""
    return folder / f"round-{t:05d}.npz"


def queries_of(folder: Path, t: int, columns: Sequence[str]) -> "pa.Table | None":
    """Some columns of the queries of round t, as rounds.parquet has them; None if the file is absent or not whole.

    Raises as `read_file` does.
    """
    from dpfbo.formats.record_tables import queries_table  # here: its package is optional, and a study needs no table

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
    """The result of `parse` on the content of a file; None if the file is absent or unreadable.

    Raises OSError if the file exists and cannot be opened, CheckpointError if it was edited or is of another format.
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
    """The content of a file that has the right digest. Raises CheckpointError, or one of `UNREADABLE`."""
    arrays = npz_arrays(io.BytesIO(content), _MOST_BYTES)
    if len(arrays) != int.from_bytes(content[-12:-10], "little"):  # as the end of a zip archive counts them
        raise ValueError("the archive has lost files, its directory was damaged")
    meta = json.loads(arrays.pop("meta").item())
    form, said = meta["format"], meta.pop("digest", None)
    if isinstance(form, bool) or not isinstance(form, int) or form < 1:
        raise ValueError(f"the file has format {form}")
    if form != FORMAT:
        raise CheckpointError(f"{path} is of format {form}, and this version reads {FORMAT}: use the one that wrote it")
    digest = _digest(meta, arrays)
    if said != digest:
        raise CheckpointError(f"{path} was edited, its numbers are not those of its digest: {WAY_OUT}")
    return FileContent(meta, arrays, digest)


def write_file(path: Path, meta: Mapping[str, Any], arrays: Mapping[str, np.ndarray], durable: bool) -> str:
    """Write a file atomically; returns its digest."""
    meta = {"format": FORMAT, **meta}
    digest = _digest(meta, arrays)
    content = {"meta": np.array(json.dumps({**meta, "digest": digest}).encode()), **arrays}
    replace_file(path, lambda file: np.savez(file, **content), durable, mode=0o600)  # type: ignore[arg-type]
    return digest


def _digest(meta: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> str:
    """sha256 of the entries, and of name, type, shape and bytes of each array."""
    whole = hashlib.sha256(json.dumps(meta, sort_keys=True).encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        whole.update(f"\n{name} {array.dtype.str} {arrays[name].shape}\n".encode())
        whole.update(array.data if array.size else b"")
    return whole.hexdigest()
