"""Handwritten digits (paper, Sec. 5.2): each agent tunes a CNN for the digits of its own writer."""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from dpfbo import checks
from dpfbo.checks import SettingError
from dpfbo.problems.objectives.cnn import (
    CLASSES,
    ImageSets,
    batches_of,
    n_weights,
    patches_of,
    validation_accuracy,
    validation_rows,
)
from dpfbo.problems.readers.data_files import MissingData, data_file
from dpfbo.problems.readers.writers import (
    Writer,
    load_federated_emnist,
    load_mnist_by_writer,
    load_pseudo_writers,
    split,
)
from dpfbo.rng import Streams
from dpfbo.space.domain import Box

SOURCES = ("auto", "federated_emnist", "mnist_by_writer", "sklearn")

_FEDERATED = "emnist_digits/fed_emnist_digitsonly_train.h5"
_COMPACT = "emnist_digits/mnist_by_writer_{}.npz"  # {}: number of writers
_WIDEST = 16  # pixels; wider images are averaged over 2 x 2


@dataclass(frozen=True)
class Digits:
    """50 writers; x = (learning rate, learning-rate decay, L2), linear in [1e-7, 0.02]^3; y = accuracy of a CNN.

    One agent is one writer, whose images (pixels in [0, 1]) are split once, stratified by digit, `train_fraction` of
    them for training; y is the accuracy on the others. Metric: validation error, 1 - best y so far.

    The paper gives the ranges, neither network, optimiser, epochs, split nor the scale of the axes; these are our
    choice: 14 x 14 pixels (28 x 28 averaged over 2 x 2), convolution 5 x 5 to 8 channels, convolution 3 x 3 to 16
    channels, each at every second place and with ReLU, linear to 10; SGD with momentum 0.9 for `steps` steps of 16
    images with the rate `learning rate / (1 + decay * step)`; L2 as a penalty on the squared weights
    (`objectives.cnn`). A writer's start and minibatches follow from network_seed and are the same for all of its
    queries and runs, so the objective is deterministic.

    source: `federated_emnist`, the HDF5 file of TensorFlow Federated that the paper's data come from, its first
    writers with at least min_images images; `mnist_by_writer`, a compact file with MNIST images by NIST writer, the
    same kind of data but not that set; `sklearn`, bundled 8 x 8 digits cut at random into parts that are no writers;
    `auto`, the HDF5 file if it exists, else the compact one. `name` says which. data_dir: see `readers.data_files`.

    Raises MissingData if there is no file; ValueError for bad settings or another file.
    """

    n_agents: int = 50
    source: str = "auto"
    min_images: int = 80
    train_fraction: float = 0.5
    split_seed: int = 0
    steps: int = 80
    network_seed: int = 0
    data_dir: str | None = None
    name: str = field(init=False, default="digits")
    metric: str = "validation_error"
    lower_is_better: bool = True

    def __post_init__(self) -> None:
        checks.integer("n_agents", self.n_agents, minimum=1, maximum=checks.MOST_AGENTS)
        checks.one_of("source", self.source, SOURCES)
        checks.integer("min_images", self.min_images, minimum=2)
        checks.probability("train_fraction", self.train_fraction)
        checks.integer("split_seed", self.split_seed, minimum=0)
        checks.integer("steps", self.steps, minimum=1)
        checks.integer("network_seed", self.network_seed, minimum=0)
        object.__setattr__(self, "name", f"digits_{self.found}")
        _ = self._sets  # raises for missing or unfit data before any work starts

    @cached_property
    def domain(self) -> Box:
        return Box((1e-7,) * 3, (0.02,) * 3)

    @property
    def noise_variance(self) -> float | None:
        return 0.0

    @property
    def reference(self) -> Tensor:
        return torch.ones(self.n_agents, dtype=torch.float64, device="cpu")

    def evaluate(self, agents: Tensor, x: Tensor, streams: Streams, round: int) -> Tensor:
        n, k = x.shape[:2]
        sets = agents[:, None].expand(n, k).flatten()
        return validation_accuracy(self._sets.to(x.device), sets, x.flatten(0, 1)).view(n, k)

    def true_value(self, agents: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return y

    @property
    def found(self) -> str:
        """The source in use, never `auto`."""
        if self._path is None:
            return "sklearn"
        return "federated_emnist" if self._path.suffix == ".h5" else "mnist_by_writer"

    @cached_property
    def _path(self) -> Path | None:
        if self.source == "sklearn":
            return None
        compact = _COMPACT.format(50 if self.n_agents <= 50 else 500)
        files = {"federated_emnist": (_FEDERATED,), "mnist_by_writer": (compact,), "auto": (_FEDERATED, compact)}
        try:
            return data_file(self.data_dir, files[self.source], None if self.source == "mnist_by_writer" else "emnist")
        except MissingData as error:
            raise MissingData(f"{error}; source=sklearn needs no file") from None

    @property
    def data_files(self) -> tuple[Path, ...]:
        return () if self._path is None else (self._path,)

    def _writers(self) -> list[Writer]:
        if self._path is None:
            return load_pseudo_writers(self.n_agents, self.split_seed)
        if self.found == "federated_emnist":
            return load_federated_emnist(self._path, self.n_agents, self.min_images)
        return load_mnist_by_writer(self._path, self.n_agents)

    @cached_property
    def _sets(self) -> ImageSets:
        writers = self._writers()
        images = torch.from_numpy(np.concatenate([writer.images for writer in writers]))
        labels = torch.from_numpy(np.concatenate([writer.labels for writer in writers]))
        if images.shape[1] > _WIDEST:
            images = functional.avg_pool2d(images, 2)
        batches, validation, first = [], [], 0
        for agent, writer in enumerate(writers):
            training, held_out = self._split(agent, writer)
            generator = Streams(self.network_seed).generator(f"minibatches/{agent}")
            batches.append(first + batches_of(training, self.steps, generator))
            validation.append(first + held_out)
            first += len(writer.labels)
        ids = torch.arange(self.n_agents, device="cpu")
        start = Streams(self.network_seed).normal("initial weights", ids, 0, n_weights(images.shape[1]))
        return ImageSets(
            patches=patches_of(images),
            target=functional.one_hot(labels, CLASSES).float(),
            batches=torch.from_numpy(np.stack(batches)),
            validation=validation_rows(validation),
            start=start.float(),
        )

    def _split(self, agent: int, writer: Writer) -> tuple[np.ndarray, np.ndarray]:
        """Training and validation rows of an agent's images."""
        generator = Streams(self.split_seed).generator(f"split/{agent}")
        training, held_out = split(writer.labels, self.train_fraction, generator)
        if len(held_out) == 0:
            raise SettingError(
                "train_fraction",
                f"must leave images for validation, got {self.train_fraction}: "
                f"agent {agent} has {len(writer.labels)} images and all are for training",
            )
        return training, held_out
