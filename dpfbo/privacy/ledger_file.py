"""The file of a ledger on disk: opened, locked, read as far as it is new, and appended to.

The lock is `flock` on the file itself. It needs no second file, ends with the process that has it, and is the one that
a whole run holds (`locked_file`). Only who has it writes, so that an incomplete last line is seen under it
after a write was interrupted, and never while one goes on. Readers take no lock, and change nothing.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from dpfbo.formats.files import NoFile, is_file_at, locked_file, open_file
from dpfbo.privacy.charge import Charge
from dpfbo.privacy.coverage import LedgerCoverage
from dpfbo.privacy.ledger_lines import START, LedgerLines, LineFault, chained, read_lines

LARGEST = 1 << 30  # bytes of a ledger that is read
_LAST = 128  # bytes at the end of a file that are compared; a chain and what is around it has fewer
_LOCK_SECONDS = 60.0  # seconds to wait for others who charge the file


class LedgerError(RuntimeError):
    """The ledger cannot be read, or contradicts what is to be released; nothing may be released on top of it."""


@dataclass(frozen=True)
class SeenLines:
    """The whole lines of a file, as they were when it was last read or written.

    file: device and inode. changed: time of the last change in ns. size: bytes of the file. end: bytes of its whole
    lines. count: number of these lines. last: their last bytes, which hold the chain of the last line. tip: that chain.
    """

    file: tuple[int, int]
    changed: int
    size: int
    end: int
    count: int
    last: bytes
    tip: str

    @staticmethod
    def of(status: os.stat_result, size: int, end: int, count: int, last: bytes, tip: str) -> SeenLines:
        """Combine the status of a file with what was read of it."""
        return SeenLines((status.st_dev, status.st_ino), status.st_mtime_ns, size, end, count, last, tip)

    def are_all_of(self, status: os.stat_result) -> bool:
        """True if the file has not changed."""
        now = (status.st_dev, status.st_ino), status.st_mtime_ns, status.st_size
        return now == (self.file, self.changed, self.size)

    def still_begin(self, file: BinaryIO, status: os.stat_result) -> bool:
        """True if the file grew after these lines, and the last of them is where it was."""
        if (status.st_dev, status.st_ino) != self.file or not self.last.endswith(b"\n"):
            return False
        if not self.end == self.size < status.st_size:
            return False
        file.seek(self.end - len(self.last))
        return file.read(len(self.last)) == self.last


def opened(path: Path) -> BinaryIO:
    """Open a ledger to read it.

    Raises LedgerError at once for a FIFO, a device or a folder in its place, or an enormous file.
    """
    try:
        file = open_file(path, "rb")
    except NoFile as error:
        raise LedgerError(f"ledger {error}") from error
    try:
        _check_size(path, os.fstat(file.fileno()))
    except LedgerError:
        file.close()
        raise
    return file


def open_locked(path: Path, held: BinaryIO | None) -> BinaryIO:
    """The file of a ledger, locked; `held` if it is still the one at the path. Raises LedgerError."""
    if held is not None and not held.closed and is_file_at(held, path):
        return held
    try:
        return locked_file(path, _LOCK_SECONDS)
    except BlockingIOError as error:
        raise LedgerError(f"another run is writing to ledger {path}: wait for it") from error
    except NoFile as error:
        raise LedgerError(f"ledger {error}") from error
    except OSError as error:
        raise LedgerError(f"ledger {path} cannot be written: {error.strerror}") from error


def gained(
    path: Path, file: BinaryIO, seen: SeenLines | None, known: Sequence[Charge], covers: LedgerCoverage | None
) -> tuple[LedgerLines, SeenLines]:
    """Read the lines that a file gained since it was `seen`, or all of its lines if it did more than grow.

    known, covers: the charges and the run that were read before. Returns the lines, and the file as it is now. Raises
    LedgerError if a line is missing or cannot be read.
    """
    status = os.fstat(file.fileno())  # before the content: a change after it is seen the next time
    _check_size(path, status)
    again = seen if seen is not None and seen.still_begin(file, status) else None
    start, count, tip = (0, 0, START) if again is None else (again.end, again.count, again.tip)
    file.seek(start)
    content = file.read()
    n_known = len(known) + (covers is not None)  # lines
    lost = LedgerError(f"ledger {path} has lost charges, refusing to release anything more")
    if again is None and content.count(b"\n") + (not content.endswith(b"\n")) < n_known:
        raise lost
    lines = _checked(path, content, count, tip)
    if again is None and (lines.count < n_known or not _names(known) <= _names(lines.charges)):
        raise lost
    if again is None and covers not in (None, lines.covers):
        raise LedgerError(f"ledger {path} was written by another process meanwhile: start again")
    whole = content[: len(content) - len(lines.torn)]
    last = ((b"" if again is None else again.last) + whole)[-_LAST:]
    return lines, SeenLines.of(status, start + len(content), start + len(whole), lines.count, last, lines.tip)


def append(file: BinaryIO, entry: Charge | LedgerCoverage | None, seen: SeenLines) -> SeenLines:
    """Append an entry (None: nothing) to a locked file, and sync all of it to disk; returns the file as it is then.

    If that fails, the file is as it was before: the bytes of a failed sync may never reach the disk, though reading
    shows them, and must not pass for a charge.
    """
    line, tip = (b"", seen.tip) if entry is None else chained(entry, seen.tip)
    line += b"\n" if entry is not None else b""
    ends = not seen.last or seen.last.endswith(b"\n")
    try:
        if seen.size > seen.end:
            file.truncate(seen.end)
        written = (b"" if ends else b"\n") + line
        if file.write(written) != len(written):
            raise OSError("the line of a charge was not written as a whole: is the disk full?")
        os.fsync(file.fileno())
    except BaseException:
        with suppress(OSError):
            file.truncate(seen.end)
        raise
    size, count = seen.end + len(written), seen.count + (entry is not None)
    return SeenLines.of(os.fstat(file.fileno()), size, size, count, (seen.last + written)[-_LAST:], tip)


def _check_size(path: Path, status: os.stat_result) -> None:
    if status.st_size > LARGEST:
        raise LedgerError(f"ledger {path} is none: it has {status.st_size} bytes")


def _checked(path: Path, content: bytes, count: int, tip: str) -> LedgerLines:
    """`read_lines`. Raises LedgerError."""
    try:
        return read_lines(content, count, tip)
    except LineFault as fault:
        raise LedgerError(
            f"ledger {path} {fault}, refusing to release anything more: restore the file, or see "
            f"`python -m runners.privacy ledger {path} --verify`, or --repair"
        ) from fault


def _names(charges: Sequence[Charge]) -> set[tuple[int, str]]:
    return {(charge.round, charge.digest) for charge in charges}
