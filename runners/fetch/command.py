"""Download the data files: `python -m runners.fetch landmine`; without a name, list them.

A file appears at its place only whole and with the right checksum. Until then its bytes are in `<file>.part` beside
it, and the next attempt, or the same command later, resumes there. An archive (federated EMNIST) is deleted after its
needed file is unpacked. Two fetches of one file at the same time would write to the same part.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import pooch
from rich import box
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from dpfbo.problems.readers.data_files import data_root
from runners.arguments import Parser
from runners.fetch.data_files import DATA_FILES, DataFile
from runners.fetch.download import FetchError, Patience, download, part_of, reason_of


def fetch(
    file: DataFile, root: Path, force: bool = False, patience: Patience = Patience(), console: Console | None = None
) -> bool:
    """Put `file` under the folder `root`; True if it was downloaded, False if it was already there.

    force: replace a file whose checksum is wrong, or unknown because it was unpacked.
    Raises FetchError if the download fails; a file that was there before is kept.
    """
    target = root / file.path
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
        download(file, target, patience, console or Console(stderr=True))
    except OSError as error:
        where = error.filename or part_of(target)
        raise FetchError(f"cannot store {file.name} at {where}: {reason_of(error)}") from error
    return True


def state_of(file: DataFile, root: Path) -> str:
    """The state of the file under `root`: `present`, `different` (wrong checksum), `partial` or `missing`."""
    target = root / file.path
    if target.exists():
        if file.member:  # the published checksum is that of the archive
            return "present" if target.is_file() and target.stat().st_size else "different"
        return "present" if pooch.file_hash(target) == file.sha256 else "different"
    return "partial" if part_of(target).exists() else "missing"


def show_list(root: Path, as_json: bool) -> None:
    """Print all files with their states under `root` to standard output."""
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
    parser = Parser(prog="python -m runners.fetch", description="Download the data files.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="what to fetch; nothing: list what there is")
    parser.add_argument("--list", action="store_true", help="list what can be fetched")
    parser.add_argument("--json", action="store_true", help="print the list as JSON")
    parser.add_argument("--url", help="address to fetch the one NAME from; its checksum stays the same")
    parser.add_argument("--sha256", metavar="HEX", help="checksum of the one NAME instead of the one known here")
    parser.add_argument("--force", action="store_true", help="replace a file whose checksum is wrong or not known")
    parser.add_folder("data_dir", None, "data folder (default: DPFBO_DATA, else data)")
    args = parser.parse_args(argv)
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
            file = replace(DATA_FILES[name], url=args.url or DATA_FILES[name].url)
            if args.sha256:
                file = replace(file, sha256=args.sha256.lower(), bytes=None)
            try:
                new = fetch(file, root, args.force, patience)
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
