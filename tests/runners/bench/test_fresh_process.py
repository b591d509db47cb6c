"""Functions in processes of their own: repeats, memory, errors, and the workers that they leave."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from joblib import Parallel, delayed
from loky import get_reusable_executor

from dpfbo.problems.readers.data_files import MissingData
from runners.bench.fresh_process import BenchError, Repeats, Timed, TimedRun, in_fresh_process, timed

MB = 10**6


def measured(prepare, count=1, threads=1, **arguments) -> Timed:
    return in_fresh_process(timed, prepare, arguments, {"flops": 2.0}, Repeats(count, 20, threads))


def large(megabytes: int) -> TimedRun:
    """Takes so much memory, and frees it again."""

    def run():
        block = np.ones(megabytes * MB, dtype=np.uint8)
        return {"sum": float(block.sum()), "threads": torch.get_num_threads()}, lambda rates: {
            "run": 1 / rates["flops"]
        }

    return run


def test_each_process_has_its_own_peak_and_too_much_memory_is_refused() -> None:
    first = measured(large, count=2, threads=2, megabytes=200)
    assert [(run["sum"], run["threads"]) for run in first.runs] == [(200 * MB, 2)] * 2
    assert all(run["total"] > 0 and run["cpu"] >= 0 for run in first.runs) and first.floors == {"run": 0.5}
    assert 190 < first.peak_mb - first.start_mb < 300
    assert measured(large, megabytes=1).peak_mb < first.peak_mb - 100
    with pytest.raises(BenchError, match="allocate"):
        measured(large, megabytes=10_000_000)


def fails(kind: str) -> TimedRun:
    raise {"value": ValueError("rounds must be\nsomething else"), "data": MissingData("no file")}[kind]


@pytest.mark.parametrize(("kind", "told"), [("value", "^rounds must be something else$"), ("data", "^no file$")])
def test_errors_are_told_in_one_line(kind: str, told: str) -> None:
    with pytest.raises(BenchError, match=told):
        measured(fails, kind=kind)


def with_workers() -> TimedRun:
    """Leaves worker processes behind, as objectives on several cores do."""

    def run():
        pids = Parallel(n_jobs=2)(delayed(os.getpid)() for _ in range(2))
        pids.append(get_reusable_executor(1).submit(os.getpid).result())
        return {str(pid): 0.0 for pid in pids}, lambda rates: {}

    return run


def test_workers_end_with_their_process() -> None:
    workers = measured(with_workers).runs[0].keys() - {"total", "cpu"}
    for _ in range(100):  # their new parent reaps them
        if not any(Path(f"/proc/{worker}").exists() for worker in workers):
            return
        time.sleep(0.1)
    pytest.fail("the workers go on")


def dies() -> TimedRun:
    os._exit(7)


def test_a_process_that_dies_is_told() -> None:
    with pytest.raises(BenchError, match="the measuring process died"):
        measured(dies)
