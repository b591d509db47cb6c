"""Human activity recognition (Dai et al. 2021, Sec. 5.2): each agent tunes a classifier for one subject."""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import torch
from torch import Tensor

from dpfbo import checks
from dpfbo.problems.objectives.softmax_regression import DataSets, Settings, data_sets, fit, validation_accuracy
from dpfbo.problems.problem import ScoreProblem, check_settings, power_of_ten
from dpfbo.problems.readers.data_files import data_file
from dpfbo.problems.readers.har import ACTIVITIES, ARCHIVE, COMPACT, load_subjects
from dpfbo.rng import Streams
from dpfbo.space.domain import Box

_FILES = {"auto": (ARCHIVE, COMPACT), "official": (ARCHIVE,), "recomputed": (COMPACT,)}
_DOMAINS = {
    "log": Box((128.0, -6.0, -6.0), (512.0, 1.0, 0.0)),
    "linear": Box((128.0, 1e-6, 1e-6), (512.0, 10.0, 1.0)),
}


@dataclass(frozen=True)
class Activity(ScoreProblem):
    """Tunes a classifier for each of 30 subjects of UCI HAR (Anguita et al. 2013); y is its validation accuracy.

    A subject's windows are split at random in halves, stratified by activity and standardised on the training half.
    Consecutive windows overlap, so errors are lower than on new recordings. The classifier is multinomial logistic
    regression, trained by plain mini-batch SGD (`objectives.softmax_regression`) with rows in random order. y is 0 if
    training diverges. The metric is the validation error, 1 - best y so far.

    Points x are (batch size, L2 penalty, learning rate) in [128, 512], [1e-6, 10] and [1e-6, 1]. The DP-FTS-DE paper
    gives neither the scale of the axes nor the epochs; both are our choice. A subject has at most 204 training rows, so
    most batch sizes amount to gradient descent on all rows.

    Args:
        n_agents: The number of agents N, which are the first N subjects.
        scale: `log` if x holds log10 of L2 penalty and learning rate; `linear` if it holds the values themselves. With
            `linear`, training diverges in more than half of the box.
        epochs: The number of training epochs.
        split_seed: The seed of the split into halves.
        features: `official`, the archive of the UCI repository; `recomputed`, the compact file of `readers.har`; or
            `auto`, the archive if it exists, else the compact file.
        data_dir: The data folder, see `readers.data_files`.

    Raises:
        MissingData: The file is missing.
        ValueError: The file has another format.
    """

    n_agents: int = 30
    scale: str = "log"
    epochs: int = 100
    split_seed: int = 0
    features: str = "auto"
    data_dir: str | None = None
    metric: str = "validation_error"
    lower_is_better: bool = True

    def __post_init__(self) -> None:
        check_settings(self)
        checks.one_of("scale", self.scale, tuple(_DOMAINS))
        checks.one_of("features", self.features, tuple(_FILES))
        self._check_agents(len(load_subjects(self._path, self.split_seed)), f"the subjects in {self._path}")

    @cached_property
    def _path(self) -> Path:
        return data_file(self.data_dir, _FILES[self.features], None if self.features == "recomputed" else "har")

    @property
    def name(self) -> str:
        return f"activity_{self.found}"

    @property
    def found(self) -> str:
        """The name of the features in use: `official` or `recomputed`."""
        return "official" if self._path.suffix == ".zip" else "recomputed"

    @property
    def domain(self) -> Box:
        return _DOMAINS[self.scale]

    @property
    def noise_variance(self) -> float | None:
        return None

    def evaluate(self, agents: Tensor, x: Tensor, streams: Streams, round: int) -> Tensor:
        data = _data(self._path, self.split_seed, x.device)[agents]
        shape = (*x.shape[:2], self.epochs, data.gram.shape[-1])
        order = streams.uniform("sgd_order", agents, round, shape[1] * shape[2] * shape[3]).view(shape)
        rates = power_of_ten(x[..., 1:]) if self.scale == "log" else x[..., 1:]
        l2, learning_rate = rates.float().unbind(-1)
        settings = Settings(x[..., 0].round().long(), l2, learning_rate)
        return validation_accuracy(data, *fit(data, settings, self.epochs, order))


@lru_cache(maxsize=2)
def _data(path: Path, split_seed: int, device: torch.device) -> DataSets:
    """Return the data of all subjects, padded to a length that does not depend on n_agents."""
    subjects = load_subjects(path, split_seed)
    training = [(s.X_train, s.y_train) for s in subjects]
    validation = [(s.X_validation, s.y_validation) for s in subjects]
    return data_sets(training, validation, ACTIVITIES).to(device)
