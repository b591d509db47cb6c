"""The curator, which holds the table, releases it once, and measures the candidates that the modeler asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dpfbo.outsourced.table import CandidateProblem, ReleasedTable
from dpfbo.outsourced.transforms import CandidateRows, Transform
from dpfbo.privacy.accounting import finite_or_none
from dpfbo.privacy.budget import EpsilonCurve
from dpfbo.privacy.entropy import Entropy
from dpfbo.privacy.ledger import Charge, Ledger, check_noise_is_new
from dpfbo.privacy.release import Diagnostics, KeptRelease, Release
from dpfbo.records import ServerRecord
from dpfbo.rng import Streams

_CURATOR = torch.zeros(1, dtype=torch.long, device="cpu")  # the curator's agent number in the random streams

# (released table, public record, secret diagnostics); record and diagnostics are None if the release depends on no
# data, and the diagnostics are None if the noise is not seeded
CuratorOutput = tuple[ReleasedTable, ServerRecord | None, Diagnostics | None]


@dataclass(frozen=True)
class Measured:
    """One round's measurements: `y[i]` is of candidate `indices[i]`, at row `rows[i]`, which only the curator knows."""

    indices: list[int]
    y: list[float]
    rows: list[int]


@dataclass
class Curator:
    """The curator of one table, which releases it once and then measures candidates.

    Args:
        problem: The table and the noise of a measurement.
        transform: The map from the table to the release.
        streams: The random numbers of measurements.
        entropy: The randomness of the release.
        ledger: The ledger to which the release is charged.
        epsilon: Computes epsilon from the ledger's charges.
        capacity: The largest number of measurements.
        kept: The file that keeps the release and the secret order of its rows until the run ends; None if the noise is
            seeded and can be drawn again.

    Guarantee:
        Only the transform's release and the measurements leave the curator. The method `release` charges the ledger
        before it returns the release. If the ledger has a path, the charge is on disk by then. The transform states the
        neighbouring relation and the sensitivity. The charge does not cover measurements. A candidate represents one or
        more rows of the table. Each measurement of the candidate reveals the objective at one of these rows. The
        revealed value is exact if the problem's `noise_variance` is 0; otherwise it has observation noise.

    Raises:
        LedgerError: `release` cannot charge the ledger.
        ValueError: `measure` is called out of order, or with an index that belongs to no candidate.

    Example:
        >>> import dpfbo
        >>> grid, transform = dpfbo.problems.GridGP(side_points=5), dpfbo.outsourced.Histogram(1.0, 1e-3, cells=4)
        >>> streams, ledger = Streams(0), dpfbo.Ledger()
        >>> curve = EpsilonCurve(dpfbo.accountant_named("pld"), planned=[], delta=1e-3)
        >>> entropy = dpfbo.privacy.SeededEntropy(streams)
        >>> curator = Curator(grid, transform, streams, entropy, ledger, curve, capacity=10)
        >>> released, record, _ = curator.release()
        >>> released.values.shape, round(record.epsilon, 2), len(curator.measure(0, [0, 1]).y)
        (torch.Size([16, 1]), 1.0, 2)
    """

    problem: CandidateProblem
    transform: Transform
    streams: Streams
    entropy: Entropy
    ledger: Ledger
    epsilon: EpsilonCurve
    capacity: int
    kept: KeptRelease | None = None
    _released: CuratorOutput | None = field(default=None, init=False)
    _candidate_rows: CandidateRows | None = field(default=None, init=False)
    _answers: list[Measured] = field(default_factory=list, init=False)

    def release(self) -> CuratorOutput:
        """Make the release and charge it as round 0; later calls return the same release without a charge."""
        if self._released is None:
            release, order, private = self._kept_or_new()
            # before the charge: this raises for the release of another table
            rows = self.transform.candidate_rows(release.values, order, self.problem.table)
            event, record, diagnostics = self.transform.event(self.problem.table.public), None, None
            if event is not None:
                sensitivity, relation = finite_or_none(release.sensitivity), self.transform.relation or None
                with self.ledger.locked():
                    check_noise_is_new(self.ledger, 0, release, self.entropy, self.transform.random)
                    self.ledger.charge(Charge.of(0, event, release.sigma, sensitivity, release.values, relation))
                    spent = self.ledger.events(up_to_round=0 if self.entropy.reproducible else None)
                record = ServerRecord(0, self.epsilon.after(spent), release.sigma, release.sensitivity)
                diagnostics = private if self.entropy.reproducible else None
            self._candidate_rows = rows
            self._released = ReleasedTable(release.values), record, diagnostics
        return self._released

    def resume(self, values: Tensor) -> None:
        """Restore the map from candidates to rows of the table when a run is resumed.

        values: the released values. The curator reads the release from its file, or makes it again from the seed.
        Raises ValueError if the file holds no release, or if the release differs from `values`.
        """
        made = self.kept.load(0) if self.kept else self._new()[:2]
        if made is None or not torch.equal(made[0].values, values):
            raise ValueError("the repeated release differs from the checkpoint: delete the folder to start anew")
        self._candidate_rows = self.transform.candidate_rows(values, made[1], self.problem.table)

    def _kept_or_new(self) -> tuple[Release, Sequence[int] | None, Diagnostics | None]:
        """Return (release, row order, diagnostics); diagnostics is None for a release from the curator's file."""
        if self.kept and (made := self.kept.load(0)) is not None:
            return *made, None
        release, order, private = self._new()
        if self.kept:
            self.kept.save(0, release, order)
        return release, order, private

    def _new(self) -> tuple[Release, Sequence[int] | None, Diagnostics]:
        release, unreleased = self.transform.release(self.problem.table, self.entropy)
        return release, unreleased.order, unreleased.diagnostics

    @property
    def n_candidates(self) -> int:
        return 0 if self._candidate_rows is None else len(self._candidate_rows)

    def measure(self, t: int, indices: Sequence[int]) -> Measured:
        """Measure the candidates of round t; a repeated call for the last round returns the same answers.

        Raises ValueError if nothing was released yet, if an index belongs to no candidate, if the round is out of
        order, or if the run would have more than `capacity` measurements.
        """
        if self._candidate_rows is None:
            raise ValueError("a curator measures nothing before it has released")
        if t == len(self._answers) - 1 and list(indices) == self._answers[t].indices:
            return self._answers[t]
        if t != len(self._answers):
            raise ValueError(f"the curator is at round {len(self._answers)}, got {t} with {list(indices)}")
        if sum(len(answer.y) for answer in self._answers) + len(indices) > self.capacity:
            raise ValueError(f"the curator makes at most {self.capacity} measurements, as agreed before the release")
        last = self.n_candidates - 1
        for index in indices:
            if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index <= last:
                raise ValueError(f"the modeler's index must be an integer from 0 to {last}, got {index!r}")
        picks = self.streams.uniform("curator/row", _CURATOR, t, len(indices))[0].tolist()
        rows: list[int] = []
        measured = {row for answer in self._answers for row in answer.rows}
        for index, pick in zip(indices, picks, strict=True):
            near = self._candidate_rows.rows(index).tolist()
            if len(near) > 1:  # prefer rows that were not measured before
                near = [row for row in near if row not in measured and row not in rows] or near
            rows.append(near[int(pick * len(near))])
        noise = self.problem.noise_variance**0.5 * self.streams.normal("observation", _CURATOR, t, len(indices))[0]
        answer = Measured(list(indices), (self.problem.table.values[rows] + noise).tolist(), rows)
        self._answers.append(answer)
        return answer
