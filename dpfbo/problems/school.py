"""Exam scores in London schools: each agent tunes a kernel ridge regression on its own students."""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from dpfbo.extras import needing
from dpfbo.gp import batches
from dpfbo.problems.problem import ScoreProblem, check_settings, power_of_ten
from dpfbo.problems.readers.data_files import data_file, reading
from dpfbo.problems.readers.mat_cells import read_cells
from dpfbo.rng import Streams
from dpfbo.space.domain import Box

_FEATURES = 28  # columns
_PERCENTAGES = [3, 4]  # columns in percent; the others are 0 or 1
_ABILITY = [7, 8, 9]  # columns of the band of the student's verbal reasoning test, one-hot
_OTHERS = [f for f in range(_FEATURES) if f not in _ABILITY]
_FEWEST = 4  # students of a school, so that each half has two


@dataclass(frozen=True)
class School(ScoreProblem):
    """Tunes a regression for each of 139 schools of the "school" data (London, 1985-1987); y is 1 - nmse.

    The regression of the exam score has a squared-exponential kernel with one gamma for the student's ability band and
    one for the other features. Points x are log10 of (ridge, gamma_ability, gamma_other) in [-4, 2] x [-4, 1]^2.
    nmse is the mean squared error on the held-out half of the school's students, divided by the error of a constant
    prediction, which is the mean score of the other half. The objective is deterministic. The metric is the best nmse
    so far.

    Args:
        n_agents: The number of agents N. The agents are the first N schools.
        split_seed: The seed of the split into halves.
        data_dir: The data folder, see `readers.data_files`.

    Raises:
        MissingData: The file is missing.
        ValueError: The file has another format.
    """

    domain: ClassVar[Box] = Box((-4.0, -4.0, -4.0), (2.0, 1.0, 1.0))

    n_agents: int = 139
    split_seed: int = 0
    data_dir: str | None = None
    name: str = "school"
    metric: str = "nmse"
    lower_is_better: bool = True

    def __post_init__(self) -> None:
        check_settings(self)
        self._check_agents(len(self._schools.train), f"the schools in {self._path}")

    @cached_property
    def _path(self) -> Path:
        return data_file(self.data_dir, "school/school.mat", "school")

    @cached_property
    def _schools(self) -> "Schools":
        return load_schools(self._path, self.split_seed)

    def evaluate(self, agents: Tensor, x: Tensor, streams: Streams, round: int) -> Tensor:
        n = len(agents)
        rows = batches.filled(n, batches.PRODUCTS, agents.device)
        schools = self._schools.select(agents[rows])
        settings = power_of_ten(x[rows])  # n x k x 3
        errors = [schools.normalised_mse(s[:, 0], s[:, 1:]) for s in settings.unbind(1)]  # one by one, for less memory
        return 1 - torch.stack(errors, 1)[:n]


@dataclass(frozen=True)
class Schools:
    """Training and validation halves of N schools, padded to equal sizes.

    The largest training half has t students, and the largest validation half has v.

    within: N x 2 x t x t, two squared distances for each pair of training students: first between their ability bands,
    then between their other features. A padded student has distance 0 to itself and infinity to all others. across:
    N x 2 x v x t, the same distances from validation to training students, infinite for padding. train, validation:
    N x t and N x v, scores minus the school's training mean, 0 for padding.
    """

    within: Tensor
    across: Tensor
    train: Tensor
    validation: Tensor

    def select(self, rows: Tensor) -> "Schools":
        """Return the schools with the indices `rows`, on the device of `rows`."""
        kept = (whole[rows.to(whole.device)] for whole in vars(self).values())
        return Schools(*(part.to(rows.device) for part in kept))

    def normalised_mse(self, ridge: Tensor, gamma: Tensor) -> Tensor:
        """Return N errors of kernel ridge regression, each divided by the error of predicting the training mean.

            |validation - K* a|^2 / |validation|^2,   a = (K + ridge I)^-1 train

        The kernel is K_ij = exp(-sum_f gamma_f d_f(i, j)^2), where d_1 is the distance between two students' ability
        bands, and d_2 is the distance between their other features. K* is the kernel between validation and training
        students. ridge: N; gamma: N x 2; both positive.
        """
        K = _kernel(self.within, gamma)  # N x t x t
        K.diagonal(dim1=1, dim2=2).add_(ridge[:, None])
        a = torch.cholesky_solve(self.train[..., None], torch.linalg.cholesky(K))  # N x t x 1
        error = self.validation - (_kernel(self.across, gamma) @ a)[..., 0]  # N x v
        return error.square().sum(1) / self.validation.square().sum(1)


def _kernel(D2: Tensor, gamma: Tensor) -> Tensor:
    exponent = D2[:, 0] * -gamma[:, 0, None, None]
    return exponent.addcmul_(D2[:, 1], gamma[:, 1, None, None], value=-1).exp_()


@lru_cache(maxsize=2)
def load_schools(path: Path, split_seed: int) -> Schools:
    """Read all schools of school.mat, each split into halves; raise ValueError for a file in another format."""
    with needing("problems", "the school problem"):
        from sklearn.metrics import pairwise_distances
        from sklearn.model_selection import train_test_split

    def squared_distances(a: np.ndarray, b: np.ndarray) -> np.ndarray:  # 2 x len(a) x len(b)
        return np.stack([pairwise_distances(a[:, f], b[:, f], metric="sqeuclidean") for f in (_ABILITY, _OTHERS)])

    with reading(path, "is not a school file: it needs the cells 'X' and 'Y'"):
        pairs = [_checked(x, y) for x, y in zip(*read_cells(path, ("X", "Y")), strict=True)]
        if not pairs:
            raise ValueError("there must be a school")
    halves = [train_test_split(x, y, test_size=0.5, random_state=split_seed) for x, y in pairs]
    N, t, v = len(halves), max(len(h[0]) for h in halves), max(len(h[1]) for h in halves)
    within, across = np.full((N, 2, t, t), np.inf), np.full((N, 2, v, t), np.inf)
    within[:, :, range(t), range(t)] = 0
    train, validation = np.zeros((N, t)), np.zeros((N, v))
    for n, (x, x_val, y, y_val) in enumerate(halves):
        within[n, :, : len(x), : len(x)] = squared_distances(x, x)
        across[n, :, : len(x_val), : len(x)] = squared_distances(x_val, x)
        train[n, : len(y)], validation[n, : len(y_val)] = y - y.mean(), y_val - y.mean()
    if not validation.any(1).all():
        raise ValueError(f"{path} has a school whose validation scores are all the mean of its training scores")
    return Schools(*map(torch.from_numpy, (within, across, train, validation)))


def _checked(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    x, y = x.astype(float), y.astype(float).ravel()
    if x.shape != (len(y), _FEATURES) or len(y) < _FEWEST:
        raise ValueError(f"a school has {_FEATURES} features and a score of at least {_FEWEST} students, got {x.shape}")
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise ValueError("features and scores must be finite numbers")
    x[:, _PERCENTAGES] /= 100
    return x, y
