"""python -m runners.board: one page that shows experiments while they run."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from dpfbo.formats.files import replace_file
from runners.arguments import Parser
from runners.board import page
from runners.board.board_data import BoardData
from runners.board.server import BoardServer, is_loopback
from runners.record.terminal import say_error

HELP = """One page with progress, curves, privacy and best configurations of experiments, live, from their files alone.

Examples
  python -m runners.board results/mine                       served on this machine; Ctrl-C ends it
  python -m runners.board results/fig2a results/fig2b        several; of results: all experiments in it
  python -m runners.board results/mine --file mine.html      one file that loads nothing

The private records of real releases (privacy.rng=os) are not shown without --private."""
PORT, EVERY = 8765, 3.0
LOOPBACK = "127.0.0.1"


class NoBoard(RuntimeError):
    """The board cannot be shown; the message is one sentence."""


def main(argv: Sequence[str] | None = None) -> int:
    """Serve the board or write it; the exit code is 0, also after Ctrl-C, or 1 for an error."""
    args = _parse(argv)
    try:
        _check_folders(args.folders, must_exist=args.file is not None)
        page.plotly_script()
        if args.file is not None:
            _write(args.folders, args.file, args.private)
        else:
            _serve(args)
    except (NoBoard, page.NoPlotly, OSError) as error:
        say_error(str(error))
        return 1
    except KeyboardInterrupt:
        pass
    return 0


def _check_folders(folders: Sequence[Path], must_exist: bool) -> None:
    """Say which folders are not there yet. Raises NoBoard for a file, or for a missing folder that must exist."""
    for folder in folders:
        if folder.exists() and not folder.is_dir():
            raise NoBoard(f"FOLDER must be a folder of an experiment, got the file {folder}")
        if not folder.exists() and must_exist:
            raise NoBoard(f"there is no folder {folder}")
        if not folder.exists() and not folder.absolute().parent.is_dir():
            raise NoBoard(f"there is neither a folder {folder} nor the one above it")
        if not folder.exists():
            print(f"note: there is no folder {folder} yet; the board shows it when there is", file=sys.stderr)


def _write(folders: Sequence[Path], file: Path, private: bool) -> None:
    data = BoardData(folders, private)
    content = data.for_file()
    if not any(experiment["trials"] for experiment in content["experiments"]):
        raise NoBoard(f"there is no trial in {', '.join(map(str, folders))}")
    text = page.whole_page(content).encode()
    if not file.absolute().parent.is_dir():
        raise NoBoard(f"--file {file}: there is no folder {file.absolute().parent}")
    replace_file(file, lambda f: f.write(text), mode=0o600 if private else 0o644)
    print(file)


def _serve(args: argparse.Namespace) -> None:
    data = BoardData(args.folders, args.private, args.every)
    try:
        server = BoardServer(data, args.host, args.port, args.every)
    except OSError as error:
        raise NoBoard(
            f"--host {args.host} --port {args.port} cannot be served: {error.strerror or error}; "
            "--port 0 takes a free one"
        ) from error
    with server:
        if not is_loopback(args.host):
            print(f"note: whoever reaches {args.host} {_exposed(args.private)}", file=sys.stderr)
        print(f"{server.url}  (Ctrl-C ends the board, not the runs)", flush=True)
        server.serve_forever()


def _exposed(private: bool) -> str:
    more = "with the secret in the address also the private records of real releases; " if private else ""
    return (
        "reads names, settings, progress, epsilon, errors and, of simulations, curves and best configurations; "
        f"{more}nothing is encrypted"
    )


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(
        prog="python -m runners.board", description=HELP, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER", help="of experiments; default: results")
    parser.add_argument("--file", type=Path, metavar="PAGE.html", help="write the page to a file instead of serving it")
    parser.add_argument("--port", type=int, default=PORT, help=f"0 for a free one (default: {PORT})")
    parser.add_argument("--every", type=float, default=EVERY, metavar="SECONDS", help="between updates (default: 3)")
    parser.add_argument("--host", default=LOOPBACK, metavar="ADDRESS", help="other than loopback with --expose alone")
    parser.add_argument("--expose", action="store_true", help="let other machines reach the board")
    parser.add_argument("--private", action="store_true", help="show private records of real releases, too")
    args = parser.parse_args(argv)
    args.folders = args.folders or [Path("results")]
    if not 0 <= args.port <= 65535:
        parser.error(f"--port must be 0..65535, got {args.port}")
    if not 0.1 <= args.every <= 86400:
        parser.error(f"--every must be a number of seconds from 0.1 to 86400, got {args.every:g}")
    if args.file is not None and args.file.suffix != ".html":
        parser.error(f"--file must end in .html, got {args.file}")
    if args.file is not None and args.file.is_dir():
        parser.error(f"--file must be a file, got the folder {args.file}")
    if not is_loopback(args.host) and not args.expose:
        parser.error(
            f"--host {args.host} can be reached from other machines: give --expose if they may read the board, and "
            f"{'private records' if args.private else 'the curves of simulations'} with it"
        )
    return args
