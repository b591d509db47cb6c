"""The command-line argument that all programs of analysis share."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

_KEY = "results_dir"


def parsed(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> argparse.Namespace:
    """The options of the command line `argv`, or this process's, and the folder that `results_dir=FOLDER` names."""
    parser.add_argument_group(f"{_KEY}=FOLDER", "results folder (default: results)")
    words = list(sys.argv[1:] if argv is None else argv)
    folders = [word for word in words if word.startswith(f"{_KEY}=")]
    args = parser.parse_args([word for word in words if word not in folders])
    args.results_dir = Path(folders[-1].removeprefix(f"{_KEY}=") if folders else "results")
    return args
