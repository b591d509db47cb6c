"""Write files atomically and durably, and open them without blocking."""

import fcntl
import os
import stat
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, BinaryIO

_KINDS = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}


class NoFile(OSError, ValueError):
    """The path names a folder, a pipe, a socket or a device instead of a file."""


def check_plain(path: Path) -> None:
    """Raise NoFile if `path` is a folder, pipe, socket or device, and OSError if it is absent."""
    _check_mode(path, path.stat().st_mode)


def _check_mode(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise NoFile(f"{path} must be a plain file, got {_KINDS.get(stat.S_IFMT(mode), 'a device')}")


def open_file(path: Path, mode: str, buffering: int = -1) -> BinaryIO:
    """Open a file without blocking.

    mode: `rb`, or `ab+`, which creates an absent file; only the owner can read the new file. Raises NoFile at once if
    the path is not a plain file.
    """
    if path.exists():
        check_plain(path)
    file: BinaryIO = open(path, mode, buffering, opener=_opened_at_once)  # type: ignore[assignment]
    try:
        _check_mode(path, os.fstat(file.fileno()).st_mode)  # the path may have been replaced since the check
    except NoFile:
        file.close()
        raise
    return file


def _opened_at_once(path: str, flags: int) -> int:
    flags |= os.O_NONBLOCK | os.O_NOCTTY
    if not flags & os.O_CREAT:
        return os.open(path, flags)
    try:
        descriptor = os.open(path, flags | os.O_EXCL, 0o600)
    except FileExistsError:
        return os.open(path, flags, 0o600)
    os.fchmod(descriptor, 0o600)
    return descriptor


def locked_file(path: Path, seconds: float) -> BinaryIO:
    """Open a file in mode ab+, without a buffer, and hold an exclusive lock on it until it is closed.

    If the file is replaced during the wait, the new file is opened. Raises BlockingIOError if another holder keeps the
    lock for `seconds`, and NoFile if the path is not a plain file.
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
    """Return True if the path still names the open file."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except (FileNotFoundError, NotADirectoryError):
        return False


def replace_file(path: Path, write: Callable[[BinaryIO], object], durable: bool = True, mode: int = 0o644) -> None:
    """Write a file under another name and move it into place.

    durable: True to sync the file to disk before returning. If False, a power failure may leave an incomplete file. A
    killed process leaves the whole old or the whole new file in either case.
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


def replace_text(path: Path, text: str, durable: bool = True, mode: int = 0o644) -> None:
    """Write a text, in UTF-8, by `replace_file`."""
    replace_file(path, lambda file: file.write(text.encode()), durable, mode)


def move_into_place(temporary: Path, path: Path, durable: bool = True) -> None:
    """Rename a finished file to `path`, in the same folder, and replace any file there; durable: see `replace_file`."""
    if durable:
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
    os.replace(temporary, path)
    if durable:
        sync_folder(path.parent)


def make_folder(path: Path, private: bool = False) -> None:
    """Create a folder and its parents, and sync their entries to disk; an existing folder does not change.

    private: if `path` is new, only its owner may open it; new parents are not private.
    """
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True, mode=0o700 if private else 0o777)
    if private and path in missing:
        path.chmod(0o700)
    for folder in missing:
        sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Sync the entries of a folder to disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
