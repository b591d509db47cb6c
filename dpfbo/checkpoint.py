"""The checkpoint from which a killed run resumes: one file for each round, in a folder next to the run's records.

    round-00000.npz ..  the queries, the broadcast and the server's record, written atomically after the round
    release.npz         the release of the round in progress, if its noise cannot be drawn again
    curator.npz         the release of a curator, with the order of its rows

Every file contains a sha256 of its content, and a round's file also the digest of the previous round's file. An
incomplete file counts as absent. A file that was edited, or that belongs to another run or format, raises
CheckpointError. The digests have no key: they do not reveal an edit if its author also recomputes the digests.

The files hold secret data, like rounds.parquet, but no seed, no state of a generator and no noise vector.
"""

import hashlib
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import torch

from dpfbo.federated.broadcast import AgentVectors, Points, RegionVectors, SharedPrior
from dpfbo.formats.checkpoint_file import WAY_OUT, CheckpointError, FileContent, read_file, round_path, write_file
from dpfbo.outsourced.table import ReleasedTable
from dpfbo.privacy.ledger import Ledger, LedgerError, digest
from dpfbo.privacy.mechanism_code import changed
from dpfbo.privacy.release import Diagnostics, Release
from dpfbo.records import RoundRecord, ServerRecord, packed, unpacked
from dpfbo.run_result import Round, Sent

_SENT: dict[str, Callable[..., Sent]] = {
    c.__name__: c for c in (RegionVectors, AgentVectors, Points, ReleasedTable, SharedPrior)
}
_VALUES, _FURTHER = "broadcast", "broadcast."  # array names of a broadcast: its values, the prefix of other fields


@dataclass(frozen=True)
class RunOrigin:
    """The data and the mechanism's code that produce a run, as digests; None if unknown.

    data: `dpfbo.problems.data_fingerprint`. code: `dpfbo.privacy.mechanism_code.code_digests`. any_code: True to resume
    rounds that other code produced.
    """

    data: str | None
    code: Mapping[str, str] | None
    any_code: bool = False

    def check(self, kept: "RunOrigin", path: Path) -> None:
        """Raise CheckpointError if `kept`, the origin of a round in the file `path`, differs from this origin."""
        if None not in (self.data, kept.data) and self.data != kept.data:
            raise CheckpointError(
                f"{path} was made from other data than there are now: restore them, or start a new run in another "
                "folder; the epsilons of both runs then add up"
            )
        if not self.any_code and (files := changed(kept.code, self.code)):
            raise CheckpointError(
                f"{path} was made with other code of the mechanism ({files}): finish the run with the version that it "
                "began with, or start a new run in another folder"
            )


class ReleaseFile:
    """The file to which a server or curator writes a release before charging it; a restart sends the same release.

    Implements `privacy.release.KeptRelease`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()

    def load(self, round: int) -> tuple[Release, Sequence[int] | None] | None:
        """Return the kept release and the secret order of its rows; None if the file has no release of this round.

        The order is None if a server made the release, or if the rows are in the table's order.
        """

        def parse(file: FileContent) -> tuple[Release, Sequence[int] | None] | None:
            if file.meta["round"] != round:
                return None
            values = torch.from_numpy(file.arrays["values"])
            return Release(values, file.meta["sigma"], file.meta["sensitivity"]), file.meta["order"]

        return read_file(self.path, parse)

    def save(self, round: int, release: Release, order: Sequence[int] | None = None) -> None:
        """Write a release durably, in place of the previous one."""
        self.path.parent.mkdir(exist_ok=True)
        meta = {"round": round, "sigma": release.sigma, "sensitivity": release.sensitivity, "order": order}
        write_file(self.path, meta, {"values": release.values.numpy()}, durable=True)


class Checkpoint:
    """The files of the finished rounds of one run, in `folder`.

    run: the run's name, such as a digest of its settings and seed; None to accept the files of any run. origin: the
    data and the code of this process; None to accept files of any origin.
    """

    def __init__(self, folder: Path, run: str | None = None, origin: RunOrigin | None = None) -> None:
        self.folder, self._run, self._origin = folder.absolute(), run, origin
        self._told = False  # True once this object has written the origin
        self._last: tuple[int, str] | None = None  # the round that was written last, and its digest

    def append(self, done: Round) -> None:
        """Write the next round to a file that survives a killed process, but maybe not a power failure."""
        t, arrays = done.agents.round, packed(done.agents)
        meta: dict[str, Any] = {"round": t, "seconds": done.seconds}
        if done.broadcast is not None:
            meta["broadcast"] = type(done.broadcast).__name__
            for name, value in vars(done.broadcast).items():
                arrays[_VALUES if name == "values" else _FURTHER + name] = value.numpy()
        if done.server is not None:
            meta["server"] = {name: value for name, value in vars(done.server).items() if name != "round"}
        if done.diagnostics is not None:  # only in a simulation
            meta["diagnostics"] = vars(done.diagnostics)
        meta["before"] = self._before(t)
        if self._origin is not None and not self._told:
            meta["origin"] = {"data": self._origin.data, "code": self._origin.code}
        self.folder.mkdir(exist_ok=True)
        self._last = t, write_file(round_path(self.folder, t), meta, arrays, durable=False)
        self._told = True

    def rounds(self, known: int | None = None) -> Iterator[Round]:
        """Yield the stored rounds in order, from round 0.

        known: the number of rounds to read, all of which must have a file; None to stop at the first absent file.
        Raises OSError if a file cannot be opened, or if one of the `known` files is absent. Raises CheckpointError if a
        file was edited, has another format, belongs to another run, or was made with other data. Also raises
        CheckpointError for a file that was made with other code, unless the origin's `any_code` is True.
        """
        before = None if self._run is None else _head(self._run)
        for t in count() if known is None else range(known):
            kept = self._read(t) if known is None else self._read_known(t)
            if kept is None:
                return
            path = round_path(self.folder, t)
            if before not in (None, kept.before):
                fault = "is of another run (other settings or another seed)"
                if t > 0:
                    fault = "does not follow from the round before it (one of them is of another run or was edited)"
                raise CheckpointError(f"{path} {fault}: {WAY_OUT}")
            if self._origin is not None:
                self._origin.check(kept.origin, path)
            before = kept.digest
            yield kept.round

    def record(self, t: int) -> RoundRecord:
        """Read the queries of round t from its file. Raises OSError if the file is absent or cannot be read."""
        return self._read_known(t).round.agents

    def _read(self, t: int) -> "_KeptRound | None":
        path = round_path(self.folder, t)
        return read_file(path, lambda file: _kept_round(file, t, path))

    def _read_known(self, t: int) -> "_KeptRound":
        if (kept := self._read(t)) is not None:
            return kept
        path = round_path(self.folder, t)
        raise OSError(f"{path} was there before and cannot be read any more: restore it, or start again")

    def _before(self, t: int) -> str:
        """Return the digest of the file of round t - 1; for t = 0, return a digest of the run's name."""
        if t == 0:
            return _head(self._run)
        if self._last is None or self._last[0] != t - 1:
            kept = self._read(t - 1)
            self._last = t - 1, "" if kept is None else kept.digest
        return self._last[1]

    def forget_from(self, t: int, released: int | None = None) -> None:
        """Delete the files of rounds t and later; also delete release.npz if the resumed run does not need it.

        released: the round in which the run resumes: t - 1 if the run repeats round t - 1, otherwise t (or None). If
        release.npz contains the release of this round, release.npz is kept, and the run sends the same release again.
        Otherwise, release.npz is deleted.
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

    def release_file(self) -> ReleaseFile:
        """Return the file that keeps a server's release for a restart."""
        return ReleaseFile(self.folder / "release.npz")

    def curator_file(self) -> ReleaseFile:
        """Return the file that keeps a curator's release until the run ends."""
        return ReleaseFile(self.folder / "curator.npz")


def check_charged(rounds: Iterable[Round], ledger: Ledger) -> list[tuple[bool, bool]]:
    """Raise LedgerError if a mechanism released something in a round and the ledger lacks the round's broadcast.

    Returns two booleans for each round: whether a mechanism released something, and whether something was broadcast.
    """
    charged, found = {(c.round, c.digest) for c in ledger.charges}, []
    for done in rounds:
        sent, t = done.broadcast, done.agents.round
        if done.server is not None and (sent is None or (t, digest(sent.values)) not in charged):
            raise LedgerError(
                f"ledger {ledger.path} lacks the broadcast of round {t} that the checkpoint holds: "
                "restore the ledger, or delete the folder"
            )
        found.append((done.server is not None, sent is not None))
    return found


class _KeptRound(NamedTuple):
    """A round that was read from its file. before: the previous round's digest, as the file states it."""

    round: Round
    digest: str
    before: str
    origin: RunOrigin


def _kept_round(file: FileContent, t: int, path: Path) -> _KeptRound:
    meta, tensors = file.meta, {name: torch.from_numpy(array) for name, array in file.arrays.items()}
    if meta["round"] != t:
        raise CheckpointError(f"{path} is of round {meta['round']!r}: {WAY_OUT}")
    broadcast = None
    if "broadcast" in meta:
        others = {name.removeprefix(_FURTHER): tensors[name] for name in tensors if name.startswith(_FURTHER)}
        broadcast = _SENT[meta["broadcast"]](tensors[_VALUES], **others)
    server = ServerRecord(t, **meta["server"]) if "server" in meta else None
    if server is not None and broadcast is None:
        raise ValueError("the file has a server's record and no broadcast")
    diagnostics = Diagnostics(**meta["diagnostics"]) if "diagnostics" in meta else None
    done = Round(unpacked(t, file.arrays), broadcast, server, diagnostics, meta["seconds"])
    origin = meta.get("origin") or {"data": None, "code": None}
    data, code = origin["data"], origin["code"]
    if not isinstance(data, str | None) or not isinstance(code, dict | None):
        raise ValueError("the file has an invalid origin")
    code = None if code is None else {str(name): str(digest) for name, digest in code.items()}
    return _KeptRound(done, file.digest, meta["before"], RunOrigin(data, code))


def _head(run: str | None) -> str:
    return hashlib.sha256(f"dpfbo checkpoint\n{run or ''}".encode()).hexdigest()
