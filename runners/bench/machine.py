"""The speed of this machine, as rates of operations."""

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from runners.executor.deployment import use_threads

# flops, flops32: additions and multiplications in a product of square matrices, in double and single precision. cos,
# cos32, exp, log: values in tensors that fit the cache. uniforms: numbers of the counter-based generator. bytes: read
# and written in a copy that does not fit the cache. appends: lines appended to a file and synced to disk.
KINDS = ("flops", "flops32", "cos", "cos32", "exp", "log", "uniforms", "bytes", "appends")

_SIZE = 512  # rows of the square matrices of a product
_CACHED = 2**14  # numbers that stay in the cache, for the functions
_UNCACHED = 2**24  # numbers of 8 bytes that do not fit the cache, for the copy
_SECONDS = 0.25  # time for each rate


def measured_rates(folder: Path, threads: int) -> dict[str, float]:
    """Measure the operations per second of each kind in `KINDS`, over many repeats.

    The rate of appends comes from the median time of the repeats, every other rate from the shortest time.
    folder: a folder on the disk to measure. threads: the number of threads of torch and NumPy.
    """
    use_threads(threads)
    a, x, large = torch.rand(_SIZE, _SIZE).double(), torch.rand(_CACHED).double() + 0.5, torch.rand(_UNCACHED).double()
    a32, x32, copy = a.float(), x.float(), torch.empty_like(large)
    out, out32 = torch.empty_like(x), torch.empty_like(x32)
    generator = np.random.Generator(np.random.Philox(key=0))
    with tempfile.TemporaryFile("ab", dir=folder) as file:

        def append() -> None:
            file.write(b"x" * 200 + b"\n")
            file.flush()
            os.fsync(file.fileno())

        calls: dict[str, tuple[float, Callable[[], object]]] = {
            "flops": (2.0 * _SIZE**3, lambda: a @ a),
            "flops32": (2.0 * _SIZE**3, lambda: a32 @ a32),
            "cos": (_CACHED, lambda: torch.cos(x, out=out)),
            "cos32": (_CACHED, lambda: torch.cos(x32, out=out32)),
            "exp": (_CACHED, lambda: torch.exp(x, out=out)),
            "log": (_CACHED, lambda: torch.log(x, out=out)),
            "uniforms": (_CACHED, lambda: generator.random(_CACHED)),
            "bytes": (16.0 * _UNCACHED, lambda: copy.copy_(large)),
            "appends": (1, append),
        }
        return {kind: amount / _seconds(call, median=kind == "appends") for kind, (amount, call) in calls.items()}


def _seconds(call: Callable[[], object], median: bool) -> float:
    call()
    seconds, end = list[float](), time.perf_counter() + _SECONDS
    while not seconds or time.perf_counter() < end:
        begin = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - begin)
    return float(np.median(seconds) if median else min(seconds))
