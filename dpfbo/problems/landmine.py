"""Landmine detection (Dai et al. 2021, Sec. 5.2): each agent tunes an SVM on its own mine field."""

from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import torch
from torch import Tensor

from dpfbo import checks
from dpfbo.problems.objectives.parallel_scores import in_processes
from dpfbo.problems.objectives.svm import Fit, auc, load_fields
from dpfbo.problems.problem import ScoreProblem, check_settings, power_of_ten
from dpfbo.problems.readers.data_files import data_file
from dpfbo.rng import Streams
from dpfbo.space.domain import Box

_DOMAINS = {"linear": Box((1e-4, 0.01), (10.0, 10.0)), "log": Box((-4.0, -2.0), (1.0, 1.0))}


@dataclass(frozen=True)
class Landmine(ScoreProblem):
    """Tunes an SVM for each of 29 mine fields (Xue et al. 2007); y is its AUC on the held-out half of the field.

    Points x are (C, gamma) of an RBF kernel in [1e-4, 10] x [0.01, 10]. The metric is 1 - best AUC so far.

    Args:
        score: `margin` for the AUC of the decision function (deterministic), or `platt` for the AUC of Platt
            probabilities (noisy), as in the published curves. The two AUCs are not comparable.
        n_agents: The number of agents N. The agents are the first N fields.
        scale: `linear` if x holds C and gamma themselves, as in the paper; `log` if it holds their log10.
        split_seed: The seed of the split into halves.
        n_jobs: The number of processes for the SVM fits; -1 for all cores.
        data_dir: The data folder, see `readers.data_files`.

    Raises:
        MissingData: The file is missing.
        ValueError: The file has another format.
    """

    score: str = "margin"
    n_agents: int = 29
    split_seed: int = 0
    n_jobs: int = -1
    data_dir: str | None = None
    scale: str = "linear"
    name: str = "landmine"
    metric: str = "one_minus_auc"
    lower_is_better: bool = True

    def __post_init__(self) -> None:
        check_settings(self)
        checks.one_of("score", self.score, ("margin", "platt"))
        checks.one_of("scale", self.scale, tuple(_DOMAINS))
        checks.workers("n_jobs", self.n_jobs)
        self._check_agents(len(load_fields(self._path, self.split_seed)), f"the fields in {self._path}")

    @cached_property
    def _path(self) -> Path:
        return data_file(self.data_dir, "landmine/LandmineData.mat", "landmine")

    @property
    def domain(self) -> Box:
        return _DOMAINS[self.scale]

    @property
    def noise_variance(self) -> float | None:
        return 0.0 if self.score == "margin" else None

    def evaluate(self, agents: Tensor, x: Tensor, streams: Streams, round: int) -> Tensor:
        seeds = (streams.uniform("platt", agents, round, x.shape[1]) * 2**31).long()
        natural = power_of_ten(x) if self.scale == "log" else x
        fits = [
            Fit(agent, point[0], point[1], seed)
            for agent, points, row in zip(agents.tolist(), natural.tolist(), seeds.tolist(), strict=True)
            for point, seed in zip(points, row, strict=True)
        ]
        scores = in_processes(partial(auc, self._path, self.split_seed, self.score), fits, self.n_jobs)
        return torch.from_numpy(scores).view(x.shape[:2]).to(x.device)
