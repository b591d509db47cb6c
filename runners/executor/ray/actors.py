"""The Ray actors of a federated run: agent actors with some agents each, and the server actor."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from torch import Tensor

from dpfbo.checkpoint import Checkpoint
from dpfbo.federated.broadcast import Broadcast
from dpfbo.federated.messages import Messages, PartialSum
from dpfbo.federated.population.shard import Shard
from dpfbo.federated.server import RoundOutput
from dpfbo.privacy.ledger import Ledger
from dpfbo.records import RoundRecord
from runners.compose.composition import experiment_of, federated
from runners.compose.settings import FederatedSettings
from runners.executor.deployment import Spent, device, limit_gpu_memory
from runners.executor.ray.process import Placement, enter, this_process
from runners.record.run_folder import PROBLEMS, RunFolder


@dataclass(frozen=True)
class AgentReport:
    """The report of an agent actor to the driver on one round.

    seconds: by phase. failures: the sentence and the traceback of each failed evaluation.
    """

    record: RoundRecord
    seconds: dict[str, float]
    failures: list[tuple[str, str]]


@contextmanager
def _failures() -> Iterator[list[tuple[str, str]]]:
    """Collect the failed evaluations within this block; the driver tells them, and has the run folder."""
    found: list[tuple[str, str]] = []

    class Collected(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append((record.getMessage(), getattr(record, "traceback", "")))

    log, handler = logging.getLogger(PROBLEMS), Collected()
    log.addHandler(handler)
    log.propagate = False
    try:
        yield found
    finally:
        log.removeHandler(handler)


@ray.remote
class AgentActor:
    """The agents first..last-1 of a run (`dpfbo.federated.population.shard.Shard`) in a process of their own."""

    def __init__(self, settings: FederatedSettings, first: int, last: int, working_directory: str) -> None:
        self._settings, self._range, self._working_directory = settings, (first, last), working_directory

    def start(self, history: Sequence[RoundRecord], observed: RoundRecord | None = None) -> Placement:
        """Build the agents with the finished rounds, see `Shard.restore`.

        A method, because Ray hides the errors of constructors.
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
        """Do round t; returns the report for the driver, and the messages (n x M) for the server."""
        self._shard.take_seconds()
        with _failures() as failures:
            turn = self._shard.step(t, broadcast, send)
        sent = None if turn.messages is None else turn.messages.cpu().numpy()
        return AgentReport(turn.record, self._shard.take_seconds(), failures), sent

    def add_up(self, t: int, rows: Tensor, weights: Tensor) -> PartialSum:
        """The part of these agents in the joint vector (P x M) of round t."""
        return self._shard.add_up(t, rows, weights, self._experiment.mechanism)


@ray.remote
class ServerActor:
    """The server of a run. It alone chooses S_t, adds the noise and writes the ledger, one process at a time.

    Its rounds return the private diagnostics as a separate object. Ray puts a large object, such as a broadcast, into
    memory that every process on the node maps, agents included; a small object goes to the driver alone.
    """

    def __init__(self, settings: FederatedSettings, folder: str, working_directory: str) -> None:
        self._settings, self._folder, self._working_directory = settings, folder, working_directory

    def start(self) -> Placement:
        """Open the ledger and build the server on it."""
        enter(self._working_directory, self._settings.executor.threads)
        files = RunFolder(Path(self._folder))
        self._held = files.hold_ledger()
        self._experiment = federated(experiment_of(self._settings))
        self._ledger = Ledger(files.ledger_path)
        checkpoint = Checkpoint(files.checkpoint_path)
        kept, earlier = self._experiment.kept_release(checkpoint), self._experiment.earlier_releases(checkpoint)
        server = self._experiment.server(self._ledger, kept, earlier)
        if server is None:
            raise ValueError("agents that work alone need no server")
        self._server = server
        return self.placement()

    def placement(self) -> Placement:
        return this_process("cpu")

    @ray.method(num_returns=3)
    def round(
        self, t: int, late: np.ndarray | None, M: int, sizes: Sequence[int], *parts: np.ndarray | None
    ) -> RoundOutput:
        """One round from all shards' messages. parts: n x M for each shard, None for a late one. sizes: n of each."""
        if not parts:
            return self._round(t, None, None)
        # a part of another shape would shift the rows after it: as NaN, its messages are rejected
        whole = [
            part if isinstance(part, np.ndarray) and part.shape == (n, M) else np.full((n, M), np.nan)
            for n, part in zip(sizes, parts, strict=True)
        ]
        return self._round(t, torch.from_numpy(np.concatenate(whole)), late)

    @ray.method(num_returns=3)
    def round_by_shards(
        self, t: int, late: np.ndarray | None, firsts: Sequence[int], shards: Sequence[Any]
    ) -> RoundOutput:
        """One round from the shards' sums over the messages that this server chose."""
        return self._round(t, ShardSums(t, firsts, shards), late)

    def _round(self, t: int, messages: Messages | None, late: np.ndarray | None) -> RoundOutput:
        return self._server.round(t, messages, _tensor(late))

    def spent(self) -> Spent:
        return Spent(self._experiment.plan.epsilons(self._ledger.events()), len(self._ledger.charges))


@dataclass(frozen=True)
class ShardSums:
    """Tree aggregation: each shard adds up its messages of a round (`dpfbo.federated.messages.Contributions`).

    firsts: first agent of each shard. shards: handles of their actors. The shards are trusted to clip, and with the
    knowledge which of their agents were chosen. A sum that is not finite counts as zero.
    """

    t: int
    firsts: Sequence[int]
    shards: Sequence[Any]

    def add_up(self, chosen: Tensor, weights: Tensor, n_features: int) -> PartialSum:
        firsts = torch.tensor(self.firsts)
        owner = torch.searchsorted(firsts, chosen, right=True) - 1
        refs, counts, shape = [], [], (len(weights), n_features)
        for s in owner.unique().tolist():
            ids = chosen[owner == s]
            refs.append(self.shards[s].add_up.remote(self.t, ids - firsts[s], weights[:, ids]))
            counts.append(len(ids))
        parts = [_accepted(part, shape, k) for part, k in zip(ray.get(refs), counts, strict=True)]
        total = sum((p.total for p in parts), torch.zeros(shape, dtype=torch.float64))
        return PartialSum(total, sum(p.n_clipped for p in parts), sum(p.n_rejected for p in parts))


def _accepted(part: PartialSum, shape: tuple[int, int], k: int) -> PartialSum:
    """A shard's sum over k messages; if it is unusable, zero, with all k rejected."""
    counts = 0 <= part.n_clipped <= k and 0 <= part.n_rejected <= k
    if counts and part.total.shape == shape and bool(torch.isfinite(part.total).all()):
        return part
    return replace(part, total=torch.zeros(shape, dtype=torch.float64), n_clipped=0, n_rejected=k)


def _tensor(array: np.ndarray | None) -> Tensor | None:
    return None if array is None else torch.from_numpy(array.copy())
