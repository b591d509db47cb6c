"""The Ray cluster of a run, and how the agents are spread over it."""

import logging
import math
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import ray
from ray.exceptions import RayError

from runners.executor import ExecutorError
from runners.experiment import Experiment

_ACTOR_BYTES = 400e6  # of a process with torch and its share of the objects, on the generous side
_CPU_STEP = 1e-3  # fractions of a CPU are rounded down to it
_CONNECT_SECONDS = 10.0  # for the head of a cluster to answer
_TREE_NUMBERS = 2_000_000  # N x M from which on the shards add up for the server


@contextmanager
def connected(executor: dict[str, Any]) -> Iterator[None]:
    """A connection to Ray: the one that this process has, the cluster at `address`, or a new one on this machine.

    What was started here is shut down at the end, and nothing else. Raises ExecutorError if there is no such cluster.
    """
    if ray.is_initialized():
        yield
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")  # the other answers of an actor that died
    options = dict(executor["init"])
    if executor["runtime_env"]:
        options["runtime_env"] = executor["runtime_env"]
    try:
        check_reachable(executor["address"])
        ray.init(
            executor["address"], include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR, **options
        )
    except (OSError, ValueError, RuntimeError, TypeError, AttributeError, AssertionError, RayError) as error:
        raise ExecutorError(f"executor.address={executor['address']}: {error}") from error
    try:
        yield
    finally:
        ray.shutdown()


def check_reachable(address: str | None) -> None:
    """Raise ConnectionError if nobody answers where Ray would connect: it tries for a quarter of an hour itself."""
    found = _resolved(address)
    host, _, port = (found or "").rpartition(":")
    if not host or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ConnectionError(
            f"no Ray answers at {address or found} ({error}); the address 'local' starts one here"
        ) from error


def _resolved(address: str | None) -> str | None:
    """Where ray.init would connect: RAY_ADDRESS, or what the last `ray start` on this machine left in a file."""
    try:
        from ray._private.services import canonicalize_bootstrap_address  # the only way to know of that file
    except ImportError:
        return address or os.environ.get("RAY_ADDRESS")
    return canonicalize_bootstrap_address(address)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Layout:
    """Which agents share an actor. ranges: [first, last) of each actor; num_cpus: of each actor."""

    ranges: list[tuple[int, int]]
    num_cpus: float
    tree: bool
    sentence: str


def layout(executor: dict[str, Any], experiment: Experiment) -> Layout:
    """Cut N agents into actors that fit on the cluster.

    Raises ExecutorError where they do not fit, with what was asked for and what there is.
    """
    total = ray.cluster_resources()
    cpus, gpus, memory = total.get("CPU", 0.0), total.get("GPU", 0.0), total.get("memory", math.inf)
    N = experiment.problem.n_agents
    room = _room(executor, cpus, gpus, memory)
    wanted = executor["agents_per_actor"]
    k = min(room, N) if wanted == "auto" else math.ceil(N / wanted)
    if k > room or k < 1:
        raise ExecutorError(
            f"executor.agents_per_actor={wanted} makes {max(k, 1)} actors of {N} agents and the cluster has room for "
            f"{room} ({cpus:g} CPUs, {gpus:g} GPUs, {memory / 1e9:.1f} GB): use auto, or ask for less per actor"
        )
    cuts = [round(i * N / k) for i in range(k + 1)] if wanted == "auto" else [*range(0, N, wanted), N]
    num_cpus = executor["num_cpus"]
    if num_cpus is None:
        num_cpus = min(1.0, math.floor(cpus / k / _CPU_STEP) * _CPU_STEP)
    M = experiment.agents.features.frequencies.shape[1]
    aggregating = experiment.server_kind == "aggregate"
    tree = aggregating and (
        executor["aggregation"] == "tree" or (executor["aggregation"] == "auto" and N * M > _TREE_NUMBERS)
    )
    shape = f"{num_cpus:g} CPUs and {executor['num_gpus']:g} GPUs"
    sentence = f"{N} agents in {k} actors with {shape} each" + (", which add up for the server" if tree else "")
    return Layout(list(pairwise(cuts)), num_cpus, tree, sentence)


def _room(executor: dict[str, Any], cpus: float, gpus: float, memory: float) -> int:
    """How many actors the cluster can hold."""
    limits = [memory / _ACTOR_BYTES]
    if executor["num_cpus"] is not None and executor["num_cpus"] > 0:
        limits.append(cpus / executor["num_cpus"] + 1e-9)
    elif executor["agents_per_actor"] == "auto":
        limits.append(cpus)
    if executor["num_gpus"] > 0:
        limits.append(gpus / executor["num_gpus"] + 1e-9)
    least = min(limits)
    return sys.maxsize if math.isinf(least) else math.floor(least)
