"""Download the data files: `python -m runners.fetch landmine`; without a name, list them.

A file appears at its place only whole and with the right checksum. Until then its bytes are in
`<file>.part` beside it, from which the next attempt, or the same command later, goes on. Of an archive
(federated EMNIST) the one member that is needed is unpacked, and the archive deleted.
Run one fetch of a file at a time: two would write to the same part.
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import json
import os
import re
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich import box
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.table import Table
from rich.text import Text

from dpfbo.problems.readers.data_files import data_root
from runners.arguments import add_folder, folders_as_options
from runners.fetch.data_files import DATA_FILES, DataFile
from runners.fetch.unpack import unpack

CHUNK_BYTES = 1 << 16
Response = http.client.HTTPResponse | urllib.error.HTTPError
TRANSIENT_STATUS = frozenset({408, 429, 500, 502, 503, 504})


@dataclass(frozen=True)
class Patience:
    """How long a fetch keeps trying: `attempts` in all, waiting `backoff_s`, then twice that, and so on."""

    attempts: int = 4
    backoff_s: float = 1.0
    timeout_s: float = 30.0

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ValueError(f"attempts must be at least 1, got {self.attempts}")
        if self.backoff_s < 0:
            raise ValueError(f"backoff_s must not be negative, got {self.backoff_s}")
        if self.timeout_s <= 0:
            raise ValueError(f"timeout_s must be positive, got {self.timeout_s}")


class FetchError(Exception):
    """A file could not be fetched; the message is one sentence for the person at the terminal."""


class _Interrupted(Exception):
    """The transfer broke off in a way that another attempt may mend."""


def fetch(
    file: DataFile,
    root: Path,
    *,
    force: bool = False,
    patience: Patience = Patience(),
    console: Console | None = None,
) -> bool:
    """Put `file` under the folder `root`: True when it was downloaded, False when it was already there.

    Args:
        file: what to fetch.
        root: the data folder; created when absent.
        force: replace a file whose checksum is wrong, or that has none because it was unpacked.
        patience: attempts, waits and timeouts.
        console: where progress is shown; standard error by default.

    Raises:
        FetchError: nothing was put in place; what stood at the target before still does.
    """
    target = root / file.path
    part = target.with_name(target.name + ".part")
    try:
        if target.exists():
            if not force and state_of(file, root) == "present":
                return False
            if not force:
                raise FetchError(
                    f"{target} is there and is not what is fetched (checksum {file.sha256}): "
                    "move it away, or replace it with --force"
                )
        target.parent.mkdir(parents=True, exist_ok=True)
        console = console or Console(stderr=True)
        resumed = part.exists()
        _download(file, part, patience, console)
        try:
            _put_in_place(file, part, target, console)
        except FetchError:
            if not resumed:
                raise
            _download(file, part, patience, console)  # what was there may have come from another address
            _put_in_place(file, part, target, console)
    except OSError as error:
        where = error.filename or part
        raise FetchError(f"cannot store {file.name} at {where}: {error.strerror or error}") from error
    return True


def sha256_of(path: Path) -> str:
    """Hex SHA-256 digest of the file at `path`."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _put_in_place(file: DataFile, part: Path, target: Path, console: Console) -> None:
    """Move the finished `part`, or its member, to `target`, on disk and with the right checksum, or delete it."""
    got = sha256_of(part)
    if got != file.sha256:
        part.unlink()
        raise FetchError(
            f"{file.name} from {file.url} has checksum {got}, expected {file.sha256}: the download was deleted"
        )
    if file.member:
        console.print(f"{file.name}: unpacking {file.member}", markup=False, highlight=False, soft_wrap=True)
        try:
            unpack(part, file.member, target)
        except ValueError as error:
            part.unlink()
            what = f"{file.member} of {file.name} from {file.url}"
            raise FetchError(f"cannot unpack {what}: {error}; the download was deleted") from error
        part.unlink()
        return
    with part.open("r+b") as handle:
        os.fsync(handle.fileno())
    os.replace(part, target)


def _download(file: DataFile, part: Path, patience: Patience, console: Console) -> None:
    """Fill `part`, in as many attempts as `patience` allows, each going on where the last one ended."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(file.name, total=file.bytes, completed=_size(part))
        for attempt in range(1, patience.attempts + 1):
            try:
                _transfer(file, part, patience.timeout_s, lambda n: progress.update(task, completed=n))
                return
            except _Interrupted as error:
                reason = str(error)
            if attempt < patience.attempts:
                wait_s = patience.backoff_s * 2 ** (attempt - 1)
                note = f"{file.name}: {reason}, trying again in {wait_s:g} s"
                console.print(note, markup=False, highlight=False, soft_wrap=True)
                time.sleep(wait_s)
    kept = f" ({_size(part)} bytes are kept, the same command resumes)" if _size(part) else ""
    raise FetchError(f"cannot download {file.name} from {file.url}: {reason}{kept}")


def _transfer(file: DataFile, part: Path, timeout_s: float, show: Callable[[int], None]) -> None:
    """One request: append what is missing of `part`, or write it anew where the server cannot go on."""
    offset = _size(part)
    with _request(file, offset, timeout_s) as response:
        resumed = offset > 0 and response.status == 206 and _range_start(response) == offset
        if not offset or resumed or response.status == 200:
            _receive(file, response, part, offset if resumed else 0, show)
            return
    # 416, or a range that was not asked for: the part is either whole already or no use.
    if sha256_of(part) != file.sha256:
        part.unlink()
        _transfer(file, part, timeout_s, show)


def _receive(file: DataFile, response: Response, part: Path, start: int, show: Callable[[int], None]) -> None:
    """Write the body of `response` to `part` from byte `start` on."""
    length: int | None = getattr(response, "length", None)
    end = file.bytes if length is None else start + length
    size = start
    with part.open("ab" if start else "wb") as handle:
        for chunk in _chunks(response):
            handle.write(chunk)
            size += len(chunk)
            show(size)
            if file.bytes is not None and size > file.bytes:
                break
    if file.bytes is not None and size > file.bytes:
        part.unlink()
        raise FetchError(f"{file.url} sends more than the {file.bytes} bytes of {file.name}: the download was deleted")
    if end is not None and size < end:
        raise _Interrupted(f"the connection closed after {size} of {end} bytes")


def _request(file: DataFile, offset: int, timeout_s: float) -> Response:
    """The open response to a GET of `file.url` from byte `offset` on; status 416 is returned like a success."""
    headers = {"User-Agent": "dpfbo"} | ({"Range": f"bytes={offset}-"} if offset else {})
    try:
        if not file.url.startswith(("http://", "https://")):
            raise ValueError("the address must start with http:// or https://")
        request = urllib.request.Request(file.url, headers=headers)
        response: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=timeout_s)
        return response
    except urllib.error.HTTPError as error:
        if error.code == 416 and offset:
            return error
        error.close()
        reason = f"HTTP {error.code} {error.reason}".rstrip()
        if error.code in TRANSIENT_STATUS:
            raise _Interrupted(reason) from error
        raise FetchError(f"cannot download {file.name} from {file.url}: {reason}") from error
    except ValueError as error:  # before HTTPException: http.client.InvalidURL is both
        raise FetchError(f"cannot download {file.name} from {file.url}: {error}") from error
    except (OSError, http.client.HTTPException) as error:
        raise _Interrupted(_reason(error)) from error


def _chunks(response: Response) -> Iterator[bytes]:
    """Body of `response` in pieces; network errors become `_Interrupted`, so that disk errors stay apart."""
    while True:
        try:
            chunk = response.read(CHUNK_BYTES)
        except (OSError, http.client.HTTPException) as error:
            raise _Interrupted(_reason(error)) from error
        if not chunk:
            return
        yield chunk


def _range_start(response: Response) -> int | None:
    found = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
    return int(found[1]) if found else None


def _reason(error: Exception) -> str:
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    return str(getattr(cause, "strerror", None) or cause or type(cause).__name__)


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def state_of(file: DataFile, root: Path) -> str:
    """Whether the file is `present`, `different` (wrong checksum), `partial` or `missing` under `root`."""
    target = root / file.path
    if target.exists():
        if file.member:  # of what was unpacked, no checksum is published
            return "present" if target.is_file() and target.stat().st_size else "different"
        return "present" if sha256_of(target) == file.sha256 else "different"
    return "partial" if target.with_name(target.name + ".part").exists() else "missing"


def show_list(root: Path, as_json: bool) -> None:
    """Print what can be fetched, and what of it is under `root`, to standard output."""
    files = [(file, state_of(file, root)) for file in DATA_FILES.values()]
    if as_json:
        print(json.dumps([asdict(file) | {"state": state} for file, state in files], indent=2))
        return
    table = Table(box=box.SIMPLE_HEAD, title=Text(f"data files in {root}"), title_justify="left")
    for heading in ("name", "file", "size", "state", "what it is, licence, source"):
        table.add_column(heading, overflow="fold", no_wrap=heading in ("name", "size", "state"))
    for file, state in files:
        size = "unknown" if file.bytes is None else decimal(file.bytes)
        table.add_row(file.name, file.path, size, state, f"{file.description}\n{file.licence}\n{file.url}")
    Console().print(table)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m runners.fetch", description="Download the data files.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="what to fetch; nothing: list what there is")
    parser.add_argument("--list", action="store_true", help="list what can be fetched")
    parser.add_argument("--json", action="store_true", help="print the list as JSON")
    parser.add_argument("--url", help="address to fetch the one NAME from; its checksum stays the same")
    parser.add_argument("--sha256", metavar="HEX", help="checksum of the one NAME instead of the one known here")
    parser.add_argument("--force", action="store_true", help="replace a file whose checksum is wrong or not known")
    add_folder(parser, "data_dir", None, "data folder (default: DPFBO_DATA, else data)")
    args = parser.parse_args(folders_as_options(argv, "data_dir"))
    unknown = [name for name in args.names if name not in DATA_FILES]
    if unknown:
        parser.error(f"unknown name {', '.join(unknown)}: the known names are {', '.join(DATA_FILES)}")
    if args.names and (args.list or args.json):
        parser.error("--list and --json take no NAME")
    if (args.url or args.sha256) and len(args.names) != 1:
        parser.error("--url and --sha256 need exactly one NAME")
    if args.sha256 and not re.fullmatch("[0-9a-fA-F]{64}", args.sha256):
        parser.error(f"--sha256 must be 64 hexadecimal digits, got {args.sha256}")
    return args


def main(argv: Sequence[str] | None = None, patience: Patience = Patience()) -> int:
    """Run the command line `argv`; the exit code is 0, or 1 when any file could not be fetched."""
    args = _parse(argv)
    root = data_root(args.data_dir)
    code = 0
    try:
        if not args.names:
            show_list(root, args.json)
        for name in args.names:
            known = DATA_FILES[name]
            checksum = args.sha256.lower() if args.sha256 else known.sha256
            size = None if args.sha256 else known.bytes
            file = replace(known, url=args.url or known.url, sha256=checksum, bytes=size)
            try:
                new = fetch(file, root, force=args.force, patience=patience)
            except FetchError as error:
                print(f"error: {error}", file=sys.stderr)
                code = 1
                continue
            print(f"{name}: {'saved as' if new else 'already there,'} {root / file.path}")
    except KeyboardInterrupt:
        print("interrupted: what has arrived is kept, and the same command resumes", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"error: cannot look into {root}: {error.strerror or error}", file=sys.stderr)
        return 1
    return code


if __name__ == "__main__":
    sys.exit(main())
