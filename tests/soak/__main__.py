"""make soak: a thousand SIGKILLs at random moments, and ten thousand cases of hostile input, in about an hour.

Prints a row for every kind of kill, then tables of all. Exit code: 0 if nothing was found, 1 if a record differs, a
charge is missing, double or too small, a traceback, a hang, or memory that grows; 130 if it was interrupted, which
prints what it has.
"""

import argparse
import io
import logging
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import chdir, contextmanager, redirect_stdout
from itertools import groupby
from pathlib import Path

import torch

from tests.helpers.killed_runs import ray_session
from tests.isolation.environment import isolated
from tests.soak import report as reports
from tests.soak.fuzzing import fuzzed
from tests.soak.kinds import KINDS, MANY_RUNS, Kind, Place, shares
from tests.soak.memory import Watched
from tests.soak.outcome import Outcome
from tests.soak.report import Report

MANY = 200  # undisturbed runs in one process, for a thousand kills
_SECONDS = 20.0  # between two lines of progress


class Progress:
    """Lines on standard error, one every `_SECONDS`."""

    def __init__(self) -> None:
        self._begin = self._said = time.monotonic()

    def __call__(self, words: str) -> None:
        now = time.monotonic()
        if now - self._said > _SECONDS:
            self._said = now
            print(f"  {(now - self._begin) / 60:.0f} min: {words}", file=sys.stderr, flush=True)


def killed(kinds: Sequence[Kind], kills: dict[str, int], folder: Path, seed: int, say: Progress) -> Iterator[Outcome]:
    """A row for every kind, as far as it got when it is interrupted."""
    place = Place(folder)
    many = max(20, MANY * sum(kills.values()) // 1000)
    yield from _row(MANY_RUNS, (MANY_RUNS.world(place, n, seed) for n in (many,)), 0, say)
    for ray, some in groupby(kinds, key=lambda kind: kind.ray):
        with ray_session() if ray else _no_ray() as place.mark:
            for kind in some:
                yield from _row(kind, kind.run(place, kills[kind.name], seed), kills[kind.name], say)


def _row(kind: Kind, outcomes: Iterator[Outcome], planned: int, say: Progress) -> Iterator[Outcome]:
    row, begin = Outcome(kind.name, records=True, ledger=True, runs=0), time.monotonic()
    watched = Watched()
    try:
        with watched:
            for outcome in outcomes:
                row.add(outcome)
                say(f"{kind.name}, {row.kills} of {planned} kills")
    finally:
        row.seconds, row.memory = time.monotonic() - begin, watched.memory
        if row.runs:
            yield row


@contextmanager
def _no_ray() -> Iterator[str]:
    yield ""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills-in-all", type=int, default=1000, metavar="N", help="over all kinds (default 1000)")
    parser.add_argument("--cases", type=int, default=10_000, metavar="N", help="of hostile input (default 10000)")
    parser.add_argument("--only", metavar="WORDS", help="kinds whose names have these words, without hostile input")
    parser.add_argument("--seed", type=int, default=0, help="of the moments of the kills (default 0)")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="write soak.md and soak.json there")
    arguments = parser.parse_args(argv)
    for name in ("kills_in_all", "cases"):
        if (value := getattr(arguments, name)) < 1:
            parser.error(f"argument --{name.replace('_', '-')}: must be at least 1, got {value}")
    kinds = [kind for kind in KINDS if (arguments.only or "") in kind.name]
    if not kinds:
        parser.error(f"argument --only: no kind has {arguments.only!r} in its name: {[k.name for k in KINDS]}")
    if arguments.out is not None:
        arguments.out.mkdir(parents=True, exist_ok=True)  # a folder that cannot be made stops the soak now
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.ERROR)
    report = Report((arguments.kills_in_all, arguments.cases), arguments.seed)
    begin, watched = time.monotonic(), Watched()
    try:
        with watched:
            _soak(report, kinds, arguments)
    except KeyboardInterrupt:
        report.interrupted = True
    report.seconds, report.memory = time.monotonic() - begin, watched.memory
    print("\n" + reports.summary(report), flush=True)
    if arguments.out is not None:
        reports.write(report, arguments.out)
    return 130 if report.interrupted else 0 if report.passed else 1


def _soak(report: Report, kinds: Sequence[Kind], arguments: argparse.Namespace) -> None:
    """Run all kinds, then hostile input, and add their rows to the report."""
    table, say = sys.stdout, Progress()
    # Ray reports each death on standard output
    with (
        tempfile.TemporaryDirectory(prefix="soak", ignore_cleanup_errors=True) as folder,
        chdir(folder),
        redirect_stdout(io.StringIO()),
    ):
        rows = killed(kinds, shares(arguments.kills_in_all), Path(folder), arguments.seed, say)
        for row in rows:
            report.rows.append(row)
            cells = zip(reports.KILLED, reports.killed_cells(row), strict=True)
            print(", ".join(f"{name} {cell}" for name, cell in cells if cell), file=table, flush=True)
        if arguments.only is None:
            for found in fuzzed(arguments.cases):
                report.fuzzed.append(found)
                cells = zip(reports.DAMAGED, reports.damaged_cells(found), strict=True)
                print(", ".join(f"{name} {cell}" for name, cell in cells), file=table, flush=True)


if __name__ == "__main__":
    with isolated():
        code = main()
    sys.exit(code)
