"""The heterogeneous synthetic problem of Dai et al. 2021 (App. B.1.4, Fig. 7)."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from dpfbo.checks import SettingError
from dpfbo.problems.synthetic import Synthetic, gp_draws
from dpfbo.rng import Streams


@dataclass(frozen=True)
class SyntheticHeterogeneous(Synthetic):
    """Maximises `alpha f_n + (1 - alpha) f_base`, where f_base and every f_n are GP draws scaled to [0, 1].

    Args:
        alpha: The share of an agent's own function f_n: 0 gives all agents the same function, up to `perturbation`.
        n_agents: The number of agents N. All other arguments are those of `Synthetic`.

    Raises:
        SettingError: A setting is out of range.

    Example:
        >>> values = SyntheticHeterogeneous(n_agents=2, grid_size=50, alpha=0.0).values
        >>> torch.equal(values[0], values[1])
        True
    """

    n_agents: int = 50
    perturbation: float = 0.0
    alpha: float = 0.7
    name: str = "synthetic_heterogeneous"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.alpha <= 1:
            raise SettingError("alpha", f"must lie in [0, 1], got {self.alpha!r}")

    @cached_property
    def values(self) -> Tensor:
        """Noiseless objectives, N x grid_size, on the CPU."""
        streams, agents = Streams(self.function_seed), torch.arange(self.n_agents, device="cpu")
        generator = streams.generator("problem/function")
        draws = gp_draws(1 + self.n_agents, self.grid_size, self.lengthscale, generator)
        signs = streams.uniform("problem/signs", agents, 0, self.grid_size) < 0.5
        mixed = self.alpha * draws[1:] + (1 - self.alpha) * draws[:1]
        return mixed + self.perturbation * torch.where(signs, 1.0, -1.0)

    @cached_property
    def reference(self) -> Tensor:
        return self.values.max(1).values

    def _values_at(self, agents: Tensor, index: Tensor) -> Tensor:
        return self.values[agents[:, None], index]
