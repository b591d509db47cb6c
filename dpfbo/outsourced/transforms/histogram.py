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
    """Release `counts + sigma N(0, I)`, m x 1, the noisy numbers of rows in m public cells.

    The modeler optimises over the centres of the cells with counts above a threshold. A measurement of a candidate
    takes a random row of its cell, one not measured before if there is any, or the nearest row if the cell is empty.
    The modeler asks for no more measurements of a cell than its noisy count.

    Args:
        epsilon: The epsilon of the release.
        delta: The delta of the release.
        noise: The sampler of the noise.
        cells: The number of cells on the longest axis, others in proportion; None for as many as leave an average cell
            5 times as many rows as the standard deviation of the noise.
        threshold: A cell whose count is below this multiple of the noise's standard deviation counts as empty.

    Guarantee:
        Relation: tables of n rows that differ in one row, by any distance, which includes the neighbours of the paper.
        Event: the release of the counts, which is (eps, delta)-private by the analytic Gaussian mechanism. Sensitivity:
        sqrt(2), one count less and another one more. Cells, threshold and centres are public or post-processing. Not
        covered: measurements.

    Raises:
        SettingError: epsilon is not above 0, delta lies outside (0, 1), cells is below 2, or threshold below 0.

    Example:
        >>> import dpfbo
        >>> public = dpfbo.problems.GridGP(side_points=5).table.public
        >>> transform = Histogram(epsilon=1.0, delta=1e-3, cells=4)
        >>> transform.size(public), round(transform.sigma(public), 2)  # m counts, each with noise sigma
        (16, 3.64)
    """

    cells: int | None = None
    threshold: float = 2.0
    l2_sensitivity: ClassVar[float] = math.sqrt(2)  # one count less, another one more
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
        """The cells with counts above the threshold; if there is none, the cell with the largest count."""
        counts = values[:, 0]
        kept = (counts > self.threshold * self.sigma(public)).nonzero()[:, 0]
        return kept if len(kept) else counts.argmax()[None]
