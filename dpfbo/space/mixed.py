"""Search domains with discrete axes: whole numbers, ordered levels and choices beside continuous axes.

Every point lies in a unit cube with one axis a parameter, as in a box. A discrete value owns an interval of its axis
and stands at one point in it; `snap` moves a point to the values that own it. Features and kernels see a point through
`embed`: they are functions of the snapped point (Garrido-Merchan and Hernandez-Lobato 2020), and see a choice as a
one-hot vector, so that an SE kernel of length-scale l between any two choices is `exp(-APART^2 / (2 l^2))`, the
Hamming (overlap) kernel.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral

import torch
from torch import Tensor

from dpfbo import checks
from dpfbo.checks import SettingError

APART = 0.5  # distance of two choices in the embedding, whose other axes have length 1
_TRIED = 20  # most values of a discrete axis that are tried in a search around a point

_EXACT = 2**53  # largest whole number up to which each has a float of its own


@dataclass(frozen=True)
class Continuous:
    """The interval `[lower, upper]`. log: even in the logarithm; lower must then be above 0."""

    lower: float
    upper: float
    log: bool = False

    def __post_init__(self) -> None:
        _check_interval(self.lower, self.upper, self.log, checks.real)

    def natural(self, u: Tensor) -> Tensor:
        """The values at unit-cube coordinates."""
        if self.log:
            low, high = math.log(self.lower), math.log(self.upper)
            return (low + u * (high - low)).exp().clamp(self.lower, self.upper)
        return (self.lower + u * (self.upper - self.lower)).clamp(self.lower, self.upper)

    def unit(self, x: Tensor) -> Tensor:
        """The unit-cube coordinates of values."""
        if self.log:
            low, high = math.log(self.lower), math.log(self.upper)
            return (x.log() - low) / (high - low)
        return (x - self.lower) / (self.upper - self.lower)


@dataclass(frozen=True)
class Whole:
    """The whole numbers `lower..upper`, each with the interval of half a number on both sides; log: of logarithms."""

    lower: int
    upper: int
    log: bool = False

    def __post_init__(self) -> None:
        _check_interval(self.lower, self.upper, self.log, _check_whole)

    @property
    def _edges(self) -> tuple[float, float]:
        edges = self.lower - 0.5, self.upper + 0.5
        return (math.log(edges[0]), math.log(edges[1])) if self.log else edges

    def natural(self, u: Tensor) -> Tensor:
        """The values that own unit-cube coordinates."""
        low, high = self._edges
        x = low + u * (high - low)
        return ((x.exp() if self.log else x) + 0.5).floor().clamp(self.lower, self.upper)

    def unit(self, x: Tensor) -> Tensor:
        """The unit-cube coordinates at which values stand."""
        low, high = self._edges
        return ((x.log() if self.log else x) - low) / (high - low)

    def within(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """The smallest and the largest value that stand between unit-cube coordinates; the first is larger if none."""
        low, high = self._edges
        a, b = ((low + (u * (high - low)).clamp(0, high - low)) for u in (lower, upper))
        if self.log:
            a, b = a.exp(), b.exp()
        return a.ceil().clamp(self.lower), b.floor().clamp(max=self.upper)


@dataclass(frozen=True)
class Choice:
    """One of `size` values, whose natural unit is its index. ordered: neighbours are alike; else all differ alike."""

    size: int
    ordered: bool = False

    def __post_init__(self) -> None:
        checks.integer("size", self.size, minimum=2)

    def natural(self, u: Tensor) -> Tensor:
        """The indices that own unit-cube coordinates."""
        return (u * self.size).floor().clamp(0, self.size - 1)

    def unit(self, x: Tensor) -> Tensor:
        """The unit-cube coordinates at which indices stand."""
        return (x + 0.5) / self.size

    def within(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """The smallest and the largest index that stand between unit-cube coordinates; the first is larger if none."""
        return (lower * self.size - 0.5).ceil().clamp(0), (upper * self.size - 0.5).floor().clamp(max=self.size - 1)


Axis = Continuous | Whole | Choice


@dataclass(frozen=True)
class MixedBox:
    """A box with discrete axes.

    axes: one a parameter. A natural point has the value of each parameter, and the index of a choice.

    Raises SettingError if there is no axis.
    """

    axes: tuple[Axis, ...]

    def __post_init__(self) -> None:
        if not self.axes:
            raise SettingError("axes", "must name at least one axis, got none")

    @property
    def dimension(self) -> int:
        return len(self.axes)

    @cached_property
    def discrete(self) -> tuple[int, ...]:
        """The axes with finitely many values."""
        return tuple(i for i, axis in enumerate(self.axes) if not isinstance(axis, Continuous))

    @cached_property
    def embedded_columns(self) -> tuple[int, ...]:
        """The first column of each axis in the embedding, and at the end the number of columns."""
        first = [0]
        for axis in self.axes:
            first.append(first[-1] + (axis.size if isinstance(axis, Choice) and not axis.ordered else 1))
        return tuple(first)

    @property
    def embedded_dimension(self) -> int:
        return self.embedded_columns[-1]

    def to_natural(self, u: Tensor) -> Tensor:
        """Unit-cube points `... x D` in natural units."""
        return torch.stack([axis.natural(u[..., i]) for i, axis in enumerate(self.axes)], -1)

    def to_unit(self, x: Tensor) -> Tensor:
        """The unit-cube points `... x D` of natural ones."""
        return torch.stack([axis.unit(x[..., i]) for i, axis in enumerate(self.axes)], -1)

    def snap(self, u: Tensor) -> Tensor:
        """Unit-cube points `... x D`, moved to the discrete values that own them."""
        return self._changed(u, [self.axes[i].natural(u[..., i]) for i in self.discrete])

    def snap_within(self, u: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
        """`snap`, among the discrete values that stand in boxes; lower, upper: corners that broadcast against u.

        Raises SettingError (axes) for a box without a value.
        """
        values = []
        for i in self.discrete:
            axis = self.axes[i]
            assert not isinstance(axis, Continuous)
            first, last = axis.within(lower[..., i], upper[..., i])
            if (first > last).any():
                raise SettingError("axes", f"must have a value of axis {i} in every box")
            values.append(axis.natural(u[..., i]).maximum(first).minimum(last))
        return self._changed(u, values)

    def _changed(self, u: Tensor, values: Sequence[Tensor]) -> Tensor:
        """Points with natural values on the discrete axes."""
        columns = list(u.unbind(-1))
        for i, value in zip(self.discrete, values, strict=True):
            columns[i] = self.axes[i].unit(value)
        return torch.stack(columns, -1)

    def embed(self, u: Tensor) -> Tensor:
        """The points as features and kernels see them, `... x D -> ... x D'`: snapped, with one-hot choices."""
        columns = []
        for i, axis in enumerate(self.axes):
            if isinstance(axis, Continuous):
                columns.append(u[..., i : i + 1])
            elif isinstance(axis, Choice) and not axis.ordered:
                each = torch.arange(axis.size, device=u.device)
                columns.append((axis.natural(u[..., i : i + 1]) == each).to(u.dtype) * (APART / math.sqrt(2)))
            else:
                columns.append(axis.unit(axis.natural(u[..., i : i + 1])))
        return torch.cat(columns, -1)

    def pulled_back(self, slopes: Tensor) -> Tensor:
        """Derivatives by unit-cube coordinates, `... x D`, from those by embedded ones; 0 on discrete axes."""
        pulled = slopes.new_zeros(*slopes.shape[:-1], self.dimension)
        index = [i for i in range(self.dimension) if i not in self.discrete]
        pulled[..., index] = slopes[..., [self.embedded_columns[i] for i in index]]
        return pulled

    def fixed(self, u: Tensor, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """The corners of boxes (n x D) around points (n x D), without extent on the discrete axes."""
        lower, upper = lower.clone(), upper.clone()
        index = list(self.discrete)
        lower[:, index] = upper[:, index] = u[:, index]
        return lower, upper

    def neighbours(self, u: Tensor, i: int) -> Tensor:
        """Each point (n x D) with other values on the discrete axis i, and as it is; n x k x D.

        All values if there are few, else those 1, 2, 4, .. steps away.
        """
        axis = self.axes[i]
        assert not isinstance(axis, Continuous)
        low, high = (0, axis.size - 1) if isinstance(axis, Choice) else (axis.lower, axis.upper)
        at = axis.natural(u[:, i : i + 1])
        if high - low < _TRIED:
            values = torch.arange(low, high + 1, device=u.device).expand(len(u), -1).to(u.dtype)
        else:
            steps = [0, *(sign * 2**k for k in range(_TRIED // 2) for sign in (1, -1))]
            values = (at + torch.tensor(steps, dtype=u.dtype, device=u.device)).clamp(low, high)
        points = u[:, None].repeat(1, values.shape[1], 1)
        points[..., i] = axis.unit(values)
        return points

    def to(self, device: torch.device) -> "MixedBox":
        """This box, which holds no tensors."""
        return self


def _check_whole(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral) or abs(int(value)) > _EXACT:
        raise SettingError(name, f"must be a whole number, got {value!r}")


def _check_interval(lower: object, upper: object, log: object, check: Callable[[str, object], None]) -> None:
    check("lower", lower)
    check("upper", upper)
    if not lower < upper:  # type: ignore[operator]
        raise SettingError("upper", f"must be above lower={lower!r}, got {upper!r}")
    checks.one_of("log", log, (True, False))
    if log and lower <= 0:  # type: ignore[operator]
        raise SettingError("lower", f"must be above 0 on a log scale, got {lower!r}")
