"""The paths and digests of data files, and errors for files that cannot be read."""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from dpfbo.formats.files import check_plain

DATA_DIR_VARIABLE = "DPFBO_DATA"
DEFAULT_DATA_DIR = "data"
GENERATED = "generated"  # in place of a digest if there are no files


class MissingData(FileNotFoundError):
    """A data file is missing; the message says how to get it.

    fetch_name: the file's name for `python -m runners.fetch`; None if it cannot be fetched.
    """

    def __init__(self, message: str, fetch_name: str | None = None) -> None:
        super().__init__(message)
        self.fetch_name = fetch_name


def data_root(data_dir: str | Path | None = None) -> Path:
    """Return the absolute path of the data folder: `data_dir`, else environment variable DPFBO_DATA, else `data`."""
    chosen = data_dir if data_dir is not None else os.environ.get(DATA_DIR_VARIABLE) or DEFAULT_DATA_DIR
    return Path(os.path.abspath(os.path.expanduser(chosen)))


def data_file(data_dir: str | Path | None, relative: str | Sequence[str], fetch_name: str | None) -> Path:
    """Find a data file.

    Args:
        data_dir: The folder that holds the data; None for the folder in DPFBO_DATA, or `data` if that is not set.
        relative: A path in that folder, such as `landmine/LandmineData.mat`, or a sequence of paths. The first
            path that exists is used.
        fetch_name: The name by which `python -m runners.fetch` fetches the file of the first path; None if it cannot.

    Raises:
        MissingData: There is no such file.
    """
    root = data_root(data_dir)
    paths = [root / name for name in ([relative] if isinstance(relative, str) else relative)]
    for path in paths:
        if path.is_file():
            return path
        if path.exists() and not path.is_dir():
            raise MissingData(f"data file {path} must be a plain file, and is a pipe, a socket or a device")
    fetch = ""
    if fetch_name is not None:
        elsewhere = f" data_dir={shlex.quote(str(root))}" if root != data_root() else ""
        fetch = f'run "python -m runners.fetch {fetch_name}{elsewhere}", or '
    raise MissingData(
        f"data file {' or '.join(map(str, paths))} is missing: "
        f"{fetch}point data_dir (or {DATA_DIR_VARIABLE}) at the folder that holds it",
        fetch_name,
    )


@contextmanager
def reading(path: Path, otherwise: str) -> Iterator[None]:
    """Turn an error in the `with` block into a ValueError.

    The ValueError's message is `<path> <otherwise> (<message of the error>)`. For a MemoryError, it is instead
    `<path> needs more memory than there is`. A path that is not a plain file is refused before the block runs.
    """
    if path.exists():
        check_plain(path)
    try:
        yield
    except MemoryError as error:
        raise ValueError(f"{path} needs more memory than there is") from error
    except Exception as error:
        raise ValueError(f"{path} {otherwise} ({' '.join(str(error).split())})") from error


def digest_of_files(paths: Sequence[Path]) -> str:
    """Return `sha256:<digest>` of the contents of files in order, or `generated` if there are no files."""
    if not paths:
        return GENERATED
    whole = hashlib.sha256()
    for path in paths:
        check_plain(path)
        status = path.stat()
        whole.update(_content_digest(path, status.st_mtime_ns, status.st_size).encode() + b"\n")
    return f"sha256:{whole.hexdigest()}"


@lru_cache(maxsize=64)
def _content_digest(path: Path, mtime_ns: int, size: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
