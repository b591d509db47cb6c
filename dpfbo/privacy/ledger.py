"""The privacy ledger: an append-only record of every broadcast, durable before the broadcast leaves."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from torch import Tensor

from dpfbo.files import NoFile, open_file, sync_folder
from dpfbo.privacy.charge import Charge, digest
from dpfbo.privacy.coverage import LedgerCoverage
from dpfbo.privacy.entropy import Entropy
from dpfbo.privacy.event_prefix import EventPrefix
from dpfbo.privacy.ledger_lines import LedgerLines, LineFault, chained, read_lines
from dpfbo.privacy.release import Release

if TYPE_CHECKING:
    import dp_accounting

LARGEST = 1 << 30  # bytes of a ledger that is read


class LedgerError(RuntimeError):
    """The ledger cannot be read, or contradicts what is to be released; nothing may be released on top of it."""


class Ledger:
    """Charges in the order they were made, in a JSON-lines file (or in memory when `path` is None).

    A charge with the same round and digest as an earlier one is not made again: a run that is repeated or resumed with
    the same inputs and seed releases the same bytes, which cost nothing twice. Other bytes are a new release and are
    charged, whatever the round. An incomplete last line is ignored: its writing was interrupted, and its broadcast
    never left. A complete one counts, with a newline or without.

    A charge reads only what the file gained since the last one; a file that shrank, was replaced or was changed without
    growing is read whole. Only this class appends to `charges`.

    Every line is checked field by field, and by a digest that is chained to all lines before it
    (`dpfbo.privacy.ledger_lines`); those of earlier versions have none (`unchained`). Missing lines at the end are
    found where something else knows of them: a charge that this object made, a checkpoint
    (`dpfbo.checkpoint.check_charged`), a summary. A ledger that was cut off while nothing else knew of the rest looks
    whole, and so does one whose whole chain somebody built anew: it finds accidents and edits, not forgers.

    covers: the run that the ledger is of, as `bind` wrote it; None for an unbound one.

    Raises LedgerError if a line cannot be read or was touched, or the path names no file.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.path = path = None if path is None else Path(path)
        self.charges: list[Charge] = []
        self.covers: LedgerCoverage | None = None
        self.unchained = 0  # number of lines of earlier versions, without a digest
        if path is not None and path.exists():
            with opened(path, "rb") as file:
                lines = _checked(path, file.read())
            self.charges, self.covers, self.unchained = lines.charges, lines.covers, lines.unchained
        self.carried_over = len(self.charges)  # number of charges that earlier runs made in the same file
        self._synced = False  # True when the file and its entry in the folder are on disk
        self._seen: _CompleteLines | None = None
        self._digests: dict[int, set[str]] = {}  # by round
        for known in self.charges:
            self._digests.setdefault(known.round, set()).add(known.digest)
        self._events: list[dp_accounting.DpEvent] = []  # of the first charges, made when they are asked for
        self._rounds: list[int] = []  # the rounds of the same charges
        self._in_order = True  # True while these rounds never fall

    def check_covers(self, run: LedgerCoverage) -> None:
        """Raise LedgerError if this is the ledger of another run. One that is unbound may be of any."""
        if self.covers is not None and (others := self.covers.differences(run)):
            raise LedgerError(
                f"ledger {self.path} is of another run, it has {' and '.join(others)}: restore the one that belongs "
                "here, or start a new run in another folder, and both ledgers add up"
            )

    def bind(self, run: LedgerCoverage) -> None:
        """Say in the first line which run the ledger is of, durably; one that has lines already stays as it is.

        Raises LedgerError if it is of another run.
        """
        self.check_covers(run)
        if self.covers is not None or self.charges:
            return
        if self.path is not None:
            self._seen = _append(self.path, run, self.charges, None, None)
        self.covers = run

    def charge(self, entry: Charge) -> bool:
        """Record a charge durably (written and synced when this returns). False if it was recorded before."""
        known = entry.digest in self._digests.get(entry.round, ())
        if self.path is not None and not (known and self._synced):
            # a charge that was read may not be on disk yet: its writer may have been killed before it synced
            self._seen = _append(self.path, None if known else entry, self.charges, self.covers, self._seen)
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


def opened(path: Path, mode: str) -> BinaryIO:
    """Open a ledger. Raises LedgerError at once for a FIFO, a device or a folder in its place, or an enormous file."""
    try:
        file = open_file(path, mode)
    except NoFile as error:
        raise LedgerError(f"ledger {error}") from error
    if (size := os.fstat(file.fileno()).st_size) > LARGEST:
        file.close()
        raise LedgerError(f"ledger {path} is none: it has {size} bytes")
    return file


def _checked(path: Path, content: bytes, count: int = 0, tip: str | None = None) -> LedgerLines:
    """`read_lines`. Raises LedgerError."""
    try:
        return read_lines(content, count, tip)
    except LineFault as fault:
        raise LedgerError(
            f"ledger {path} {fault}, refusing to release anything more: restore the file, or see "
            f"`python -m runners.privacy ledger {path} --verify`, or --repair"
        ) from fault


@dataclass(frozen=True)
class _CompleteLines:
    """The complete lines at the beginning of a file, as they were after a charge.

    file: device and inode. changed: time of the last change in ns. end: their bytes. last: the last of them. tip: its
    chain.
    """

    file: tuple[int, int]
    changed: int
    end: int
    count: int
    last: bytes
    tip: str

    def still_begin(self, file: BinaryIO) -> bool:
        """True if the file has not changed, or if it grew and the last of these lines is where it was."""
        status = os.fstat(file.fileno())
        if (status.st_dev, status.st_ino) != self.file or status.st_size < self.end:
            return False
        if status.st_size == self.end:
            return status.st_mtime_ns == self.changed
        file.seek(self.end - len(self.last))
        return file.read(len(self.last)) == self.last


def _append(
    path: Path,
    entry: Charge | LedgerCoverage | None,
    known: Sequence[Charge],
    covers: LedgerCoverage | None,
    seen: _CompleteLines | None,
) -> _CompleteLines | None:
    """Append an entry (None: nothing) to a file that must hold `covers` and `known`, and sync the whole file to disk.

    seen: the file after the last call, so that only what it gained is read. Returns it for the next one.
    """
    expected = len(known) + (covers is not None)  # lines
    with opened(path, "ab+") as file:
        again = seen if seen is not None and seen.still_begin(file) else None
        start, count, tip = (0, 0, None) if again is None else (again.end, again.count, again.tip)
        file.seek(start)
        content = file.read()
        ends = content.endswith(b"\n") or not content
        if count + content.count(b"\n") + (not ends) < expected:
            raise _lost(path)
        lines = _checked(path, content, count, tip)
        if lines.count < expected or (again is None and not _names(known) <= _names(lines.charges)):
            raise _lost(path)
        replaced = again is None and covers not in (None, lines.covers)
        if replaced or (isinstance(entry, LedgerCoverage) and lines.count):
            raise LedgerError(f"ledger {path} was written by another process meanwhile: start again")
        if lines.torn:
            file.truncate(start + len(content) - len(lines.torn))
        elif not ends:
            file.write(b"\n")
        written, tip = (b"", "") if entry is None else chained(entry, lines.tip)
        if entry is not None:
            written += b"\n"
        file.write(written)
        file.flush()
        os.fsync(file.fileno())
        if not written:
            return None
        status = os.fstat(file.fileno())
        place = status.st_dev, status.st_ino
        return _CompleteLines(place, status.st_mtime_ns, file.tell(), lines.count + 1, written, tip)


def _names(charges: Sequence[Charge]) -> set[tuple[int, str]]:
    return {(charge.round, charge.digest) for charge in charges}


def _lost(path: Path) -> LedgerError:
    return LedgerError(f"ledger {path} has lost charges, refusing to release anything more")
