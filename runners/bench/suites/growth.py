"""The suites `agents`, `features` and `gpu`: cost of an agent and round, and peak memory, against N, M and T."""

import argparse
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from runners.arguments import at_least
from runners.bench.bench import Bench
from runners.bench.measured_process import BenchError, TooLarge
from runners.bench.measurement import BenchPanel, Findings, Measurement
from runners.bench.suites.overhead import UNIT
from runners.bench.suites.suite import Suite

ALGORITHMS = ("dp_fts_de", "dp_prior")
PROBLEM = "synthetic"
NO_CUDA = "the suite gpu needs a CUDA device, and torch finds none on this machine"
AGENTS = BenchPanel("agents", "synthetic, against the number of agents", UNIT, "N", "agents N", memory=True)
FEATURES = BenchPanel("features", "synthetic, against the number of features", UNIT, "M", "features M", memory=True)
ROUNDS = BenchPanel("rounds", "synthetic, against the number of rounds", UNIT, "T", "rounds T", memory=True)


def agents(args: argparse.Namespace, bench: Bench, device: str = "cpu") -> Findings:
    """Measure against N. A size is left out, and told, if it would take longer than `--limit` or too much memory."""
    given = [] if args.features is None else [f"algorithm.M={args.features}"]

    def overrides(N: int) -> list[str]:
        return [f"problem.n_agents={N}", *given]

    notes = [f"{args.rounds} rounds; M as configured" if args.features is None else f"{args.rounds} rounds"]
    measurements = []
    for algorithm in args.algorithms:
        bench.task(PROBLEM, algorithm, *overrides(args.agents[0]), rounds=args.rounds).compose()
    for algorithm in args.algorithms:
        series = _series(bench, algorithm, AGENTS, args.agents, overrides, lambda N: args.rounds, args.limit, device)
        measurements += list(_collected(series, notes))
    settings = {name: getattr(args, name) for name in ("agents", "algorithms", "rounds", "features", "limit")}
    name = "agents" if device == "cpu" else "gpu"
    return Findings(name, {**settings, "device": device}, [AGENTS], measurements, notes)


def gpu(args: argparse.Namespace, bench: Bench) -> Findings:
    """The same as `agents` on the device. Raises BenchError where there is none."""
    check_cuda()
    return agents(args, bench, "cuda")


def check_cuda() -> None:
    """Raise BenchError where there is no CUDA device."""
    import torch

    if not torch.cuda.is_available():
        raise BenchError(NO_CUDA)


def features(args: argparse.Namespace, bench: Bench) -> Findings:
    """Measure against M, and against T."""
    N, T, M = args.agents, args.rounds, args.fixed_features
    population = f"problem.n_agents={N}"
    if "dp_prior" in args.algorithms:  # M must suit its length-scales: refused before any work
        for m in (*args.features, M):
            bench.task(PROBLEM, "dp_prior", "problem.n_agents=2", f"algorithm.M={m}", rounds=T).compose()
    notes = [f"{N} agents; against M: {T} rounds; against T: M = {M}"]
    measurements = []
    for algorithm in args.algorithms:
        by_m = _series(
            bench, algorithm, FEATURES, args.features, lambda m: [population, f"algorithm.M={m}"], lambda m: T,
            args.limit,
        )  # fmt: skip
        by_t = _series(
            bench, algorithm, ROUNDS, args.horizons, lambda t: [population, f"algorithm.M={M}"], lambda t: t,
            args.limit,
        )  # fmt: skip
        measurements += [*_collected(by_m, notes), *_collected(by_t, notes)]
    names = ("agents", "algorithms", "features", "horizons", "rounds", "fixed_features", "limit")
    return Findings(
        "features", {name: getattr(args, name) for name in names}, [FEATURES, ROUNDS], measurements, notes
    )  # fmt: skip


def _series(
    bench: Bench,
    algorithm: str,
    panel: BenchPanel,
    sizes: Sequence[int],
    overrides: Callable[[int], list[str]],
    rounds: Callable[[int], int],
    limit: float,
    device: str = "cpu",
) -> Iterator[Measurement | str]:
    """Measure one algorithm at growing sizes; yields measurements, and a sentence for each size that is left out."""
    seconds_each = 0.0  # of a run, for one unit of size
    for size in sorted(sizes):
        at = f"{algorithm}, {panel.axis} = {size}"
        if seconds_each * size > limit:
            yield f"{at} is left out: about {seconds_each * size:.0f} s a run, --limit is {limit:g} s"
            continue
        task = bench.task(PROBLEM, algorithm, *overrides(size), rounds=rounds(size), device=device)
        try:
            measurement = bench.run(task, panel.name, algorithm, {str(panel.axis): size})
        except TooLarge as error:
            yield f"{at} is left out, and all larger sizes: not enough memory ({error})"
            return
        seconds_each = float(measurement.more["whole run, s"]) / size
        yield measurement


def _collected(found: Iterator[Measurement | str], notes: list[str]) -> Iterator[Measurement]:
    """The measurements; sentences join the notes."""
    for one in found:
        if isinstance(one, str):
            notes.append(one)
        else:
            yield one


def _common(parser: argparse.ArgumentParser, rounds: int, limit: int) -> Callable[..., Any]:
    add = parser.add_argument
    add("--algorithms", nargs="+", choices=(*ALGORITHMS, "fts", "ts"), default=list(ALGORITHMS), metavar="NAME",
        help=f"(default: {' '.join(ALGORITHMS)})")  # fmt: skip
    add("--rounds", type=at_least(1), default=rounds, metavar="T", help=f"rounds of a run (default: {rounds})")
    add("--limit", type=at_least(1), default=limit, metavar="S",
        help=f"leave out sizes whose runs would take more seconds (default: {limit})")  # fmt: skip
    return add


def agents_arguments(sizes: tuple[int, ...], parser: argparse.ArgumentParser) -> None:
    add = _common(parser, rounds=10, limit=60)
    add("--agents", type=at_least(2), nargs="+", default=list(sizes), metavar="N",
        help=f"numbers of agents (default: {' '.join(map(str, sizes))})")  # fmt: skip
    add("--features", type=at_least(2), metavar="M", help="features of a message (default: as configured)")


def features_arguments(parser: argparse.ArgumentParser) -> None:
    add = _common(parser, rounds=20, limit=60)
    add("--features", type=at_least(2), nargs="+", default=[26, 50, 100, 200, 400], metavar="M",
        help="numbers of features, even ones for dp_prior (default: 26 50 100 200 400)")  # fmt: skip
    add("--horizons", type=at_least(1), nargs="+", default=[10, 20, 40, 80], metavar="T",
        help="numbers of rounds of the second series (default: 10 20 40 80)")  # fmt: skip
    add("--fixed-features", type=at_least(2), default=50, metavar="M", help="features against T (default: 50)")
    add("--agents", type=at_least(2), default=1000, metavar="N", help="agents (default: 1000)")


_QUICK = ("--rounds", "5", "--repeats", "1", "--limit", "20")
AGENTS_SUITE = Suite(
    "cost of an agent and round, and memory, against the number of agents",
    partial(agents_arguments, (200, 1000, 10_000, 100_000)), agents, (*_QUICK, "--agents", "200", "2000"),
)  # fmt: skip
FEATURES_SUITE = Suite(
    "the same against the number of features, and of rounds", features_arguments, features,
    ("--agents", "200", "--features", "50", "200", "--horizons", "5", "20", *_QUICK, "--algorithms", "dp_fts_de"),
)  # fmt: skip
GPU_SUITE = Suite(
    "as agents, on a GPU", partial(agents_arguments, (1000, 10_000, 100_000, 1_000_000)), gpu,
    (*_QUICK, "--agents", "1000", "10000", "100000"),
)  # fmt: skip
