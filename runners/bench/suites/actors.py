"""The suite `ray`: the cost of actors, beside the same run in one process."""

import argparse
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from dpfbo.run_result import Round
from runners.arguments import at_least
from runners.bench.bench import Bench
from runners.bench.measured_process import OnStep
from runners.bench.measurement import BenchPanel, Findings, Measurement, Spread
from runners.bench.suites.suite import Suite
from runners.compose.composition import build
from runners.compose.configuration import composed
from runners.executor.deployment import Deployment
from runners.executor.place import deployed
from runners.record.run_folder import RunFolder

_TREE = "executor.aggregation=tree"
TARGET_MS = 15.0  # milliseconds a round of 29 agents in 2 actors may take beyond one process
PANEL = BenchPanel("rounds", "synthetic · dp_fts_de in Ray actors", "milliseconds a round")


def run(on_step: OnStep, overrides: list[str], rounds: int, repeats: int, seconds: float) -> dict[str, Any]:
    """Time deployed runs. Returns of each its start-up in seconds, its rounds in ms, the largest actor's memory."""
    cfg, runs, end = composed(overrides), list[dict[str, Any]](), time.monotonic() + seconds
    while not runs or (len(runs) < repeats and time.monotonic() < end):
        experiment = build(cfg)
        with tempfile.TemporaryDirectory() as folder:
            begin = time.perf_counter()
            with deployed(experiment, RunFolder(Path(folder)), experiment.result()) as deployment:
                start = time.perf_counter() - begin
                marks = _run(deployment, rounds, on_step)
                memory = deployment.placed().get("memory_per_actor")
        took = [1e3 * (after - before) for before, after in pairwise(marks)]
        runs.append({"start": start, "rounds": took, "memory_mb": None if memory is None else memory / 1e6})
    return {"runs": runs}


def _run(deployment: Deployment, rounds: int, on_step: OnStep) -> list[float]:
    """The times at which the rounds of a run ended."""
    marks = list[float]()

    def on_round(done: Round) -> None:
        marks.append(time.perf_counter())
        on_step(done.agents.round, rounds)

    deployment.run(on_round, None)
    return marks


def measure(args: argparse.Namespace, bench: Bench) -> Findings:
    """The synthetic problem in one process, in actors, and there with tree aggregation."""
    per_actor = -(-args.agents // args.actors)
    ray = ["executor=ray", "executor.address=local", f"executor.agents_per_actor={per_actor}"]
    places = {"one process": ["executor=local"], f"{args.actors} actors": ray}
    places[f"{args.actors} actors, tree"] = [*ray, _TREE]
    base = ["problem=synthetic", f"problem.n_agents={args.agents}", f"rounds={args.rounds}", f"seed={bench.seed}"]
    for overrides in places.values():
        build(composed([*base, *overrides]))  # refuses bad settings before any work
    measurements, notes = list[Measurement](), list[str]()
    for what, overrides in places.items():
        asked = {"overrides": [*base, *overrides], "rounds": args.rounds}
        common = {"repeats": bench.repeats, "seconds": bench.seconds}
        reply = bench.ask(f"ray: {what}", "runners.bench.suites.actors:run", **asked, **common)
        runs = reply.result["runs"]
        rounds = Spread.of(ms for one in runs for ms in one["rounds"])
        more: dict[str, float | str] = {"start-up, s": median(one["start"] for one in runs)}
        if runs[0]["memory_mb"] is not None:
            more["memory of an actor, MB"] = max(one["memory_mb"] for one in runs)
        if measurements:
            more["more than one process, ms"] = rounds.median - measurements[0].time.median
        size = {"N": args.agents, "T": args.rounds}
        measurements.append(
            Measurement(PANEL.name, what, size, rounds, {}, None, reply.start_mb, reply.peak_mb, {}, more)
        )
    notes.append(f"target: at most {TARGET_MS:g} ms more in a round; the reference is the same run in one process")
    notes.append("peak memory: of the driver; the spread is over the rounds of all repeats")
    settings = {name: getattr(args, name) for name in ("agents", "actors", "rounds")}
    return Findings("ray", settings, [PANEL], measurements, notes)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add: Callable[..., Any] = parser.add_argument
    add("--agents", type=at_least(2), default=29, metavar="N", help="agents (default: 29)")
    add("--actors", type=at_least(1), default=2, metavar="K", help="actors that they are packed into (default: 2)")
    add("--rounds", type=at_least(2), default=40, metavar="T", help="rounds of a run (default: 40)")


SUITE = Suite(
    "cost of agents in Ray actors beside one process", add_arguments, measure, ("--repeats", "1", "--rounds", "10")
)  # fmt: skip
