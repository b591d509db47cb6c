"""The files of a checkpoint: arrays and entries with a digest of both, written whole or not at all."""

import hashlib
import io
import json
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dpfbo.bounded import npz_arrays
from dpfbo.files import open_file, replace_file
from dpfbo.privacy.release import Release

FORMAT = 3
WAY_OUT = "restore it, or delete the checkpoint, and what was released stays in the ledger"
_MOST_BYTES = 16 * 2**30  # of a file's arrays
# zipfile raises RuntimeError for an archive that is encrypted or of an unknown compression
UNREADABLE = (
    OSError, ValueError, KeyError, AttributeError, IndexError, TypeError, EOFError, RuntimeError, zipfile.BadZipFile,
    zlib.error,
)  # fmt: skip


class CheckpointError(Exception):
    """A file of a checkpoint is whole, and was edited, or is of another run or of another format."""


class ReleaseFile:
    """One release of a server or a curator, on disk before it is charged (a `dpfbo.privacy.release.KeptRelease`)."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()

    def load(self, round: int) -> tuple[Release, Sequence[int] | None] | None:
        """The kept release and the order of its rows if it is of this round, else None."""
        content = content_of(self.path)
        if content is None:
            return None
        try:
            meta, arrays, _ = read_content(content, self.path)
            if meta["round"] != round:
                return None
            release = Release(torch.from_numpy(arrays["values"]), meta["sigma"], meta["sensitivity"])
            return release, meta["order"]
        except UNREADABLE:
            return None

    def save(self, round: int, release: Release, order: Sequence[int] | None = None) -> None:
        """Write a release durably; it replaces the previous one."""
        self.path.parent.mkdir(exist_ok=True)
        numbers = {"sigma": release.sigma, "sensitivity": release.sensitivity, "order": order}
        write_file(self.path, {"format": FORMAT, "round": round, **numbers}, {"values": release.values.numpy()}, True)


def content_of(path: Path) -> bytes | None:
    """The bytes of a file, None if it is absent. Raises OSError if it exists and cannot be opened."""
    try:
        with open_file(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None


def read_content(content: bytes, path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray], str]:
    """The entries and arrays of a file, and its digest. Raises CheckpointError, or one of `UNREADABLE`."""
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
    return meta, arrays, digest


def write_file(path: Path, meta: Mapping[str, Any], arrays: Mapping[str, np.ndarray], durable: bool) -> str:
    """Write a file whole or not at all; returns its digest."""
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
