"""Kernel ridge regression of the exam scores of many schools, as one batch."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dpfbo.extras import needing
from dpfbo.problems.readers.data_files import reading
from dpfbo.problems.readers.mat_cells import read_cells

_FEATURES = 28  # columns
_PERCENTAGES = [3, 4]  # columns in percent; the others are 0 or 1
_ABILITY = [7, 8, 9]  # columns of the band of the student's verbal reasoning test, one-hot
_NEEDED_BY = "the school problem"
_FEWEST = 4  # students of a school, so that each half has two


@dataclass(frozen=True)
class Schools:
    """Training and validation halves of N schools, padded to the t and v students of the largest.

    within: N x 2 x t x t squared distances between training students, in the ability band and in the other features;
    across: N x 2 x v x t, from the validation students to them; infinite for padding. train, validation: N x t and
    N x v scores less the mean of the school's training scores, 0 for padding.
    """

    within: Tensor
    across: Tensor
    train: Tensor
    validation: Tensor

    def select(self, rows: Tensor) -> "Schools":
        """Some of the schools, on the device of `rows`."""
        kept = (whole[rows.to(whole.device)] for whole in vars(self).values())
        return Schools(*(part.to(rows.device) for part in kept))

    def normalised_mse(self, ridge: Tensor, gamma: Tensor) -> Tensor:
        """Validation error of each school's kernel ridge regression, against that of its training mean; N.

            |validation - K* a|^2 / |validation|^2,   a = (K + ridge I)^-1 train

        with K_ij = exp(-sum_f gamma_f d_f(i, j)^2) (Rasmussen and Williams 2006, eq. 2.25). ridge: N; gamma: N x 2;
        positive. A padded student, infinitely far from all others and with target 0, changes nothing.
        """
        K = _kernel(self.within, gamma)  # N x t x t
        K.diagonal(dim1=1, dim2=2).add_(ridge[:, None])
        a = torch.cholesky_solve(self.train[..., None], torch.linalg.cholesky(K))  # N x t x 1
        error = self.validation - (_kernel(self.across, gamma) @ a)[..., 0]  # N x v
        return error.square().sum(1) / self.validation.square().sum(1)


def _kernel(D2: Tensor, gamma: Tensor) -> Tensor:
    exponent = D2[:, 0] * -gamma[:, 0, None, None]
    return exponent.addcmul_(D2[:, 1], gamma[:, 1, None, None], value=-1).exp_()


@cache
def load_schools(path: Path, split_seed: int) -> Schools:
    """All schools of school.mat, each split into halves; percentages as fractions.

    Raises ValueError if the file is not in the published format.
    """
    with needing("problems", _NEEDED_BY):
        from sklearn.model_selection import train_test_split

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
        within[n, :, : len(x), : len(x)] = _squared_distances(x, x)
        across[n, :, : len(x_val), : len(x)] = _squared_distances(x_val, x)
        train[n, : len(y)], validation[n, : len(y_val)] = y - y.mean(), y_val - y.mean()
    if not validation.any(1).all():
        raise ValueError(f"{path} has a school whose validation scores are all the mean of its training scores")
    return Schools(*map(torch.from_numpy, (within, across, train, validation)))


def _checked(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One school's students and scores as float64, or ValueError."""
    x, y = x.astype(float), y.astype(float).ravel()
    if x.shape != (len(y), _FEATURES) or len(y) < _FEWEST:
        raise ValueError(f"a school has {_FEATURES} features and a score of at least {_FEWEST} students, got {x.shape}")
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise ValueError("features and scores must be finite numbers")
    x[:, _PERCENTAGES] /= 100
    return x, y


def _squared_distances(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Squared distances in the ability band and in the other features, 2 x len(a) x len(b)."""
    with needing("problems", _NEEDED_BY):
        from sklearn.metrics import pairwise_distances

    other = np.setdiff1d(np.arange(_FEATURES), _ABILITY)
    return np.stack([pairwise_distances(a[:, f], b[:, f], metric="sqeuclidean") for f in (_ABILITY, other)])
