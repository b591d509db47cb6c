"""Equal cells that fill the public box, and a base class for transforms whose candidates are centres of cells."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dpfbo.checks import SettingError
from dpfbo.outsourced.table import Public, Table
from dpfbo.outsourced.transforms import NORM, CandidateRows, Candidates, Transform, within

_MOST = 1_000_000  # cells of one table


@dataclass(frozen=True)
class Cells:
    """Boxes of equal shape, nearly cubes, that fill the public box.

    Centres and widths are scaled so that the farthest corner of the public box has norm 25. longest: the number of
    cells on the longest axis; other axes have cells in proportion. Raises SettingError for more than a million cells.
    """

    public: Public
    longest: int

    def __post_init__(self) -> None:
        if len(self) > _MOST:
            raise SettingError("cells", f"must make at most {_MOST} cells, got {' x '.join(map(str, self.shape))}")

    @staticmethod
    def with_rows(public: Public, least: float) -> Cells:
        """Return the smallest cells whose average number of rows is at least `least`.

        The longest axis has at least 2 cells, so the cells of a small table can hold fewer rows.
        """
        longest = 2
        while math.prod(_shape(public, longest + 1)) * least <= public.n:
            longest += 1
        return Cells(public, longest)

    @property
    def shape(self) -> tuple[int, ...]:
        return _shape(self.public, self.longest)

    def __len__(self) -> int:
        return math.prod(self.shape)

    @property
    def scale(self) -> float:
        return NORM / self.public.radius

    @property
    def widths(self) -> Tensor:
        low, high = self.public.bounds
        return (high - low) / torch.tensor(self.shape, device="cpu") * self.scale

    def centres(self) -> Tensor:
        """Return the centres of all cells, cells x d, in the order of the cells' numbers."""
        axes = [torch.arange(count, dtype=torch.float64, device="cpu") + 0.5 for count in self.shape]
        return self.public.bounds[0] * self.scale + torch.cartesian_prod(*axes).view(len(self), -1) * self.widths

    def of(self, table: Table) -> tuple[Tensor, int]:
        """Return n cell numbers, one for each row of the table, and the number of rows outside the public box.

        A row outside the box belongs to the nearest cell.
        """
        rows, n_moved = within(table.rows, self.public)
        low, high = self.public.bounds
        counts = torch.tensor(self.shape, device="cpu")
        axis = torch.minimum(((rows - low) / (high - low) * counts).long().clamp(min=0), counts - 1)
        number = torch.zeros(len(rows), dtype=torch.long, device="cpu")
        for k, count in enumerate(self.shape):
            number = number * count + axis[:, k]
        return number, n_moved


@dataclass(frozen=True)
class CellRows:
    """The rows in each of m cells; for an empty cell, the row nearest to its centre.

    centres: m x d; scaled: n x d, all rows of the table after scaling; parts: the indices of the rows in each cell.
    """

    centres: Tensor
    scaled: Tensor
    parts: Sequence[Tensor]

    def __len__(self) -> int:
        return len(self.parts)

    def rows(self, index: int) -> Tensor:
        if len(self.parts[index]):
            return self.parts[index]
        return (self.scaled - self.centres[index]).square().sum(1).argmin()[None]


class OverCells(Transform):
    """A transform whose candidates are the centres of all or some public cells."""

    @abstractmethod
    def grid(self, public: Public) -> Cells:
        """Return the cells, which follow from public facts and settings alone."""

    @abstractmethod
    def kept(self, values: Tensor, public: Public) -> Tensor:
        """Return the indices of the cells that are candidates, given the released values."""

    def scale(self, table: Table) -> float:
        return self.grid(table.public).scale

    def candidates(self, values: Tensor, public: Public) -> Candidates:
        grid, kept = self.grid(public), self.kept(values, public)
        return Candidates(grid.centres()[kept], grid.widths.square() / 12, fresh=True)

    def most_candidates(self, public: Public) -> int:
        return len(self.grid(public))

    def candidate_rows(self, values: Tensor, order: Sequence[int] | None, table: Table) -> CandidateRows:
        grid = self.grid(table.public)
        if len(values) != len(grid):
            raise ValueError(f"the release that was kept has {len(values)} cells, not {len(grid)}: delete the folder")
        kept, (number, _) = self.kept(values, table.public), grid.of(table)
        parts = torch.argsort(number, stable=True).split(torch.bincount(number, minlength=len(grid)).tolist())
        return CellRows(grid.centres()[kept], table.rows * grid.scale, [parts[cell] for cell in kept.tolist()])


def _shape(public: Public, longest: int) -> tuple[int, ...]:
    sides = [high - low for low, high in zip(public.lower, public.upper, strict=True)]
    return tuple(max(1, round(longest * side / max(sides))) for side in sides)
