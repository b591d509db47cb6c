"""The curator: holds the table, releases it once, and measures what it is asked to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from dpfbo.outsourced.table import CandidateProblem, ReleasedTable
from dpfbo.outsourced.transforms import CandidateRows, Transform, Unreleased
from dpfbo.privacy.accounting import finite_or_none
from dpfbo.privacy.budget import EpsilonCurve
from dpfbo.privacy.entropy import Entropy
from dpfbo.privacy.ledger import Charge, Ledger, check_noise_is_new
from dpfbo.privacy.release import Diagnostics, Release
from dpfbo.records import ServerRecord
from dpfbo.rng import Streams

_CURATOR = torch.zeros(1, dtype=torch.long)  # whose stretch of the streams

# the release and its public record, and its private numbers; no record where a release tells nothing
CuratorOutput = tuple[ReleasedTable, ServerRecord | None, Diagnostics | None]


@dataclass(frozen=True)
class Measured:
    """What was measured in one round. indices: of the candidates; y: the answers; rows: whose they are, which only the
    curator knows."""

    indices: list[int]
    y: list[float]
    rows: list[int]


class KeptCuratorRelease(Protocol):
    """Durable storage of a curator's release, as `dpfbo.privacy.release.KeptRelease`, with the order of its rows."""

    def load(self, round: int) -> tuple[Release, Unreleased] | None: ...

    def save(self, round: int, release: Release, unreleased: Unreleased) -> None: ...


class Curator:
    """One curator.

    Guarantee. The transform's release is all that leaves of the rows but measurements, and it is charged to the
    ledger, durably, before `release` returns it. Measurements are not covered: each tells the objective at a row of the
    modeler's choice.

    capacity: how many measurements it will make at most. kept: for noise that cannot be drawn twice, a file of the
    curator's own, with the secret order of the rows, from before the charge until the run is over.
    """

    def __init__(
        self,
        problem: CandidateProblem,
        transform: Transform,
        streams: Streams,
        entropy: Entropy,
        ledger: Ledger,
        epsilon: EpsilonCurve,
        capacity: int,
        kept: KeptCuratorRelease | None = None,
    ) -> None:
        self._table, self._noise = problem.table, problem.noise_variance**0.5
        self._transform, self._streams, self._entropy = transform, streams, entropy
        self._ledger, self._epsilon, self._capacity, self._kept = ledger, epsilon, capacity, kept
        self._released: CuratorOutput | None = None
        self._behind: CandidateRows | None = None
        self._answers: list[Measured] = []
        self._seen: set[int] = set()

    def release(self) -> CuratorOutput:
        """The release, charged to round 0; repeating it returns the same."""
        if self._released is None:
            release, unreleased = self._made()
            behind = self._transform.behind(release.values, unreleased.order, self._table)  # refuses another table's
            event, record, diagnostics = self._transform.event(self._table.public), None, None
            if event is not None:
                check_noise_is_new(self._ledger, 0, release, self._entropy, self._transform.random)
                sensitivity, relation = finite_or_none(release.sensitivity), self._transform.relation or None
                self._ledger.charge(Charge.of(0, event, release.sigma, sensitivity, release.values, relation))
                spent = self._ledger.events(up_to_round=0 if self._entropy.reproducible else None)
                record = ServerRecord(0, self._epsilon.after(spent), release.sigma, release.sensitivity)
                diagnostics = unreleased.diagnostics
            self._behind = behind
            self._released = ReleasedTable(release.values), record, diagnostics
        return self._released

    def resume(self, values: Tensor) -> None:
        """Know what was released, and what stands behind it: drawn again, or kept in a file of the curator's own.

        Raises ValueError if that is not what was released: the data, the code or the file are not what they were.
        """
        made = self._kept.load(0) if self._kept else self._transform.release(self._table, self._entropy)
        if made is None or not torch.equal(made[0].values, values):
            raise ValueError("the release is not repeated as the checkpoint has it: delete the folder to start anew")
        self._behind = self._transform.behind(values, made[1].order, self._table)

    def _made(self) -> tuple[Release, Unreleased]:
        """The one that was kept before its charge, of a curator that was killed since then, or a new one."""
        made = self._kept.load(0) if self._kept else None
        if made is None:
            made = self._transform.release(self._table, self._entropy)
            if self._kept:
                self._kept.save(0, *made)
        return made

    @property
    def n_candidates(self) -> int:
        """How many there are to choose among; 0 before the release."""
        return 0 if self._behind is None else len(self._behind)

    def measure(self, t: int, indices: Sequence[int]) -> Measured:
        """Measure the candidates of round t; repeating the last round gives the same answers.

        Raises ValueError for an index that is none, a round out of order or with other indices than before, more
        measurements than agreed, or before anything was released.
        """
        if self._behind is None:
            raise ValueError("a curator measures nothing before it has released")
        if t == len(self._answers) - 1 and list(indices) == self._answers[t].indices:
            return self._answers[t]
        if t != len(self._answers):
            raise ValueError(f"the curator is at round {len(self._answers)}, got {t} with {list(indices)}")
        if sum(len(answer.y) for answer in self._answers) + len(indices) > self._capacity:
            raise ValueError(f"the curator makes at most {self._capacity} measurements, as agreed before the release")
        last = self.n_candidates - 1
        for index in indices:
            if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index <= last:
                raise ValueError(f"the modeler's index must be an integer from 0 to {last}, got {index!r}")
        picks = self._streams.uniform("curator/row", _CURATOR, t, len(indices))[0].tolist()
        rows = [self._row(self._behind, index, pick) for index, pick in zip(indices, picks, strict=True)]
        noise = self._noise * self._streams.normal("observation", _CURATOR, t, len(indices))[0]
        answer = Measured(list(indices), (self._table.values[rows] + noise).tolist(), rows)
        self._answers.append(answer)
        return answer

    def _row(self, behind: CandidateRows, index: int, pick: float) -> int:
        """The row to measure for a candidate: of several, one that was not measured before if there is any."""
        rows = behind.rows(index).tolist()
        if len(rows) > 1:
            rows = [row for row in rows if row not in self._seen] or rows
        row = rows[int(pick * len(rows))]
        self._seen.add(row)
        return row
