"""The file of a ledger on disk: opened, locked, read where it has changed, and appended to.

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
from dpfbo.privacy.ledger_lines import LedgerLines, LineFault, chained, read_lines

LARGEST = 1 << 30  # bytes of a ledger that is read
_LOCK_SECONDS = 60.0  # seconds to wait for others who charge the file


class LedgerError(RuntimeError):
    """The ledger cannot be read, or contradicts what is to be released; nothing may be released on top of it."""


@dataclass(frozen=True)
class SeenFile:
    """A ledger's file as it was last read or written.

    status: device, inode, time of the last change in ns, and bytes. end: bytes of its whole lines. ended: True if the
    last of them has its newline. tip: chain of the last of them.
    """

    status: tuple[int, int, int, int]
    end: int
    ended: bool
    tip: str

    def is_now(self, status: os.stat_result) -> bool:
        """True if the file has not changed."""
        return self.status == _status(status)


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


def read_file(
    path: Path, file: BinaryIO, known: Sequence[Charge], covers: LedgerCoverage | None
) -> tuple[LedgerLines, SeenFile]:
    """Read a file in which these charges and this run were seen before; returns its lines, and the file as it is now.

    Raises LedgerError if one of them is missing, or a line cannot be read or was touched.
    """
    status = os.fstat(file.fileno())  # before the content: a change after it is seen the next time
    _check_size(path, status)
    file.seek(0)
    content = file.read()
    n_known = len(known) + (covers is not None)  # lines
    lost = LedgerError(f"ledger {path} has lost charges, refusing to release anything more")
    if content.count(b"\n") + (not content.endswith(b"\n")) < n_known:
        raise lost
    try:
        lines = read_lines(content)
    except LineFault as fault:
        raise LedgerError(
            f"ledger {path} {fault}, refusing to release anything more: restore the file, or see "
            f"`python -m runners.privacy ledger {path} --verify`, or --repair"
        ) from fault
    if lines.count < n_known or not _names(known) <= _names(lines.charges):
        raise lost
    if covers not in (None, lines.covers):
        raise LedgerError(f"ledger {path} was written by another process meanwhile: start again")
    end = len(content) - len(lines.torn)
    return lines, SeenFile(_status(status), end, end == 0 or content.endswith(b"\n", 0, end), lines.tip)


def append(file: BinaryIO, entry: Charge | LedgerCoverage | None, seen: SeenFile) -> SeenFile:
    """Append an entry (None: nothing) to a locked file, and sync all of it to disk; returns the file as it is then.

    If that fails, the file is as it was before: the bytes of a failed sync may never reach the disk, though reading
    shows them, and must not pass for a charge.
    """
    line, tip = (b"", seen.tip) if entry is None else chained(entry, seen.tip)
    written = (b"" if seen.ended else b"\n") + (line and line + b"\n")
    try:
        if os.fstat(file.fileno()).st_size > seen.end:
            file.truncate(seen.end)  # an incomplete line, whose broadcast never left
        if file.write(written) != len(written):
            raise OSError("the line of a charge was not written as a whole: is the disk full?")
        os.fsync(file.fileno())
    except BaseException:
        with suppress(OSError):
            file.truncate(seen.end)
        raise
    return SeenFile(_status(os.fstat(file.fileno())), seen.end + len(written), True, tip)


def _status(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size


def _check_size(path: Path, status: os.stat_result) -> None:
    if status.st_size > LARGEST:
        raise LedgerError(f"ledger {path} is none: it has {status.st_size} bytes")


def _names(charges: Sequence[Charge]) -> set[tuple[int, str]]:
    return {(charge.round, charge.digest) for charge in charges}
