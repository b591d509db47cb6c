"""Exam scores in London schools: each agent tunes a kernel ridge regression on its own students."""

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from dpfbo import checks
from dpfbo.checks import SettingError
from dpfbo.gp import batches
from dpfbo.problems.objectives.kernel_ridge import Schools, load_schools
from dpfbo.problems.readers.data_files import data_file
from dpfbo.rng import Streams
from dpfbo.space.domain import Box

_LN10 = math.log(10)


@dataclass(frozen=True)
class School:
    """139 schools of the Inner London Education Authority, 1985 to 1987 (the multi-task "school" data); x = log10 of
    (ridge, gamma_ability, gamma_other) of a kernel ridge regression of the exam score, in [-4, 2] x [-4, 1]^2;
    y = 1 - nmse, deterministic.

    The kernel is squared-exponential, with one gamma for the student's ability band and one for the other features.
    nmse: mean squared error on the half of the school's students that is held out, divided by that of the mean of
    the other half: 1 is no better than the mean, in every school. n_agents: N, for the first N schools.
    data_dir: see `readers.data_files`. Metric: best nmse so far. Raises MissingData if the file is not there.
    """

    n_agents: int = 139
    split_seed: int = 0
    data_dir: str | None = None
    name: str = "school"
    metric: str = "nmse"
    lower_is_better: bool = True

    def __post_init__(self) -> None:
        checks.integer("n_agents", self.n_agents, minimum=1, maximum=checks.MOST_AGENTS)
        checks.integer("split_seed", self.split_seed, minimum=0)
        found = len(self._schools.train)
        if self.n_agents > found:
            raise SettingError("n_agents", f"must be at most {found} for school, got {self.n_agents}")

    @cached_property
    def _schools(self) -> Schools:
        return load_schools(self.data_files[0], self.split_seed)

    @property
    def data_files(self) -> tuple[Path, ...]:
        return (data_file(self.data_dir, "school/school.mat", "school"),)

    @cached_property
    def domain(self) -> Box:
        return Box((-4.0, -4.0, -4.0), (2.0, 1.0, 1.0))

    @property
    def noise_variance(self) -> float:
        return 0.0

    @property
    def reference(self) -> Tensor:
        return torch.ones(self.n_agents, dtype=torch.float64, device="cpu")

    def evaluate(self, agents: Tensor, x: Tensor, streams: Streams, round: int) -> Tensor:
        n = len(agents)
        rows = batches.filled(n, batches.PRODUCTS, agents.device)
        schools = self._schools.select(agents[rows])
        settings = torch.exp(_LN10 * x[rows])  # n x k x 3; torch.pow rounds by a number's position in its tensor
        errors = [schools.normalised_mse(s[:, 0], s[:, 1:]) for s in settings.unbind(1)]  # one query at a time: memory
        return 1 - torch.stack(errors, 1)[:n]

    def true_value(self, agents: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return y
