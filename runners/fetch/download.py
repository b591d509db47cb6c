"""Download, resume, verify and unpack data files."""

import bz2
import hashlib
import shutil
import tarfile
import time
from pathlib import Path, PurePosixPath

import requests
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn

from dpfbo.formats.files import move_into_place, replace_file
from runners.fetch.data_files import DataFile

ATTEMPTS = 4
BACKOFF_SECONDS = 1.0  # pause before the second attempt; it doubles with each further attempt
TIMEOUT_SECONDS = 30.0
MOST_BYTES = 8 * 2**30  # largest download if its size is unknown
TRANSIENT_STATUS = (408, 429, 500, 502, 503, 504)
_CHUNK_BYTES = 1 << 16
_COLUMNS = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())


class FetchError(Exception):
    """A file could not be fetched; the message gives the reason."""


class _Interrupted(FetchError):
    """The transfer was interrupted; another attempt may succeed."""


def part_of(target: Path) -> Path:
    """Return the path of the unfinished download of `target`."""
    return target.with_name(target.name + ".part")


def sha256_of(path: Path) -> str:
    """Return the SHA-256 hex digest of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def download(file: DataFile, target: Path, console: Console) -> None:
    """Download the files in `file.downloads`, check their checksums, and store the result as `target`.

    If the function `file.make` is set, the result is the table that `file.make` computes from all downloads. If the
    name `file.member` is set, the result is the member of this name in the downloaded archive. Otherwise, the result is
    the download itself. Raises FetchError, OSError or MissingPackage.
    """
    parts = [target.with_name(f"{target.name}{n or ''}.part") for n, _ in enumerate(file.downloads)]
    for source, part in zip(file.downloads, parts, strict=True):
        resumed = part.exists()
        if not resumed or sha256_of(part) != source.sha256:
            _receive(source, part, console)
            if resumed and sha256_of(part) != source.sha256:  # it may begin with bytes of another download
                part.unlink()
                _receive(source, part, console)
            if (found := sha256_of(part)) != source.sha256:
                part.unlink()
                raise FetchError(f"it has checksum {found}, expected {source.sha256}, and was deleted")
    if file.make is not None:
        table, packed = file.make(*parts), {"method": "gzip", "filename": target.name, "mtime": 1}
        replace_file(target, lambda out: table.to_csv(out, index=False, compression=packed))
    elif file.member is None:
        return move_into_place(parts[0], target)
    else:
        try:
            _unpack(parts[0], file.member, target)
        except ValueError as error:
            parts[0].unlink()
            raise FetchError(f"{file.member} cannot be unpacked: {error}; the download was deleted") from error
    for part in parts:
        part.unlink()


def _receive(file: DataFile, part: Path, console: Console) -> None:
    """Download `file` to `part`, with retries that resume."""
    with Progress(*_COLUMNS, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(file.name, total=file.bytes)
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return _request(file, part, progress, task)
            except _Interrupted as error:
                reason = str(error)
            if attempt < ATTEMPTS:
                wait = BACKOFF_SECONDS * 2 ** (attempt - 1)
                said = f"{file.name}: {reason}, trying again in {wait:g} s"
                console.print(said, markup=False, highlight=False, soft_wrap=True)
                time.sleep(wait)
    kept = f" ({part.stat().st_size} bytes are kept, the same command resumes)" if part.exists() else ""
    raise FetchError(reason + kept)


def _request(file: DataFile, part: Path, progress: Progress, task: TaskID) -> None:
    """Append the missing bytes to `part`, or replace `part` if the server sends the whole file."""
    offset = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "dpfbo", "Accept-Encoding": "identity"}
    headers |= {"Range": f"bytes={offset}-"} if offset else {}
    try:
        with requests.get(file.url, headers=headers, timeout=TIMEOUT_SECONDS, stream=True) as response:
            partial = response.status_code == 206
            continues = response.headers.get("Content-Range", "").startswith(f"bytes {offset}-")
            if offset and (response.status_code == 416 or (partial and not continues)):
                part.unlink()
                raise _Interrupted(f"the server cannot continue after {offset} bytes")
            if not response.ok:
                kind = _Interrupted if response.status_code in TRANSIENT_STATUS else FetchError
                raise kind(f"HTTP {response.status_code} {response.reason}".rstrip())
            response.raw.enforce_content_length = False  # else urllib3 drops the last bytes of a body that breaks off
            with part.open("ab" if partial else "wb") as out:
                for chunk in response.iter_content(_CHUNK_BYTES):
                    out.write(chunk)
                    progress.update(task, completed=out.tell())
                    if out.tell() > (file.bytes or MOST_BYTES):
                        part.unlink()
                        raise FetchError(f"it has more than {file.bytes or MOST_BYTES} bytes, and was deleted")
                if response.raw.length_remaining or out.tell() < (file.bytes or 0):
                    raise _Interrupted(f"the connection closed after {out.tell()} bytes")
    except ValueError as error:  # before RequestException: requests.exceptions.InvalidURL is both
        raise FetchError(str(error)) from error
    except requests.RequestException as error:
        raise _Interrupted(reason_of(error)) from error


def reason_of(error: BaseException) -> str:
    """Return the operating system's message for an error that a library has wrapped."""
    reason, cause = error, error.__cause__ or error.__context__
    while cause is not None:
        reason, cause = cause if isinstance(cause, OSError) else reason, cause.__cause__ or cause.__context__
    return getattr(reason, "strerror", None) or str(reason) or type(reason).__name__


def _unpack(path: Path, member: str, target: Path) -> None:
    """Unpack `member` from a tar.bz2 archive. Raises ValueError if the archive is damaged or lacks `member`."""
    try:
        with bz2.BZ2File(path) as content, tarfile.open(fileobj=content, mode="r|") as archive:
            entry = next((e for e in archive if e.isfile() and PurePosixPath(e.name).name == member), None)
            found = archive.extractfile(entry) if entry else None
            if found is None:
                raise ValueError("it is not in the archive")
            replace_file(target, lambda out: shutil.copyfileobj(found, out))
    except (tarfile.TarError, EOFError, OSError) as error:
        if getattr(error, "errno", None) is not None:  # a disk error; bz2 reports damage as an OSError without a number
            raise
        raise ValueError(str(error)) from error
