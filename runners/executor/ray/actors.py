"""The Ray actors of a federated run: agent actors with some agents each, and the server actor."""

import logging
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from logging.handlers import BufferingHandler
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from torch import Tensor

from dpfbo.checkpoint import Checkpoint
from dpfbo.federated.broadcast import Broadcast
from dpfbo.federated.mechanism import Mechanism, PartialSum
from dpfbo.federated.population.shard import Shard
from dpfbo.federated.server import RoundOutput
from dpfbo.formats.run_folder import PROBLEMS, RunFolder
from dpfbo.privacy.ledger import Ledger
from dpfbo.records import RoundRecord, packed, unpacked
from runners.compose.composition import experiment_of, federated
from runners.compose.settings import FederatedSettings
from runners.executor.deployment import Spent, device, limit_gpu_memory
from runners.executor.ray.process import Placement, enter, this_process
from runners.executor.ray.shard_sums import ShardSums


@dataclass(frozen=True)
class AgentReport:
    """An agent actor's report to the driver about one round.

    packed: the round's record as arrays (`dpfbo.records.packed`). seconds: wall time by phase. cpu_seconds: CPU time of
    the actor's process. failures: the message and traceback of each failed evaluation.
    """

    round: int
    packed: dict[str, np.ndarray]
    seconds: dict[str, float]
    cpu_seconds: float
    failures: list[tuple[str, str]]

    @property
    def record(self) -> RoundRecord:
        return unpacked(self.round, self.packed)


@contextmanager
def _failures() -> Iterator[list[logging.LogRecord]]:
    log, handler = logging.getLogger(PROBLEMS), BufferingHandler(sys.maxsize)
    log.addHandler(handler)
    log.propagate = False
    try:
        yield handler.buffer
    finally:
        log.removeHandler(handler)


@ray.remote
class AgentActor:
    """A Ray actor that runs the agents first..last-1 in a separate process."""

    def __init__(self, settings: FederatedSettings, first: int, last: int, working_directory: str) -> None:
        self._settings, self._range, self._working_directory = settings, (first, last), working_directory

    def __repr__(self) -> str:
        return f"dpfbo agents {self._range[0]}-{self._range[1] - 1}"

    def start(self, history: Sequence[RoundRecord], observed: RoundRecord | None = None) -> Placement:
        """Build the agents and restore their rounds.

        The constructor builds nothing, because Ray would hide the errors of a constructor.
        """
        enter(self._working_directory, self._settings.executor.threads)
        self._experiment = federated(experiment_of(self._settings))
        self._device = device(self._settings.executor.device, bool(ray.get_gpu_ids()))
        if self._device.type == "cuda":
            limit_gpu_memory(self._settings.ray.num_gpus)
        ids = torch.arange(*self._range, device=self._device)
        self._shard = Shard(self._experiment.problem, self._experiment.agents, ids, self._settings.executor.threads)
        self._shard.restore(history, observed)
        return self.placement()

    def placement(self) -> Placement:
        return this_process(str(self._device))

    @ray.method(num_returns=2)
    def step(self, t: int, broadcast: Broadcast | None, send: bool) -> tuple[AgentReport, np.ndarray | None]:
        """Do round t; return the report for the driver and, with `send`, the messages (n x M) for the server."""
        self._shard.take_seconds()
        begin = time.process_time()
        with _failures() as failures:
            turn = self._shard.step(t, broadcast, send)
        said = [(record.getMessage(), getattr(record, "traceback", "")) for record in failures]
        sent = None if turn.messages is None else turn.messages.cpu().numpy()
        cpu_seconds = time.process_time() - begin
        return AgentReport(t, packed(turn.record), self._shard.take_seconds(), cpu_seconds, said), sent

    def add_up(self, t: int, rows: Tensor, weights: Tensor, mechanism: Mechanism) -> PartialSum:
        """Return P weighted sums, P x M, of the messages of k agents in round t.

        rows: the k agents' positions in this actor, counted from 0, in increasing order. weights: P x k.
        """
        return self._shard.add_up(t, rows, weights, mechanism)


@ray.remote
class ServerActor:
    """The server of a run: it alone samples the agents S_t, adds noise, and writes the ledger, which it locks.

    Ray maps a large object, such as a broadcast, into every process on the node, the agents' processes included. The
    private diagnostics of a simulation must not reach the agents. A round therefore returns them as a separate, small
    object, which Ray sends only to the driver.
    """

    def __init__(self, settings: FederatedSettings, folder: str, working_directory: str) -> None:
        self._settings, self._folder, self._working_directory = settings, folder, working_directory

    def __repr__(self) -> str:
        return "dpfbo server"

    def start(self) -> Placement:
        """Open and lock the ledger, and build the server."""
        enter(self._working_directory, self._settings.executor.threads)
        files = RunFolder(Path(self._folder))
        held = files.hold_ledger()
        self._experiment = federated(experiment_of(self._settings))
        self._ledger = Ledger(files.ledger_path, held)
        self._server: Any = self._experiment.server(self._ledger, Checkpoint(files.checkpoint_path))
        return self.placement()

    def placement(self) -> Placement:
        return this_process("cpu")

    def spent(self) -> Spent:
        return Spent.of(self._experiment.plan, self._ledger)

    @ray.method(num_returns=3)
    def round(
        self, t: int, late: Tensor | None, M: int, sizes: Sequence[int], *parts: np.ndarray | None
    ) -> RoundOutput:
        """Do the server's part of a round.

        parts: the messages of each shard, n x M; None for a shard whose messages are late. sizes: the n of each shard.
        """
        if not parts:
            return self._server.round(t, None, None)
        # a part of the wrong shape would shift the rows after it: replaced by NaN, its messages are rejected
        whole = [
            part if isinstance(part, np.ndarray) and part.shape == (n, M) else np.full((n, M), np.nan)
            for n, part in zip(sizes, parts, strict=True)
        ]
        return self._server.round(t, torch.from_numpy(np.concatenate(whole)), late)

    @ray.method(num_returns=3)
    def round_by_shards(self, t: int, late: Tensor | None, firsts: Sequence[int], shards: Sequence[Any]) -> RoundOutput:
        """Do the server's part of a round; the shards add up the sampled agents' messages."""
        return self._server.round(t, ShardSums(t, firsts, shards), late)
