"""Search domains: a box, a finite grid, or a box with discrete axes."""

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from dpfbo.space.mixed import MixedBox

CLUSTERS = 6  # number of clusters of `Grid.screening` whose points a search evaluates
SCREENED = 512  # on larger grids, an expensive function is evaluated at cluster centres and near the best of them


class _InBox:
    """A domain in a box, which is scaled linearly to the unit cube."""

    lower: tuple[float, ...]
    upper: tuple[float, ...]

    def to_natural(self, u: Tensor) -> Tensor:
        """Convert unit-cube points u to natural units, both `... x D`."""
        low, high = (torch.tensor(bound, dtype=u.dtype, device=u.device) for bound in (self.lower, self.upper))
        return low + u * (high - low)

    def to_unit(self, x: Tensor) -> Tensor:
        """Convert points x in natural units to the unit cube, both `... x D`."""
        low, high = (torch.tensor(bound, dtype=x.dtype, device=x.device) for bound in (self.lower, self.upper))
        return (x - low) / (high - low)


@dataclass(frozen=True)
class Box(_InBox):
    """The box `[lower, upper]` of R^D.

    Args:
        lower: D lower bounds.
        upper: D upper bounds.

    Raises:
        ValueError: The bounds are empty, differ in length or are not finite, or lower < upper fails on an axis.

    Example:
        >>> import torch
        >>> from dpfbo import Box
        >>> box = Box((0.0, -1.0), (10.0, 1.0))
        >>> box.to_natural(torch.tensor([[0.5, 0.0]]))
        tensor([[ 5., -1.]])
    """

    lower: tuple[float, ...]
    upper: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.lower) != len(self.upper) or not self.lower:
            raise ValueError(f"bounds need one lower and one upper value per axis, got {self.lower} and {self.upper}")
        low, high = (torch.tensor(bound, device="cpu") for bound in (self.lower, self.upper))
        if not (torch.isfinite(low).all() and torch.isfinite(high).all() and (low < high).all()):
            raise ValueError(f"bounds must be finite with lower < upper on every axis, got {self.lower}, {self.upper}")

    @property
    def dimension(self) -> int:
        return len(self.lower)

    def to(self, device: torch.device) -> "Box":
        return self


@dataclass(frozen=True)
class Grid(_InBox):
    """A finite set of points in a box.

    Args:
        points: The points in natural units, G x D.
        lower: D lower bounds of the box.
        upper: D upper bounds of the box.

    Raises:
        ValueError: There is no point, or one lies outside the box.

    Example:
        >>> import torch
        >>> from dpfbo import Grid
        >>> grid = Grid(torch.linspace(0, 10, 5)[:, None], (0.0,), (10.0,))
        >>> grid.line
        tensor([0.0000, 0.2500, 0.5000, 0.7500, 1.0000])
    """

    points: Tensor
    lower: tuple[float, ...]
    upper: tuple[float, ...]

    def __post_init__(self) -> None:
        Box(self.lower, self.upper)  # checks the bounds
        if self.points.ndim != 2 or len(self.points) == 0:
            raise ValueError(f"grid points must be a non-empty G x D tensor, got shape {tuple(self.points.shape)}")
        if not ((self.unit_points >= 0) & (self.unit_points <= 1)).all():
            raise ValueError("every grid point must lie between lower and upper")

    @property
    def dimension(self) -> int:
        return self.points.shape[1]

    @cached_property
    def unit_points(self) -> Tensor:
        """The points in the unit cube, `G x D`."""
        return self.to_unit(self.points)

    @cached_property
    def line(self) -> Tensor:
        """The G unit-cube coordinates of the points of a one-dimensional grid."""
        return self.unit_points[:, 0].contiguous()

    @cached_property
    def screening(self) -> tuple[Tensor, Tensor] | None:
        """The grid-row indices of c cluster centres (shape c) and of the points of each cluster (shape c x w).

        A point belongs to the cluster of the nearest centre. w is the size of the largest cluster; smaller clusters
        are padded with their centre. The result is None for a grid of at most 512 points.
        """
        G = len(self.points)
        if G <= SCREENED:
            return None
        sobol = torch.quasirandom.SobolEngine(self.dimension).draw(2 ** (G // 8).bit_length(), dtype=torch.float64)
        chosen = torch.cdist(sobol.to(self.points.device), self.unit_points).argmin(1).unique()
        owner = torch.cdist(self.unit_points, self.unit_points[chosen]).argmin(1)  # G
        order, sizes = owner.argsort(stable=True), owner.bincount(minlength=len(chosen))
        place = torch.arange(G, device=order.device) - (sizes.cumsum(0) - sizes)[owner[order]]
        members = chosen[:, None].repeat(1, int(sizes.max()))
        members[owner[order], place] = order
        return chosen, members

    def index_of(self, u: Tensor) -> Tensor:
        """Return the grid row of each unit-cube point, `... x D -> ...`, int32; ValueError for points off the grid."""
        rank = torch.zeros(u.shape[:-1], dtype=torch.long, device=u.device)
        axes, rows = self._lookup
        for axis, (values, codes) in enumerate(axes):
            cell = torch.searchsorted(values, u[..., axis].contiguous()).clamp_(max=len(values) - 1)
            rank = torch.searchsorted(codes, rank * len(values) + cell).clamp_(max=len(codes) - 1)
        index = rows[rank]
        if not torch.equal(self.unit_points[index], u):
            raise ValueError("a point is not on the grid")
        return index.int()

    @cached_property
    def _lookup(self) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
        """The tables for `index_of`: a pair (coordinates, codes) for each axis, and a tensor of grid rows.

        coordinates: the different coordinates of the grid's points on this axis, sorted. codes: on the d-th axis,
        sorted integers, one for each different tuple of a point's first d coordinates. On the last axis, such a tuple
        is a whole point. For each code of the last axis, in order, the tensor has the index of the first grid row with
        this point.
        """
        rank, axes = torch.zeros(len(self.points), dtype=torch.long, device=self.points.device), []
        for axis in range(self.dimension):
            values, cell = self.unit_points[:, axis].unique(return_inverse=True)
            codes, rank = (rank * len(values) + cell).unique(return_inverse=True)
            axes.append((values, codes))
        order = torch.argsort(rank, stable=True)
        return axes, order[torch.searchsorted(rank[order], torch.arange(len(codes), device=rank.device))]

    def to(self, device: torch.device) -> "Grid":
        return replace(self, points=self.points.to(device))


Domain = Box | Grid | MixedBox


def embedded_dimension(domain: Domain) -> int:
    """Return the number of coordinates that features and kernels take, D'."""
    return domain.embedded_dimension if isinstance(domain, MixedBox) else domain.dimension


def embedded(domain: Domain, u: Tensor) -> Tensor:
    """Map unit-cube points u, `... x D`, to the inputs of features and kernels, `... x D'`."""
    return domain.embed(u) if isinstance(domain, MixedBox) else u
