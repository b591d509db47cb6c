"""Files that appear whole or not at all, and that survive a power cut where they have to."""

import fcntl
import os
import stat
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, BinaryIO

_KINDS = {stat.S_IFDIR: "directory", stat.S_IFIFO: "FIFO", stat.S_IFSOCK: "socket"}


class NoFile(OSError):
    """A folder, a FIFO, a socket or a device is where a file should be."""


def open_file(path: Path, mode: str, buffering: int = -1) -> BinaryIO:
    """Open a file. mode: rb, or ab+ to create it if it is absent, for its owner alone whatever the umask.

    Raises NoFile at once where the path names something else: opening a FIFO would wait for its other end.
    """
    if path.exists():
        _check_is_file(path, path.stat().st_mode)
    flags = os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    descriptor = os.open(path, os.O_RDONLY | flags) if mode == "rb" else _appending(path, flags)
    try:
        _check_is_file(path, os.fstat(descriptor).st_mode)  # it may have changed in between
        file: BinaryIO = open(descriptor, mode, buffering)  # type: ignore[assignment]
        return file
    except BaseException:
        os.close(descriptor)
        raise


def _appending(path: Path, flags: int) -> int:
    flags |= os.O_RDWR | os.O_APPEND | os.O_CREAT
    try:
        descriptor = os.open(path, flags | os.O_EXCL, 0o600)
    except FileExistsError:
        return os.open(path, flags, 0o600)
    os.fchmod(descriptor, 0o600)
    return descriptor


def locked_file(path: Path, seconds: float) -> BinaryIO:
    """Open a file as `ab+` does, without a buffer, and lock it against other openings until it is closed.

    seconds: how long to wait for another holder. The lock is on the file and not on its name: one that was replaced
    while we waited is opened anew. It ends with its process, and is no file that a killed process leaves behind.

    Raises BlockingIOError if another holder keeps it, NoFile like `open_file`.
    """
    give_up, pause = time.monotonic() + seconds, 0.0005
    while True:
        file = open_file(path, "ab+", buffering=0)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if is_file_at(file, path):
                return file
            file.close()
        except BlockingIOError:
            file.close()
            if time.monotonic() > give_up:
                raise
            time.sleep(pause)
            pause = min(2 * pause, 0.002)
        except BaseException:
            file.close()
            raise


def is_file_at(file: IO[Any], path: Path) -> bool:
    """True if the path still names the open file."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except (FileNotFoundError, NotADirectoryError):
        return False


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


def make_folder(path: Path, private: bool = False) -> None:
    """Create a folder and its parents, with the entry of each on disk; nothing changes if it is there.

    private: a new one is its owner's alone, whatever the umask.
    """
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True, mode=0o700 if private else 0o777)
    if private and path in missing:
        path.chmod(0o700)
    for folder in missing:
        sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Make the entries of a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
