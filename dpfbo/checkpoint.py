"""The checkpoint from which a killed run resumes: one file a round, in a folder beside its records.

A round file holds queries, broadcast and server record. Everything else follows from the settings and the seed:
`Shard.restore` rebuilds agents from their queries and observations, and random numbers are drawn by round.

    round-00000.npz ..  written whole or not at all, after the round; an unreadable file counts as absent
    release.npz         `ReleaseFile`: the release of the round in progress, if its noise cannot be drawn again
    curator.npz         `CuratorFile`: the same for a curator, with the order of its rows

Every file has a sha256 of its content, and that of a round also the digest of the round before it, or of the run where
there is none. A file that was torn counts as absent, as a round that was lost; one whose numbers were edited, that is
of another run, or of a newer format is refused. Files of earlier versions (format 1) have no digests; the first later
one covers the round before it. The digests have no secret: they find accidents and edits, not forgers.

The files hold private data, like rounds.parquet, but no seed, no state of a generator and no noise vector.
"""

import hashlib
import io
import json
import shutil
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dpfbo.bounded import npz_arrays
from dpfbo.federated.broadcast import AgentVectors, Points, RegionVectors, SharedPrior
from dpfbo.files import open_file, replace_file
from dpfbo.outsourced.table import ReleasedTable
from dpfbo.outsourced.transforms import Unreleased
from dpfbo.privacy.ledger import Ledger, LedgerError, digest
from dpfbo.privacy.release import Diagnostics, Release
from dpfbo.records import RoundRecord, ServerRecord, packed, unpacked
from dpfbo.run_result import Round, Sent

_FORMAT = 2
_DIGESTS = 2  # the first format with digests
_MOST_BYTES = 16 * 2**30  # of a round's arrays
_SENT: dict[str, Callable[..., Sent]] = {
    c.__name__: c for c in (RegionVectors, AgentVectors, Points, ReleasedTable, SharedPrior)
}
_VALUES, _FURTHER = "broadcast", "broadcast."  # names of the arrays of a broadcast: its values, its other fields
_WAY_OUT = "restore it, or delete the checkpoint, and what was released stays in the ledger"
# zipfile raises RuntimeError for an archive that is encrypted or of an unknown compression
_UNREADABLE = (
    OSError, ValueError, KeyError, AttributeError, IndexError, TypeError, EOFError, RuntimeError, zipfile.BadZipFile,
    zlib.error,
)  # fmt: skip


class CheckpointError(Exception):
    """A file of a checkpoint is whole, and was edited, or is of another run or of a newer format."""


class Checkpoint:
    """The finished rounds of one run.

    run: its name, such as a digest of its settings with the seed, which the first round's file is bound to. None: it is
    not compared.
    """

    def __init__(self, folder: Path, run: str | None = None) -> None:
        self.folder, self._run = folder, run
        self._last: tuple[int, str] | None = None  # the round that was written last, and its digest

    def append(self, done: Round) -> None:
        """Write one more round. The file survives a killed process; after a power cut it may be missing."""
        arrays: dict[str, Any] = packed(done.agents)
        meta: dict[str, Any] = {"format": _FORMAT, "round": done.agents.round, "seconds": done.seconds}
        if done.broadcast is not None:
            meta["broadcast"] = type(done.broadcast).__name__
            arrays[_VALUES] = done.broadcast.values.numpy()
            others = {name: value for name, value in vars(done.broadcast).items() if name != "values"}
            arrays.update({_FURTHER + name: value.numpy() for name, value in others.items()})
        if done.server is not None and done.diagnostics is not None:
            s, private = done.server, done.diagnostics
            numbers = _numbers(s.sigma, s.sensitivity, private)
            meta["server"] = {"epsilon": s.epsilon, "n_dropped": private.n_dropped, "release": numbers}
        t = done.agents.round
        meta["before"] = self._before(t)
        self.folder.mkdir(exist_ok=True)
        self._last = t, _write(self._path(t), meta, arrays, durable=False)

    def rounds(self, known: int | None = None) -> Iterator[Round]:
        """Yield rounds 0..k, one in memory at a time, up to the first file that is absent.

        known: the number of rounds that were read before; no more are read.
        Raises OSError if a file exists and cannot be opened, or a known one is absent: the cause may be temporary, and
        the rounds are not lost. Raises CheckpointError for a file that is not the next of this run.
        """
        previous = None
        for t in count() if known is None else range(known):
            kept = self._read(t)
            if kept is None:
                if known is None:
                    return
                raise self._lost(t)
            kept.check_follows(previous, None if self._run is None else _head(self._run), self._path(t))
            previous = kept
            yield kept.round

    def read(self) -> list[Round]:
        """All of `rounds`."""
        return list(self.rounds())

    def record(self, t: int) -> RoundRecord:
        """The queries of a round that was read or written before. Raises OSError if its file cannot be read."""
        kept = self._read(t)
        if kept is None:
            raise self._lost(t)
        return kept.round.agents

    def _read(self, t: int) -> "_KeptRound | None":
        """A round; None if its file is absent or unreadable. Raises OSError if it exists and cannot be opened."""
        content = _content(path := self._path(t))
        if content is None:
            return None
        try:
            return _round(*_read(content, path), t, path)
        except _UNREADABLE:
            return None

    def _before(self, t: int) -> str:
        """The digest that binds round t to the round before it, or to the run."""
        if t == 0:
            return _head(self._run)
        if self._last is None or self._last[0] != t - 1:
            kept = self._read(t - 1)
            self._last = t - 1, "" if kept is None else kept.digest
        return self._last[1]

    def _lost(self, t: int) -> OSError:
        return OSError(f"{self._path(t)} was there before and cannot be read any more: restore it, or start again")

    def forget_from(self, t: int, released: int | None = None) -> None:
        """Delete the files of rounds t and later, which follow a gap, and a kept release of another round.

        released: the round whose release is kept; t unless given.
        """
        for path in self.folder.glob("round-*.npz"):
            if int(path.stem.partition("-")[2]) >= t:
                path.unlink()
        release = self.release_file()
        if release.load(t if released is None else released) is None:
            release.path.unlink(missing_ok=True)

    def clear(self) -> None:
        """Delete all rounds and kept releases."""
        old = self.folder.with_name(f".{self.folder.name}")  # the rename removes all files at once
        shutil.rmtree(old, ignore_errors=True)
        if self.folder.is_dir():
            self.folder.rename(old)
            shutil.rmtree(old)

    def release_file(self) -> "ReleaseFile":
        """The file for a release whose noise cannot be drawn again."""
        return ReleaseFile(self.folder / "release.npz")

    def curator_file(self) -> "CuratorFile":
        """The file for a curator's release, which is needed until the run ends."""
        return CuratorFile(self.folder / "curator.npz")

    def _path(self, t: int) -> Path:
        return self.folder / f"round-{t:05d}.npz"


def check_charged(rounds: Iterable[Round], ledger: Ledger) -> None:
    """Raise LedgerError if the ledger lacks a broadcast that these rounds made."""
    charged = {(c.round, c.digest) for c in ledger.charges}
    for done in rounds:
        sent = done.broadcast
        if done.server is not None and (sent is None or (done.agents.round, digest(sent.values)) not in charged):
            raise LedgerError(
                f"ledger {ledger.path} lacks the broadcast of round {done.agents.round} that the checkpoint holds: "
                "restore the ledger, or delete the folder"
            )


class CuratorFile:
    """One release of a curator, on disk before it is charged (a `dpfbo.outsourced.curator.KeptCuratorRelease`)."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self, round: int) -> tuple[Release, Unreleased] | None:
        """The kept release and its private numbers if it is of this round, else None."""
        content = _content(self.path)
        if content is None:
            return None
        try:
            meta, arrays, _ = _read(content, self.path)
            if meta["round"] != round:
                return None
            sigma, sensitivity, private = _parts(meta["release"])
            return Release(torch.from_numpy(arrays["values"]), sigma, sensitivity), private
        except _UNREADABLE:
            return None

    def save(self, round: int, release: Release, private: Unreleased) -> None:
        """Write a release durably; it replaces the previous one."""
        self.path.parent.mkdir(exist_ok=True)
        numbers = _numbers(release.sigma, release.sensitivity, private.diagnostics, private.order)
        meta = {"format": _FORMAT, "round": round, "release": numbers}
        _write(self.path, meta, {"values": release.values.numpy()}, durable=True)


class ReleaseFile:
    """The release of the round in progress, in a `CuratorFile` (a `dpfbo.privacy.release.KeptRelease`)."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self, round: int) -> tuple[Release, Diagnostics] | None:
        """The kept release and its diagnostics without `n_dropped` if it is of this round, else None."""
        kept = CuratorFile(self.path).load(round)
        return None if kept is None else (kept[0], kept[1].diagnostics)

    def save(self, round: int, release: Release, diagnostics: Diagnostics) -> None:
        """Write a release durably; it replaces the previous one."""
        CuratorFile(self.path).save(round, release, Unreleased(diagnostics))


def _numbers(
    sigma: float, sensitivity: float, private: Diagnostics, order: Sequence[int] | None = None
) -> dict[str, Any]:
    """The numbers of one release that a file holds: all but `n_dropped`."""
    return {
        "sigma": sigma, "sensitivity": sensitivity, "signal": private.signal, "noise": private.noise,
        "n_chosen": private.n_chosen, "n_clipped": private.n_clipped, "n_rejected": private.n_rejected, "order": order,
    }  # fmt: skip


def _parts(numbers: dict[str, Any], n_dropped: int = 0) -> tuple[float, float, Unreleased]:
    """Sigma, sensitivity and private numbers from the dict of `_numbers`. Raises one of `_UNREADABLE`."""
    numbers = {"order": None, **numbers}
    sigma, sensitivity, order = (numbers.pop(name) for name in ("sigma", "sensitivity", "order"))
    return sigma, sensitivity, Unreleased(Diagnostics(**numbers, n_dropped=n_dropped), order)


@dataclass(frozen=True)
class _KeptRound:
    """A round from its file. before: the digest of the round before, as the file has it; None in format 1."""

    round: Round
    digest: str
    before: str | None

    def check_follows(self, previous: "_KeptRound | None", head: str | None, path: Path) -> None:
        """Raise CheckpointError unless the file was written after the previous one, or first in the run of `head`."""
        if self.before is None:
            if previous is not None and previous.before is not None:
                raise CheckpointError(f"{path} has no digest, and the round before it has one: {_WAY_OUT}")
        elif previous is None and head is not None and self.before != head:
            raise CheckpointError(f"{path} is of another run (other settings or another seed): {_WAY_OUT}")
        elif previous is not None and self.before != previous.digest:
            raise CheckpointError(
                f"{path} does not follow from the round before it, one of them is of another run or was edited: "
                f"{_WAY_OUT}"
            )


def _round(meta: dict[str, Any], arrays: dict[str, np.ndarray], digest: str, t: int, path: Path) -> _KeptRound:
    """Round t from the content of its file. Raises CheckpointError, or one of `_UNREADABLE`."""
    if meta["round"] != t:
        if meta["format"] >= _DIGESTS:
            raise CheckpointError(f"{path} is of round {meta['round']!r}: {_WAY_OUT}")
        raise ValueError(f"the file is of round {meta['round']}")
    agents = unpacked(t, arrays)
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    broadcast = None
    if "broadcast" in meta:
        others = {name.removeprefix(_FURTHER): tensors[name] for name in tensors if name.startswith(_FURTHER)}
        broadcast = _SENT[meta["broadcast"]](tensors[_VALUES], **others)
    server, diagnostics = None, None
    if "server" in meta:
        s = meta["server"]
        if broadcast is None:
            raise ValueError("the file has a server's record and no broadcast")
        sigma, sensitivity, private = _parts(s["release"], s["n_dropped"])
        server, diagnostics = ServerRecord(t, s["epsilon"], sigma, sensitivity), private.diagnostics
    before = meta["before"] if meta["format"] >= _DIGESTS else None
    return _KeptRound(Round(agents, broadcast, server, diagnostics, meta["seconds"]), digest, before)


def _content(path: Path) -> bytes | None:
    """The bytes of a file, None if it is absent. Raises OSError if it exists and cannot be opened."""
    try:
        with open_file(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None


def _read(content: bytes, path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray], str]:
    """The entries and arrays of a file, and its digest. Raises CheckpointError, or one of `_UNREADABLE`."""
    arrays = npz_arrays(io.BytesIO(content), _MOST_BYTES)
    if len(arrays) != int.from_bytes(content[-12:-10], "little"):  # as the end of a zip archive counts them
        raise ValueError("the archive has lost files, its directory was damaged")
    meta = json.loads(arrays.pop("meta").item())  # bytes; a text in format 1
    form, said = meta["format"], meta.pop("digest", None)
    if isinstance(form, bool) or not isinstance(form, int) or form < 1:
        raise ValueError(f"the file has format {form}")
    if form > _FORMAT:
        raise CheckpointError(f"{path} is of format {form}, and this version reads {_FORMAT}: use a newer version")
    digest = _digest(meta, arrays)
    if said != digest and (form >= _DIGESTS or said is not None):
        raise CheckpointError(f"{path} was edited, its numbers are not those of its digest: {_WAY_OUT}")
    return meta, arrays, digest


def _write(path: Path, meta: Mapping[str, Any], arrays: Mapping[str, np.ndarray], durable: bool) -> str:
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


def _head(run: str | None) -> str:
    """The digest that the first round of a run follows."""
    return hashlib.sha256(f"dpfbo checkpoint\n{run or ''}".encode()).hexdigest()
