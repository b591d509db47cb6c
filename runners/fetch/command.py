"""Download the data files: `python -m runners.fetch landmine`; without a name, list them.

A file appears at its place only whole and with the right checksum. Until then its bytes are in `<file>.part` beside
it, where the next attempt, or the same command later, continues. An archive (federated EMNIST) is deleted after its
needed file is unpacked.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich import box
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from dpfbo.problems.readers.data_files import data_root
from runners.arguments import Parser
from runners.fetch.data_files import DATA_FILES, DataFile
from runners.fetch.download import FetchError, download, part_of, reason_of, sha256_of
from runners.record.terminal import say_error


def fetch(file: DataFile, root: Path, force: bool) -> bool:
    """Put `file` under the folder `root`; True if it was downloaded, False if it was already there.

    force: replace a file whose checksum is wrong, or unknown because it was unpacked.
    Raises FetchError if the download fails; a file that was there before is kept.
    """
    target = root / file.path
    try:
        if target.exists() and not force:
            if state_of(file, root) == "present":
                return False
            raise FetchError(
                f"{target} is there and is not what is fetched (checksum {file.sha256}): "
                "move it away, or replace it with --force"
            )
        target.parent.mkdir(parents=True, exist_ok=True)
        download(file, target, Console(stderr=True))
    except OSError as error:
        where = error.filename or part_of(target)
        raise FetchError(f"it cannot be stored at {where}: {reason_of(error)}") from error
    return True


def state_of(file: DataFile, root: Path) -> str:
    """The state of the file under `root`: `present`, `different` (wrong checksum), `partial` or `missing`."""
    target = root / file.path
    if not target.exists():
        return "partial" if part_of(target).exists() else "missing"
    if file.member:  # the published checksum is that of the archive
        return "present" if target.is_file() and target.stat().st_size else "different"
    return "present" if sha256_of(target) == file.sha256 else "different"


def _list(root: Path) -> Table:
    """All files with their states under `root`."""
    table = Table(box=box.SIMPLE_HEAD, title=Text(f"data files in {root}"), title_justify="left")
    for heading in ("name", "file", "size", "state", "what it is, licence, source"):
        table.add_column(heading, overflow="fold", no_wrap=heading in ("name", "size", "state"))
    for name, file in DATA_FILES.items():
        size = "unknown" if file.bytes is None else decimal(file.bytes)
        about = f"{file.description}\n{file.licence}\n{file.url}"
        table.add_row(name, file.path, size, state_of(file, root), about)
    return table


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv`; the exit code is 0, 1 when any file could not be fetched, 130 when interrupted."""
    args = _parse(argv)
    root, code = data_root(args.data_dir), 0
    try:
        if not args.names:
            Console().print(_list(root))
        for name in args.names:
            file = replace(DATA_FILES[name], url=args.url or DATA_FILES[name].url)
            try:
                new = fetch(file, root, args.force)
                print(f"{name}: {'saved as' if new else 'already there,'} {root / file.path}")
            except FetchError as error:
                say_error(f"cannot fetch {name} from {file.url}: {error}")
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
    parser.add_argument("names", nargs="*", metavar="NAME", help="what to fetch; nothing: list what there is")
    parser.add_argument("--url", help="address to fetch the one NAME from; its checksum stays the same")
    parser.add_argument("--force", action="store_true", help="replace a file whose checksum is wrong or not known")
    parser.add_folder("data_dir", None, "data folder (default: DPFBO_DATA, else data)")
    args = parser.parse_args(argv)
    if unknown := [name for name in args.names if name not in DATA_FILES]:
        parser.error(f"unknown name {', '.join(unknown)}: the known names are {', '.join(DATA_FILES)}")
    if args.url and len(args.names) != 1:
        parser.error("--url needs exactly one NAME")
    return args
