"""Download data files with `python -m runners.fetch NAME`; without a name, the command lists them.

An unfinished download is kept as `<file>.part`, and the same command resumes it. A download is used only if its
checksum is right.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from dpfbo.extras import MissingPackage
from dpfbo.problems.readers.data_files import data_root
from runners.arguments import Parser
from runners.fetch.data_files import DATA_FILES, DataFile
from runners.fetch.download import FetchError, download, part_of, reason_of, sha256_of
from runners.record.terminal import say_error


def fetch(file: DataFile, root: Path) -> bool:
    """Download `file` into the folder `root`; return False if it was already there.

    Raises FetchError if the download fails, or if `root` has a different file at `file.path`.
    """
    target = root / file.path
    try:
        if target.exists():
            if state_of(file, root) == "present":
                return False
            raise FetchError(f"{target} exists, and is not what is fetched (checksum {file.sha256}): move it away")
        target.parent.mkdir(parents=True, exist_ok=True)
        download(file, target, Console(stderr=True))
    except OSError as error:
        where = error.filename or part_of(target)
        raise FetchError(f"it cannot be stored at {where}: {reason_of(error)}") from error
    return True


def state_of(file: DataFile, root: Path) -> str:
    """Return the state of `file` in `root`: `present`, `different`, `partial` or `missing`.

    A file that was unpacked or computed from a download has no known checksum: it is `present` if it is not empty.
    """
    target = root / file.path
    if not target.exists():
        return "partial" if part_of(target).exists() else "missing"
    if file.member or file.make:  # the checksum is that of the download
        return "present" if target.is_file() and target.stat().st_size else "different"
    return "present" if sha256_of(target) == file.sha256 else "different"


def _list(root: Path) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title=Text(f"data files in {root}"), title_justify="left")
    for heading in ("name", "file", "size", "state", "what it is, licence, source"):
        table.add_column(heading, overflow="fold", no_wrap=heading in ("name", "size", "state"))
    for name, file in DATA_FILES.items():
        size = "unknown" if file.bytes is None else decimal(sum(one.bytes or 0 for one in file.downloads))
        about = "\n".join([file.description, file.licence, *(one.url for one in file.downloads)])
        table.add_row(name, file.path, size, state_of(file, root), about)
    return table


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv`; return 0 on success, 1 if a file could not be fetched, 130 if interrupted."""
    args = _parse(argv)
    root, code = data_root(args.data_dir), 0
    try:
        if not args.names:
            Console().print(_list(root))
        for name in args.names:
            file = DATA_FILES[name]
            try:
                new = fetch(file, root)
                print(f"{name}: {'saved as' if new else 'already there,'} {root / file.path}")
            except (FetchError, MissingPackage) as error:
                say_error(f"cannot fetch {name} from {', '.join(one.url for one in file.downloads)}: {error}")
                code = 1
    except KeyboardInterrupt:
        say_error("interrupted: what has arrived is kept, and the same command resumes")
        return 130
    except OSError as error:
        say_error(f"cannot look into {root}: {error.strerror or error}")
        return 1
    return code


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(prog="python -m runners.fetch", description="Download the data files.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="data file to download; without a name, list all")
    parser.add_folder("data_dir", None, "data folder (default: DPFBO_DATA, else data)")
    args = parser.parse_args(argv)
    if unknown := [name for name in args.names if name not in DATA_FILES]:
        parser.error(f"unknown name {', '.join(unknown)}: the known names are {', '.join(DATA_FILES)}")
    return args
