"""Measurements in fresh processes, each with a memory peak of its own."""

import multiprocessing
import os
import resource
import signal
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from runners.executor.deployment import use_threads
from runners.user_errors import user_errors

Floors = Callable[[Mapping[str, float]], Mapping[str, float]]  # takes the machine's rates, returns seconds by phase
TimedRun = Callable[[], tuple[Mapping[str, float], Floors]]  # makes one run; returns its seconds by phase, and floors

_SHARE = 0.8  # of the available memory that a measurement may allocate


class BenchError(ChildProcessError):
    """A measurement could not be made."""


@dataclass(frozen=True)
class Repeats:
    """At most `count` repeats, none of which begins after `seconds`, on `threads` threads."""

    count: int
    seconds: float
    threads: int


@dataclass(frozen=True)
class Timed:
    """The repeats of a measurement.

    runs: for each repeat, the seconds by phase, with `total` and `cpu`. floors: lower bounds on the time of each phase,
    in seconds. start_mb, peak_mb: the peak memory of the process before and after the measurement. gpu_mb: the peak
    memory of tensors on the GPU; None if no GPU was used.
    """

    runs: list[dict[str, float]]
    floors: Mapping[str, float]
    start_mb: float
    peak_mb: float
    gpu_mb: float | None


def in_fresh_process(call: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a process of its own. Raises the function's errors, and BenchError if the process dies."""
    # Every process is forked from a server that has only imported the program: it starts fast and has its own peak.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["runners.bench.suites"])
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        try:
            return pool.submit(call, *arguments).result()
        except BrokenProcessPool as error:
            raise BenchError("the measuring process died, perhaps because it needed too much memory") from error


def timed(
    prepare: Callable[..., TimedRun], arguments: Mapping[str, Any], rates: Mapping[str, float], repeats: Repeats
) -> Timed:
    """Time the repeats of the run that `prepare(**arguments)` returns.

    Call `timed` in a fresh process: it may limit the memory of the process, and it kills all child processes.
    """
    os.environ["PYTHONWARNINGS"] = "ignore"  # joblib's tracker warns about the workers that are killed below
    use_threads(repeats.threads)
    if not torch.cuda.is_available():  # CUDA reserves more address space than the machine has memory
        free = float(Path("/proc/meminfo").read_text().partition("MemAvailable:")[2].split()[0]) * 1024
        resource.setrlimit(resource.RLIMIT_DATA, (int(_SHARE * free),) * 2)
    start_mb, runs = _peak_mb(), list[dict[str, float]]()
    failures: tuple[type[Exception], ...] = (MemoryError, RuntimeError, *user_errors())
    try:
        run = prepare(**arguments)
        end = time.monotonic() + repeats.seconds
        while not runs or (len(runs) < repeats.count and time.monotonic() < end):
            begin, cpu = time.perf_counter(), time.process_time()
            phases, floors = run()
            spent = {"total": time.perf_counter() - begin, "cpu": time.process_time() - cpu}
            runs.append({**spent, **phases})
    except failures as error:  # some errors cannot be pickled
        raise BenchError(" ".join(str(error).split()) or type(error).__name__) from None
    finally:
        for worker in multiprocessing.active_children():  # an objective's workers wait for more work
            if worker.pid is not None:
                os.kill(worker.pid, signal.SIGKILL)
    gpu_mb = torch.cuda.max_memory_allocated() / 1e6 if torch.cuda.is_initialized() else None
    return Timed(runs, floors(rates), start_mb, _peak_mb(), gpu_mb)


def _peak_mb() -> float:
    return float(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) * 1024 / 1e6
