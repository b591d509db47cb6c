"""The suites (lists of measurements) and their command-line options."""

import argparse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from dpfbo.privacy.accounting import ACCOUNTANTS
from runners.arguments import at_least
from runners.bench import federated_run, other_runs
from runners.bench.federated_run import RunTask, shape_of
from runners.bench.fresh_process import TimedRun

RFF = "algorithm.own_draw.method=rff"  # the plain loop's own draws


@dataclass(frozen=True)
class BenchCase:
    """One measurement.

    what: the name of its series of measurements. size: the sizes of the problem, by name. prepare: a function that
    returns the run to time. units: the factor from seconds to the suite's unit. records_mb: the size of the run's
    records in MB; None if unknown.
    """

    what: str
    size: Mapping[str, int]
    prepare: Callable[..., TimedRun]
    arguments: Mapping[str, Any]
    units: float = 1.0
    records_mb: float | None = None


@dataclass(frozen=True)
class Suite:
    """Measurements of one kind. options: keyword arguments of `add_argument` by the option's name."""

    purpose: str
    unit: str
    cases: Callable[[argparse.Namespace], Iterator[BenchCase]]
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def _federated(what: str, problem: str, algorithm: str, *overrides: str, plain: bool = False) -> BenchCase:
    task = RunTask(problem, algorithm, overrides, plain)
    shape = shape_of(task.compose(), ())
    size = {"N": shape.N, "T": shape.T, "M": shape.M}
    return BenchCase(what, size, federated_run.prepare, {"task": task}, 1e3 / (shape.N * shape.T), shape.records_mb)


def overhead(args: argparse.Namespace) -> Iterator[BenchCase]:
    """Yield three runs of DP-FTS-DE: by dpfbo, by dpfbo with RFF draws, and by `plain_loop` with RFF draws.

    The option --prior adds runs of `ts`, `local` and `dp_prior`.
    """
    rounds = [] if args.rounds is None else [f"rounds={args.rounds}"]
    yield _federated("dpfbo", args.problem, "dp_fts_de", *rounds)
    yield _federated("dpfbo, rff draws", args.problem, "dp_fts_de", *rounds, RFF)
    few = f"rounds={args.plain_rounds}"
    yield _federated("plain loop, rff draws", args.problem, "dp_fts_de", few, RFF, plain=True)
    for algorithm in ("ts", "local", "dp_prior") if args.prior else ():
        yield _federated(algorithm, args.problem, algorithm, *rounds)


def agents(args: argparse.Namespace) -> Iterator[BenchCase]:
    """Yield runs on the synthetic problem with all combinations of algorithms and sizes."""
    for algorithm, M, T, N in product(args.algorithms, args.features or [None], args.rounds, args.agents):
        given = [f"executor.device={args.device}"] + ([] if M is None else [f"algorithm.M={M}"])
        yield _federated(algorithm, "synthetic", algorithm, f"problem.n_agents={N}", f"rounds={T}", *given)


def accounting(args: argparse.Namespace) -> Iterator[BenchCase]:
    for different, name, T in product((False, True), args.accountants, args.rounds):
        what = f"{name}, {'all rounds different' if different else 'equal rounds'}"
        yield BenchCase(what, {"T": T}, other_runs.accountant, {"name": name, "different": different, "rounds": T})
    for charges in args.charges:
        size = {"charges": charges}
        yield BenchCase("a ledger's charges, each on disk", size, other_runs.ledger, {**size, "folder": args.out})


def outsourced(args: argparse.Namespace) -> Iterator[BenchCase]:
    size = {"rows": args.rows, "columns": args.columns, "rounds": args.rounds}
    for what, refit in (("incremental", False), ("refitted in every step", True)):
        yield BenchCase(what, size, other_runs.modeler, {**size, "seed": 0, "refit": refit}, 1e3)


def _integer(minimum: int, default: Any, help: str, **more: Any) -> dict[str, Any]:
    return {"type": at_least(minimum), "default": default, "metavar": "K", "help": help, **more}


def _integers(minimum: int, default: list[int], help: str) -> dict[str, Any]:
    return _integer(minimum, default, help, nargs="+")


def _names(known: list[str], default: list[str]) -> dict[str, Any]:
    return {"nargs": "+", "choices": known, "default": default, "metavar": "NAME", "help": f"any of {' '.join(known)}"}


SUITES = {
    "overhead": Suite(
        "time of dpfbo and of a plain loop", "milliseconds per agent and round", overhead,
        {
            "--problem": {"default": "synthetic", "help": "what to optimise"},
            "--rounds": _integer(1, None, "rounds of dpfbo; None: as configured"),
            "--plain-rounds": _integer(1, 15, "rounds of the plain loop"),
            "--prior": {"action": "store_true", "help": "also the private prior, and agents that work alone"},
        },
    ),
    "agents": Suite(
        "time against numbers of agents, features and rounds", "milliseconds per agent and round", agents,
        {
            "--agents": _integers(2, [200, 1000, 10_000, 100_000], "numbers of agents N"),
            "--features": _integers(2, [], "numbers of features M; []: as configured"),
            "--rounds": _integers(1, [10], "numbers of rounds T"),
            "--algorithms": _names(["dp_fts_de", "dp_prior", "fts", "local", "ts"], ["dp_fts_de", "dp_prior"]),
            "--device": {"default": "cpu", "choices": ["cpu", "cuda"], "help": "device of the agents' tensors"},
        },
    ),
    "accounting": Suite(
        "time of accountants and of a ledger", "seconds", accounting,
        {
            "--accountants": _names(list(ACCOUNTANTS), ["pld", "rdp"]),
            "--rounds": _integers(1, [50, 200, 1000], "numbers of rounds"),
            "--charges": _integers(1, [1000, 10_000], "numbers of charges"),
        },
    ),
    "outsourced": Suite(
        "time of a modeler's run over a released table", "milliseconds a run", outsourced,
        {
            "--rows": _integer(2, 36_000, "rows of the table"),
            "--columns": _integer(1, 15, "columns of the release"),
            "--rounds": _integer(1, 50, "measurements of a run"),
        },
    ),
}  # fmt: skip
