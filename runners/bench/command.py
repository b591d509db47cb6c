"""python -m runners.bench SUITE: times and memory on this machine, beside floors and stated references.

Every suite takes medians of repeats, each measurement in a fresh process; it prints tables, and writes SUITE.json and
SUITE.png into results/bench. `all` runs every suite that can run here; `show FILE.json` prints one again.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

from dpfbo.formats.files import replace_file
from runners.arguments import Parser, at_least
from runners.bench import measured_process, plots, tables
from runners.bench.bench import Bench, progress
from runners.bench.machine import MachineFacts, available_gb
from runners.bench.measured_process import BenchError
from runners.bench.measurement import NOT_COUNTED, Findings
from runners.bench.suites import accounting, actors, growth, outsourced, overhead, trials, whole_runs
from runners.bench.suites.suite import Suite
from runners.record.terminal import say_error
from runners.user_errors import USER_ERRORS

SUITES: dict[str, Suite] = {
    "overhead": overhead.SUITE,
    "synthetic": whole_runs.SYNTHETIC,
    "landmine": whole_runs.LANDMINE,
    "agents": growth.AGENTS_SUITE,
    "features": growth.FEATURES_SUITE,
    "accounting": accounting.SUITE,
    "outsourced": outsourced.SUITE,
    "ray": actors.SUITE,
    "gpu": growth.GPU_SUITE,
    "sweep": trials.SUITE,
}
ALL, SHOW = "all", "show"
_ERRORS = (BenchError, *USER_ERRORS)
_BUSY = 0.8  # share of the time below which a process of one thread cannot have had a core to itself
_SHARE = 0.8  # of the available memory that a measurement may allocate unless --memory says otherwise


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv`; the exit code is 0, 1 for an error, 2 for bad arguments, 130 when interrupted."""
    words = sys.argv[1:] if argv is None else argv
    parser = _parser()
    args = parser.parse_args(sorted(words, key=lambda word: word.startswith("results_dir=")))  # after the suite's name
    try:
        if args.suite == SHOW:
            tables.show(Findings.from_json(args.file.read_text()))
            return 0
        if args.suite == ALL:
            return _all(args, parser)
        return _run(args.suite, args)
    except KeyboardInterrupt:
        say_error("interrupted")
        return 130
    except _ERRORS as error:
        say_error(str(error))
        return 1


def _run(name: str, args: argparse.Namespace) -> int:
    """Measure, write and print one suite; exit code 1 if a part of it could not be measured."""
    suite, folder = SUITES[name], _folder(args)
    if name == "gpu":
        growth.check_cuda()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".measuring.") as scratch:
        device = "cuda" if name == "gpu" else "cpu"
        memory = args.memory or _SHARE * available_gb()
        bench = Bench(
            lambda: _facts(args.threads, device, str(folder)),
            scratch,
            args.threads,
            args.repeats,
            args.seconds,
            args.seed,
            memory,
        )
        found = suite.measure(args, bench)
    if not found.measurements:
        return 1
    common = {key: getattr(args, key) for key in ("threads", "repeats", "seconds", "seed")}
    notes = [*found.notes, *_on_a_busy_machine(found)]
    found = replace(found, settings={**found.settings, **common}, machine=asdict(bench.facts), notes=notes)
    json_path, picture = write(found, folder)
    if args.json:
        print(found.to_json())
    else:
        tables.show(found)
        print(f"{json_path}\n{picture}")
    return 0 if found.complete else 1


def _on_a_busy_machine(found: Findings) -> list[str]:
    """A sentence if other programs held the cores: then less CPU time passed than time."""
    alone = [m for m in found.measurements if m.cpu and (m.phases.get(NOT_COUNTED) or m.time).median <= m.time.median]
    shares = [m.cpu.median / m.time.median for m in alone if m.cpu]
    if not shares or (share := median(shares)) >= _BUSY:
        return []
    return [f"a busy machine: the CPU worked for {share:.0%} of the time, so that times, and ratios, are too large"]


def write(found: Findings, folder: Path) -> tuple[Path, Path]:
    """Write SUITE.json and SUITE.png, both whole, or none of them if one cannot be made."""
    made: dict[str, bytes] = {"json": found.to_json().encode() + b"\n", "png": plots.png(found)}
    paths = {ending: folder / f"{found.suite}.{ending}" for ending in made}
    for ending, path in paths.items():
        replace_file(path, lambda file, content=made[ending]: file.write(content))  # type: ignore[misc]
    return paths["json"], paths["png"]


def _all(args: argparse.Namespace, parser: Parser) -> int:
    """Run every suite, each by itself; one that cannot run here is told in a sentence."""
    code = 0
    shared = [f"--{key}={getattr(args, key)}" for key in ("seed", "threads") if getattr(args, key) is not None]
    for name, suite in SUITES.items():
        given = [*(suite.quick if args.quick else ()), *shared, f"--out={_folder(args)}"]
        given += [f"--memory={args.memory}"] if args.memory else []
        print(f"\n{name}: {suite.purpose}", flush=True)
        try:
            code |= _run(name, parser.parse_args([name, *given]))
        except _ERRORS as error:
            say_error(f"{name}: {error}")
            code |= name != "gpu"  # a machine without a GPU lacks nothing
    return code


@cache
def _facts(threads: int, device: str, folder: str) -> MachineFacts:
    """The facts of this machine, measured once in a run of the command."""
    with progress("this machine") as on_step:
        asked: dict[str, Any] = {"device": device, "folder": folder}
        function = "runners.bench.machine:measure"
        return MachineFacts.from_dict(measured_process.measured(function, asked, threads, None, on_step).result)


def _folder(args: argparse.Namespace) -> Path:
    folder: Path = args.results_dir / "bench" if args.out is None else args.out
    return folder


def _parser() -> Parser:
    parser = Parser(prog="python -m runners.bench", description="Measure how long things take on this machine.")
    suites = parser.add_subparsers(dest="suite", required=True, metavar="SUITE")
    for name, suite in SUITES.items():
        one = suites.add_parser(name, help=suite.purpose, description=suite.purpose)
        suite.add_arguments(one)
        _common_arguments(one, suite.repeats)
    every = suites.add_parser(ALL, help="every suite that can run here", description="Every suite that can run here.")
    every.add_argument("--quick", action="store_true", help="smaller sizes: a few minutes in all")
    _place_arguments(every)
    shown = suites.add_parser(SHOW, help="print the tables of a suite's JSON file again")
    shown.add_argument("file", type=Path, metavar="FILE.json")
    return parser


def _common_arguments(parser: Parser, repeats: int) -> None:
    add = parser.add_argument
    add("--repeats", type=at_least(1), default=repeats, metavar="R",
        help=f"repeats of a measurement, of which the median counts (default: {repeats})")  # fmt: skip
    add("--seconds", type=at_least(1), default=20, metavar="S",
        help="begin no further repeat of a measurement after so long (default: 20)")  # fmt: skip
    add("--json", action="store_true", help="print JSON instead of tables")
    _place_arguments(parser)


def _place_arguments(parser: Parser) -> None:
    add = parser.add_argument
    add("--seed", type=at_least(0), default=0, help="of everything random (default: 0)")
    add("--threads", type=at_least(1), default=1, metavar="K", help="of torch and NumPy (default: 1)")
    add("--memory", type=at_least(1), metavar="GB",
        help=f"most that a measurement may allocate (default: {100 * _SHARE:.0f} %% of what is free)")  # fmt: skip
    add("--out", type=Path, metavar="FOLDER", help="folder for SUITE.json and SUITE.png (default: results/bench)")
    parser.add_folder("results_dir", Path("results"), "results folder, in which bench/ is made (default: results)")


if __name__ == "__main__":
    sys.exit(main())
