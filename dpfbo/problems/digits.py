"""Handwritten digits (Dai et al. 2021, Sec. 5.2): each agent tunes a CNN for the digits of its own writer."""

import math
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from dpfbo import checks
from dpfbo.checks import SettingError
from dpfbo.problems.objectives import cnn
from dpfbo.problems.problem import ScoreProblem, check_settings, power_of_ten
from dpfbo.problems.readers import writers
from dpfbo.problems.readers.data_files import MissingData, data_file
from dpfbo.rng import Streams
from dpfbo.space.domain import Box

SOURCES = ("auto", "federated_emnist", "mnist_by_writer", "sklearn")

_FEDERATED = "emnist_digits/fed_emnist_digitsonly_train.h5"
_COMPACT = "emnist_digits/mnist_by_writer_{}.npz"  # {}: number of writers
_DOMAINS = {"linear": Box((1e-7,) * 3, (0.02,) * 3), "log": Box((-7.0,) * 3, (math.log10(0.02),) * 3)}
_WIDEST = 16  # pixels; wider images are averaged over blocks of 2 x 2 pixels


@dataclass(frozen=True)
class Digits(ScoreProblem):
    """Tunes a CNN for the handwritten digits of each writer; y is its accuracy on the writer's held-out images.

    A writer's images are split once into training and validation images, stratified by digit; 28 x 28 pixels are
    averaged to 14 x 14. Points x are (learning rate, learning-rate decay, L2 penalty) in [1e-7, 0.02]^3. The paper
    gives only these ranges; the network and its training (`objectives.cnn.train`) are our choice. The objective is
    deterministic. The metric is the validation error, 1 - best y so far.

    Args:
        n_agents: The number of agents N. The agents are the first N writers. If the source is `mnist_by_writer`, more
            than 50 agents need the larger file, of 500 writers.
        source: `federated_emnist`, the HDF5 file of TensorFlow Federated that the paper's data come from;
            `mnist_by_writer`, a compact file with MNIST images by NIST writer, similar to the paper's data but not the
            same set; `sklearn`, bundled 8 x 8 digits split at random, not by writer; or `auto`, the HDF5 file if it
            exists, else the compact file.
        min_images: Writers with fewer images in the HDF5 file are left out.
        train_fraction: The fraction of each writer's images to train on.
        split_seed: The seed of the splits.
        steps: The number of SGD steps.
        network_seed: The seed of initial weights and minibatches.
        scale: `linear` if x holds the three values themselves, as in the paper; `log` if it holds their log10.
        data_dir: The data folder, see `readers.data_files`.

    Raises:
        MissingData: The file is missing.
        ValueError: The file has another format.
    """

    n_agents: int = 50
    source: str = "auto"
    min_images: int = 80
    train_fraction: float = 0.5
    split_seed: int = 0
    steps: int = 80
    network_seed: int = 0
    scale: str = "linear"
    data_dir: str | None = None
    name: str = field(init=False, default="digits")
    metric: str = "validation_error"
    lower_is_better: bool = True

    def __post_init__(self) -> None:
        check_settings(self)
        checks.one_of("source", self.source, SOURCES)
        checks.one_of("scale", self.scale, tuple(_DOMAINS))
        object.__setattr__(self, "name", f"digits_{self.found}")
        _ = self._sets  # raises for missing or unfit data before any work starts

    @property
    def domain(self) -> Box:
        return _DOMAINS[self.scale]

    def evaluate(self, agents: Tensor, x: Tensor, streams: Streams, round: int) -> Tensor:
        n, k = x.shape[:2]
        sets = agents[:, None].expand(n, k).flatten()
        natural = power_of_ten(x) if self.scale == "log" else x
        return cnn.validation_accuracy(self._sets.to(x.device), sets, natural.flatten(0, 1)).view(n, k)

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
            raise MissingData(f"{error}; source=sklearn needs no file", error.fetch_name) from None

    @cached_property
    def _sets(self) -> cnn.ImageSets:
        if self._path is None:
            own = writers.load_pseudo_writers(self.n_agents, self.split_seed)
        elif self.found == "federated_emnist":
            own = writers.load_federated_emnist(self._path, self.n_agents, self.min_images)
        else:
            own = writers.load_mnist_by_writer(self._path, self.n_agents)
        images = torch.from_numpy(np.concatenate([writer.images for writer in own]))
        labels = torch.from_numpy(np.concatenate([writer.labels for writer in own]))
        if images.shape[1] > _WIDEST:
            images = functional.avg_pool2d(images, 2)
        batches, validation, first = [], [], 0
        for agent, writer in enumerate(own):
            generator = Streams(self.split_seed).generator(f"split/{agent}")
            training, held_out = writers.split(writer.labels, self.train_fraction, generator)
            if len(held_out) == 0:
                all_of = f"agent {agent} has {len(writer.labels)} images and all are for training"
                rule = f"must leave images for validation, got {self.train_fraction}: {all_of}"
                raise SettingError("train_fraction", rule)
            generator = Streams(self.network_seed).generator(f"minibatches/{agent}")
            batches.append(first + cnn.batches_of(training, self.steps, generator))
            validation.append(torch.from_numpy(first + held_out))
            first += len(writer.labels)
        ids = torch.arange(self.n_agents, device="cpu")
        start = Streams(self.network_seed).normal("initial weights", ids, 0, cnn.n_weights(images.shape[1]))
        return cnn.ImageSets(
            patches=cnn.patches_of(images),
            target=functional.one_hot(labels, cnn.CLASSES).float(),
            batches=torch.from_numpy(np.stack(batches)),
            validation=pad_sequence(validation, batch_first=True, padding_value=-1),
            start=start.float(),
        )
