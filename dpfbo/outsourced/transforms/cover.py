"""The control of the histogram: public cells without a release."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dpfbo import checks
from dpfbo.outsourced.table import Public, Table
from dpfbo.outsourced.transforms import CandidateRows, Candidates, Transform, Unreleased
from dpfbo.outsourced.transforms.cells import CellRows, Cells
from dpfbo.privacy.entropy import Entropy
from dpfbo.privacy.release import Diagnostics, Release

_LEAST_ROWS = 25.0  # rows of an average cell


@dataclass(frozen=True)
class Cover(Transform):
    """All cells are candidates, empty or not; a measurement takes a random row of the cell, or else the nearest row.

    The "released" values are a zero for each cell, known beforehand: epsilon is 0. The gain of a transform over this
    control is the use of its release. cells: number of cells on the longest axis, others in proportion; None for as
    many as leave an average cell 25 rows. Raises ValueError for cells < 2.
    """

    cells: int | None = None

    def __post_init__(self) -> None:
        if self.cells is not None:
            checks.integer("cells", self.cells, minimum=2)

    def grid(self, public: Public) -> Cells:
        """The cells; their number follows from public settings."""
        return Cells.with_rows(public, _LEAST_ROWS) if self.cells is None else Cells(public, self.cells)

    def scale(self, table: Table) -> float:
        return self.grid(table.public).scale

    def release(self, table: Table, entropy: Entropy) -> tuple[Release, Unreleased]:
        zeros = torch.zeros(len(self.grid(table.public)), 1, dtype=torch.float64, device="cpu")
        n = len(table.rows)
        diagnostics = Diagnostics(signal=0.0, noise=0.0, n_chosen=n, n_clipped=0, n_rejected=0)
        return Release(zeros, sigma=0.0, sensitivity=0.0), Unreleased(diagnostics)

    def candidates(self, values: Tensor, public: Public) -> Candidates:
        grid = self.grid(public)
        return Candidates(grid.centres(), grid.widths.square() / 12, fresh=True)

    def most_candidates(self, public: Public) -> int:
        return len(self.grid(public))

    def candidate_rows(self, values: Tensor, order: Sequence[int] | None, table: Table) -> CandidateRows:
        return CellRows.of(self.grid(table.public), values, torch.arange(len(values), device="cpu"), table)
