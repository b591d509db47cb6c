"""The settings of a run's executor: the place of its agents and its server."""

from dataclasses import dataclass
from typing import Any

from dpfbo import checks

DEVICES = ("auto", "cpu", "cuda")


@dataclass(frozen=True)
class LocalExecutor:
    """executor=local."""

    name: str
    device: str
    threads: int

    def __post_init__(self) -> None:
        checks.one_of("device", self.device, DEVICES)
        checks.integer("threads", self.threads, minimum=1, maximum=checks.MOST_WORKERS)


@dataclass(frozen=True)
class RayExecutor(LocalExecutor):
    """executor=ray. conf/executor/ray.yaml explains the settings."""

    address: str | None
    agents_per_actor: int | str
    num_cpus: float | None
    num_gpus: float
    placement: str
    aggregation: str
    max_restarts: int
    placement_timeout: float
    runtime_env: dict[str, Any]
    init: dict[str, Any]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.agents_per_actor != "auto":
            checks.integer("agents_per_actor", self.agents_per_actor, minimum=1)
        if self.num_cpus is not None:
            checks.non_negative("num_cpus", self.num_cpus)
        checks.non_negative("num_gpus", self.num_gpus)
        checks.one_of("placement", self.placement, ("DEFAULT", "SPREAD"))
        checks.one_of("aggregation", self.aggregation, ("auto", "messages", "tree"))
        checks.integer("max_restarts", self.max_restarts, minimum=0)
        checks.positive("placement_timeout", self.placement_timeout)
