"""List the actors of a Ray cluster and their GPU memory."""

import os
import shutil
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

if Path("~/.ray/auth_token").expanduser().exists():  # set before Ray is imported, so that Ray sends the token
    os.environ.setdefault("RAY_AUTH_MODE", "token")

from ray.exceptions import AuthenticationError
from ray.util.state import list_actors, list_nodes
from ray.util.state.exception import RayStateApiException
from rich.table import Table

_TRIAL = "run_trial"  # Tune's name for the process of a sweep's trial
_LIMIT = 10_000  # largest number of actors that Ray lists


def actors() -> list[dict[str, Any]]:
    """Return the living actors of the Ray cluster at RAY_ADDRESS, or on this machine if RAY_ADDRESS is not set.

    `gpu_memory` is in MB, and None for actors on other machines. Raises ConnectionError if no dashboard answers.
    """
    try:
        found = list_actors(detail=True, limit=_LIMIT, raise_on_missing_output=False)
        nodes = {node.node_id: node.node_ip for node in list_nodes(raise_on_missing_output=False)}
    except (RayStateApiException, AuthenticationError, OSError, RuntimeError, ValueError) as error:
        address = os.environ.get("RAY_ADDRESS") or "not set"
        raise ConnectionError(
            f"no dashboard of Ray answers (executor.dashboard=true starts one; RAY_ADDRESS is {address}): "
            f"{_sentence(error)}"
        ) from error
    here, memory = {"127.0.0.1", *_addresses()}, _gpu_memory()
    rows = []
    for actor in found:
        if actor.state == "DEAD":
            continue
        node, wanted = nodes.get(actor.node_id or "", ""), actor.required_resources or {}
        rows.append(
            {
                "actor": "a trial" if actor.repr_name == _TRIAL else actor.repr_name or actor.class_name,
                "state": str(actor.state).lower(), "node": node, "pid": actor.pid, "num_cpus": wanted.get("CPU", 0),
                "num_gpus": wanted.get("GPU", 0), "gpu_memory": memory.get(actor.pid or 0) if node in here else None,
            }
        )  # fmt: skip
    return sorted(rows, key=lambda row: (row["actor"], row["pid"] or 0))


def table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table with a row for each actor."""
    result = Table()
    for name in ("actor", "state", "node", "pid", "CPUs", "GPUs", "GPU memory, MB"):
        left = name in ("actor", "state", "node")
        result.add_column(name, justify="left" if left else "right", no_wrap=name == "actor")
    for row in rows:
        numbers = (f"{row['num_cpus']:g}", f"{row['num_gpus']:g}", f"{row['gpu_memory'] or '':}")
        result.add_row(row["actor"], row["state"], row["node"], str(row["pid"] or ""), *numbers)
    return result


def _gpu_memory() -> dict[int, int]:
    """Return the GPU memory in MB by process id."""
    if (program := shutil.which("nvidia-smi")) is None:
        return {}
    ask = [program, "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    memory: dict[int, int] = {}
    for line in subprocess.run(ask, capture_output=True, text=True, timeout=30).stdout.splitlines():
        pid, _, used = line.partition(",")
        if pid.strip().isdecimal() and used.strip().isdecimal():  # the driver may not report the memory
            memory[int(pid)] = memory.get(int(pid), 0) + int(used)
    return memory


def _addresses() -> list[str]:
    try:
        return [str(found[4][0]) for found in socket.getaddrinfo(socket.gethostname(), None)]
    except OSError:
        return []


def _sentence(error: Exception) -> str:
    return " ".join(str(error).split(". ")[0].split())[:300]
