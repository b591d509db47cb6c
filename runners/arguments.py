"""The command-line parts that the programs without Hydra share."""

import argparse
import difflib
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from runners.record.terminal import say_error


class Parser(argparse.ArgumentParser):
    """A parser that reports an error in one sentence, with the option that was perhaps meant, and exit code 2.

    Options are not abbreviated: a part of a name may mean another option in the next version.
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **settings})

    def error(self, message: str) -> NoReturn:
        say_error(f"{message}{self._nearest(message)}; see {self.prog} --help")
        sys.exit(2)

    def _nearest(self, message: str) -> str:
        unknown = re.match(r"unrecognized arguments: (-\S+)", message)
        options = [option for action in self._actions for option in action.option_strings]
        close = difflib.get_close_matches(unknown[1].partition("=")[0], options, n=1) if unknown else []
        return f" (did you mean {close[0]}?)" if close else ""


def at_least(minimum: int) -> Callable[[str], int]:
    """The type of an option that is an integer of at least `minimum`."""

    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < minimum:
            raise argparse.ArgumentTypeError(f"must be an integer of at least {minimum}, got {text!r}")
        return int(text)

    return parse


def add_folder(parser: argparse.ArgumentParser, key: str, default: Path | None, help: str) -> None:
    """Add a folder, `results_dir=FOLDER` after `folders_as_options`; the older `--results-dir FOLDER` still works."""
    group = parser.add_argument_group(f"{key}=FOLDER", help)
    group.add_argument(_option(key), type=Path, default=default, help=argparse.SUPPRESS)


def folders_as_options(argv: Sequence[str] | None, *keys: str) -> list[str]:
    """The command line with `KEY=FOLDER` as `--KEY=FOLDER` in front for these keys. argv: None for this process's."""
    given = list(sys.argv[1:] if argv is None else argv)
    folders = [word for word in given if word.startswith(tuple(f"{key}=" for key in keys))]
    others = [word for word in given if word not in folders]
    return [*(_option(key) + equals + value for key, equals, value in (f.partition("=") for f in folders)), *others]


def _option(key: str) -> str:
    return "--" + key.replace("_", "-")
