"""What the command lines of the programs share, apart from Hydra's."""

import argparse
import sys
from collections.abc import Callable
from typing import NoReturn

from runners.record.terminal import say_error


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one sentence; exit code 2."""

    def error(self, message: str) -> NoReturn:
        say_error(f"{message}; see {self.prog} --help")
        sys.exit(2)


def at_least(minimum: int) -> Callable[[str], int]:
    """The type of an option that is an integer of at least `minimum`."""

    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < minimum:
            raise argparse.ArgumentTypeError(f"must be an integer of at least {minimum}, got {text!r}")
        return int(text)

    return parse
