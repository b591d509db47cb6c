"""A watch over the user's files: whatever opens, lists, makes, moves or removes one is refused, and reported.

It sees what Python does, also in processes that tests start, by audit events; questions such as `exists` have none.
"""

import os
import sys
from pathlib import Path
from typing import Any

WATCHED = "DPFBO_TESTS_WATCHED"  # environment: files and folders, joined by os.pathsep
REPORT = "DPFBO_TESTS_REPORT"  # environment: the file to which refusals are added
EVENTS = {  # and how many of their first arguments are paths
    "open": 1, "os.listdir": 1, "os.scandir": 1, "os.mkdir": 1, "os.rename": 2, "os.remove": 1, "os.rmdir": 1,
    "os.link": 2, "os.symlink": 2, "os.truncate": 1, "os.utime": 1, "os.chmod": 1, "os.chown": 1, "sqlite3.connect": 1,
}  # fmt: skip
HAVE_FOLDER = EVENTS.keys() - {"open", "os.listdir", "os.scandir", "os.truncate", "sqlite3.connect"}
_watching = False


def watch() -> None:
    """Watch the files that the environment names, to the end of this process."""
    global _watching
    if not _watching:
        _watching = True
        places = tuple(os.environ[WATCHED].split(os.pathsep))
        inside = tuple(place + os.sep for place in places)
        sys.addaudithook(lambda event, arguments: _check(event, arguments, places, inside))


def _check(event: str, arguments: tuple[Any, ...], places: tuple[str, ...], inside: tuple[str, ...]) -> None:
    for named in arguments[: EVENTS.get(event, 0)]:
        if not isinstance(named, (str, bytes, os.PathLike)):
            continue  # a file descriptor
        path = os.fsdecode(named)
        if not path.startswith(os.sep) and _is_below_a_descriptor(event, arguments):
            continue  # of a folder that was opened before by its name
        if not path.startswith(os.sep) or ".." in path:
            path = os.path.abspath(path)
        if path in places or path.startswith(inside):
            refusal = f"{os.environ.get('PYTEST_CURRENT_TEST', 'outside of a test')}: {event} {path}"
            with open(os.environ[REPORT], "a") as report:
                report.write(f"{refusal}\n")
            raise PermissionError(f"the user's own files are not for tests: {refusal}")


def _is_below_a_descriptor(event: str, arguments: tuple[Any, ...]) -> bool:
    """True if a relative path may not be of the working folder: shutil.rmtree calls os.open(name, dir_fd=...)."""
    return arguments[1] is None if event == "open" else event in HAVE_FOLDER and arguments[-1] != -1


def take_report() -> str:
    """The refusals since the last call, a line each, in this process and in those that it started."""
    report = Path(os.environ[REPORT])
    if not report.exists():
        return ""
    text = report.read_text()
    report.unlink()
    return text
