"""Shared parts of outsourced problems: checks of settings, and the table of candidates."""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from dpfbo import checks
from dpfbo.checks import SettingError
from dpfbo.outsourced.hyperparameters import Belief
from dpfbo.outsourced.table import Table
from dpfbo.rng import Streams

_LEAST_NOISE = 1e-12  # least noise variance, relative to the prior variance; with less, posteriors lose precision


class OneCurator:
    """Default attributes of an outsourced problem: one curator, and exact measurements of the candidates' values.

    Attributes:
        stand_in: One sentence on the data that replace the paper's data; None if the data are the paper's own.
    """

    n_agents: ClassVar[int] = 1
    metric: ClassVar[str] = "simple_regret"
    lower_is_better: ClassVar[bool] = True

    @property
    def stand_in(self) -> str | None:
        return None

    @property
    def data_files(self) -> tuple[Path, ...]:
        return ()

    @property
    def noise_variance(self) -> float:
        """The variance of the noise that a measurement adds to a candidate's value."""
        return 0.0

    @property
    def prior(self) -> Belief:
        """The public GP prior, scaled to variance 1 and length-scale 1."""
        noise = self._prior_noise
        if not _LEAST_NOISE <= noise < float("inf"):
            raise ValueError(f"the prior's noise must be a finite number of at least {_LEAST_NOISE:g}, got {noise!r}")
        return Belief(lengthscale=1.0, variance=1.0, noise=noise)

    @property
    def _prior_noise(self) -> float:
        return self.noise_variance


def table_of(
    features: Tensor, bounds: Sequence[tuple[float, ...]], lengthscales: Sequence[float], values: Tensor,
    names: tuple[str, ...], natural: Tensor | None = None,
) -> Table:  # fmt: skip
    """Build a table of n candidates from features (n x d), public bounds and length-scales (d each), and values (n).

    natural: the features in the users' units; None if `features` already are in these units.
    """
    low, high = torch.tensor(bounds, dtype=torch.float64, device="cpu").T
    unit = torch.tensor(lengthscales, dtype=torch.float64, device="cpu")
    edge = tuple(((high - low) / 2 / unit).tolist())
    rows = (features - (low + high) / 2) / unit
    return Table(rows, features if natural is None else natural, values, names, tuple(-e for e in edge), edge)


def square_grid(bounds: Sequence[tuple[float, float]], side_points: int) -> Tensor:
    """Return a grid over a rectangle, corners included, side_points^2 x 2; the second coordinate varies fastest."""
    axes = (torch.linspace(low, high, side_points, dtype=torch.float64, device="cpu") for low, high in bounds)
    return torch.cartesian_prod(*axes)


def random_ranks(n: int, seed: int) -> np.ndarray:
    """Return random ranks in [0, 1) for the n records of a file.

    The ranks are public, because a record's rank depends only on the seed and the record's position in the file.
    """
    return Streams(seed).generator("problem/subset").random(n)


def lowest(ranks: np.ndarray, n_rows: int | None, problem: str) -> np.ndarray:
    """Return the indices of the n_rows lowest ranks, lowest first; n_rows=None returns all indices.

    Raises SettingError if there are fewer than n_rows ranks.

    Suppose that a caller filters the records of a file, ranks the kept records, and makes a table of the records at the
    returned indices. Suppose also that a record's rank does not depend on the other records. Then replacing one record
    of the file replaces at most one row of the table. With n_rows=None, the replacement may instead add or remove a
    row, because the filter may keep only the old or only the new record.
    """
    if n_rows is not None and n_rows > len(ranks):
        raise SettingError("n_rows", f"must be at most {len(ranks)} for {problem}, got {n_rows}")
    return ranks.argsort(kind="stable")[:n_rows]


def check_lengthscales(lengthscales: object, names: tuple[str, ...]) -> None:
    """Raise SettingError unless there is a positive number for each feature."""
    if not isinstance(lengthscales, Sequence) or isinstance(lengthscales, str) or len(lengthscales) != len(names):
        raise SettingError("lengthscales", f"must be a number for each of {', '.join(names)}, got {lengthscales!r}")
    for lengthscale in lengthscales:
        checks.positive("lengthscales", lengthscale)


def check_bounds(name: str, bounds: object) -> None:
    """Raise ValueError unless the bounds are two finite numbers, the first below the second."""
    if not isinstance(bounds, Sequence) or isinstance(bounds, str) or len(bounds) != 2:
        raise ValueError(f"{name} must be two numbers [lowest, highest], got {bounds!r}")
    for bound in bounds:
        checks.real(name, bound)
    if not bounds[0] < bounds[1]:
        raise ValueError(f"{name} must have its lowest value first, got {list(bounds)}")
