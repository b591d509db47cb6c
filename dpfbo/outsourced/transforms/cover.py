"""The control for the transform `Histogram`: public cells without a release."""

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
    """Releases nothing, as a control: all public cells are candidates, empty or not.

    A measurement takes a random row of the cell, or the nearest row if the cell is empty. The release depends on no
    data, so epsilon is 0.

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
