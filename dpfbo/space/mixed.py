"""Boxes with discrete axes (whole numbers, ordered levels, unordered choices) and perhaps continuous ones.

Each value of a discrete axis has an interval of unit-cube coordinates, and one fixed coordinate in this interval.
Before features and kernels see a point, its coordinates on discrete axes are snapped to the fixed coordinates of their
intervals (Garrido-Merchan and Hernandez-Lobato 2020).

An unordered choice is embedded as a scaled one-hot vector, so different choices have distance APART. An SE kernel of
length-scale l between them is `exp(-APART^2 / (2 l^2))`, the Hamming (overlap) kernel. An axis is inactive where its
conditions do not hold; points are moved to the middle of inactive axes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from dpfbo.checks import SettingError
from dpfbo.space.axes import Axis
from dpfbo.space.conditions import Condition

APART = 0.5  # distance between two choices in the embedding, where all other axes have length 1
_TRIED = 20  # most values of a discrete axis that are tried in a search around a point


@dataclass(frozen=True)
class MixedBox:
    """A box with one axis for each of D parameters.

    A point in natural units has one number for each axis.

    conditions: An axis is active if all of its conditions hold. A condition lists the allowed values of another axis,
    the parent. If the parent has conditions of its own, they must be repeated for the axis that depends on the parent.
    """

    axes: tuple[Axis, ...]
    conditions: tuple[Condition, ...] = field(default=(), metadata={"named": "if given"})

    def __post_init__(self) -> None:
        if not self.axes:
            raise SettingError("axes", "must name at least one axis, got none")

    @property
    def dimension(self) -> int:
        return len(self.axes)

    @cached_property
    def discrete(self) -> tuple[int, ...]:
        """The indices of the axes with finitely many values."""
        return tuple(i for i, axis in enumerate(self.axes) if axis.size is not None)

    @cached_property
    def embedded_columns(self) -> tuple[int, ...]:
        """D + 1 integers: the index of each axis's first embedding column, then the total number of columns, D'."""
        return tuple(sum(axis.columns for axis in self.axes[:i]) for i in range(len(self.axes) + 1))

    @property
    def embedded_dimension(self) -> int:
        return self.embedded_columns[-1]

    def to_natural(self, u: Tensor) -> Tensor:
        u = self.imputed(u)
        return torch.stack([axis.natural(u[..., i]) for i, axis in enumerate(self.axes)], -1)

    def to_unit(self, x: Tensor) -> Tensor:
        return self.imputed(torch.stack([axis.unit(x[..., i]) for i, axis in enumerate(self.axes)], -1))

    def active(self, u: Tensor) -> Tensor:
        """Return booleans, `... x D`, that are True where an axis is active at a unit-cube point."""
        columns = list(torch.ones_like(u, dtype=torch.bool).unbind(-1))
        for c in self.conditions:
            x = self.axes[c.parent].natural(u[..., c.parent])
            columns[c.axis] = columns[c.axis] & torch.isin(x, torch.tensor(c.numbers, dtype=x.dtype, device=x.device))
        return torch.stack(columns, -1)

    def imputed(self, u: Tensor) -> Tensor:
        """In unit-cube points, `... x D`, replace each coordinate on an inactive axis by the middle of this axis."""
        return torch.where(self.active(u), u, self._middle.to(u)) if self.conditions else u

    @cached_property
    def _middle(self) -> Tensor:
        middle = torch.full((self.dimension,), 0.5, dtype=torch.float64, device="cpu")
        return self._changed(middle, [self.axes[i].natural(middle[i]) for i in self.discrete])

    def snap(self, u: Tensor) -> Tensor:
        """In unit-cube points, `... x D`, snap each coordinate on a discrete axis to a value of this axis.

        Then replace each coordinate on an inactive axis by the middle of this axis.
        """
        return self.imputed(self._changed(u, [self.axes[i].natural(u[..., i]) for i in self.discrete]))

    def snap_within(self, u: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
        """Move points as `snap` does, but choose discrete values inside each point's box.

        u: unit-cube points, `... x D`. lower, upper: the corners of the boxes; their shapes broadcast to the shape of
        u. Raises SettingError if a box contains no value of a discrete axis.
        """
        values = []
        for i in self.discrete:
            axis = self.axes[i]
            first, last = (axis.rank(axis.natural(corner[..., i])) for corner in (lower, upper))
            first = torch.where(axis.unit(axis.nth(first)) < lower[..., i], first + 1, first)
            last = torch.where(axis.unit(axis.nth(last)) > upper[..., i], last - 1, last)
            if (first > last).any():
                raise SettingError("axes", f"must have a value of axis {i} in every box")
            values.append(axis.nth(axis.rank(axis.natural(u[..., i])).maximum(first).minimum(last)))
        return self.imputed(self._changed(u, values))

    def _changed(self, u: Tensor, values: Sequence[Tensor]) -> Tensor:
        columns = list(u.unbind(-1))
        for i, value in zip(self.discrete, values, strict=True):
            columns[i] = self.axes[i].unit(value)
        return torch.stack(columns, -1)

    def embed(self, u: Tensor) -> Tensor:
        """Embed unit-cube points for features and kernels, `... x D -> ... x D'`.

        Points are snapped, and unordered choices become scaled one-hot vectors.
        """
        u, columns = self.imputed(u), []
        for i, axis in enumerate(self.axes):
            column = u[..., i : i + 1]
            if axis.columns > 1:
                each = torch.arange(axis.columns, device=u.device)
                columns.append((axis.natural(column) == each).to(u.dtype) * (APART / math.sqrt(2)))
            else:
                columns.append(column if axis.size is None else axis.unit(axis.natural(column)))
        return torch.cat(columns, -1)

    def pulled_back(self, slopes: Tensor) -> Tensor:
        """Map gradients in embedded coordinates, `... x D'`, to gradients in unit-cube coordinates, `... x D`.

        The derivatives on discrete axes are 0. The caller must set those on inactive axes to 0 (see `active`).
        """
        pulled = slopes.new_zeros(*slopes.shape[:-1], self.dimension)
        index = [i for i in range(self.dimension) if i not in self.discrete]
        pulled[..., index] = slopes[..., [self.embedded_columns[i] for i in index]]
        return pulled

    def fixed(self, u: Tensor, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """Fix the discrete and inactive axes of n boxes at the coordinates of n points u, and return the new corners.

        All tensors are `n x D`.
        """
        lower, upper = lower.clone(), upper.clone()
        index = list(self.discrete)
        lower[:, index] = upper[:, index] = u[:, index]
        if self.conditions:
            active = self.active(u)
            lower, upper = torch.where(active, lower, u), torch.where(active, upper, u)
        return lower, upper

    def neighbours(self, u: Tensor, i: int) -> Tensor:
        """Return, for each point, k copies with various values on the discrete axis i, `n x D -> n x k x D`.

        If the axis has at most 20 values, there is one copy for each value. Otherwise the copies have the point's own
        value and the values that lie 1, 2, 4, .., 512 steps below and above. A value beyond an end of the axis is
        replaced by the value at this end.
        """
        axis = self.axes[i]
        assert axis.size is not None
        if axis.size <= _TRIED:
            ranks = torch.arange(axis.size, device=u.device).expand(len(u), -1).to(u.dtype)
        else:
            steps = [0, *(sign * 2**k for k in range(_TRIED // 2) for sign in (1, -1))]
            step = torch.tensor(steps, dtype=u.dtype, device=u.device)
            ranks = (axis.rank(axis.natural(u[:, i : i + 1])) + step).clamp(0, axis.size - 1)
        points = u[:, None].repeat(1, ranks.shape[1], 1)
        points[..., i] = axis.unit(axis.nth(ranks))
        return self.imputed(points)

    def to(self, device: torch.device) -> "MixedBox":
        return self
