"""A transform with a guarantee: noisy counts of the rows in each public cell."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from dpfbo import checks
from dpfbo.outsourced.table import Public, Table
from dpfbo.outsourced.transforms import CandidateRows, Candidates, Transform, Unreleased
from dpfbo.outsourced.transforms.cells import CellRows, Cells
from dpfbo.privacy.accounting import check_delta
from dpfbo.privacy.accounting.analytic_gaussian import noise_multiplier
from dpfbo.privacy.accounting.events import round_event
from dpfbo.privacy.entropy import Entropy
from dpfbo.privacy.noise import Gaussian, Noise
from dpfbo.privacy.release import Diagnostics, Release

if TYPE_CHECKING:
    import dp_accounting

SENSITIVITY = math.sqrt(2)  # one count less, another one more
_LEAST_ROWS = 5.0  # rows of an average cell, in standard deviations of the noise


@dataclass(frozen=True)
class Histogram(Transform):
    """Noisy counts of the rows in public cells.

    The modeler optimises over the centres of the cells with counts above a threshold.

    A measurement of a candidate takes a random row of its cell, a new one if there is any, or the nearest row if the
    cell is empty. The modeler asks for no more measurements of a cell than its noisy count.

    Guarantee: (eps, delta) for the release of the counts. Relation: tables of n rows that differ in one row, by any
    distance, which includes the neighbours of the paper. Sensitivity sqrt(2), analytic Gaussian mechanism. Cells,
    threshold and centres are public or post-processing. Not covered: measurements.

    cells: number of cells on the longest axis, others in proportion; None for as many as leave an average cell 5
    standard deviations of the noise. threshold: in standard deviations of the noise; a cell below it counts as empty.

    Raises ValueError for eps <= 0, delta outside (0, 1), cells < 2, or a negative threshold.
    """

    epsilon: float
    delta: float
    cells: int | None = None
    threshold: float = 2.0
    noise: Noise = Gaussian()
    private: ClassVar[bool] = True
    relation: ClassVar[str] = "one row replaced by any other"
    random: ClassVar[bool] = True

    def __post_init__(self) -> None:
        checks.positive("epsilon", self.epsilon)
        check_delta(self.delta)
        if self.cells is not None:
            checks.integer("cells", self.cells, minimum=2)
        checks.non_negative("threshold", self.threshold)

    def event(self, public: Public) -> dp_accounting.DpEvent | None:
        self.noise.check(self.sigma(public), SENSITIVITY)
        return round_event(1.0, noise_multiplier(self.epsilon, self.delta))

    def grid(self, public: Public) -> Cells:
        """The cells; their number follows from public settings."""
        if self.cells is not None:
            return Cells(public, self.cells)
        return Cells.with_rows(public, _LEAST_ROWS * noise_multiplier(self.epsilon, self.delta) * SENSITIVITY)

    def sigma(self, public: Public) -> float:
        """The standard deviation of the noise in every count."""
        return noise_multiplier(self.epsilon, self.delta) * SENSITIVITY * self.noise.inflation(len(self.grid(public)))

    def scale(self, table: Table) -> float:
        return self.grid(table.public).scale

    def release(self, table: Table, entropy: Entropy) -> tuple[Release, Unreleased]:
        grid, sigma = self.grid(table.public), self.sigma(table.public)
        cell, n_moved = grid.of(table)
        counts = torch.bincount(cell, minlength=len(grid)).to(torch.float64)
        noisy = self.noise.add(counts, sigma, SENSITIVITY, entropy, 0)
        signal, noise = float(torch.linalg.norm(counts)), float(torch.linalg.norm(noisy - counts))
        diagnostics = Diagnostics(signal, noise, n_chosen=len(table.rows), n_clipped=n_moved, n_rejected=0)
        release = Release(noisy[:, None], sigma, SENSITIVITY * self.noise.inflation(len(grid)))
        return release, Unreleased(diagnostics)

    def candidates(self, values: Tensor, public: Public) -> Candidates:
        grid, kept = self.grid(public), self.kept(values, public)
        return Candidates(grid.centres()[kept], grid.widths.square() / 12, fresh=True, counts=values[kept, 0])

    def kept(self, values: Tensor, public: Public) -> Tensor:
        """The numbers of the cells with counts above the threshold; that of the largest count if there is none."""
        counts = values[:, 0]
        kept = (counts > self.threshold * self.sigma(public)).nonzero()[:, 0]
        return kept if len(kept) else counts.argmax()[None]

    def most_candidates(self, public: Public) -> int:
        return len(self.grid(public))

    def candidate_rows(self, values: Tensor, order: Sequence[int] | None, table: Table) -> CandidateRows:
        return CellRows.of(self.grid(table.public), values, self.kept(values, table.public), table)
