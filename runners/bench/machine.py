"""The machine of a measurement: its name and size, and how fast it multiplies, copies, and computes functions."""

import os
import platform
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from runners.bench.measured_process import OnStep

_SIZE = 512  # rows of the square matrices of a product
_CACHED = 2**14  # numbers that stay in the cache, for the functions
_UNCACHED = 2**24  # numbers of 8 bytes that do not, for the copy
_ACCELERATOR = 8  # times as many of each on an accelerator
_SECONDS = 0.25  # time for each rate
_APPENDS = 20


@dataclass(frozen=True)
class OperationRates:
    """Operations of each kind a second, the best of several repeats: what no program here can beat.

    flops, flops32: additions and multiplications in a product of square matrices, in double and single precision.
    bytes: read and written in a copy that does not fit the cache. cos, cos32, exp, log: values of the function in
    tensors that fit the cache. uniforms: numbers of the counter-based generator (Philox, NumPy). appends: lines
    appended to a file and synced to disk.
    """

    flops: float
    flops32: float
    bytes: float
    cos: float
    cos32: float
    exp: float
    log: float
    uniforms: float
    appends: float


@dataclass(frozen=True)
class MachineFacts:
    """The facts of a header. memory_gb: of the whole machine."""

    processor: str
    cores: int
    memory_gb: float
    system: str
    python: str
    torch: str
    threads: int
    device: str
    rates: OperationRates

    def words(self) -> list[str]:
        """Two lines for a header."""
        r = self.rates
        where = f"{self.processor}, {self.cores} cores, {self.memory_gb:.0f} GB"
        device = "" if self.device == "cpu" else f", on {self.device}"
        return [
            f"{where}, torch {self.torch}, Python {self.python}, {self.threads} thread(s){device}",
            f"measured: products {r.flops / 1e9:.3g} GFlop/s (single precision {r.flops32 / 1e9:.3g}), copy "
            f"{r.bytes / 1e9:.3g} GB/s, cos {r.cos / 1e9:.2g} G/s (single {r.cos32 / 1e9:.2g}), exp {r.exp / 1e9:.2g}, "
            f"log {r.log / 1e9:.2g}, uniforms {r.uniforms / 1e9:.2g} G/s, durable appends {r.appends:.0f}/s",
        ]

    @staticmethod
    def from_dict(content: Mapping[str, Any]) -> "MachineFacts":
        return MachineFacts(**{**content, "rates": OperationRates(**content["rates"])})


def measure(on_step: OnStep, device: str = "cpu", folder: str | None = None) -> dict[str, Any]:
    """Measure the rates of a device, and of the disk that holds `folder`; returns `MachineFacts` as a dictionary."""
    where = torch.device(device)
    larger = 1 if where.type == "cpu" else _ACCELERATOR

    def drawn(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
        return torch.rand(*shape, dtype=dtype, device=where)

    n, cached = _SIZE * larger, _CACHED * larger**4
    a, b = drawn(n, n), drawn(n, n)
    a32, b32 = a.float(), b.float()
    x, large = drawn(cached) + 0.5, drawn(_UNCACHED * larger)
    x32, to = x.float(), torch.empty_like(large)
    out, out32 = torch.empty_like(x), torch.empty_like(x32)
    generator = np.random.Generator(np.random.Philox(key=0))
    works: dict[str, tuple[float, Callable[[], object]]] = {
        "flops": (2.0 * n**3, lambda: a @ b),
        "flops32": (2.0 * n**3, lambda: a32 @ b32),
        "bytes": (16.0 * len(large), lambda: to.copy_(large)),
        "cos": (len(x), lambda: torch.cos(x, out=out)),
        "cos32": (len(x), lambda: torch.cos(x32, out=out32)),
        "exp": (len(x), lambda: torch.exp(x, out=out)),
        "log": (len(x), lambda: torch.log(x, out=out)),
        "uniforms": (_CACHED, lambda: generator.random(_CACHED)),
    }
    rates = {}
    for done, (name, (amount, call)) in enumerate(works.items()):
        rates[name] = amount / _fastest(call, where)
        on_step(done + 1, len(works) + 1)
    rates["appends"] = 1 / _append_seconds(folder)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9
    facts = MachineFacts(
        _processor(), os.cpu_count() or 1, memory, f"{platform.system()} {platform.release()}",
        platform.python_version(), torch.__version__, torch.get_num_threads(), _name(where), OperationRates(**rates),
    )  # fmt: skip
    return asdict(facts)


def available_gb() -> float:
    """The memory that programs may take at the moment, in GB."""
    words = Path("/proc/meminfo").read_text().partition("MemAvailable:")[2].split()
    return float(words[0]) * 1024 / 1e9


def _fastest(call: Callable[[], object], device: torch.device) -> float:
    """Seconds of one call: the shortest of those that fit in `_SECONDS`, after one to warm up."""

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    call()
    wait()
    best, end = float("inf"), time.perf_counter() + _SECONDS
    while time.perf_counter() < end:
        begin = time.perf_counter()
        call()
        wait()
        best = min(best, time.perf_counter() - begin)
    return best


def _append_seconds(folder: str | None) -> float:
    """Median seconds to append a line to a file and sync it to disk."""
    seconds = []
    with tempfile.NamedTemporaryFile("ab", dir=folder) as file:
        for _ in range(_APPENDS):
            begin = time.perf_counter()
            file.write(b"x" * 200 + b"\n")
            file.flush()
            os.fsync(file.fileno())
            seconds.append(time.perf_counter() - begin)
    return float(np.median(seconds))


def _processor() -> str:
    """The processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _name(device: torch.device) -> str:
    return "cpu" if device.type == "cpu" else torch.cuda.get_device_name(device)
