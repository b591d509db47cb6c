"""The command-line options that all programs of analysis share."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

_KEY, _OPTION = "results_dir", "--results-dir"


def add_results_dir(parser: argparse.ArgumentParser) -> None:
    """Let the program take `results_dir=FOLDER`, if `results_dir_as_option` goes before.

    The older `--results-dir FOLDER` still works.
    """
    group = parser.add_argument_group(f"{_KEY}=FOLDER", "results folder (default: results)")
    group.add_argument(_OPTION, type=Path, default=Path("results"), help=argparse.SUPPRESS)


def results_dir_as_option(argv: Sequence[str] | None) -> list[str]:
    """The command line `argv`, or this process's, with `results_dir=FOLDER` as `--results-dir=FOLDER` in front."""
    given = list(sys.argv[1:] if argv is None else argv)
    folders = [word for word in given if word.startswith(f"{_KEY}=")]
    return [*(_OPTION + word.removeprefix(_KEY) for word in folders), *(word for word in given if word not in folders)]
