"""The control with which `Histogram` is compared: all public cells are candidates, and no counts are released."""

from dataclasses import dataclass

import torch
from torch import Tensor

from dpfbo import checks
from dpfbo.outsourced.table import Public, Table
from dpfbo.outsourced.transforms import Unreleased, nothing
from dpfbo.outsourced.transforms.cells import Cells, OverCells
from dpfbo.privacy.entropy import Entropy
from dpfbo.privacy.release import Release

_LEAST_ROWS = 25.0  # rows of an average cell


@dataclass(frozen=True)
class Cover(OverCells):
    """Releases a zero for each public cell, as a control: all cells are candidates, empty or not.

    A measurement of a candidate takes a random row of its cell, if possible a row that was not measured before. If the
    cell is empty, the row nearest to its centre is taken. The release depends on no data, so its epsilon is 0.

    Args:
        cells: The number of cells on the longest axis; other axes have cells in proportion. None for cells of at least
            25 rows on average.

    Raises:
        SettingError: cells is below 2.
    """

    cells: int | None = None

    def __post_init__(self) -> None:
        if self.cells is not None:
            checks.integer("cells", self.cells, minimum=2)

    def grid(self, public: Public) -> Cells:
        return Cells.with_rows(public, _LEAST_ROWS) if self.cells is None else Cells(public, self.cells)

    def kept(self, values: Tensor, public: Public) -> Tensor:
        return torch.arange(len(values), device="cpu")

    def release(self, table: Table, entropy: Entropy) -> tuple[Release, Unreleased]:
        return nothing(len(self.grid(table.public)), table)
