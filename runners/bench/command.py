"""python -m runners.bench SUITE: times on this machine, beside a stated reference.

overhead: the time of an agent and round without the objective, of dpfbo and of `runners.bench.plain_loop` on the same
problem with the same settings; with `--gpytorch-rounds` also of dpfbo with GPyTorch's fits and draws, and with
`--prior` of the private prior beside agents that work alone.
ray: start-up, time and memory of agents in Ray actors, beside the same run in one process.
outsourced: a modeler's run over all rows of a released table, beside refitting its GP in every step.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from threadpoolctl import threadpool_limits

from dpfbo.federated import federation
from dpfbo.privacy.ledger import Ledger
from dpfbo.problems.readers.data_files import MissingData
from runners.arguments import Parser, at_least
from runners.bench import actors, outsourced, plain_loop
from runners.compose.composition import build, federated
from runners.compose.configuration import composed
from runners.compose.federated import FederatedExperiment
from runners.executor.deployment import ExecutorError
from runners.record.terminal import say_error

PHASES = ("objective", "message", "server", "fit", "acquisition", "own_draw")
PROBLEMS = ("landmine", "synthetic")
PUBLISHED_MS = {"landmine": 81.0}  # milliseconds of the authors' code, on a CPU with one thread
PLAIN_DRAW = "rff"  # the method of the plain loop's own draws
GPYTORCH = "algorithm.own_draw.method=gpytorch"
WARM_UP_ROUNDS = 3
WIDTH = 110  # of a table where there is no terminal
SECONDS_BETWEEN_LINES = 3.0  # seconds between lines of progress where there is no terminal

OnRound = Callable[[int], None]


@dataclass(frozen=True)
class Timing:
    """One run, in milliseconds for each agent and round.

    phases: by phase; `other` is the time outside the named phases. overhead: all phases but the objective.
    """

    what: str
    n_agents: int
    rounds: int
    own_draw: str
    phases: dict[str, float]
    overhead: float


@dataclass(frozen=True)
class Suite:
    """One kind of measurement. run: the function that measures, prints, and returns the exit code."""

    purpose: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def compose(
    problem: str, seed: int, rounds: int | None, *overrides: str, algorithm: str = "dp_fts_de"
) -> FederatedExperiment:
    """The experiment `problem=... algorithm=...`. rounds: None for as many as configured."""
    given = [] if rounds is None else [f"rounds={rounds}"]
    cfg = composed([f"problem={problem}", f"algorithm={algorithm}", f"seed={seed}", *given, *overrides])
    return federated(build(cfg))


def time_dpfbo(experiment: FederatedExperiment, on_round: OnRound, what: str = "dpfbo") -> Timing:
    """Run the library on the experiment, its ledger in memory. what: the name of the timing."""
    server = experiment.server(Ledger(None))
    begin = time.perf_counter()
    population = federation.LocalPopulation.of(experiment.problem, experiment.agents)
    result = federation.run(
        population, server, experiment.rounds, lambda done: on_round(done.agents.round),
        broadcasts=experiment.settings.algorithm.broadcasts,
    )  # fmt: skip
    return _timing(what, experiment, experiment.rounds, result.seconds, time.perf_counter() - begin)


def time_plain(experiment: FederatedExperiment, rounds: int, on_round: OnRound) -> Timing:
    """Run the first `rounds` rounds of the experiment by the plain loop."""
    begin, settings = time.perf_counter(), experiment.settings
    result = plain_loop.run(experiment.problem, settings, rounds, settings.seed, on_round)
    return _timing("plain loop", experiment, rounds, result.clock.seconds, time.perf_counter() - begin)


def _timing(what: str, experiment: FederatedExperiment, rounds: int, seconds: dict[str, float], total: float) -> Timing:
    to_ms = 1e3 / (experiment.problem.n_agents * rounds)
    phases = {name: to_ms * seconds.get(name, 0.0) for name in {**dict.fromkeys(PHASES), **seconds}}
    phases["other"] = to_ms * (total - sum(seconds.values()))
    draw = experiment.settings.algorithm.own_draw.method
    return Timing(what, experiment.problem.n_agents, rounds, draw, phases, to_ms * (total - seconds["objective"]))


def measure_overhead(
    problem: str,
    seed: int,
    rounds: int | None,
    plain_rounds: int | None,
    gpytorch_rounds: int | None = None,
    prior: bool = False,
) -> list[Timing]:
    """Time dpfbo and the plain loop with the same own draw; then dpfbo as configured, if its own draw is another.

    gpytorch_rounds: rounds of a further run of dpfbo with GPyTorch's draws and, where GPs are fitted, fits; None for no
    such run. prior: two further runs, of agents that work alone and of the private prior, as configured. A short,
    untimed run of each goes before. Raises MissingData if the problem's data file is missing.
    """
    configured = compose(problem, seed, rounds)
    draw = f"algorithm.own_draw.method={PLAIN_DRAW}"
    experiment = compose(problem, seed, rounds, draw)
    few = compose(problem, seed, WARM_UP_ROUNDS, draw, f"problem.n_agents={experiment.settings.algorithm.P}")
    time_dpfbo(few, lambda t: None)
    time_plain(few, WARM_UP_ROUNDS, lambda t: None)
    T = experiment.rounds
    with _progress(f"{problem}, dpfbo", T) as on_round:
        timings = [time_dpfbo(experiment, on_round)]
    T_plain = T if plain_rounds is None else min(plain_rounds, T)
    with _progress(f"{problem}, plain loop", T_plain) as on_round:
        timings.append(time_plain(experiment, T_plain, on_round))
    if configured.settings.algorithm.own_draw.method != PLAIN_DRAW:
        with _progress(f"{problem}, dpfbo as configured", T) as on_round:
            timings.append(time_dpfbo(configured, on_round))
    if gpytorch_rounds is not None:
        timings.append(_measure_gpytorch(configured, problem, seed, gpytorch_rounds))
    if prior:
        for algorithm in ("ts", "dp_prior"):
            few = compose(problem, seed, WARM_UP_ROUNDS, "problem.n_agents=2", algorithm=algorithm)
            time_dpfbo(few, lambda t: None)
            with _progress(f"{problem}, {algorithm}", T) as on_round:
                timings.append(time_dpfbo(compose(problem, seed, rounds, algorithm=algorithm), on_round, algorithm))
    return timings


def _measure_gpytorch(configured: FederatedExperiment, problem: str, seed: int, rounds: int) -> Timing:
    a = configured.settings.algorithm
    draw = [GPYTORCH] if a.own_gp.fit == "given" else [GPYTORCH, "algorithm.own_gp.fit=gpytorch"]
    time_dpfbo(compose(problem, seed, WARM_UP_ROUNDS, *draw, f"problem.n_agents={a.P}"), lambda t: None)
    with _progress(f"{problem}, dpfbo with GPyTorch", rounds) as on_round:
        return time_dpfbo(compose(problem, seed, rounds, *draw), on_round)


def overhead(args: argparse.Namespace) -> int:
    """Run the suite `overhead`; exit code 1 if a problem's data is missing."""
    code = 0
    measured: dict[str, list[Timing]] = {}
    with _threads(args.threads):
        threads = torch.get_num_threads()
        for problem in PROBLEMS if args.problem == "both" else (args.problem,):
            try:
                measured[problem] = measure_overhead(
                    problem, args.seed, args.rounds, args.plain_rounds, args.gpytorch_rounds, args.prior
                )
            except MissingData as error:
                say_error(str(error))
                code = 1
    if args.json:
        print(json.dumps(_as_json(measured, args.seed, threads), indent=2))
        return code
    console = Console()
    if not console.is_terminal:
        console = Console(width=max(WIDTH, console.width))
    for problem, timings in measured.items():
        console.print(_table(problem, timings))
        for line in _notes(problem, timings, args.seed, threads):
            console.print(line, highlight=False, soft_wrap=True)
        console.print()
    return code


def ratios(timings: list[Timing]) -> dict[str, float | None]:
    """Time of the plain loop over that of dpfbo, by phase and for the overhead; None if one of them is 0."""
    ours, plain = (t.phases | {"overhead": t.overhead} for t in timings[:2])
    names = dict.fromkeys(name for t in timings for name in t.phases) | {"overhead": None}
    return {name: plain[name] / ours[name] if ours.get(name) and plain.get(name) else None for name in names}


def _as_json(measured: dict[str, list[Timing]], seed: int, threads: int) -> dict[str, Any]:
    problems = {
        problem: {
            "runs": [asdict(t) for t in timings],
            "plain_over_dpfbo": ratios(timings),
            "published_overhead": PUBLISHED_MS.get(problem),
        }
        for problem, timings in measured.items()
    }
    head = {"suite": "overhead", "unit": "ms per agent and round", "seed": seed, "threads": threads}
    return {**head, "problems": problems}


def _table(problem: str, timings: list[Timing]) -> Table:
    table = Table(title=f"{problem} · dp_fts_de · milliseconds per agent and round", title_justify="left")
    table.add_column("phase")
    for timing in timings:
        draw = "" if timing.what == "dp_prior" else f"{timing.own_draw} draw"
        table.add_column(f"{timing.what}\n{draw}", justify="right")
    table.add_column("plain loop\n/ dpfbo", justify="right")
    shown = {name: name.replace("_", " ") for t in timings for name in t.phases}
    for name, label in (shown | {"overhead": "everything but the objective"}).items():
        if name == "overhead":
            table.add_section()
        values = [(t.phases | {"overhead": t.overhead}).get(name, 0.0) for t in timings]
        ratio = ratios(timings)[name]
        table.add_row(label, *(f"{v:.3f}" for v in values), "" if ratio is None else f"{ratio:.1f}")
    return table


def _notes(problem: str, timings: list[Timing], seed: int, threads: int) -> Iterator[str]:
    """Sentences on the measured runs and their reference."""
    ours, plain = timings[:2]
    yield f"{ours.n_agents} agents, dpfbo rounds 0 to {ours.rounds}, plain loop rounds 0 to {plain.rounds}, seed {seed}"
    if plain.rounds < ours.rounds:
        yield "the plain loop gets slower as an agent's history grows: over all rounds its times would be larger"
    yield f"threads: {threads} of torch and of NumPy"
    for timing in timings:
        if timing.own_draw == "gpytorch":
            yield f"GPyTorch's fits and draws: rounds 0 to {timing.rounds}"
    if problem == "landmine":
        yield "objective: dpfbo spreads a round's SVM fits over the cores, the plain loop makes one at a time"
    if problem in PUBLISHED_MS:
        reference = f"{PUBLISHED_MS[problem]:g} ms (authors' code on this problem, CPU, 1 thread)"
        yield f"published reference, not measured here: {reference}"


@contextmanager
def _threads(n: int) -> Iterator[None]:
    """Limit the threads of torch, NumPy and SciPy."""
    before = torch.get_num_threads()
    with threadpool_limits(n):
        torch.set_num_threads(n)
        try:
            yield
        finally:
            torch.set_num_threads(before)


@contextmanager
def _progress(title: str, rounds: int) -> Iterator[OnRound]:
    """Show progress on standard error: a bar on a terminal, else a line every few seconds. Yields its callback."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("round {task.completed}/{task.total}"))
    with Progress(*columns, TimeElapsedColumn(), console=console, disable=not console.is_terminal) as bar:
        task, said = bar.add_task(title, total=rounds), time.monotonic()

        def on_round(t: int) -> None:
            nonlocal said
            bar.update(task, completed=t)
            if not console.is_terminal and time.monotonic() - said > SECONDS_BETWEEN_LINES:
                said = time.monotonic()
                console.print(f"{title}: round {t}/{rounds}", highlight=False)

        yield on_round


def _overhead_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--problem", choices=(*PROBLEMS, "both"), default="both", help="what to optimise (default: both)")
    add("--rounds", type=at_least(1), metavar="K", help="rounds of dpfbo (default: as configured)")
    add("--plain-rounds", type=at_least(1), metavar="K", help="rounds of the plain loop (default: the same)")
    add("--gpytorch-rounds", type=at_least(1), metavar="K", help="rounds with GPyTorch's fits, draws (default: none)")
    add("--prior", action="store_true", help="also the private prior, and agents that work alone")
    add("--seed", type=at_least(0), default=0, help="of everything random (default: 0)")
    add("--threads", type=at_least(1), default=1, metavar="K", help="of torch and NumPy (default: 1)")
    add("--json", action="store_true", help="print JSON instead of tables")


def _ray_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--agents", type=at_least(2), default=29, metavar="N", help="agents (default: 29)")
    add("--actors", type=at_least(1), default=2, metavar="K", help="actors that they are packed into (default: 2)")
    add("--rounds", type=at_least(2), default=40, metavar="T", help="rounds of a run (default: 40)")
    add("--repeats", type=at_least(1), default=3, metavar="R", help="runs, of which the fastest counts (default: 3)")
    add("--json", action="store_true", help="print JSON instead of a table")


def _outsourced_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--rows", type=at_least(2), default=36_000, metavar="N", help="rows of the table (default: 36000)")
    add("--columns", type=at_least(1), default=15, metavar="R", help="columns of the release (default: 15)")
    add("--rounds", type=at_least(1), default=50, metavar="T", help="measurements of a run (default: 50)")
    add("--repeats", type=at_least(1), default=5, metavar="K", help="runs, of which the fastest counts (default: 5)")
    add("--seed", type=at_least(0), default=0, help="of everything random (default: 0)")
    add("--threads", type=at_least(1), default=1, metavar="K", help="of torch (default: 1)")
    add("--json", action="store_true", help="print JSON instead of a table")


SUITES: dict[str, Suite] = {
    "overhead": Suite("cost of an agent and round without the objective", _overhead_arguments, overhead),
    "ray": Suite("cost of agents in Ray actors beside one process", _ray_arguments, actors.run),
    "outsourced": Suite("a modeler's run over a released table", _outsourced_arguments, outsourced.run),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv`; the exit code is 0, 1 for an error, 2 for bad arguments, 130 when interrupted."""
    parser = Parser(prog="python -m runners.bench", description="Measure how long things take on this machine.")
    suites = parser.add_subparsers(dest="suite", required=True, metavar="SUITE")
    for name, suite in SUITES.items():
        suite.add_arguments(suites.add_parser(name, help=suite.purpose, description=suite.purpose))
    args = parser.parse_args(argv)
    try:
        return SUITES[args.suite].run(args)
    except KeyboardInterrupt:
        say_error("interrupted")
        return 130
    except (ValueError, OSError, ExecutorError) as error:
        say_error(str(error))
        return 1
