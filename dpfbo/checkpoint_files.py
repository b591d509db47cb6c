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
from dpfbo.outsourced.transforms import Unreleased
from dpfbo.privacy.release import Diagnostics, Release

FORMAT = 2
DIGESTS = 2  # the first format with digests
WAY_OUT = "restore it, or delete the checkpoint, and what was released stays in the ledger"
_MOST_BYTES = 16 * 2**30  # of a file's arrays
# zipfile raises RuntimeError for an archive that is encrypted or of an unknown compression
UNREADABLE = (
    OSError, ValueError, KeyError, AttributeError, IndexError, TypeError, EOFError, RuntimeError, zipfile.BadZipFile,
    zlib.error,
)  # fmt: skip


class CheckpointError(Exception):
    """A file of a checkpoint is whole, and was edited, or is of another run or of a newer format."""


class CuratorFile:
    """One release of a curator, on disk before it is charged (a `dpfbo.outsourced.curator.KeptCuratorRelease`)."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()

    def load(self, round: int) -> tuple[Release, Unreleased] | None:
        """The kept release and its private numbers if it is of this round, else None."""
        content = content_of(self.path)
        if content is None:
            return None
        try:
            meta, arrays, _ = read_content(content, self.path)
            if meta["round"] != round:
                return None
            sigma, sensitivity, private = release_parts(meta["release"])
            return Release(torch.from_numpy(arrays["values"]), sigma, sensitivity), private
        except UNREADABLE:
            return None

    def save(self, round: int, release: Release, private: Unreleased) -> None:
        """Write a release durably; it replaces the previous one."""
        self.path.parent.mkdir(exist_ok=True)
        numbers = release_numbers(release.sigma, release.sensitivity, private.diagnostics, private.order)
        meta = {"format": FORMAT, "round": round, "release": numbers}
        write_file(self.path, meta, {"values": release.values.numpy()}, durable=True)


class ReleaseFile:
    """The release of the round in progress, in a `CuratorFile` (a `dpfbo.privacy.release.KeptRelease`)."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()

    def load(self, round: int) -> tuple[Release, Diagnostics] | None:
        """The kept release and its diagnostics without `n_dropped` if it is of this round, else None."""
        kept = CuratorFile(self.path).load(round)
        return None if kept is None else (kept[0], kept[1].diagnostics)

    def save(self, round: int, release: Release, diagnostics: Diagnostics) -> None:
        """Write a release durably; it replaces the previous one."""
        CuratorFile(self.path).save(round, release, Unreleased(diagnostics))


def release_numbers(
    sigma: float, sensitivity: float, private: Diagnostics, order: Sequence[int] | None = None
) -> dict[str, Any]:
    """The numbers of one release that a file holds: all but `n_dropped`."""
    return {
        "sigma": sigma, "sensitivity": sensitivity, "signal": private.signal, "noise": private.noise,
        "n_chosen": private.n_chosen, "n_clipped": private.n_clipped, "n_rejected": private.n_rejected, "order": order,
    }  # fmt: skip


def release_parts(numbers: dict[str, Any], n_dropped: int = 0) -> tuple[float, float, Unreleased]:
    """Sigma, sensitivity and private numbers from the dict of `_numbers`. Raises one of `UNREADABLE`."""
    numbers = {"order": None, **numbers}
    sigma, sensitivity, order = (numbers.pop(name) for name in ("sigma", "sensitivity", "order"))
    return sigma, sensitivity, Unreleased(Diagnostics(**numbers, n_dropped=n_dropped), order)


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
    meta = json.loads(arrays.pop("meta").item())  # bytes; a text in format 1
    form, said = meta["format"], meta.pop("digest", None)
    if isinstance(form, bool) or not isinstance(form, int) or form < 1:
        raise ValueError(f"the file has format {form}")
    if form > FORMAT:
        raise CheckpointError(f"{path} is of format {form}, and this version reads {FORMAT}: use a newer version")
    digest = _digest(meta, arrays)
    if said != digest and (form >= DIGESTS or said is not None):
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
