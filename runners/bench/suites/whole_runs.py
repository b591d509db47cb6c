"""The suites `synthetic` and `landmine`: a whole run as configured, beside its peers.

The plain loop runs as many rounds as it is given time for. BoTorch and GPyTorch run the first few, beside dpfbo's first
few.
"""

import argparse
from functools import partial

from runners.arguments import at_least
from runners.bench import botorch_loop
from runners.bench.bench import Bench
from runners.bench.federated_run import RunTask
from runners.bench.measurement import BenchPanel, Findings
from runners.bench.suites.overhead import PLAIN, PLAIN_DRAW, UNIT, gpytorch, notes_on
from runners.bench.suites.suite import Suite

BOTORCH = {
    "synthetic": "BoTorch: batched Matheron paths at all points of the grid, with the run's kernel as given",
    "landmine": "BoTorch: fit_gpytorch_mll for each agent, optimize_acqf on one path (PathwiseThompsonSampling)",
}


def measure(problem: str, args: argparse.Namespace, bench: Bench) -> Findings:
    """Measure a whole run of the problem and its peers. Raises MissingData, or BenchError without BoTorch."""
    if not args.without_botorch:
        botorch_loop.check_installed()
    tasks = tasks_of(problem, args, bench)
    measurements = [bench.run(task, problem, what) for what, task in tasks.items()]
    notes = [*notes_on(problem, measurements)]
    if not args.without_botorch:
        notes += [BOTORCH[problem], "its time is that of its fits and own draws alone: it has no messages, no server"]
    panel = BenchPanel(problem, f"{problem} · {args.algorithm} · whole runs", UNIT)
    names = ("algorithm", "rounds", "plain_rounds", "peer_rounds", "without_botorch")
    return Findings(problem, {name: getattr(args, name) for name in names}, [panel], measurements, notes)


def tasks_of(problem: str, args: argparse.Namespace, bench: Bench) -> dict[str, RunTask]:
    """The runs by name."""

    def task(*overrides: str, rounds: int | None, by: str = "dpfbo") -> RunTask:
        return bench.task(problem, args.algorithm, *overrides, rounds=rounds, by=by)

    configured = task(rounds=args.rounds).compose()
    K, T, fit = args.peer_rounds, configured.rounds, configured.settings.algorithm.own_gp.fit
    few = f"{K} rounds"
    tasks = {
        "dpfbo": task(rounds=T),
        PLAIN: task(PLAIN_DRAW, rounds=min(T, args.plain_rounds or T), by="plain"),
        f"dpfbo, {few}": task(rounds=K),
        f"GPyTorch in dpfbo, {few}": task(*gpytorch(fit), rounds=K),
    }
    return tasks if args.without_botorch else {**tasks, f"BoTorch, {few}": task(rounds=K, by="botorch")}


def add_arguments(plain_rounds: int | None, parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--algorithm", choices=("dp_fts_de", "fts", "ts"), default="dp_fts_de", help="(default: dp_fts_de)")
    add("--rounds", type=at_least(1), metavar="T", help="rounds of dpfbo (default: as configured)")
    given = "the same" if plain_rounds is None else str(plain_rounds)
    add("--plain-rounds", type=at_least(1), metavar="K", default=plain_rounds,
        help=f"rounds of the plain loop (default: {given})")  # fmt: skip
    add("--peer-rounds", type=at_least(1), metavar="K", default=3, help="rounds of BoTorch, GPyTorch (default: 3)")
    add("--without-botorch", action="store_true", help="leave BoTorch out, which is an optional dependency")


_FEW = ("--plain-rounds", "3", "--peer-rounds", "1", "--repeats", "2", "--seconds", "4")
SYNTHETIC = Suite(
    "a whole run of the synthetic problem, beside its peers", partial(add_arguments, None),
    partial(measure, "synthetic"), _FEW,
)  # fmt: skip
LANDMINE = Suite(
    "a whole run of landmine detection, beside its peers", partial(add_arguments, 10),
    partial(measure, "landmine"), ("--rounds", "10", *_FEW),
)  # fmt: skip
