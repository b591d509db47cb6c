"""A private transform, which releases noisy counts of the rows in public cells."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from dpfbo import checks
from dpfbo.outsourced.table import Public, Table
from dpfbo.outsourced.transforms import Candidates, Unreleased, WithNoise
from dpfbo.outsourced.transforms.cells import Cells, OverCells
from dpfbo.privacy.accounting.analytic_gaussian import noise_multiplier
from dpfbo.privacy.entropy import Entropy
from dpfbo.privacy.release import Release

_LEAST_ROWS = 5.0  # rows of an average cell, in standard deviations of the noise


@dataclass(frozen=True)
class Histogram(WithNoise, OverCells):
    """Releases `counts + sigma N(0, I)`, m x 1, the noisy numbers of rows in m public cells.

    The candidates are the centres of the cells whose noisy counts exceed a threshold. A measurement of a candidate
    takes a random row of its cell, if possible a row that was not measured before. If the cell has no row, in spite of
    its noisy count, the row nearest to its centre is taken.

    Args:
        epsilon: The epsilon of the release.
        delta: The delta of the release.
        noise: The sampler of the noise.
        cells: The number of cells on the longest axis; other axes have cells in proportion. None for the smallest
            cells whose average number of rows is at least about `5 * sigma`.
        threshold: A cell is treated as empty if its noisy count is at most `threshold * sigma`.

    Guarantee:
        Neighbouring relation: two tables of n rows differ in one row, by any distance. The PO-GP-UCB paper limits this
        distance, so the guarantee also holds under the paper's relation. Event: the release of the counts, which the
        analytic Gaussian mechanism makes (eps, delta)-private. Sensitivity: sqrt(2), because one count falls by 1 and
        another rises by 1. Cells, centres and threshold are public, and the choice of candidates is post-processing.
        Measurements are not covered.

    Raises:
        SettingError: epsilon is not positive, delta lies outside (0, 1), cells is below 2, or threshold is below 0.

    Example:
        >>> import dpfbo
        >>> public = dpfbo.problems.GridGP(side_points=5).table.public
        >>> transform = Histogram(epsilon=1.0, delta=1e-3, cells=4)
        >>> transform.size(public), round(transform.sigma(public), 2)  # m counts, each with noise sigma
        (16, 3.64)
    """

    cells: int | None = None
    threshold: float = 2.0
    l2_sensitivity: ClassVar[float] = math.sqrt(2)  # one count falls by 1, another rises by 1
    relation: ClassVar[str] = "one row replaced by any other"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cells is not None:
            checks.integer("cells", self.cells, minimum=2)
        checks.non_negative("threshold", self.threshold)

    def grid(self, public: Public) -> Cells:
        if self.cells is not None:
            return Cells(public, self.cells)
        return Cells.with_rows(public, _LEAST_ROWS * noise_multiplier(self.epsilon, self.delta) * self.l2_sensitivity)

    def size(self, public: Public) -> int:
        return len(self.grid(public))

    def release(self, table: Table, entropy: Entropy) -> tuple[Release, Unreleased]:
        grid = self.grid(table.public)
        cell, n_moved = grid.of(table)
        counts = torch.bincount(cell, minlength=len(grid)).to(torch.float64)
        release, diagnostics = self.with_noise(counts, table, n_moved, entropy)
        return replace(release, values=release.values[:, None]), Unreleased(diagnostics)

    def candidates(self, values: Tensor, public: Public) -> Candidates:
        return replace(super().candidates(values, public), counts=values[self.kept(values, public), 0])

    def kept(self, values: Tensor, public: Public) -> Tensor:
        """Return the cells whose counts exceed the threshold, or the cell with the largest count if none does."""
        counts = values[:, 0]
        kept = (counts > self.threshold * self.sigma(public)).nonzero()[:, 0]
        return kept if len(kept) else counts.argmax()[None]
