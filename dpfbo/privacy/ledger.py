"""The privacy ledger: an append-only record of every broadcast, durable before the broadcast leaves."""

from __future__ import annotations

import hashlib
import json
import os
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import torch
from torch import Tensor

from dpfbo.files import sync_folder
from dpfbo.privacy.accounting.events import round_event, round_parameters
from dpfbo.privacy.entropy import Entropy
from dpfbo.privacy.event_prefix import EventPrefix
from dpfbo.privacy.release import Release

if TYPE_CHECKING:
    import dp_accounting


class LedgerError(RuntimeError):
    """The ledger cannot be read, or contradicts what is to be released; nothing may be released on top of it."""


@dataclass(frozen=True)
class Charge:
    """One broadcast.

    q, z: parameters of its event (z = None: not private). sensitivity: None if it is infinite. digest: sha256 of the
    released numbers. subset: [k, N] where S_t was a subset of fixed size k of N agents. relation: the neighbours that
    an outsourced release compares; None for a federated one, where the accountant has it, and if nothing is claimed.
    """

    round: int
    q: float
    z: float | None
    sigma: float
    sensitivity: float | None
    digest: str
    subset: tuple[int, int] | None = None
    relation: str | None = None

    @staticmethod
    def of(
        round: int, event: dp_accounting.DpEvent, sigma: float, sensitivity: float | None, values: Tensor,
        relation: str | None = None,
    ) -> Charge:  # fmt: skip
        """The charge of released numbers `values` at the cost of `event`."""
        q, z, subset = round_parameters(event)
        return Charge(round, q, z, sigma, sensitivity, digest(values), subset, relation)

    def event(self) -> dp_accounting.DpEvent:
        """The event to account for, at its noise multiplier z."""
        return _event(self.q, self.z, None if self.subset is None else (self.subset[0], self.subset[1]))

    def line(self) -> str:
        """This charge as JSON, without a relation that is None."""
        entries = dict(self.__dict__)
        if self.relation is None:
            del entries["relation"]
        return json.dumps(entries)


@lru_cache(maxsize=65536, typed=True)
def _event(q: float, z: float | None, subset: tuple[int, int] | None) -> dp_accounting.DpEvent:
    """`round_event`, one object for all equal charges: comparing it with itself costs nothing."""
    return round_event(q, z, subset)


def digest(values: Tensor) -> str:
    """sha256 of a released tensor's float64 bytes."""
    return hashlib.sha256(values.to(torch.float64).contiguous().numpy().tobytes()).hexdigest()


class Ledger:
    """Charges in the order they were made, in a JSON-lines file (or in memory when `path` is None).

    A charge with the same round and digest as an earlier one is not made again: a run that is repeated or resumed with
    the same inputs and seed releases the same bytes, which cost nothing twice. Other bytes are a new release and are
    charged, whatever the round. An incomplete last line is ignored: its writing was interrupted, and its broadcast
    never left. A complete one counts, with a newline or without.

    A charge reads only what the file gained since the last one; a file that shrank, was replaced or was changed without
    growing is read whole. Only this class appends to `charges`.

    Raises LedgerError if an earlier line cannot be read.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.path = path = None if path is None else Path(path)
        self.charges: list[Charge] = _read(path) if path is not None and path.exists() else []
        self.carried_over = len(self.charges)  # number of charges that earlier runs made in the same file
        self._synced = False  # True when the file and its entry in the folder are on disk
        self._seen: _CompleteLines | None = None
        self._digests: dict[int, set[str]] = {}  # by round
        for known in self.charges:
            self._digests.setdefault(known.round, set()).add(known.digest)
        self._events: list[dp_accounting.DpEvent] = []  # of the first charges, made when they are asked for
        self._rounds: list[int] = []  # the rounds of the same charges
        self._in_order = True  # True while these rounds never fall

    def charge(self, entry: Charge) -> bool:
        """Record a charge durably (written and synced when this returns). False if it was recorded before."""
        known = entry.digest in self._digests.get(entry.round, ())
        if self.path is not None and not (known and self._synced):
            # a charge that was read may not be on disk yet: its writer may have been killed before it synced
            self._seen = _append(self.path, None if known else entry.line(), len(self.charges), self._seen)
            if not self._synced:
                sync_folder(self.path.parent)
                self._synced = True
        if known:
            return False
        self.charges.append(entry)
        self._digests.setdefault(entry.round, set()).add(entry.digest)
        return True

    def holds(self, round: int, values: Tensor) -> bool:
        """True if these released numbers of a round are charged already."""
        return round in self._digests and digest(values) in self._digests[round]

    def holds_others(self, round: int, values: Tensor) -> bool:
        """True if other numbers than these are charged for the round."""
        return bool(self._digests.get(round, set()) - {digest(values)})

    def events(self, up_to_round: int | None = None) -> Sequence[dp_accounting.DpEvent]:
        """The charged events, those of later rounds than `up_to_round` left out, for an accountant."""
        for entry in self.charges[len(self._events) :]:
            self._in_order = self._in_order and (not self._rounds or self._rounds[-1] <= entry.round)
            self._events.append(entry.event())
            self._rounds.append(entry.round)
        if up_to_round is None:
            return EventPrefix(self._events, len(self._events))
        if self._in_order:
            return EventPrefix(self._events, bisect_right(self._rounds, up_to_round))
        return [event for event, round in zip(self._events, self._rounds, strict=True) if round <= up_to_round]


def check_noise_is_new(ledger: Ledger, t: int, release: Release, entropy: Entropy, random: bool) -> None:
    """Raise LedgerError if the same noise was added to other numbers before: their difference would have no noise.

    random: True if the release draws random numbers.
    """
    if entropy.reproducible and random and ledger.holds_others(t, release.values):
        raise LedgerError(
            f"ledger {ledger.path} holds another broadcast of round {t} with the same seeded noise (other "
            "data, code or settings?): delete the folder to simulate anew, or draw noise from the system (rng=os)"
        )


def _read(path: Path) -> list[Charge]:
    *lines, tail = path.read_bytes().split(b"\n")
    charges = []
    for number, line in enumerate(lines, start=1):
        charge = _parse(line)
        if charge is None:
            raise LedgerError(f"ledger {path} line {number} cannot be read, refusing to release anything more")
        charges.append(charge)
    last = _parse(tail)
    return charges if last is None else [*charges, last]


def _parse(line: bytes) -> Charge | None:
    """The charge of a line; None if the line is incomplete."""
    try:
        return Charge(**json.loads(line))
    except (ValueError, TypeError, RecursionError):
        return None


@dataclass(frozen=True)
class _CompleteLines:
    """The complete lines at the beginning of a file, as they were after a charge.

    file: device and inode. changed: time of the last change in ns. end: their bytes. last: the last of them.
    """

    file: tuple[int, int]
    changed: int
    end: int
    count: int
    last: bytes

    def still_begin(self, file: BinaryIO) -> bool:
        """True if the file has not changed, or if it grew and the last of these lines is where it was."""
        status = os.fstat(file.fileno())
        if (status.st_dev, status.st_ino) != self.file or status.st_size < self.end:
            return False
        if status.st_size == self.end:
            return status.st_mtime_ns == self.changed
        file.seek(self.end - len(self.last))
        return file.read(len(self.last)) == self.last


def _append(path: Path, line: str | None, n_before: int, seen: _CompleteLines | None) -> _CompleteLines | None:
    """Append a line (None: nothing) to at least n_before complete ones, and sync the whole file to disk.

    seen: the file after the last call, so that only what it gained is read. Returns it for the next one.
    """
    with open(path, "ab+") as file:
        start, count = (seen.end, seen.count) if seen is not None and seen.still_begin(file) else (0, 0)
        file.seek(start)
        content = file.read()
        tail = content[content.rfind(b"\n") + 1 :]
        whole = _parse(tail) is not None
        count += content.count(b"\n") + whole
        if count < n_before:
            raise LedgerError(f"ledger {path} has lost charges, refusing to release anything more")
        if tail and not whole:
            file.truncate(start + len(content) - len(tail))
        elif tail:
            file.write(b"\n")
        written = b"" if line is None else line.encode() + b"\n"
        file.write(written)
        file.flush()
        os.fsync(file.fileno())
        if not written:
            return None
        status = os.fstat(file.fileno())
        return _CompleteLines((status.st_dev, status.st_ino), status.st_mtime_ns, file.tell(), count + 1, written)
