"""The argument parser that most programs use."""

import argparse
import difflib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from runners.record.terminal import end


class Parser(argparse.ArgumentParser):
    """A parser that also accepts folders as `KEY=FOLDER`, anywhere on the command line.

    An error is one sentence, which suggests the nearest option; the exit code is 2. Options cannot be abbreviated. Help
    texts keep their line breaks.
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        kept = {"allow_abbrev": False, "formatter_class": argparse.RawDescriptionHelpFormatter}
        super().__init__(*args, **{**kept, **settings})
        self._folders: dict[str, Path | None] = {}  # defaults by key

    def add_folder(self, key: str, default: Path | None, help: str) -> None:
        """Accept `KEY=FOLDER`."""
        self.add_argument_group(f"{key}=FOLDER", help)
        self._folders[key] = default

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        words, found = [], argparse.Namespace() if namespace is None else namespace
        for word in sys.argv[1:] if args is None else args:
            key, equals, folder = word.partition("=")
            if equals and key in self._folders:
                setattr(found, key, Path(folder))
            else:
                words.append(word)
        for key, default in self._folders.items():
            if not hasattr(found, key):
                setattr(found, key, default)
        return super().parse_known_args(words, found)

    def error(self, message: str) -> NoReturn:
        end(f"{message}{self._nearest(message)}; see {self.prog} --help", 2)

    def _nearest(self, message: str) -> str:
        unknown = re.match(r"unrecognized arguments: (-\S+)", message)
        options = [option for action in self._actions for option in action.option_strings]
        close = difflib.get_close_matches(unknown[1].partition("=")[0], options, n=1) if unknown else []
        return f" (did you mean {close[0]}?)" if close else ""


def at_least(minimum: int) -> Callable[[str], int]:
    """Return the argparse type of an integer that is at least `minimum`."""

    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < minimum:
            raise argparse.ArgumentTypeError(f"must be an integer of at least {minimum}, got {text!r}")
        return int(text)

    return parse
