"""Open, lock, read and append to a ledger file.

Only a process that holds the file's lock (`flock`) writes. An incomplete last line comes from an interrupted write.
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

LARGEST = 1 << 30  # bytes of the largest ledger that is read
_LOCK_SECONDS = 60.0  # time to wait while other processes charge the file


class LedgerError(RuntimeError):
    """The ledger cannot be read or written, or contradicts the release to be charged; nothing may be released."""


@dataclass(frozen=True)
class SeenFile:
    """The state of a ledger's file when it was last read or written.

    status: device, inode, modification time in ns, size in bytes. end: the length of the complete lines in bytes; a
    line that lacks only its newline counts as complete. ended: False if the last complete line lacks its newline. tip:
    the chained digest of the last complete line.
    """

    status: tuple[int, int, int, int]
    end: int
    ended: bool
    tip: str

    def is_now(self, status: os.stat_result) -> bool:
        """Return True if the file is unchanged. status: its present status."""
        return self.status == _status(status)


def opened(path: Path) -> BinaryIO:
    """Open a ledger for reading. Raises LedgerError if the path is not a plain file, or the file is too large."""
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
    """Return a ledger's locked file: `held` if it is still the file at `path`, else a newly opened file.

    Raises LedgerError if another process keeps the file locked, or the file cannot be opened for writing.
    """
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
    """Return the lines of a file, and its present state.

    known: the charges at the last read or write. covers: the run that line 1 named at the last read or write; None if
    line 1 named no run. Raises LedgerError if the file is too large, if it lacks a charge in `known`, or if line 1 no
    longer names the run in `covers`. Also raises LedgerError if a line is unreadable or modified.
    """
    status = os.fstat(file.fileno())  # read before the content, so that the next call notices later changes
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
    """Append an entry (None: nothing) to a locked file, sync the file to disk, and return its new state.

    If writing or syncing fails, the file is cut back to the complete lines that it had before.
    """
    line, tip = (b"", seen.tip) if entry is None else chained(entry, seen.tip)
    written = (b"" if seen.ended else b"\n") + (line and line + b"\n")
    try:
        if os.fstat(file.fileno()).st_size > seen.end:
            file.truncate(seen.end)  # cut off an incomplete line, whose broadcast was never sent
        if file.write(written) != len(written):
            raise OSError("the line of a charge was written only in part: is the disk full?")
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
        raise LedgerError(f"ledger {path} is too large: it has {status.st_size} bytes")


def _names(charges: Sequence[Charge]) -> set[tuple[int, str]]:
    return {(charge.round, charge.digest) for charge in charges}
