"""The suite `sweep`: a trial of runners.sweep, beside the same runs by runners.run -m, and alone in one process."""

import argparse
import tempfile
import time
from collections.abc import Callable
from typing import Any

from omegaconf import OmegaConf

from runners import dpfbo_command
from runners.arguments import at_least
from runners.bench.bench import Bench
from runners.bench.measured_process import BenchError, OnStep
from runners.bench.measurement import BenchPanel, Findings, FloorTime, Measurement, Spread
from runners.bench.suites.suite import Suite
from runners.compose.composition import Composition
from runners.compose.configuration import composed
from runners.recorded_run import record_run

_SHORT = ("problem=branin", "problem.n_agents=2", "rounds=1", "algorithm=ts", "tracker.wandb.mode=disabled")
PANEL = BenchPanel("trials", "a grid of very short trials, start-up included", "seconds", "trials", "trials")
ALONE, RUN, SWEEP = "runs alone", "runners.run -m", "runners.sweep"


def run(on_step: OnStep, by: str, trials: int, folder: str) -> dict[str, Any]:
    """Time one program over so many seeds, from its import to its end; or the runs alone, composed beforehand."""
    with tempfile.TemporaryDirectory(dir=folder) as results:
        common = [*_SHORT, "experiment_name=bench", f"results_dir={results}"]
        todo = _alone(common, trials, on_step) if by == ALONE else _program(by, common, trials, results)
        begin, cpu = time.perf_counter(), time.process_time()
        todo()
        return {"total": time.perf_counter() - begin, "cpu": time.process_time() - cpu}


def _alone(common: list[str], trials: int, on_step: OnStep) -> Callable[[], None]:
    """Make the runs, one after another, without a program around them."""
    first = composed(common)
    settings = [first.copy() for _ in range(trials)]
    for seed, cfg in enumerate(settings):
        OmegaConf.update(cfg, "seed", seed)

    def call() -> None:
        for done, cfg in enumerate(settings):
            record_run(Composition.of(cfg))
            on_step(done + 1, trials)

    return call


def _program(by: str, common: list[str], trials: int, results: str) -> Callable[[], None]:
    if by == SWEEP:
        words = ["sweep", *common, f"seeds=0..{trials - 1}", "sweep.address=local"]
    else:
        seeds = ",".join(map(str, range(trials)))
        words = ["run", "-m", *common, f"seed={seeds}", "progress=false", f"hydra.sweep.dir={results}"]

    def call() -> None:
        try:
            code = dpfbo_command.main(words)
        except SystemExit as stopped:
            code = 0 if stopped.code is None else int(stopped.code)
        if code:
            raise BenchError(f"{' '.join(words)} ended with exit code {code}")

    return call


def measure(args: argparse.Namespace, bench: Bench) -> Findings:
    """Measure the programs at each number of trials; the floor is the time of the runs alone."""
    sizes = sorted(set(args.trials))
    if len(sizes) < 2:
        raise BenchError(f"--trials needs at least two different numbers, got {' '.join(map(str, args.trials))}")
    measurements = list[Measurement]()
    for size in sizes:
        alone = _measured(bench, ALONE, size, {})
        floor = FloorTime(alone.time.median, "the same runs alone, in one process", "reference")
        measurements += [alone, *(_measured(bench, by, size, {"trials": floor}) for by in (RUN, SWEEP))]
    notes = []
    for what in (ALONE, RUN, SWEEP):
        first, *_, last = (m for m in measurements if m.what == what)
        more = last.size["trials"] - first.size["trials"]
        each = 1e3 * (last.time.median - first.time.median) / more
        start = first.time.median - first.size["trials"] * each / 1e3
        last.more.update({"ms a trial": each, "start-up, s": start})
        notes.append(f"{what}: {each:.0f} ms a trial beside a start-up of {start:.1f} s")
    notes.append("the floor is no arithmetic: it is the time of the same runs alone, one after another in one process")
    notes.append("runners.run -m is Hydra's, which reads the configuration files again for every run")
    return Findings("sweep", {"trials": sizes}, [PANEL], measurements, notes)


def _measured(bench: Bench, by: str, trials: int, floors: dict[str, FloorTime]) -> Measurement:
    title = f"{by}, {trials} trials"
    asked = {"by": by, "trials": trials, "folder": bench.folder}
    replies = [bench.ask(title, "runners.bench.suites.trials:run", **asked) for _ in range(bench.repeats)]
    total, cpu = (Spread.of(reply.result[name] for reply in replies) for name in ("total", "cpu"))
    start, peak = replies[0].start_mb, max(reply.peak_mb for reply in replies)
    return Measurement(PANEL.name, by, {"trials": trials}, total, {}, cpu, start, peak, floors)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--trials", type=at_least(1), nargs="+", default=[2, 20], metavar="K", help="trials (default: 2 20)"
    )


SUITE = Suite(
    "a trial of a sweep beside the same by runners.run", add_arguments, measure, ("--trials", "1", "6"), repeats=1
)  # fmt: skip
