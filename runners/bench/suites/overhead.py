"""The suite `overhead`: an agent and round without the objective, of dpfbo and the plain loop with the same settings.

With `--gpytorch-rounds` also with GPyTorch's fits and draws, with `--prior` the private prior beside agents alone.
"""

import argparse
from collections.abc import Iterator
from typing import Any

from dpfbo.problems.readers.data_files import MissingData
from runners.arguments import at_least
from runners.bench.bench import Bench
from runners.bench.federated_run import RunTask
from runners.bench.measurement import BenchPanel, Findings, Measurement
from runners.bench.suites.suite import Suite
from runners.record.terminal import say_error

PROBLEMS = ("landmine", "synthetic")
PUBLISHED_MS = {"landmine": 81.0}  # milliseconds of the authors' code, on a CPU with one thread
PLAIN_DRAW = "algorithm.own_draw.method=rff"  # the method of the plain loop's own draws
GPYTORCH = "algorithm.own_draw.method=gpytorch"
UNIT = "milliseconds per agent and round"
PLAIN = "plain loop"


def measure(args: argparse.Namespace, bench: Bench) -> Findings:
    """Measure all asked problems; a problem whose data is missing is told, and left out."""
    panels, measurements, notes, complete = [], list[Measurement](), list[str](), True
    for problem in PROBLEMS if args.problem == "both" else (args.problem,):
        try:
            found = _measure(problem, args, bench)
        except MissingData as error:
            say_error(str(error))
            complete = False
            continue
        panels.append(BenchPanel(problem, f"{problem} · dp_fts_de", UNIT))
        measurements += found
        notes += notes_on(problem, found)
    settings = {name: getattr(args, name) for name in ("problem", "rounds", "plain_rounds", "gpytorch_rounds", "prior")}
    return Findings("overhead", settings, panels, measurements, notes, complete)


def tasks_of(problem: str, args: argparse.Namespace, bench: Bench) -> dict[str, RunTask]:
    """The runs by name. Raises MissingData if the problem's data file is missing."""

    def task(*overrides: str, algorithm: str = "dp_fts_de", **more: Any) -> RunTask:
        return bench.task(problem, algorithm, *overrides, **{"rounds": args.rounds, **more})

    configured = task().compose()  # refuses bad settings, and finds the data, before any work
    a, T = configured.settings.algorithm, configured.rounds
    plain_rounds = min(args.plain_rounds, T)
    tasks = {"dpfbo": task(PLAIN_DRAW), PLAIN: task(PLAIN_DRAW, by="plain", rounds=plain_rounds)}
    if a.own_draw.method != "rff":
        tasks["dpfbo as configured"] = task()
    if args.gpytorch_rounds is not None:
        tasks["dpfbo with GPyTorch"] = task(*gpytorch(a.own_gp.fit), rounds=args.gpytorch_rounds)
    if args.prior:
        tasks |= {algorithm: task(algorithm=algorithm) for algorithm in ("ts", "dp_prior")}
    return tasks


def gpytorch(fit: str) -> list[str]:
    """The overrides for GPyTorch's draws and, where GPs are fitted, fits."""
    return [GPYTORCH] if fit == "given" else [GPYTORCH, "algorithm.own_gp.fit=gpytorch"]


def _measure(problem: str, args: argparse.Namespace, bench: Bench) -> list[Measurement]:
    return [bench.run(task, problem, what) for what, task in tasks_of(problem, args, bench).items()]


def notes_on(problem: str, measurements: list[Measurement]) -> Iterator[str]:
    """Sentences on the measured runs and their reference."""
    ours, plain = measurements[0], next(m for m in measurements if m.what == PLAIN)
    T, T_plain = int(ours.size["T"]), int(plain.size["T"])
    yield f"{problem}: {ours.size['N']:.0f} agents, dpfbo rounds 0 to {T}, plain loop rounds 0 to {T_plain}"
    if T_plain < T:
        yield "the plain loop gets slower as an agent's history grows: over all rounds its times would be larger"
    for m in measurements:
        if m.more.get("own draw") == "gpytorch":
            yield f"GPyTorch's fits and draws: rounds 0 to {m.size['T']:.0f}"
    if problem == "landmine":
        yield "objective: dpfbo spreads a round's SVM fits over the cores, the plain loop makes one at a time"
    if problem in PUBLISHED_MS:
        reference = f"{PUBLISHED_MS[problem]:g} ms (authors' code on this problem, CPU, 1 thread)"
        yield f"published reference, not measured here: {reference}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--problem", choices=(*PROBLEMS, "both"), default="both", help="what to optimise (default: both)")
    add("--rounds", type=at_least(1), metavar="K", help="rounds of dpfbo (default: as configured)")
    add("--plain-rounds", type=at_least(1), metavar="K", default=15, help="rounds of the plain loop (default: 15)")
    add("--gpytorch-rounds", type=at_least(1), metavar="K", help="rounds with GPyTorch's fits, draws (default: none)")
    add("--prior", action="store_true", help="also the private prior, and agents that work alone")


QUICK = ("--problem", "synthetic", "--rounds", "10", "--plain-rounds", "3", "--repeats", "2", "--seconds", "5")
SUITE = Suite("cost of an agent and round without the objective", add_arguments, measure, QUICK)
