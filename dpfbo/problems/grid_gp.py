"""The paper's synthetic problem of outsourced optimisation: one GP draw on a square grid (Kharkovskii et al. 2020)."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from dpfbo import checks
from dpfbo.outsourced.table import Prior, Table
from dpfbo.problems.candidates import square_grid, table_of
from dpfbo.rng import Streams


@dataclass(frozen=True)
class GridGP:
    """side_points^2 candidates over [-side/2, side/2]^2; the objective is a draw of a GP with SE kernel, variance 1.

    The draw is exact: on a grid the kernel matrix is a Kronecker product `R R^T (x) R R^T` of those of the two axes,
    so `R G R^T` with G standard normal has the law of the GP. The prior is that GP. The paper gives no units for its
    length-scale; side 8 with 1.25 comes closest to its results.

    function_seed: seed of the draw (a run's own seed is another). Metric: simple regret, noiseless, in the prior's
    standard deviations.
    """

    data_files: ClassVar[tuple[Path, ...]] = ()  # everything is drawn from the settings

    side_points: int = 100
    side: float = 8.0
    lengthscale: float = 1.25
    noise_variance: float = 1e-5
    function_seed: int = 0
    name: str = "grid_gp"
    metric: str = "simple_regret"
    lower_is_better: bool = True

    def __post_init__(self) -> None:
        checks.integer("side_points", self.side_points, minimum=2)
        checks.positive("side", self.side)
        checks.positive("lengthscale", self.lengthscale)
        checks.positive("noise_variance", self.noise_variance)
        checks.integer("function_seed", self.function_seed, minimum=0)

    @property
    def n_agents(self) -> int:
        return 1

    @property
    def stand_in(self) -> None:
        return None

    @cached_property
    def table(self) -> Table:
        bounds = [(-self.side / 2, self.side / 2)] * 2
        grid = square_grid(bounds, self.side_points)
        return table_of(grid, bounds, [self.lengthscale] * 2, self._draw(), ("x1", "x2"))

    @property
    def prior(self) -> Prior:
        return Prior(variance=1.0, noise=self.noise_variance, mean=0.0)

    def _draw(self) -> Tensor:
        """n values, in the order of the grid."""
        axis = np.linspace(-self.side / 2, self.side / 2, self.side_points)
        eigenvalues, vectors = np.linalg.eigh(np.exp(-0.5 * ((axis[:, None] - axis) / self.lengthscale) ** 2))
        root = vectors * np.sqrt(eigenvalues.clip(min=0)) @ vectors.T  # the symmetric root: no sign is left to LAPACK
        normal = Streams(self.function_seed).generator("grid_gp").standard_normal((self.side_points, self.side_points))
        return torch.from_numpy(root @ normal @ root.T).reshape(-1)
