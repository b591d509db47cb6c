"""Functions in processes of their own: results, progress, memory and errors."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from joblib import Parallel, delayed
from loky import get_reusable_executor

from dpfbo.problems.readers.data_files import MissingData
from runners.bench.measured_process import BenchError, OnStep, Reply, TooLarge, answer, measured, reply_of

HERE = f"{__name__}:"
MB = 10**6


def large(on_step: OnStep, megabytes: int) -> dict[str, Any]:
    """Takes so much memory, and frees it again."""
    print("a function may print")
    on_step(1, 2)
    block = np.ones(megabytes * MB, dtype=np.uint8)
    return {"sum": int(block.sum()), "threads": torch.get_num_threads()}


def fails(on_step: OnStep, kind: str) -> dict[str, Any]:
    """Raises an error with a message of two lines."""
    errors: dict[str, Exception] = {
        "value": ValueError("rounds must be\nsomething else"),
        "data": MissingData("no file"),
        "memory": RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"),
    }
    raise errors[kind]


def test_each_process_has_its_own_peak_and_the_last_one_is_refused_memory() -> None:
    first = measured(HERE + "large", {"megabytes": 200}, threads=2)
    assert first.result == {"sum": 200 * MB, "threads": 2}
    assert 190 < first.peak_mb - first.start_mb < 300
    with pytest.raises(TooLarge):
        measured(HERE + "large", {"megabytes": 60_000}, memory_gb=4)


@pytest.mark.parametrize(
    ("kind", "error", "told"),
    [
        ("value", BenchError, "^rounds must be something else$"),
        ("data", MissingData, "no file"),
        ("memory", TooLarge, "can't allocate"),
    ],
)
def test_errors_are_told_in_one_line(kind: str, error: type[Exception], told: str) -> None:
    lines: list[dict[str, Any]] = []
    request = {"function": HERE + "fails", "arguments": {"kind": kind}, "threads": 1, "memory_gb": None}
    answer(request, lines.append)
    with pytest.raises(error, match=told):
        reply_of(lines[-1])


def with_workers(on_step: OnStep) -> dict[str, Any]:
    """Leaves worker processes behind, as objectives on several cores do."""
    first, second = Parallel(n_jobs=2)(delayed(os.getpid)() for _ in range(2))
    return {"workers": [first, second, get_reusable_executor(1).submit(os.getpid).result()]}


def test_workers_end_with_their_process() -> None:
    workers = measured(HERE + "with_workers", {}).result["workers"]
    for _ in range(100):  # their new parent reaps them
        if not any(Path(f"/proc/{worker}").exists() for worker in workers):
            return
        time.sleep(0.1)
    pytest.fail("the workers go on")


def dies(on_step: OnStep) -> dict[str, Any]:
    """Ends the process."""
    print("the last words", flush=True)
    os._exit(7)


def test_a_process_that_dies_is_told() -> None:
    with pytest.raises(BenchError, match="ended with exit code 7: the last words"):
        measured(HERE + "dies", {})


def test_a_result_is_a_reply() -> None:
    assert reply_of({"result": {"a": 1}, "start_mb": 1.0, "peak_mb": 2.0}) == Reply({"a": 1}, 1.0, 2.0)
