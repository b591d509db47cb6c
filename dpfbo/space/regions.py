"""The P sub-regions of distributed exploration: equal boxes that cover the domain."""

from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from dpfbo import checks
from dpfbo.checks import SettingError
from dpfbo.space.axes import quotient
from dpfbo.space.domain import Domain, Grid
from dpfbo.space.mixed import MixedBox

EDGE = {torch.float64: 1e-9, torch.float32: 1e-6}  # distance of a corner from a face that regions share


@dataclass(frozen=True)
class Regions:
    """P disjoint boxes of equal volume that cover the unit cube of D axes.

    Each axis starts as one part. For each prime factor p of P, largest first, the axis with the fewest parts is chosen,
    and each part of this axis is divided into p parts. A box includes its lower faces. A box includes an upper face
    only at the upper end of the cube. So every point lies in exactly one box.

    Args:
        P: The number of regions.
        dimension: The number of axes, D.

    Raises:
        SettingError: P or dimension is below 1.

    Example:
        >>> regions = Regions(6, 2)
        >>> regions.parts
        (3, 2)
        >>> regions.region_of(torch.tensor([[0.1, 0.1], [0.1, 0.9], [0.9, 0.9]])).tolist()
        [0, 1, 5]
    """

    P: int
    dimension: int

    def __post_init__(self) -> None:
        checks.integer("P", self.P, minimum=1)
        checks.integer("dimension", self.dimension, minimum=1)

    @cached_property
    def parts(self) -> tuple[int, ...]:
        """The number of equal parts of each axis."""
        parts = [1] * self.dimension
        for prime in _prime_factors(self.P):
            parts[parts.index(min(parts))] *= prime
        return tuple(parts)

    def region_of(self, u: Tensor) -> Tensor:
        """Return the index of each unit-cube point's region, `... x D -> ...`.

        Regions are indexed in row-major order: the last axis varies fastest.
        """
        region = torch.zeros(u.shape[:-1], dtype=torch.long, device=u.device)
        for axis, k in enumerate(self.parts):
            if k > 1:
                cell = torch.bucketize(u[..., axis].contiguous(), _faces(k, u.dtype, u.device), right=True)
                region = cell if axis == 0 else torch.add(cell, region, alpha=k)
        return region

    def bounds(self, region: Tensor, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
        """Return the lower and the upper corners of a closed box inside each region, both `... -> ... x D`.

        In double precision, upper corners lie 1e-9 below a face that two regions share. In single precision, upper
        corners lie 1e-6 below such a face, and lower corners lie 1e-6 above it.
        """
        if self.P == 1:
            corner = torch.zeros(*region.shape, self.dimension, dtype=dtype, device=region.device)
            return corner, corner + 1
        edge = EDGE[dtype]
        inset = edge if dtype == torch.float32 else 0.0
        lower, upper, rest = [], [], region
        for k in reversed(self.parts):
            cell, rest = (rest % k).double(), rest // k
            lower.append(torch.where(cell == 0, 0.0, quotient(cell, k) + inset))
            upper.append(torch.where(cell == k - 1, 1.0, quotient(cell + 1, k) - edge))
        return torch.stack(lower[::-1], -1).to(dtype), torch.stack(upper[::-1], -1).to(dtype)

    def assign(self, agents: Tensor) -> Tensor:
        """Return the region that each agent n explores first, `n mod P`."""
        return agents % self.P

    def uniform_points(self, region: Tensor, u: Tensor, domain: Domain) -> Tensor:
        """Return k uniform points of the domain for each agent, in the agent's region: `n x k x D`, in the unit cube.

        Args:
            region: The region of each of n agents.
            u: Uniform numbers in [0, 1), `n x k x D`. If the domain is a grid, they must be on its device.
            domain: The domain. If it is a grid, the result holds grid points.
        """
        if isinstance(domain, Grid):
            by_region = self.region_of(domain.unit_points)
            order = torch.argsort(by_region, stable=True)  # rows of the grid, region after region
            size = torch.bincount(by_region, minlength=self.P)
            start = size.cumsum(0) - size
            return domain.unit_points[order[start[region, None] + (u[..., 0] * size[region, None]).long()]]
        lower, upper = (corner[:, None] for corner in self.bounds(region))
        points = lower + u * (upper - lower)
        return domain.snap_within(points, lower, upper) if isinstance(domain, MixedBox) else points

    def check_against(self, domain: Domain, n_agents: int) -> None:
        """Raise SettingError if a region would have no agent, no point of the grid, or no value of a parameter.

        A domain with conditions allows only P = 1.
        """
        if n_agents < self.P:
            raise SettingError("P", f"must be at most the number of agents {n_agents}, got {self.P}")
        if isinstance(domain, Grid) and len(self.region_of(domain.unit_points).unique()) < self.P:
            raise SettingError("P", f"leaves a region without a grid point, got {self.P}")
        if isinstance(domain, MixedBox) and domain.conditions and self.P > 1:
            raise SettingError("P", f"must be 1 for a space with conditions (when), got {self.P}")
        if isinstance(domain, MixedBox):
            centres = torch.full((self.P, 1, self.dimension), 0.5, dtype=torch.float64, device="cpu")
            try:
                self.uniform_points(torch.arange(self.P, device="cpu"), centres, domain)
            except SettingError as error:
                raise SettingError("P", f"leaves a region without a value of a parameter, got {self.P}") from error


@lru_cache(maxsize=64)
def _faces(k: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return quotient(torch.arange(1, k, dtype=dtype, device=device), k)


def _prime_factors(n: int) -> list[int]:
    factors, p = [], 2
    while p * p <= n:
        while n % p == 0:
            factors.append(p)
            n //= p
        p += 1
    return sorted([*factors, n] if n > 1 else factors, reverse=True)
