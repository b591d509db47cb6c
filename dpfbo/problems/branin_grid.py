"""Branin-Hoo on a grid, for outsourced optimisation."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from dpfbo import checks
from dpfbo.outsourced.table import Prior, Table
from dpfbo.problems.branin import BRANIN_MEAN, BRANIN_SD, branin
from dpfbo.problems.candidates import check_lengthscales, square_grid, table_of

_BOUNDS = ((-5.0, 10.0), (0.0, 15.0))
_NAMES = ("x1", "x2")


@dataclass(frozen=True)
class BraninGrid:
    """Maximise `-(branin - mean) / sd` over a grid of side_points^2 candidates in [-5, 10] x [0, 15].

    lengthscales: the modeler's, for the two coordinates. sd is the function's known standard deviation over its domain.
    Metric: simple regret against the best point of the grid, noiseless, in that unit.
    """

    data_files: ClassVar[tuple[Path, ...]] = ()  # everything is drawn from the settings

    side_points: int = 100
    lengthscales: Sequence[float] = (2.8, 6.0)
    noise_variance: float = 0.01
    name: str = "branin_grid"
    metric: str = "simple_regret"
    lower_is_better: bool = True

    def __post_init__(self) -> None:
        checks.integer("side_points", self.side_points, minimum=2)
        check_lengthscales(self.lengthscales, _NAMES)
        checks.positive("noise_variance", self.noise_variance)

    @property
    def n_agents(self) -> int:
        return 1

    @property
    def stand_in(self) -> None:
        return None

    @cached_property
    def table(self) -> Table:
        grid = square_grid(_BOUNDS, self.side_points)
        values = (BRANIN_MEAN - branin(grid)) / BRANIN_SD
        return table_of(grid, _BOUNDS, tuple(self.lengthscales), values, _NAMES)

    @property
    def prior(self) -> Prior:
        return Prior(variance=1.0, noise=self.noise_variance, mean=0.0)
