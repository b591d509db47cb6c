"""Public cells: equal parts of the public box."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from dpfbo.checks import SettingError
from dpfbo.outsourced.table import Public, Table
from dpfbo.outsourced.transforms import NORM, within

_MOST = 1_000_000  # cells of one table


@dataclass(frozen=True)
class Cells:
    """Boxes of equal shape, nearly cubes, that fill the public box; lengths are those of the scaled rows (norm 25).

    longest: number of cells on the longest axis; other axes have cells in proportion. Raises ValueError for more than
    a million cells.
    """

    public: Public
    longest: int

    def __post_init__(self) -> None:
        if len(self) > _MOST:
            raise SettingError("cells", f"must make at most {_MOST} cells, got {' x '.join(map(str, self.shape))}")

    @staticmethod
    def with_rows(public: Public, least: float) -> Cells:
        """As many cells as leave each `least` rows if rows are spread evenly; at least 2 on the longest axis."""
        longest = 2
        while math.prod(_shape(public, longest + 1)) * least <= public.n:
            longest += 1
        return Cells(public, longest)

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of cells on every axis."""
        return _shape(self.public, self.longest)

    def __len__(self) -> int:
        return math.prod(self.shape)

    @property
    def scale(self) -> float:
        return NORM / self.public.radius

    @property
    def widths(self) -> Tensor:
        """The widths of a cell, d."""
        low, high = self._bounds()
        return (high - low) / torch.tensor(self.shape, device="cpu") * self.scale

    def centres(self) -> Tensor:
        """The centres of all cells, cells x d, in the order of their numbers."""
        low, _ = self._bounds()
        axes = [torch.arange(count, dtype=torch.float64, device="cpu") + 0.5 for count in self.shape]
        return low * self.scale + torch.cartesian_prod(*axes).view(len(self), -1) * self.widths

    def of(self, table: Table) -> tuple[Tensor, int]:
        """The cell number of every row, n, and the number of rows outside the box, which count for the nearest cell."""
        rows, n_moved = within(table.rows, self.public)
        low, high = self._bounds()
        counts = torch.tensor(self.shape, device="cpu")
        axis = ((rows - low) / (high - low) * counts).long().clamp(min=0)
        axis = torch.minimum(axis, counts - 1)
        number = torch.zeros(len(rows), dtype=torch.long, device="cpu")
        for k, count in enumerate(self.shape):
            number = number * count + axis[:, k]
        return number, n_moved

    def _bounds(self) -> tuple[Tensor, Tensor]:
        return (
            torch.tensor(self.public.lower, dtype=torch.float64, device="cpu"),
            torch.tensor(self.public.upper, dtype=torch.float64, device="cpu"),
        )


@dataclass(frozen=True)
class CellRows:
    """The rows in each kept cell; for an empty cell the row that is nearest to its centre.

    centres: m x d; scaled: n x d, the rows in the same units; parts: the rows of each kept cell.
    """

    centres: Tensor
    scaled: Tensor
    parts: list[Tensor]

    @staticmethod
    def of(grid: Cells, values: Tensor, kept: Tensor, table: Table) -> CellRows:
        """The rows of the kept cells. Raises ValueError for a release over other cells."""
        if len(values) != len(grid):
            raise ValueError(f"the release that was kept has {len(values)} cells, not {len(grid)}: delete the folder")
        number, _ = grid.of(table)
        order = torch.argsort(number, stable=True)
        ends = torch.cumsum(torch.bincount(number, minlength=len(grid)), 0)
        starts = torch.cat([torch.zeros(1, dtype=torch.long, device="cpu"), ends[:-1]])
        parts = [order[a:b] for a, b in zip(starts[kept].tolist(), ends[kept].tolist(), strict=True)]
        return CellRows(grid.centres()[kept], table.rows * grid.scale, parts)

    def __len__(self) -> int:
        return len(self.parts)

    def rows(self, index: int) -> Tensor:
        if len(self.parts[index]):
            return self.parts[index]
        return (self.scaled - self.centres[index]).square().sum(1).argmin()[None]


def _shape(public: Public, longest: int) -> tuple[int, ...]:
    sides = [high - low for low, high in zip(public.lower, public.upper, strict=True)]
    return tuple(max(1, round(longest * side / max(sides))) for side in sides)
