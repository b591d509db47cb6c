"""A process of a run on Ray, whatever it works at: this module imports nothing that could build a problem."""

import os
import resource
from dataclasses import dataclass
from pathlib import Path

import ray
import torch
from threadpoolctl import threadpool_limits


@dataclass(frozen=True)
class Placement:
    """A process of the run. memory: bytes, pages that processes share counted in parts where the system tells."""

    node: str
    pid: int
    device: str
    memory: int


def enter(folder: str, threads: int) -> None:
    """Make this process like the driver's: working directory (for files and custom code), threads."""
    if os.path.isdir(folder):
        os.chdir(folder)
    torch.set_num_threads(threads)
    threadpool_limits(threads)


def where(on: str) -> Placement:
    """This process, with its tensors on a device."""
    return Placement(ray.get_runtime_context().get_node_id(), os.getpid(), on, _memory())


def _memory() -> int:
    try:
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    except (OSError, StopIteration):  # not on Linux
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
