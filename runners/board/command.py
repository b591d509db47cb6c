"""python -m runners.board: a web page that shows experiments while they run."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from dpfbo.formats.files import replace_text
from runners.arguments import Parser
from runners.board import page
from runners.board.board_data import BoardData
from runners.board.page import NoBoard
from runners.board.server import BoardServer, is_loopback
from runners.record.terminal import say_error

HELP = """A live page with progress, curves, privacy and best configurations of experiments, from their files alone.

Examples
  python -m runners.board results/mine                       serve the page on this machine until Ctrl-C
  python -m runners.board results/fig2a results/fig2b        several experiments; `results`: all experiments in it
  python -m runners.board results/mine --file mine.html      write one file that needs no server

The private records of real releases (privacy.rng=os) are not shown without --private."""


def main(argv: Sequence[str] | None = None) -> int:
    """Serve the board or write it to a file; return 0, also after Ctrl-C, or 1 after an error."""
    args = _parse(argv)
    try:
        for folder in args.folders:
            if folder.exists() and not folder.is_dir():
                raise NoBoard(f"FOLDER must be a folder of an experiment, got the file {folder}")
            if not folder.exists() and args.file is not None:
                raise NoBoard(f"there is no folder {folder}")
            if not folder.exists():
                print(f"note: there is no folder {folder} yet; the board will show it once it exists", file=sys.stderr)
        page.plotly_script()
        if args.file is not None:
            _write(args)
        else:
            _serve(args)
    except (NoBoard, OSError) as error:
        say_error(str(error))
        return 1
    except KeyboardInterrupt:
        pass
    return 0


def _write(args: argparse.Namespace) -> None:
    content = BoardData(args.folders, args.private).for_file()
    if not any(experiment["trials"] for experiment in content["experiments"]):
        raise NoBoard(f"there is no trial in {', '.join(map(str, args.folders))}")
    if not args.file.absolute().parent.is_dir():
        raise NoBoard(f"--file {args.file}: there is no folder {args.file.absolute().parent}")
    replace_text(args.file, page.whole_page(content), mode=0o600 if args.private else 0o644)
    print(args.file)


def _serve(args: argparse.Namespace) -> None:
    try:
        server = BoardServer(BoardData(args.folders, args.private), args.host, args.port, args.every)
    except OSError as error:
        said = f"--host {args.host} --port {args.port} cannot be served: {error.strerror or error}"
        raise NoBoard(f"{said}; --port 0 takes a free one") from error
    with server:
        if not is_loopback(args.host):
            private = "and, with the secret in the address, private records of real releases; " * args.private
            print(
                f"note: whoever reaches {args.host} can read names, settings, progress, epsilon and, of "
                f"simulations, errors, curves and best configurations; {private}nothing is encrypted",
                file=sys.stderr,
            )
        print(f"{server.url}  (Ctrl-C ends the board, not the runs)", flush=True)
        server.serve_forever()


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(prog="python -m runners.board", description=HELP)
    add = parser.add_argument
    add("folders", nargs="*", type=Path, metavar="FOLDER", help="folders of experiments; default: results")
    add("--file", type=Path, metavar="PAGE.html", help="write the page to a file instead of serving it")
    add("--port", type=int, default=8765, help="port of the server, 0 for a free one (default: 8765)")
    add("--every", type=float, default=3.0, metavar="SECONDS", help="time between updates (default: 3)")
    add("--host", default="127.0.0.1", metavar="ADDRESS", help="address to serve; needs --expose unless it is loopback")
    add("--expose", action="store_true", help="let other machines reach the board")
    add("--private", action="store_true", help="show also the private records of real releases")
    args = parser.parse_args(argv)
    args.folders = args.folders or [Path("results")]
    if not 0 <= args.port <= 65535:
        parser.error(f"--port must be 0..65535, got {args.port}")
    if not 0.1 <= args.every <= 86400:
        parser.error(f"--every must be a number of seconds from 0.1 to 86400, got {args.every:g}")
    if args.file is not None and (args.file.suffix != ".html" or args.file.is_dir()):
        parser.error(f"--file must be a file whose name ends in .html, got {args.file}")
    if not is_loopback(args.host) and not args.expose:
        shown = "private records" if args.private else "the curves of simulations"
        said = f"--host {args.host} can be reached from other machines: give --expose if they may read the board"
        parser.error(f"{said}, including {shown}")
    return args
