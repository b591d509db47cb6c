"""Files that appear whole or not at all, and that survive a power cut where they have to."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO


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
