"""The Ray cluster of a run, and how the agents are spread over it."""

import logging
import math
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

import ray
from ray.exceptions import RayError

from runners.compose.federated import FederatedExperiment
from runners.compose.settings import RayExecutor
from runners.executor.deployment import ExecutorError
from runners.private_apis import resolve_ray_address

_ACTOR_BYTES = 400e6  # of a process with torch and its share of the objects, on the generous side
_CPU_STEP = 1e-3  # fractions of a CPU are rounded down to it
_ROUNDING = 1e-9
_MANY = 1_000_000  # actors on a node, where nothing limits them
_CONNECT_SECONDS = 10.0  # for the head of a cluster to answer
_TREE_NUMBERS = 2_000_000  # N x M from which on the shards add up for the server


@contextmanager
def connected(executor: RayExecutor) -> Iterator[None]:
    """A connection to Ray: the one that this process has, the cluster at `address`, or a new one on this machine.

    What was started here is shut down at the end, and nothing else. Raises ExecutorError if there is no such cluster.
    """
    if ray.is_initialized():
        yield
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")  # the other answers of an actor that died
    options = dict(executor.init)
    if executor.runtime_env:
        options["runtime_env"] = executor.runtime_env
    try:
        check_reachable(executor.address)
        ray.init(executor.address, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR, **options)
    except (OSError, ValueError, RuntimeError, TypeError, AttributeError, AssertionError, RayError) as error:
        raise ExecutorError(f"executor.address={executor.address}: {error}") from error
    try:
        yield
    finally:
        ray.shutdown()


def check_reachable(address: str | None) -> None:
    """Raise ConnectionError if nobody answers where Ray would connect: it tries for a quarter of an hour itself."""
    found = resolve_ray_address(address)
    host, _, port = (found or "").rpartition(":")
    if not host or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ConnectionError(
            f"no Ray answers at {address or found} ({error}); the address 'local' starts one here"
        ) from error


@dataclass(frozen=True)
class Layout:
    """Which agents share an actor. ranges: [first, last) of each actor; num_cpus: of each actor."""

    ranges: list[tuple[int, int]]
    num_cpus: float
    tree: bool
    sentence: str


def layout(executor: RayExecutor, experiment: FederatedExperiment) -> Layout:
    """Cut N agents into actors that fit on the cluster.

    Raises ExecutorError where they do not fit, with what was asked for and what there is.
    """
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    cpus, gpus, memory = (sum(node.get(kind, 0.0) for node in nodes) for kind in ("CPU", "GPU", "memory"))
    N = experiment.problem.n_agents
    room = _room(executor, nodes)
    wanted = executor.agents_per_actor
    k = min(room, N) if isinstance(wanted, str) else math.ceil(N / wanted)
    if k > room or k < 1:
        raise ExecutorError(
            f"executor.agents_per_actor={wanted} makes {max(k, 1)} actors of {N} agents and the cluster has room for "
            f"{room} ({cpus:g} CPUs, {gpus:g} GPUs, {memory / 1e9:.1f} GB): use auto, or ask for less per actor"
        )
    cuts = [round(i * N / k) for i in range(k + 1)] if isinstance(wanted, str) else [*range(0, N, wanted), N]
    num_cpus = executor.num_cpus
    if num_cpus is None:
        num_cpus = _fair_share(k, [node.get("CPU", 0.0) for node in nodes])
    M = experiment.agents.features.frequencies.shape[1]
    aggregating = experiment.settings.algorithm.aggregates
    tree = aggregating and (
        executor.aggregation == "tree" or (executor.aggregation == "auto" and N * M > _TREE_NUMBERS)
    )
    shape = f"{num_cpus:g} CPUs and {executor.num_gpus:g} GPUs"
    sentence = f"{N} agents in {k} actors with {shape} each" + (", which add up for the server" if tree else "")
    return Layout(list(pairwise(cuts)), num_cpus, tree, sentence)


def _room(executor: RayExecutor, nodes: Sequence[dict[str, float]]) -> int:
    """How many actors the nodes can hold, each on one of them."""
    asked = {"memory": _ACTOR_BYTES, "GPU": executor.num_gpus, "CPU": executor.num_cpus or 0.0}
    if executor.num_cpus is None and executor.agents_per_actor == "auto":
        asked["CPU"] = 1.0
    room = 0
    for node in nodes:
        has = {"memory": math.inf, **node}  # a node that does not say
        room += math.floor(min(_MANY, *(has.get(kind, 0.0) / n + _ROUNDING for kind, n in asked.items() if n)))
    return room


def _fair_share(k: int, cpus: Sequence[float]) -> float:
    """The largest share of a CPU, at most 1, of which the nodes hold k; 0 where no node has a CPU."""
    shares = {min(1.0, math.floor(c / j / _CPU_STEP) * _CPU_STEP) for c in set(cpus) for j in range(1, k + 1)}
    fitting = [s for s in shares if s > 0 and sum(math.floor(c / s + _ROUNDING) for c in cpus) >= k]
    return max(fitting, default=0.0)
