"""The control of the histogram: public cells, and nothing released at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from dpfbo import checks
from dpfbo.entropy import Entropy
from dpfbo.mechanism import Release
from dpfbo.outsourced import Candidates
from dpfbo.outsourced.cells import Cells
from dpfbo.outsourced.table import Public, Table

if TYPE_CHECKING:
    import dp_accounting

_LEAST_ROWS = 25.0  # of an average cell


@dataclass(frozen=True)
class Cover:
    """All cells are candidates, empty or not; to measure one is to measure a random row of it, or the nearest row.

    The "released" values are a zero for each cell, known beforehand: epsilon is 0. What a transform gains over this is
    what its release was good for. cells: on the longest axis, others in proportion; None for as many as leave an
    average cell 25 rows. Raises ValueError for cells < 2.
    """

    cells: int | None = None
    private: ClassVar[bool] = False
    relation: ClassVar[str] = "any two tables of as many rows"

    def __post_init__(self) -> None:
        if self.cells is not None:
            checks.integer("transform.cells", self.cells, minimum=2)

    def event(self, public: Public) -> dp_accounting.DpEvent | None:
        return None

    def grid(self, public: Public) -> Cells:
        return Cells.with_rows(public, _LEAST_ROWS) if self.cells is None else Cells(public, self.cells)

    def scale(self, table: Table) -> float:
        return self.grid(table.public).scale

    def release(self, table: Table, entropy: Entropy) -> Release:
        zeros = torch.zeros(len(self.grid(table.public)), 1, dtype=torch.float64)
        return Release(zeros, 0.0, 0.0, 0.0, 0.0, len(table.rows), 0, 0)

    def candidates(self, values: Tensor, public: Public) -> Candidates:
        grid = self.grid(public)
        return Candidates(grid.centres(), grid.widths.square() / 12, fresh=True)

    def rows(self, values: Tensor, table: Table) -> list[Tensor] | None:
        return self.grid(table.public).rows(table, torch.arange(len(values)))

    def published_claim(self, public: Public) -> str | None:
        return None
