"""Download a data file with pooch; an interrupted download is resumed.

pooch checks the checksum, and keeps no file with another one. It would start every download anew; its downloader
`Resuming` keeps the received bytes in `<file>.part` and asks the server for the others.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pooch
import requests
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from dpfbo import checks
from dpfbo.formats.files import move_into_place
from runners.fetch.data_files import DataFile
from runners.fetch.unpack import unpack

CHUNK_BYTES = 1 << 16
MOST_BYTES = 8 * 2**30  # of a file whose size is not known
TRANSIENT_STATUS = frozenset({408, 429, 500, 502, 503, 504})
COLUMNS = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())

pooch.get_logger().setLevel(logging.ERROR)  # the command says what happens


@dataclass(frozen=True)
class Patience:
    """The limits of a fetch: `attempts` in all, with waits of `backoff_s`, twice that, and so on between them."""

    attempts: int = 4
    backoff_s: float = 1.0
    timeout_s: float = 30.0

    def __post_init__(self) -> None:
        checks.integer("attempts", self.attempts, minimum=1)
        checks.non_negative("backoff_s", self.backoff_s)
        checks.positive("timeout_s", self.timeout_s)


class FetchError(Exception):
    """A file could not be fetched; the message is one sentence for the person at the terminal."""


class _Interrupted(Exception):
    """The transfer broke off; another attempt may succeed."""


def part_of(target: Path) -> Path:
    """The file beside `target` that holds the bytes of an unfinished download."""
    return target.with_name(target.name + ".part")


def download(file: DataFile, target: Path, patience: Patience, console: Console) -> None:
    """Store `file`, or its member, at `target`, whole and with the right checksum; raises FetchError or OSError."""
    part = part_of(target)
    hashes, urls = {part.name: f"sha256:{file.sha256}"}, {part.name: file.url}
    twice = int(part.exists())  # one more if the old part came from another address
    resuming = Resuming(file, part, patience, console)
    try:
        pooch.create(part.parent, "", registry=hashes, urls=urls, retry_if_failed=twice).fetch(
            part.name, None, resuming
        )
    except ValueError as error:
        wrong = f"has checksum {resuming.sha256}, expected {file.sha256}"
        raise FetchError(f"{file.name} from {file.url} {wrong}: the download was deleted") from error
    if not file.member:
        return move_into_place(part, target)
    resuming.say(f"unpacking {file.member}")
    try:
        unpack(part, file.member, target)
    except ValueError as error:
        part.unlink()
        what = f"{file.member} of {file.name} from {file.url}"
        raise FetchError(f"cannot unpack {what}: {error}; the download was deleted") from error
    part.unlink()


@dataclass
class Resuming:
    """A downloader for pooch: several attempts, each resuming the last one. sha256: the checksum of the download."""

    file: DataFile
    part: Path
    patience: Patience
    console: Console
    sha256: str = field(default="", init=False)

    def __call__(self, url: str, output_file: str, store: pooch.Pooch) -> None:
        """Write what `url` sends to `output_file`, or raise FetchError."""
        with Progress(*COLUMNS, console=self.console, disable=not self.console.is_terminal) as progress:
            task = progress.add_task(self.file.name, total=self.file.bytes, completed=self._arrived())
            self._try(lambda size: progress.update(task, completed=size))
        self.sha256 = pooch.file_hash(self.part)
        shutil.copyfile(self.part, output_file)  # pooch deletes its file when it is interrupted
        if self.sha256 != self.file.sha256:
            self.part.unlink()

    def say(self, text: str) -> None:
        self.console.print(f"{self.file.name}: {text}", markup=False, highlight=False, soft_wrap=True)

    def _try(self, show: Callable[[int], None]) -> None:
        for attempt in range(1, self.patience.attempts + 1):
            try:
                return self._transfer(show)
            except _Interrupted as error:
                reason = str(error)
            if attempt < self.patience.attempts:
                wait_s = self.patience.backoff_s * 2 ** (attempt - 1)
                self.say(f"{reason}, trying again in {wait_s:g} s")
                time.sleep(wait_s)
        kept = f" ({self._arrived()} bytes are kept, the same command resumes)" if self._arrived() else ""
        raise self._failed(reason + kept)

    def _transfer(self, show: Callable[[int], None]) -> None:
        """Make one request: append the missing bytes to `part`, or write it anew if the server cannot resume."""
        offset = self._arrived()
        headers = {"User-Agent": "dpfbo", "Accept-Encoding": "identity"}
        headers |= {"Range": f"bytes={offset}-"} if offset else {}
        if not self.file.url.startswith(("http://", "https://")):
            raise self._failed("the address must start with http:// or https://")
        try:
            with requests.get(self.file.url, headers=headers, timeout=self.patience.timeout_s, stream=True) as response:
                if not offset or _goes_on(response, offset):
                    return self._receive(response, show)
        except ValueError as error:  # before RequestException: requests.exceptions.InvalidURL is both
            raise self._failed(str(error)) from error
        except requests.RequestException as error:
            raise _Interrupted(reason_of(error)) from error
        self.part.unlink()
        self._transfer(show)

    def _receive(self, response: requests.Response, show: Callable[[int], None]) -> None:
        """Append the body of a partial `response` to `part`; the body of a whole one replaces it."""
        if not response.ok:
            reason = f"HTTP {response.status_code} {response.reason}".rstrip()
            raise _Interrupted(reason) if response.status_code in TRANSIENT_STATUS else self._failed(reason)
        response.raw.enforce_content_length = False  # else urllib3 drops the last bytes of a body that breaks off
        most, length = self.file.bytes, response.headers.get("Content-Length")
        if length is not None and not length.isdecimal():
            raise self._failed(f"it says that it has {length!r} bytes")
        with self.part.open("ab" if response.status_code == requests.codes.partial else "wb") as out:
            end = most if length is None else out.tell() + int(length)
            for chunk in response.iter_content(CHUNK_BYTES):
                out.write(chunk)
                show(out.tell())
                if out.tell() > (MOST_BYTES if most is None else most):
                    self.part.unlink()
                    bound = f"the {most} bytes of" if most is not None else f"{MOST_BYTES} bytes for"
                    what = f"{self.file.url} sends more than {bound} {self.file.name}"
                    raise FetchError(f"{what}: the download was deleted")
            if end is not None and out.tell() < end:
                raise _Interrupted(f"the connection closed after {out.tell()} of {end} bytes")

    def _arrived(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0

    def _failed(self, reason: str) -> FetchError:
        return FetchError(f"cannot download {self.file.name} from {self.file.url}: {reason}")


def reason_of(error: BaseException) -> str:
    """The operating system's words for an error that libraries wrapped in exceptions of their own."""
    reason, cause = error, error.__cause__ or error.__context__
    while cause is not None:
        reason, cause = cause if isinstance(cause, OSError) else reason, cause.__cause__ or cause.__context__
    return getattr(reason, "strerror", None) or str(reason) or type(reason).__name__


def _goes_on(response: requests.Response, offset: int) -> bool:
    """False if the server sends another range than the requested one, or says that there is none."""
    start = response.headers.get("Content-Range", "").startswith(f"bytes {offset}-")
    return response.status_code != 416 and (start or response.status_code != requests.codes.partial)
