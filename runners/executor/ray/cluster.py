"""Connect to the Ray cluster of a run, and divide the agents among actors on it."""

import logging
import math
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import ray
from ray.exceptions import RayError

from runners.compose.federated import FederatedExperiment
from runners.compose.settings import RayExecutor
from runners.executor.deployment import ExecutorError
from runners.private_apis import let_ray_choose_its_ports, resolve_ray_address

logger = logging.getLogger(__name__)

_ACTOR_BYTES = 400e6  # bytes of a process with torch and its objects, rounded up
_CPU_STEP = 1e-3  # CPUs; a share of a CPU is rounded down to a multiple of this
_ROUNDING = 1e-9  # actors; tolerance for rounding errors, so that 7 / 0.07 counts as 100
_MANY = 1_000_000  # actors on a node that sets no limit
_CONNECT_SECONDS = 10.0  # timeout of a connection to the head of a cluster
_TREE_NUMBERS = 2_000_000  # number of values in all messages, N x M, above which the shards add up the messages


@contextmanager
def connected(executor: RayExecutor) -> Iterator[None]:
    """Connect to the cluster at `address` or to a new one on this machine, unless this process is connected already.

    Only a connection made here is shut down at the end. Raises ExecutorError if connecting fails.
    """
    if ray.is_initialized():
        yield
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")  # no warnings about other calls to a dead actor
    options = dict(executor.init)
    if executor.runtime_env:
        options["runtime_env"] = executor.runtime_env
    try:
        check_reachable(executor.address)
        init_ray(executor.address, **{"include_dashboard": executor.dashboard, **options})
    except (OSError, ValueError, RuntimeError, TypeError, AttributeError, AssertionError, RayError) as error:
        raise ExecutorError(f"executor.address={executor.address}: {error}") from error
    if executor.address != "local":
        logger.info("executor=ray: the cluster at %s", ray.get_runtime_context().gcs_address)
    with no_standard_output():
        try:
            yield
        finally:
            ray.shutdown()


def init_ray(address: str | None, **options: Any) -> None:
    """Call `ray.init` without its logs, and with a free port for its dashboard agent."""
    let_ray_choose_its_ports()  # ray.init waits three seconds if another Ray on this machine holds the default port
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    ray.init(address, **{**quiet, **options})


@contextmanager
def no_standard_output() -> Iterator[None]:
    """Discard what Ray and Tune print."""
    with open(os.devnull, "w") as nothing, redirect_stdout(nothing):
        yield


def check_reachable(address: str | None) -> None:
    """Raise ConnectionError if no Ray answers at the address."""
    found = resolve_ray_address(address)
    if (found or "").startswith("ray://"):
        raise ConnectionError("Ray Client is not supported: give the command on a node, with HOST:PORT of its head")
    host, _, port = (found or "").rpartition(":")
    if not host or not port.isdecimal():
        return
    try:  # ray.init would try for a quarter of an hour
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ConnectionError(
            f"no Ray answers at {address or found} ({error}); the address 'local' starts one here"
        ) from error


@dataclass(frozen=True)
class Layout:
    """The division of the agents among actors. ranges: the agents [first, last) of each actor.

    num_cpus: the CPUs of each actor. tree: True if the actors add up the sampled agents' messages. sentence: a
    description for the log.
    """

    ranges: list[tuple[int, int]]
    num_cpus: float
    tree: bool
    sentence: str


def layout(executor: RayExecutor, experiment: FederatedExperiment) -> Layout:
    """Divide N agents among actors that fit on the cluster. Raises ExecutorError if they do not fit.

    A message has M values. With `aggregation=auto`, the actors add up the messages if the algorithm needs sums and N x
    M is over 2 million. Addition by the actors can change the last digits of the sums.
    """
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    cpus, gpus, memory = (sum(node.get(kind, 0.0) for node in nodes) for kind in ("CPU", "GPU", "memory"))
    N = experiment.problem.n_agents
    room = _room(executor, nodes)
    wanted = executor.agents_per_actor
    k = min(room, N) if isinstance(wanted, str) else math.ceil(N / wanted)
    if k > room or k < 1:
        has = f"the cluster has room for {room} ({cpus:g} CPUs, {gpus:g} GPUs, {memory / 1e9:.1f} GB)"
        if room < 1:
            raise ExecutorError(f"an actor needs {_asked_in_words(executor)}, and {has}: ask for less per actor")
        raise ExecutorError(
            f"executor.agents_per_actor={wanted} makes {k} actors of {N} agents and {has}: use auto, or ask for less "
            "per actor"
        )
    cuts = [round(i * N / k) for i in range(k + 1)] if isinstance(wanted, str) else [*range(0, N, wanted), N]
    num_cpus = executor.num_cpus
    if num_cpus is None:
        num_cpus = _fair_share(k, [node.get("CPU", 0.0) for node in nodes])
    M = experiment.agents.features.size
    large = executor.aggregation == "auto" and N * M > _TREE_NUMBERS
    tree = experiment.settings.algorithm.aggregates and (large or executor.aggregation == "tree")
    shape = f"{num_cpus:g} CPUs and {executor.num_gpus:g} GPUs"
    sentence = f"{N} agents in {k} actors with {shape} each" + (", which add up for the server" if tree else "")
    return Layout(list(pairwise(cuts)), num_cpus, tree, sentence)


def _asked(executor: RayExecutor) -> dict[str, float]:
    cpus = executor.num_cpus
    if cpus is None:
        cpus = 1.0 if executor.agents_per_actor == "auto" else 0.0
    return {"memory": _ACTOR_BYTES, "GPU": executor.num_gpus, "CPU": cpus}


def _asked_in_words(executor: RayExecutor) -> str:
    asked = _asked(executor)
    return f"{asked['CPU']:g} CPUs, {asked['GPU']:g} GPUs and {asked['memory'] / 1e9:.1f} GB on one node"


def _room(executor: RayExecutor, nodes: Sequence[dict[str, float]]) -> int:
    asked = _asked(executor)
    room = 0
    for node in nodes:
        has = {"memory": math.inf, **node}  # a node may not report its memory
        room += math.floor(min(_MANY, *(has.get(kind, 0.0) / n + _ROUNDING for kind, n in asked.items() if n)))
    return room


def _fair_share(k: int, cpus: Sequence[float]) -> float:
    """Return the largest share of a CPU, at most 1, that fits k times on the nodes; 0 if no share fits."""
    shares = {min(1.0, math.floor(c / j / _CPU_STEP) * _CPU_STEP) for c in set(cpus) for j in range(1, k + 1)}
    fitting = [s for s in shares if s > 0 and sum(math.floor(c / s + _ROUNDING) for c in cpus) >= k]
    return max(fitting, default=0.0)
