"""Prepare the process of a Ray actor, and report its placement.

This module imports nothing that can build a problem, because the modeler's process must not know the problem.
"""

import os
import resource
from dataclasses import dataclass
from pathlib import Path

import ray

from runners.executor.deployment import use_threads


@dataclass(frozen=True)
class Placement:
    """The place and memory of an actor's process. memory: bytes; on Linux the proportional set size."""

    node: str
    pid: int
    device: str
    memory: int


def enter(folder: str, threads: int) -> None:
    """Change to the driver's working directory, and limit this process's threads."""
    if os.path.isdir(folder):
        os.chdir(folder)
    use_threads(threads)


def this_process(device: str) -> Placement:
    """Return the placement of this process, whose tensors are on `device`."""
    return Placement(ray.get_runtime_context().get_node_id(), os.getpid(), device, _memory())


def _memory() -> int:
    try:
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    except (OSError, StopIteration):  # not on Linux
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
