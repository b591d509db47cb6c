"""The paper's synthetic problem of outsourced optimisation: one GP draw on a square grid (Kharkovskii et al. 2020)."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from dpfbo import checks
from dpfbo.outsourced.table import Table
from dpfbo.problems.candidates import OneCurator, square_grid, table_of
from dpfbo.problems.problem import check_settings
from dpfbo.rng import Streams


@dataclass(frozen=True)
class GridGP(OneCurator):
    """Maximises a draw of a GP with SE kernel and variance 1 over a grid of candidates in [-side/2, side/2]^2.

    The draw is exact: `R G R^T` with G standard normal, where `R R^T` is the kernel matrix of one axis. The modeler's
    prior is the same GP. The metric is noiseless simple regret, in units of the prior's standard deviation.

    Args:
        side_points: The grid has side_points^2 candidates.
        side: The side of the square. The paper gives a length-scale without a unit. A side of 8 comes closest to the
            paper's results.
        lengthscale: The length-scale, in the unit of `side`.
        noise_variance: The variance of the measurement noise.
        function_seed: The seed of the draw, independent of the run's seed.
    """

    side_points: int = 100
    side: float = 8.0
    lengthscale: float = 1.25
    noise_variance: float = 1e-5
    function_seed: int = 0
    name: str = "grid_gp"

    def __post_init__(self) -> None:
        check_settings(self)
        checks.positive("noise_variance", self.noise_variance)

    @cached_property
    def table(self) -> Table:
        bounds = [(-self.side / 2, self.side / 2)] * 2
        grid = square_grid(bounds, self.side_points)
        return table_of(grid, bounds, [self.lengthscale] * 2, self._draw(), ("x1", "x2"))

    def _draw(self) -> Tensor:
        axis = np.linspace(-self.side / 2, self.side / 2, self.side_points)
        eigenvalues, vectors = np.linalg.eigh(np.exp(-0.5 * ((axis[:, None] - axis) / self.lengthscale) ** 2))
        root = vectors * np.sqrt(eigenvalues.clip(min=0)) @ vectors.T  # symmetric, so that eigenvectors' signs cancel
        normal = Streams(self.function_seed).generator("grid_gp").standard_normal((self.side_points, self.side_points))
        return torch.from_numpy(root @ normal @ root.T).reshape(-1)
