"""Timed runs of accountants, ledgers, and modelers of released tables."""

import math
import tempfile
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path

import numpy as np
import torch

from dpfbo.clock import PhaseClock
from dpfbo.outsourced.hyperparameters import Belief
from dpfbo.outsourced.modeler import CandidatePosterior, Modeler, Policy, noise_aware_kernel
from dpfbo.outsourced.transforms import NORM, Candidates
from dpfbo.privacy.accounting import accountant_named
from dpfbo.privacy.accounting.events import round_event
from dpfbo.privacy.accounting.rdp import ORDERS
from dpfbo.privacy.ledger import Charge, Ledger
from runners.bench.floors import floor_seconds, work
from runners.bench.fresh_process import Floors, TimedRun

Q, Z, DELTA = 0.01, 1.0, 1e-5
_SUBSET = (10, 1000)  # agents in a round's subset, and in all, for the accountant `fixed_size`
_TERMS = {  # number of terms of binomial sums, each with an exp, for each distinct round
    "moments": sum(range(3, 35)),  # the moments 1..32
    "rdp": sum(int(order) + 1 for order in ORDERS if order == int(order)),
}
_BELIEF = Belief(lengthscale=0.2 * NORM, variance=1.0, noise=1e-5, mean=0.0)


def accountant(name: str, different: bool, rounds: int) -> TimedRun:
    """Return a function that computes epsilon after each round.

    different: True to give each round its own noise multiplier, False to give all rounds the same one. The calls
    of the returned function have no multiplier in common, so an earlier call leaves no cached values for a later one.
    """
    book, repeats = accountant_named(name), count()

    def events(T: int, shift: float) -> list:
        noises = (Z + shift + (t / T if different else 0.0) for t in range(T))
        return [round_event(Q, z, _SUBSET if name == "fixed_size" else None) for z in noises]

    def run() -> tuple[Mapping[str, float], Floors]:
        clock = PhaseClock()
        with clock("set-up"):
            schedule = events(rounds, 1e-3 * math.sqrt(2) * next(repeats))
        book.curve(schedule, DELTA)
        exps = work(exp=_TERMS.get(name, 0) * (rounds if different else 1))
        return clock.seconds, lambda rates: {"curve": floor_seconds(exps, rates)} if name in _TERMS else {}

    book.curve(events(2, 0.5), DELTA)  # imports, and tables that all rounds share
    return run


def ledger(charges: int, folder: Path) -> TimedRun:
    """Return a run that charges a ledger; each charge is on disk before the next one."""

    def run() -> tuple[Mapping[str, float], Floors]:
        with tempfile.TemporaryDirectory(dir=folder) as own:
            book = Ledger(Path(own) / "ledger.jsonl")
            for t in range(charges):
                book.charge(Charge(t, Q, Z, 1.0, 1.0, f"{t:064x}"))
        return {}, lambda rates: {"charges": floor_seconds(work(appends=charges), rates)}

    return run


def modeler(rows: int, columns: int, rounds: int, seed: int, refit: bool) -> TimedRun:
    """Return a modeler's run on a smooth objective.

    The candidates are random rows of [-12, 12]^3, projected to `columns` features.
    refit: False to time the whole run. True to replay the measurements of an untimed run. In the replay, the posterior
    is recomputed from scratch after each measurement, and only the replay is timed.
    """
    rng = np.random.default_rng(seed)
    points3 = rng.uniform(-12, 12, (rows, 3))
    points = Candidates(torch.from_numpy(points3 @ rng.standard_normal((3, columns)) / columns**0.5))
    y = (np.sin(points3[:, 0] / 4) + np.cos(points3[:, -1] / 5)).tolist()

    def measured_rows() -> list[int]:
        indices, own = [0], Modeler(points, _BELIEF, Policy(), rounds + 1)
        own.observe(0, y[0])
        for _ in range(rounds):
            indices.append(own.propose(0.0))
            own.observe(indices[-1], y[indices[-1]])
        return indices

    indices = measured_rows()
    scaled, kernel = noise_aware_kernel(points, _BELIEF)

    def refitted() -> None:
        whole = CandidatePosterior(scaled, kernel, len(indices))
        for t in range(1, len(indices) + 1):
            whole.refit(indices[:t], [y[i] for i in indices[:t]])

    call: Callable[[], object] = refitted if refit else measured_rows

    def floors(rates: Mapping[str, float]) -> dict[str, float]:
        """Return a lower bound on the time of the run, in seconds.

        The bound counts what each measurement needs: covariances, one new row of V = L^-1 K, and new means and
        variances.
        """
        steps = range(rounds + 1)
        flops, numbers = sum(2 * columns + 2 * t + 8 for t in steps), sum(t + columns + 1 for t in steps)
        counts = work(flops=rows * flops, exp=rows * len(steps), bytes=8 * rows * numbers)
        return {"run": floor_seconds(counts, rates)}

    def run() -> tuple[Mapping[str, float], Floors]:
        call()
        return {}, floors

    return run
