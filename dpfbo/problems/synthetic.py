"""The synthetic problem of Dai et al. 2021 (App. B.1.1): one GP draw on a grid, perturbed for each agent."""

from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
import torch
from torch import Tensor

from dpfbo.problems.problem import GeneratedProblem, check_settings
from dpfbo.rng import Streams
from dpfbo.space.domain import Grid

_BLOCK = 4096  # agents whose whole functions are computed at once


def gp_draws(n_draws: int, grid_size: int, lengthscale: float, generator: np.random.Generator) -> Tensor:
    """Draw from a GP with SE kernel on `linspace(0, 1, grid_size)`, each draw scaled to [0, 1]; n_draws x grid_size."""
    draws = generator.standard_normal((n_draws, grid_size)) @ _kernel_root(grid_size, lengthscale).T
    low, high = draws.min(1, keepdims=True), draws.max(1, keepdims=True)
    return torch.from_numpy((draws - low) / (high - low))


@cache
def _kernel_root(grid_size: int, lengthscale: float) -> np.ndarray:
    """Return R such that `R R^T` is the SE kernel matrix of the grid."""
    x = np.linspace(0, 1, grid_size)
    values, vectors = np.linalg.eigh(np.exp(-0.5 * ((x[:, None] - x) / lengthscale) ** 2))
    return vectors * np.sqrt(values.clip(min=0))


@dataclass(frozen=True)
class Synthetic(GeneratedProblem):
    """Maximises a GP draw plus a small random perturbation on a grid of [0, 1]; all agents have the same draw.

    The draw is scaled to [0, 1]. At each grid point, an agent's objective is the draw plus or minus `perturbation`. The
    sign is random for each agent and point; both signs are equally likely. The metric is noiseless simple regret
    against the agent's own optimum.

    Args:
        n_agents: The number of agents N.
        grid_size: The number of grid points.
        lengthscale: The length-scale of the GP's SE kernel.
        perturbation: The size of the perturbation.
        noise_variance: The variance of the observation noise.
        function_seed: The seed of the draw and the signs, independent of the run's seed.

    Example:
        >>> problem = Synthetic(n_agents=2, grid_size=100)
        >>> problem.values.shape, sorted({round(v, 4) for v in (problem.values[0] - problem.values[1]).tolist()})
        (torch.Size([2, 100]), [-0.04, 0.0, 0.04])
    """

    n_agents: int = 200
    grid_size: int = 1000
    lengthscale: float = 0.03
    perturbation: float = 0.02
    noise_variance: float = 0.01
    function_seed: int = 0
    name: str = "synthetic"
    metric: str = "simple_regret"
    lower_is_better: bool = True

    def __post_init__(self) -> None:
        check_settings(self)

    @cached_property
    def domain(self) -> Grid:
        points = torch.linspace(0, 1, self.grid_size, dtype=torch.float64, device="cpu")
        return Grid(points[:, None], (0.0,), (1.0,))

    @property
    def values(self) -> Tensor:
        """Noiseless objectives, N x grid_size, on the CPU."""
        return self._values(torch.arange(self.n_agents, device="cpu"))

    @cached_property
    def reference(self) -> Tensor:
        agents = torch.arange(self.n_agents, device="cpu")
        found = torch.empty(self.n_agents, dtype=torch.float64, device="cpu")  # a result per block fragments the heap
        for block, part in zip(agents.split(_BLOCK), found.split(_BLOCK), strict=True):
            torch.amax(self._values(block), 1, out=part)
        return found

    def true_value(self, agents: Tensor, x: Tensor, y: Tensor) -> Tensor:
        index = (x[..., 0] * (self.grid_size - 1)).round().long()
        return self._values_at(agents.cpu(), index.cpu()).to(x.device)  # tables of all agents stay on the CPU

    @cached_property
    def _common(self) -> Tensor:
        generator = Streams(self.function_seed).generator("problem/function")
        return gp_draws(1, self.grid_size, self.lengthscale, generator)[0]

    @cached_property
    def _signs(self) -> Tensor:
        """A random sign for each agent and grid point, as one bit (1 for plus): N x ceil(grid_size / 8) bytes."""
        streams, agents = Streams(self.function_seed), torch.arange(self.n_agents, device="cpu")
        bits = torch.empty(self.n_agents, -(-self.grid_size // 8), dtype=torch.uint8, device="cpu")
        for block, part in zip(agents.split(_BLOCK), bits.split(_BLOCK), strict=True):
            signs = streams.uniform("problem/signs", block, 0, self.grid_size) < 0.5
            part.numpy()[:] = np.packbits(signs.numpy(), axis=1)
        return bits

    def _values(self, agents: Tensor) -> Tensor:
        return self._values_at(agents, torch.arange(self.grid_size, device="cpu").expand(len(agents), -1))

    def _values_at(self, agents: Tensor, index: Tensor) -> Tensor:
        """Return the noiseless objectives of n agents at their grid points `index` (n x k); n x k values."""
        bits = self._signs[agents[:, None], index >> 3] >> (7 - (index & 7)).to(torch.uint8) & 1
        return self._common[index] + self.perturbation * torch.where(bits == 1, 1.0, -1.0)
