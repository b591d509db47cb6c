"""An append-only journal of events in JSON lines, each on disk when `append` returns."""

import fcntl
import json
import os
from pathlib import Path
from typing import Any, BinaryIO

from dpfbo.formats.bounded import read_plain
from dpfbo.formats.files import NoFile, make_folder, open_file, replace_file, sync_folder

_MOST_BYTES = 2**30  # the maximum size of a message or a broadcast


class StateError(RuntimeError):
    """A call does not fit the state of its object, or the state cannot be read."""


class Journal:
    """The events of one owner, such as an agent; only the owner may read them.

    folder: the folder that keeps the events; None to keep them in memory. name: the file in `folder` with one event per
    line. first: the first event, which names the owner. An incomplete last line is dropped. Raises StateError if
    another process uses the folder, the folder has another owner, or an earlier line cannot be read.
    """

    def __init__(self, folder: str | os.PathLike[str] | None, name: str, first: dict[str, Any]) -> None:
        self.folder = folder = None if folder is None else Path(folder).absolute()
        self.events: list[dict[str, Any]] = []
        self._blobs: dict[str, bytes] = {}
        self._file: BinaryIO | None = None
        if folder is not None:
            make_folder(folder, private=True)
            self._file = _opened(folder / name)
            self.events = _events(self._file, folder / name)
            sync_folder(folder)
        if not self.events:
            self.append(first)
        if self.events[0] != first:
            self.close()
            raise StateError(
                f"{folder} is of {_others(self.events[0], first)}, and this is {_others(first, self.events[0])}"
            )

    def append(self, event: dict[str, Any]) -> None:
        """Append an event. If the journal has a folder, the event is on disk when the call returns."""
        if self._file is not None:
            self._file.write(json.dumps(event, allow_nan=False).encode() + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        self.events.append(event)

    def keep(self, name: str, data: bytes) -> None:
        """Keep bytes under a name, written atomically."""
        if self.folder is None:
            self._blobs[name] = data
        else:
            replace_file(self.folder / name, lambda file: file.write(data), mode=0o600)

    def kept(self, name: str) -> bytes | None:
        """Return the bytes kept under a name; None if there are none."""
        if self.folder is None:
            return self._blobs.get(name)
        try:
            return read_plain(self.folder / name, _MOST_BYTES)
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise StateError(f"{error}: restore it") from error

    def need(self, name: str) -> bytes:
        """Return the bytes kept under a name. Raises StateError if there are none."""
        data = self.kept(name)
        if data is None:
            raise StateError(f"{name} is missing{'' if self.folder is None else f' in {self.folder}'}: restore it")
        return data

    def forget(self, name: str) -> None:
        """Delete the bytes kept under a name."""
        self._blobs.pop(name, None)
        if self.folder is not None:
            (self.folder / name).unlink(missing_ok=True)

    def copied(self) -> "Journal":
        """Return an in-memory copy with all events. Bytes that `keep` wrote to files are not copied."""
        copy = Journal(None, "", self.events[0])
        copy.events, copy._blobs = list(self.events), dict(self._blobs)
        return copy

    def close(self) -> None:
        """Unlock the folder for other processes."""
        if self._file is not None:
            self._file.close()


def _others(event: dict[str, Any], than: dict[str, Any]) -> str:
    """Describe the entries of `event` that are not in `than`."""
    return ", ".join(f"{key}={value!r}" for key, value in event.items() if than.get(key) != value)


def broadcast_file(round: int) -> str:
    """Return the name under which a round's broadcast is kept."""
    return f"broadcast-{round:05d}.bin"


def _opened(path: Path) -> BinaryIO:
    try:
        file = open_file(path, "ab+")
    except NoFile as error:
        raise StateError(str(error)) from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise StateError(f"another process works in {path.parent}: wait for it") from error
    return file


def read_events(path: Path) -> list[dict[str, Any]]:
    """Read the events of a journal without changing its file; an incomplete last line is left out.

    Raises StateError if a complete line cannot be read.
    """
    return _parsed(read_plain(path), path)


def _events(file: BinaryIO, path: Path) -> list[dict[str, Any]]:
    """Read the events of the complete lines, and truncate the file after the last newline."""
    file.seek(0)
    content = file.read()
    if tail := content.rpartition(b"\n")[2]:
        file.truncate(len(content) - len(tail))
    return _parsed(content, path)


def _parsed(content: bytes, path: Path) -> list[dict[str, Any]]:
    whole, events = content.rpartition(b"\n")[0], []
    for number, line in enumerate(whole.split(b"\n") if whole else [], start=1):
        try:
            event = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise StateError(f"{path} line {number} cannot be read: restore the file") from error
        if not isinstance(event, dict) or not isinstance(event.get("event"), str):
            raise StateError(f"{path} line {number} is no event: restore the file")
        events.append(event)
    return events
