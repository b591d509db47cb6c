"""The suite `outsourced`: a modeler's run over n released rows, beside refitting its GP in every step."""

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from dpfbo.outsourced.hyperparameters import Belief
from dpfbo.outsourced.modeler import CandidatePosterior, Modeler, Policy, noise_aware_kernel
from dpfbo.outsourced.transforms import NORM, Candidates
from runners.arguments import at_least
from runners.bench.bench import Bench
from runners.bench.floors import Work
from runners.bench.measured_process import OnStep
from runners.bench.measurement import BenchPanel, Findings, FloorTime, Measurement, Spread
from runners.bench.suites.suite import Suite

TARGET_MS = 40.0  # milliseconds of a run with n = 36000, T = 50
BELIEF = Belief(lengthscale=0.2 * NORM, variance=1.0, noise=1e-5, mean=0.0)
FORMULA = "sum over t of 2 n r + 2 n t + 8 n flops and n exp; n (t + r) numbers read, n written"


def run(
    on_step: OnStep, rows: int, columns: int, rounds: int, repeats: int, seconds: float, seed: int, refit: bool
) -> dict[str, Any]:
    """Time runs over random rows of [-12, 12]^3, projected to `columns`, whose objective is a smooth function.

    refit: time the refits of every posterior from a whole factorisation instead, and tell how far the incremental
    posterior is from them (the largest difference in a mean or variance after any step).
    """
    rng = np.random.default_rng(seed)
    points3 = rng.uniform(-12, 12, (rows, 3))
    points = torch.from_numpy(points3 @ rng.standard_normal((3, columns)) / columns**0.5)
    y = torch.from_numpy(np.sin(points3[:, 0] / 4) + np.cos(points3[:, -1] / 5))
    indices = _run(points, y, rounds)
    runs, difference, end = list[dict[str, float]](), 0.0, time.monotonic() + seconds
    while not runs or (len(runs) < repeats and time.monotonic() < end):
        cpu = time.process_time()
        if refit:
            spent, difference = _refit(points, y, indices, on_step)
        else:
            begin = time.perf_counter()
            _run(points, y, rounds)
            spent = time.perf_counter() - begin
        runs.append({"total": spent, "cpu": time.process_time() - cpu})
    return {"runs": runs, "difference": difference}


def _run(points: torch.Tensor, y: torch.Tensor, rounds: int) -> list[int]:
    """The rows that a modeler's run measures."""
    indices = [0]
    modeler = Modeler(Candidates(points), BELIEF, Policy(), rounds + 1)
    modeler.observe(0, float(y[0]))
    for _ in range(rounds):
        indices.append(modeler.propose(0.0))
        modeler.observe(indices[-1], float(y[indices[-1]]))
    return indices


def _refit(points: torch.Tensor, y: torch.Tensor, indices: list[int], on_step: OnStep) -> tuple[float, float]:
    """Seconds of a refit after every measurement, and how far the incremental posterior is from it."""
    scaled, kernel = noise_aware_kernel(Candidates(points), BELIEF)
    grown, whole = (CandidatePosterior(scaled, kernel, len(indices)) for _ in range(2))
    seconds, difference, answers = 0.0, 0.0, y[indices].tolist()
    for t, (index, answer) in enumerate(zip(indices, answers, strict=True), start=1):
        grown.observe(index, answer)
        begin = time.perf_counter()
        whole.refit(indices[:t], answers[:t])
        seconds += time.perf_counter() - begin
        parts = (grown.mean - whole.mean, grown.variance - whole.variance)
        difference = max(difference, *(float(part.abs().max()) for part in parts))
        on_step(t, len(indices))
    return seconds, difference


def floor_work(rows: int, columns: int, rounds: int) -> Work:
    """The work of a run: for each measurement its covariances with all rows, a row of V, and the sums of both."""
    total = Work()
    for t in range(rounds + 1):
        flops, numbers = rows * (2 * columns + 2 * t + 8), rows * (t + columns + 1)
        total += Work(flops=flops, exp=rows, bytes=8 * numbers)
    return total


def measure(args: argparse.Namespace, bench: Bench) -> Findings:
    """Measure the incremental run and the refits."""
    panel = BenchPanel("run", f"a modeler's run over {args.rows} rows, T = {args.rounds}", "milliseconds a run")
    size = {"n": args.rows, "r": args.columns, "T": args.rounds}
    sizes = {"rows": args.rows, "columns": args.columns, "rounds": args.rounds}
    floor = floor_work(**sizes).time(bench.facts.rates, FORMULA, 1e3)
    common = {**sizes, "repeats": bench.repeats, "seconds": bench.seconds, "seed": bench.seed}
    measurements, difference = [], 0.0
    for what, refit in (("incremental", False), ("refitted in every step", True)):
        reply = bench.ask(f"outsourced: {what}", "runners.bench.suites.outsourced:run", **common, refit=refit)
        runs = reply.result["runs"]
        difference = max(difference, reply.result["difference"])
        floors: dict[str, FloorTime] = {"run": floor}
        total, cpu = (Spread.of(1e3 * one[name] for one in runs) for name in ("total", "cpu"))
        memory = (reply.start_mb, reply.peak_mb)
        measurements.append(Measurement(panel.name, what, size, total, {}, cpu, *memory, floors))
    notes = [
        f"refits take {measurements[1].time.median / measurements[0].time.median:.0f} times as long",
        f"largest difference of a mean or variance to that of a refit: {difference:.1e}",
        f"target of a run at 36000 rows, T = 50: {TARGET_MS:g} ms",
        f"floor of both: {FORMULA}",
    ]
    return Findings("outsourced", dict(sizes), [panel], measurements, notes)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add: Callable[..., Any] = parser.add_argument
    add("--rows", type=at_least(2), default=36_000, metavar="N", help="rows of the table (default: 36000)")
    add("--columns", type=at_least(1), default=15, metavar="R", help="columns of the release (default: 15)")
    add("--rounds", type=at_least(1), default=50, metavar="T", help="measurements of a run (default: 50)")


SUITE = Suite("a modeler's run over a released table", add_arguments, measure, ("--repeats", "3"), repeats=5)
