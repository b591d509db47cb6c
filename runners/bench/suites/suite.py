"""The form of a suite: its options, and the function that measures."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass

from runners.bench.bench import Bench
from runners.bench.measurement import Findings


@dataclass(frozen=True)
class Suite:
    """One kind of measurement.

    purpose: a line of help. add_arguments: adds its own options; those of `Bench` are added for every suite. measure:
    measures; raises BenchError, MissingData or ValueError, one sentence, before any work where it can. quick: the
    arguments with which it takes about 20 seconds. repeats: the default number.
    """

    purpose: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    measure: Callable[[argparse.Namespace, Bench], Findings]
    quick: tuple[str, ...] = ()
    repeats: int = 3
