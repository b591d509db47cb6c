"""Branin-Hoo on a grid, for outsourced optimisation."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from dpfbo import checks
from dpfbo.outsourced.table import Table
from dpfbo.problems.branin import BRANIN_MEAN, BRANIN_SD, branin
from dpfbo.problems.candidates import OneCurator, check_lengthscales, square_grid, table_of
from dpfbo.problems.problem import check_settings

_BOUNDS = ((-5.0, 10.0), (0.0, 15.0))
_NAMES = ("x1", "x2")


@dataclass(frozen=True)
class BraninGrid(OneCurator):
    """Maximises `-(branin - mean) / sd` over a grid of candidates in [-5, 10] x [0, 15].

    mean and sd are the function's mean and standard deviation over its domain. The metric is noiseless simple regret
    against the best point of the grid, in units of sd.

    Args:
        side_points: The grid has side_points^2 candidates.
        lengthscales: The modeler's length-scales for the two coordinates.
        noise_variance: The variance of the measurement noise.

    Example:
        >>> table = BraninGrid(side_points=101).table
        >>> table.natural.shape, round(float(table.values.max()), 2)
        (torch.Size([10201, 2]), 1.05)
    """

    side_points: int = 100
    lengthscales: Sequence[float] = (2.8, 6.0)
    noise_variance: float = 0.01
    name: str = "branin_grid"

    def __post_init__(self) -> None:
        check_settings(self)
        check_lengthscales(self.lengthscales, _NAMES)
        checks.positive("noise_variance", self.noise_variance)

    @cached_property
    def table(self) -> Table:
        grid = square_grid(_BOUNDS, self.side_points)
        return table_of(grid, _BOUNDS, tuple(self.lengthscales), (BRANIN_MEAN - branin(grid)) / BRANIN_SD, _NAMES)
