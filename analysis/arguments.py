"""Parsing of command lines and exit codes, shared by all programs of `analysis`."""

import argparse
import functools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ParamSpec

from analysis.load import LoadError

_KEY = "results_dir"
P = ParamSpec("P")


def parsed(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse `argv`, or the arguments of this process if None; `results_dir=FOLDER` may stand anywhere among them."""
    parser.add_argument_group(f"{_KEY}=FOLDER", "results folder (default: results)")
    words = list(sys.argv[1:] if argv is None else argv)
    folders = [word for word in words if word.startswith(f"{_KEY}=")]
    args = parser.parse_args([word for word in words if word not in folders])
    args.results_dir = Path(folders[-1].removeprefix(f"{_KEY}=") if folders else "results")
    return args


def exit_code(main: Callable[P, int]) -> Callable[P, int]:
    """Decorate `main` to print a LoadError and return 1, and to return 130 after Ctrl-C."""

    @functools.wraps(main)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> int:
        try:
            return main(*args, **kwargs)
        except LoadError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            return 130

    return guarded
