"""The suite `accounting`: seconds of accountants for schedules of equal and of different rounds, and of a ledger."""

import argparse
import math
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dpfbo.privacy.accounting import ACCOUNTANTS, accountant_named
from dpfbo.privacy.accounting.events import round_event
from dpfbo.privacy.ledger import Charge, Ledger
from runners.arguments import at_least
from runners.bench.bench import Bench
from runners.bench.floors import Work
from runners.bench.machine import OperationRates
from runners.bench.measured_process import OnStep, Reply
from runners.bench.measurement import BenchPanel, Findings, FloorTime, Measurement, Spread
from runners.bench.suites.suite import Suite

_Q, _Z, _DELTA = 0.01, 1.0, 1e-5
_SUBSET = (10, 1000)  # of the accountant of subsets of fixed size
_LOG_MOMENTS = sum(range(3, 35))  # terms of the moments 1..32, each a binomial sum
KINDS = {"equal": "rounds with the same noise", "different": "rounds with all different noise"}
PANELS = [
    BenchPanel(kind, f"an accountant's curve, {words}", "seconds", "T", "rounds T") for kind, words in KINDS.items()
]
LEDGER = BenchPanel("ledger", "charges to a ledger, each on disk before the next", "seconds", "charges", "charges")


def curve(on_step: OnStep, name: str, kind: str, rounds: int, repeats: int, seconds: float) -> dict[str, Any]:
    """Time an accountant's `curve`, epsilon after each round, and `epsilon`, that after the last alone.

    No two repeats have the same noise: accountants keep what they computed for a round.
    """
    accountant, runs, end = accountant_named(name), list[dict[str, float]](), time.monotonic() + seconds
    accountant.curve(_events(name, kind, 2, 0.5), _DELTA)  # imports, and tables that all rounds share
    while not runs or (len(runs) < repeats and time.monotonic() < end):
        shift = len(runs) * 1e-3
        schedules = [_events(name, kind, rounds, shift), _events(name, kind, rounds, shift + 5e-4)]
        begin, cpu = time.perf_counter(), time.process_time()
        accountant.curve(schedules[0], _DELTA)
        spent = {"curve": time.perf_counter() - begin, "cpu": time.process_time() - cpu}
        begin = time.perf_counter()
        accountant.epsilon(schedules[1], _DELTA)
        runs.append({**spent, "last epsilon": time.perf_counter() - begin})
        on_step(len(runs), repeats)
    return {"runs": runs}


def _events(name: str, kind: str, rounds: int, shift: float) -> list[Any]:
    subset = _SUBSET if name == "fixed_size" else None
    noises = [_Z + shift + (t / rounds if kind == "different" else 0.0) for t in range(rounds)]
    return [round_event(_Q, z, subset) for z in noises]


def ledger(on_step: OnStep, folder: str, charges: int, repeats: int, seconds: float) -> dict[str, Any]:
    """Time charges to a ledger in a file of `folder`."""
    runs, end = list[dict[str, float]](), time.monotonic() + seconds
    while not runs or (len(runs) < repeats and time.monotonic() < end):
        with tempfile.TemporaryDirectory(dir=folder) as own:
            book = Ledger(Path(own) / "ledger.jsonl")
            begin, cpu = time.perf_counter(), time.process_time()
            for t in range(charges):
                book.charge(Charge(t, _Q, _Z, 1.0, 1.0, f"{t:064x}"))
                on_step(t, charges)
            runs.append({"curve": time.perf_counter() - begin, "cpu": time.process_time() - cpu})
    return {"runs": runs}


def measure(args: argparse.Namespace, bench: Bench) -> Findings:
    """Measure every accountant at growing numbers of rounds, up to `--limit` seconds, and a ledger."""
    measurements, notes = list[Measurement](), list[str]()
    for panel in PANELS:
        for name in args.accountants:
            measurements += _series(bench, args, notes, panel, name, args.rounds)
    measurements += _series(bench, args, notes, LEDGER, "ledger", args.charges)
    notes += [
        f"q = {_Q}, z = {_Z} or {_Z} to {2 * _Z}, delta = {_DELTA}; fixed_size: {_SUBSET[0]} of {_SUBSET[1]} agents",
        "floors: moments, exp of the terms of 32 binomial sums for each different noise; rdp, the same at its integer "
        "orders; ledger, one durable append a charge; none is stated for pld, gdp and fixed_size",
    ]
    settings = {name: getattr(args, name) for name in ("accountants", "rounds", "charges", "limit")}
    return Findings("accounting", settings, [*PANELS, LEDGER], measurements, notes)


def _series(
    bench: Bench, args: argparse.Namespace, notes: list[str], panel: BenchPanel, name: str, sizes: Sequence[int]
) -> Iterator[Measurement]:
    each = 0.0  # seconds for one round or charge at the last size
    for size in sorted(sizes):
        title = f"{name}, {size} {panel.axis if panel is LEDGER else f'{panel.name} rounds'}"
        if each * size > args.limit:
            notes.append(f"{title}: left out, about {each * size:.0f} s, --limit is {args.limit:g} s")
            continue
        common = {"repeats": bench.repeats, "seconds": bench.seconds}
        if panel is LEDGER:
            reply = bench.ask(
                title, "runners.bench.suites.accounting:ledger", folder=bench.folder, charges=size, **common
            )
        else:
            reply = bench.ask(
                title, "runners.bench.suites.accounting:curve", name=name, kind=panel.name, rounds=size, **common
            )
        measurement = _measurement(reply, panel, name, size, bench.facts.rates)
        each = measurement.time.median / size
        yield measurement


def _measurement(reply: Reply, panel: BenchPanel, name: str, size: int, rates: OperationRates) -> Measurement:
    runs = reply.result["runs"]
    parts = ("curve", "last epsilon") if "last epsilon" in runs[0] else ("curve",)
    phases = {part: Spread.of(run[part] for run in runs) for part in parts} if len(parts) > 1 else {}
    floor = floor_of(name, 1 if panel.name == "equal" else size, rates)
    return Measurement(
        panel.name, name, {str(panel.axis): size}, Spread.of(run["curve"] for run in runs), phases,
        Spread.of(run["cpu"] for run in runs), reply.start_mb, reply.peak_mb, {"curve": floor} if floor else {},
    )  # fmt: skip


def floor_of(name: str, distinct: int, rates: OperationRates) -> FloorTime | None:
    """The floor of so many different rounds, or charges; None where none is stated."""
    if name == "ledger":
        return Work(appends=distinct).time(rates, "one line appended and synced a charge")
    if name == "moments":
        return Work(exp=distinct * _LOG_MOMENTS).time(rates, "exp of each term of 32 sums, by different rounds")
    if name == "rdp":
        from dpfbo.privacy.accounting.rdp import ORDERS

        terms = sum(order + 1 for order in ORDERS if order == math.floor(order))
        return Work(exp=distinct * terms).time(rates, "exp of each term at the integer orders, by different rounds")
    return None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--accountants", nargs="+", choices=tuple(ACCOUNTANTS), default=list(ACCOUNTANTS), metavar="NAME",
        help=f"(default: {' '.join(ACCOUNTANTS)})")  # fmt: skip
    add("--rounds", type=at_least(1), nargs="+", default=[50, 200, 2000], metavar="T", help="(default: 50 200 2000)")
    add("--charges", type=at_least(1), nargs="+", default=[1000, 10_000], metavar="K", help="(default: 1000 10000)")
    add("--limit", type=at_least(1), default=10, metavar="S",
        help="leave out sizes that would take more seconds (default: 10)")  # fmt: skip


QUICK = ("--rounds", "10", "50", "--charges", "100", "500", "--repeats", "1", "--limit", "3", "--accountants")
SUITE = Suite("seconds of accountants and of a ledger", add_arguments, measure, (*QUICK, "rdp", "pld"), repeats=2)
