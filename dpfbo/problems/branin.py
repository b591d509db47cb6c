"""Branin-Hoo, shifted a little for each agent."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from dpfbo.checks import SettingError
from dpfbo.problems.problem import GeneratedProblem, check_settings
from dpfbo.rng import Streams
from dpfbo.space.domain import Box

BRANIN_MEAN, BRANIN_SD = 54.8104, 51.9496  # of the values over the domain (Picheny et al. 2013)
BRANIN_MINIMUM = 0.39788735772973816


def branin(x: Tensor) -> Tensor:
    """Return the Branin-Hoo function at points x, `... x 2 -> ...`.

        (x2 - 5.1 x1^2 / (4 pi^2) + 5 x1 / pi - 6)^2 + 10 (1 - 1 / (8 pi)) cos x1 + 10

    Example:
        >>> round(float(branin(torch.tensor([math.pi, 2.275]))), 4)
        0.3979
    """
    x1, x2 = x[..., 0], x[..., 1]
    bowl = x2 - 5.1 / (4 * math.pi**2) * x1**2 + 5 / math.pi * x1 - 6
    return bowl**2 + 10 * (1 - 1 / (8 * math.pi)) * torch.cos(x1) + 10


@dataclass(frozen=True)
class Branin(GeneratedProblem):
    """Maximises `-(branin(x - shift_n) - mean) / sd` over [-5, 10] x [0, 15], shift_n uniform in [-shift, shift]^2.

    mean and sd are the mean and standard deviation of `branin` over the domain. The metric is noiseless simple regret.

    Args:
        n_agents: The number of agents N.
        shift: The largest shift on each axis, at most 2.
        noise_variance: The variance of the observation noise.
        function_seed: The seed of the shifts.

    Raises:
        SettingError: A setting is out of range.

    Example:
        >>> problem, agents = Branin(n_agents=3), torch.arange(3)
        >>> x = problem.domain.to_natural(torch.full((3, 2, 2), 0.5, dtype=torch.float64))
        >>> problem.evaluate(agents, x, Streams(seed=0), 1).shape
        torch.Size([3, 2])
    """

    domain: ClassVar[Box] = Box((-5.0, 0.0), (10.0, 15.0))

    n_agents: int = 20
    shift: float = 0.5
    noise_variance: float = 0.01
    function_seed: int = 0
    name: str = "branin"
    metric: str = "simple_regret"
    lower_is_better: bool = True

    def __post_init__(self) -> None:
        check_settings(self)
        if self.shift > 2:
            raise SettingError("shift", f"must be at most 2, got {self.shift!r}")

    @property
    def reference(self) -> Tensor:
        optimum = (BRANIN_MEAN - BRANIN_MINIMUM) / BRANIN_SD
        return torch.full((self.n_agents,), optimum, dtype=torch.float64, device="cpu")

    def true_value(self, agents: Tensor, x: Tensor, y: Tensor) -> Tensor:
        shift = self.shift * (2 * Streams(self.function_seed).uniform("problem/shift", agents, 0, 2) - 1)
        return (BRANIN_MEAN - branin(x - shift[:, None])) / BRANIN_SD
