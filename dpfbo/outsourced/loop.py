"""Curator and modeler together: the `Population` of an outsourced run, wherever the two are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from dpfbo.clock import PhaseClock
from dpfbo.federated.broadcast import Broadcast, ReleasedTable
from dpfbo.outsourced.curator import Measured
from dpfbo.outsourced.modeler import Belief, Modeler, Policy
from dpfbo.outsourced.table import CandidateProblem, Public
from dpfbo.outsourced.transforms import Transform
from dpfbo.privacy.release import Diagnostics
from dpfbo.records import RoundRecord, ServerRecord, Source
from dpfbo.rng import Streams

_MODELER = torch.zeros(1, dtype=torch.long)


@dataclass(frozen=True)
class Brief:
    """All that a modeler is told before it starts, besides what was released. It holds no seed and no row."""

    transform: Transform
    public: Public
    belief: Belief
    policy: Policy
    capacity: int


class CuratorParty(Protocol):
    """A `dpfbo.outsourced.curator.Curator`, or whatever reaches one."""

    def round(self, t: int, messages: None) -> tuple[Broadcast | None, ServerRecord | None, Diagnostics | None]: ...

    def resume(self, values: Tensor) -> None: ...

    def measure(self, t: int, indices: Sequence[int]) -> Measured: ...


class ModelerParty(Protocol):
    """A modeler, or whatever reaches one."""

    def start(self, values: Tensor) -> int:
        """Make it know what was released; returns how many candidates it sees."""

    def propose(self, t: int, uniform: float) -> int: ...

    def observe(self, t: int, indices: Sequence[int], y: Sequence[float]) -> None: ...


class ModelerHere:
    """A modeler in this process."""

    def __init__(self, brief: Brief) -> None:
        self._brief = brief

    def start(self, values: Tensor) -> int:
        candidates = self._brief.transform.candidates(values, self._brief.public)
        self._modeler = Modeler(candidates, self._brief.belief, self._brief.policy, self._brief.capacity)
        return len(candidates.points)

    def propose(self, t: int, uniform: float) -> int:
        return self._modeler.propose(uniform)

    def observe(self, t: int, indices: Sequence[int], y: Sequence[float]) -> None:
        for index, value in zip(indices, y, strict=True):
            self._modeler.observe(index, value)


class Parties:
    """Round 0: the release, and n_init random candidates; round t: the modeler's proposal.

    problem: for the records only, in which a curator's private numbers are tagged as such.
    """

    def __init__(
        self, problem: CandidateProblem, curator: CuratorParty, modeler: ModelerParty, streams: Streams, n_init: int
    ) -> None:
        self._table = problem.table
        self._curator, self._modeler, self._streams, self._n_init = curator, modeler, streams, n_init
        self._optimum, self._best = float(self._table.values.max()), -torch.inf
        self._candidates = 0

    def step(self, t: int, broadcast: Broadcast | None, send: bool) -> PartiesStep:
        clock = PhaseClock()
        if t == 0:
            with clock("release"):
                released, _, _ = self._curator.round(0, None)
            if not isinstance(released, ReleasedTable):
                raise ValueError("a curator must release before its modeler can start")
            self._candidates = self._modeler.start(released.values)
        with clock("modeler"):
            indices = self._ask(t)
        with clock("objective"):
            measured = self._curator.measure(t, indices)
        with clock("modeler"):
            self._modeler.observe(t, indices, measured.y)
        return PartiesStep(self._record(t, measured), dict(clock.seconds))

    def restore(self, history: Sequence[RoundRecord], released: Broadcast | None) -> None:
        """Both parties learn what they did in the rounds that are done: the modeler repeats its proposals on the
        answers that it got, and the curator looks up which rows they were.

        released: in round 0. Raises ValueError if they come to other rows or answers: the data, or the code,
        are not what they were.
        """
        if not history:
            return
        if not isinstance(released, ReleasedTable):
            raise ValueError("the checkpoint of an outsourced run must hold its release: delete the folder")
        self._curator.resume(released.values)
        self._candidates = self._modeler.start(released.values)
        for done in history:
            t, y = done.round, done.y[0].tolist()
            indices = self._ask(t)
            measured = self._curator.measure(t, indices)
            if measured.y != y or not torch.equal(self._table.natural[measured.rows], done.x[0]):
                raise ValueError(f"round {t} is not repeated as the checkpoint has it: delete the folder to start anew")
            self._modeler.observe(t, indices, y)
        self._best = float(history[-1].best[0, -1])

    def _ask(self, t: int) -> list[int]:
        """The candidates of round t; the first ones are different if there are as many, like those of an agent."""
        if t:
            return [self._modeler.propose(t, float(self._streams.uniform("modeler", _MODELER, t, 1)))]
        free, chosen = list(range(self._candidates)), []
        for u in self._streams.uniform("initial", _MODELER, 0, self._n_init)[0].tolist():
            free = free or list(range(self._candidates))
            chosen.append(free.pop(int(u * len(free))))
        return chosen

    def _record(self, t: int, measured: Measured) -> RoundRecord:
        values = self._table.values[measured.rows]
        best = torch.cummax(torch.cat([torch.tensor([self._best], dtype=values.dtype), values]), 0).values[1:]
        self._best = float(best[-1])
        rows = self._table.rows[measured.rows]
        low, high = (torch.tensor(bound, dtype=rows.dtype) for bound in (self._table.lower, self._table.upper))
        source = torch.full((1, len(rows)), int(Source.modeler if t else Source.initial))
        return RoundRecord(
            t, torch.zeros(1, len(rows), dtype=torch.long), source, ((rows - low) / (high - low))[None],
            self._table.natural[measured.rows][None], torch.tensor([measured.y], dtype=torch.float64), best[None],
            (self._optimum - best)[None],
        )  # fmt: skip


@dataclass(frozen=True)
class PartiesStep:
    """A round of `Parties`, done when it is made."""

    whole: RoundRecord
    phases: dict[str, float]

    def messages(self) -> None:
        return None

    def record(self) -> RoundRecord:
        return self.whole

    def seconds(self) -> dict[str, float]:
        return self.phases
