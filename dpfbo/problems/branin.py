"""Branin-Hoo, shifted a little for each agent."""

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from dpfbo import checks
from dpfbo.checks import SettingError
from dpfbo.problems.problem import observation_noise
from dpfbo.rng import Streams
from dpfbo.space.domain import Box

BRANIN_MEAN, BRANIN_SD = 54.8104, 51.9496  # of its values over the domain (Picheny et al. 2013)
BRANIN_MINIMUM = 0.39788735772973816


def branin(x: Tensor) -> Tensor:
    """`(x2 - 5.1 x1^2 / (4 pi^2) + 5 x1 / pi - 6)^2 + 10 (1 - 1 / (8 pi)) cos x1 + 10`, `... x 2 -> ...`."""
    x1, x2 = x[..., 0], x[..., 1]
    bowl = x2 - 5.1 / (4 * math.pi**2) * x1**2 + 5 / math.pi * x1 - 6
    return bowl**2 + 10 * (1 - 1 / (8 * math.pi)) * torch.cos(x1) + 10


@dataclass(frozen=True)
class Branin:
    """Maximise `-(branin(x - shift_n) - mean) / sd` over [-5, 10] x [0, 15], shift_n uniform in [-shift, shift]^2.

    A minimiser stays inside for shifts up to 2, so every agent's optimum is known. Metric: simple regret in
    these units.
    """

    data_files: ClassVar[tuple[Path, ...]] = ()  # everything is drawn from the settings

    n_agents: int = 20
    shift: float = 0.5
    noise_variance: float = 0.01
    function_seed: int = 0
    name: str = "branin"
    metric: str = "simple_regret"
    lower_is_better: bool = True

    def __post_init__(self) -> None:
        checks.integer("n_agents", self.n_agents, minimum=1, maximum=checks.MOST_AGENTS)
        checks.non_negative("shift", self.shift)
        checks.non_negative("noise_variance", self.noise_variance)
        checks.integer("function_seed", self.function_seed, minimum=0)
        if self.shift > 2:
            raise SettingError("shift", f"must be at most 2, got {self.shift!r}")

    @cached_property
    def domain(self) -> Box:
        return Box((-5.0, 0.0), (10.0, 15.0))

    @property
    def reference(self) -> Tensor:
        return torch.full(
            (self.n_agents,), (BRANIN_MEAN - BRANIN_MINIMUM) / BRANIN_SD, dtype=torch.float64, device="cpu"
        )

    def evaluate(self, agents: Tensor, x: Tensor, streams: Streams, round: int) -> Tensor:
        noise = observation_noise(self.noise_variance, agents, x.shape[1], streams, round)
        return self.true_value(agents, x, noise) + noise

    def true_value(self, agents: Tensor, x: Tensor, y: Tensor) -> Tensor:
        shift = self.shift * (2 * Streams(self.function_seed).uniform("problem/shift", agents, 0, 2) - 1)
        return (BRANIN_MEAN - branin(x - shift[:, None])) / BRANIN_SD
