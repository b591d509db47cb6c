"""The suite `outsourced` of `runners.bench`: a modeler's run over n released rows, beside refitting in every step."""

import argparse
import json
import resource
import time
from dataclasses import asdict, dataclass

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from dpfbo.outsourced.modeler import Belief, Modeler, Policy
from dpfbo.outsourced.posterior import CandidatePosterior, noise_aware_kernel
from dpfbo.outsourced.transforms import NORM, Candidates

TARGET_MS = 40.0  # milliseconds of a run with n = 36000, T = 50
BELIEF = Belief(lengthscale=0.2 * NORM, variance=1.0, noise=1e-5, mean=0.0)


@dataclass(frozen=True)
class ModelerTiming:
    """Times of a run in milliseconds. incremental: the fastest of several. refitted: every posterior from a whole
    factorisation. difference: the largest of both, in a mean or variance after any step. megabytes: growth of the peak
    memory."""

    n: int
    r: int
    rounds: int
    incremental: float
    refitted: float
    difference: float
    megabytes: float


def measure(n: int, r: int, rounds: int, repeats: int, seed: int) -> ModelerTiming:
    """Time runs over random rows of [-12, 12]^3, projected to r columns, whose objective is a smooth function."""
    rng = np.random.default_rng(seed)
    rows = rng.uniform(-12, 12, (n, 3))
    points = torch.from_numpy(rows @ rng.standard_normal((3, r)) / r**0.5)
    y = torch.from_numpy(np.sin(rows[:, 0] / 4) + np.cos(rows[:, -1] / 5))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds, indices = min((_run(points, y, rounds) for _ in range(repeats + 1)), key=lambda found: found[0])
    megabytes = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    refitted, difference = _refit(points, y, indices)
    return ModelerTiming(n, r, rounds, 1e3 * seconds, 1e3 * refitted, difference, megabytes)


def _run(points: torch.Tensor, y: torch.Tensor, rounds: int) -> tuple[float, list[int]]:
    """Seconds of a modeler's run, and the rows that it measured."""
    begin, indices = time.perf_counter(), [0]
    modeler = Modeler(Candidates(points), BELIEF, Policy(), rounds + 1)
    modeler.observe(0, float(y[0]))
    for _ in range(rounds):
        indices.append(modeler.propose(0.0))
        modeler.observe(indices[-1], float(y[indices[-1]]))
    return time.perf_counter() - begin, indices


def _refit(points: torch.Tensor, y: torch.Tensor, indices: list[int]) -> tuple[float, float]:
    """Seconds of a refit after every measurement, and how far the incremental posterior is from it."""
    scaled, kernel = noise_aware_kernel(Candidates(points), *asdict(BELIEF).values())
    grown, whole = (CandidatePosterior(scaled, kernel, len(indices)) for _ in range(2))
    seconds, difference, answers = 0.0, 0.0, y[indices].tolist()
    for t, (index, answer) in enumerate(zip(indices, answers, strict=True), start=1):
        grown.observe(index, answer)
        begin = time.perf_counter()
        whole.refit(indices[:t], answers[:t])
        seconds += time.perf_counter() - begin
        parts = (grown.mean - whole.mean, grown.variance - whole.variance)
        difference = max(difference, *(float(part.abs().max()) for part in parts))
    return seconds, difference


def run(args: argparse.Namespace) -> int:
    """Run the suite `outsourced`; exit code 0."""
    torch.set_num_threads(args.threads)
    timing = measure(args.rows, args.columns, args.rounds, args.repeats, args.seed)
    if args.json:
        print(json.dumps({"suite": "outsourced", "threads": args.threads, **asdict(timing)}, indent=2))
        return 0
    table = Table(title=f"{timing.n} rows, {timing.r} columns, T = {timing.rounds}, milliseconds a run")
    for name in ("incremental", "refitted in every step", "largest difference", "memory"):
        table.add_column(name, justify="right")
    table.add_row(
        f"{timing.incremental:.1f}", f"{timing.refitted:.0f}", f"{timing.difference:.1e}", f"{timing.megabytes:.0f} MB"
    )
    console = Console()
    console.print(table)
    console.print(f"fastest of {args.repeats} runs, {args.threads} thread(s), seed {args.seed}", highlight=False)
    console.print(f"target at 36000 rows, T = 50: {TARGET_MS:g} ms, 200 MB", highlight=False)
    return 0
