"""Files that appear whole or not at all, and that survive a power cut where they have to."""

import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

_KINDS = {stat.S_IFDIR: "directory", stat.S_IFIFO: "FIFO", stat.S_IFSOCK: "socket"}


class NoFile(OSError):
    """A folder, a FIFO, a socket or a device is where a file should be."""


def open_file(path: Path, mode: str) -> BinaryIO:
    """Open a file. mode: rb, or ab+ to create it if it is absent.

    Raises NoFile at once where the path names something else: opening a FIFO would wait for its other end.
    """
    if path.exists():
        _check_is_file(path, path.stat().st_mode)
    flags = os.O_RDONLY if mode == "rb" else os.O_RDWR | os.O_APPEND | os.O_CREAT
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, 0o666)
    try:
        _check_is_file(path, os.fstat(descriptor).st_mode)  # it may have changed in between
        file: BinaryIO = open(descriptor, mode)  # type: ignore[assignment]
        return file
    except BaseException:
        os.close(descriptor)
        raise


def _check_is_file(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise NoFile(f"{path} is a {_KINDS.get(stat.S_IFMT(mode), 'device')}, not a file")


def replace_file(path: Path, write: Callable[[BinaryIO], object], durable: bool = True, mode: int = 0o644) -> None:
    """Write a file under another name and move it into place.

    durable: sync it to disk before returning; otherwise it is whole or absent after a kill, but not after a power cut.
    """
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            write(file)
        os.chmod(temporary, mode)
        move_into_place(Path(temporary), path, durable)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)  # an interrupt may arrive after the rename
        raise


def move_into_place(temporary: Path, path: Path, durable: bool = True) -> None:
    """Rename a finished file of the same folder to `path`, replacing what is there; durable: as in `replace_file`."""
    if durable:
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
    os.replace(temporary, path)
    if durable:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the entries of a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
