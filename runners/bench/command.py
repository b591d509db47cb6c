"""python -m runners.bench SUITE: measure times and memory, and compare the times with floors.

docs/results/speed.md says what a floor is. Every measurement is made in a fresh process; times are medians over
repeats. The command prints tables, and writes SUITE.json and, if a size varies, SUITE.png.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from runners.arguments import Parser, at_least
from runners.bench import fresh_process, machine, report
from runners.bench.fresh_process import BenchError, Repeats
from runners.bench.suites import SUITES
from runners.record.environment import environment
from runners.record.terminal import say_error
from runners.user_errors import exit_code


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` and return the exit code: 1 for an error, 130 when interrupted."""
    args = _parser().parse_args(argv)
    return exit_code(lambda: _measure(args))


def _measure(args: argparse.Namespace) -> int:
    suite, repeats = SUITES[args.suite], Repeats(args.repeats, args.seconds, args.threads)
    cases = list(suite.cases(args))  # bad settings and missing data are refused before any work
    args.out.mkdir(parents=True, exist_ok=True)
    rates = fresh_process.in_fresh_process(machine.measured_rates, args.out, args.threads)
    entries, complete = [], True
    for case in cases:
        print(f"{args.suite}: {case.what}, {dict(case.size)} ...", file=sys.stderr, flush=True)
        try:
            found = fresh_process.in_fresh_process(fresh_process.timed, case.prepare, case.arguments, rates, repeats)
            entries.append(report.entry(case, found))
        except BenchError as error:
            say_error(f"{case.what}, {dict(case.size)}: {error}")
            complete = False
    if not entries:
        return 1
    facts = {**environment(), "threads": args.threads, "rates": rates}
    content = {"suite": args.suite, "unit": suite.unit, "machine": facts, "measurements": entries}
    (args.out / f"{args.suite}.json").write_text(json.dumps(content, indent=1) + "\n")
    report.draw(f"{args.suite}: {suite.purpose}", suite.unit, entries, args.out / f"{args.suite}.png")
    speed = ", ".join(f"{kind} {rate:.3g}" for kind, rate in rates.items())
    print(f"{facts['processor']}, {args.threads} thread(s); operations a second: {speed}")
    print(f"{suite.purpose}: {suite.unit}\n\n{report.tables(entries)}\n\n{args.out}/{args.suite}.json")
    return int(not complete)


def _parser() -> Parser:
    parser = Parser(prog="python -m runners.bench", description=__doc__, formatter_class=argparse.HelpFormatter)
    suites = parser.add_subparsers(dest="suite", required=True, metavar="SUITE")
    shows_defaults = argparse.ArgumentDefaultsHelpFormatter
    for name, suite in SUITES.items():
        one = suites.add_parser(name, help=suite.purpose, description=suite.purpose, formatter_class=shows_defaults)
        for option, settings in suite.options.items():
            one.add_argument(option, **settings)
        one.add_argument("--repeats", type=at_least(1), default=3, metavar="K", help="make at most K repeats")
        one.add_argument("--seconds", type=at_least(1), default=20, metavar="S", help="begin no repeat after S seconds")
        one.add_argument("--threads", type=at_least(1), default=1, metavar="K", help="threads of torch, NumPy")
        one.add_argument(
            "--out", type=Path, default=Path("results/bench"), metavar="FOLDER", help="for SUITE.json and .png"
        )
    return parser
