"""Read images of handwritten digits, grouped by writer, from the files of MNIST and federated EMNIST."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpfbo.checks import SettingError
from dpfbo.extras import needing
from dpfbo.formats.bounded import npz_arrays
from dpfbo.problems.readers.data_files import reading
from dpfbo.rng import Streams

DIGITS = 10
MOST_BYTES = 4 * 2**30  # in the images of all writers
_MOST_CHUNK = 256 * 2**20  # bytes that HDF5 may unpack at once


@dataclass(frozen=True)
class Writer:
    """The images of one writer and the digits that they show.

    images: n x side x side, float32 in [0, 1], 0 for the background; labels: n digits.
    """

    images: np.ndarray
    labels: np.ndarray


def load_mnist_by_writer(path: Path, n_agents: int) -> list[Writer]:
    """Read the first n_agents writers of an npz file with `images` (n x 28 x 28 uint8), `label` and `writer`.

    The file holds MNIST's training images with QMNIST's writer ids (Yadav and Bottou 2019). Raises ValueError for an
    unfit file.
    """
    wanted = {"images": ("biuf", 3), "label": ("biuf", 1), "writer": ("iu", 1)}
    with reading(path, "is not a file of digits by writer: it needs images, label and writer"):
        images, labels, writer = npz_arrays(path, MOST_BYTES, wanted).values()
    if images.dtype != np.uint8:
        raise ValueError(f"{path}: images must be uint8, got {images.dtype}")
    if not len(images) == len(labels) == len(writer):
        lengths = f"{len(images)}, {len(labels)}, {len(writer)}"
        raise ValueError(f"{path}: images, label and writer must be equally long, got {lengths}")
    ids = np.unique(writer)
    _check_enough(path, len(ids), n_agents)
    return [
        _writer(path, f"writer {i}", images[writer == i].astype(np.float32) / 255, labels[writer == i])
        for i in ids[:n_agents]
    ]


def load_federated_emnist(path: Path, n_agents: int, min_images: int) -> list[Writer]:
    """Read the first n_agents writers with at least `min_images` images in TensorFlow Federated's EMNIST file.

    The file's group `examples` has a group for each writer, with `pixels` (float32, n x 28 x 28, 1 for the background)
    and `label` (n).
    """
    with needing("emnist", "the federated EMNIST file"):
        import h5py

    found: list[tuple[str, np.ndarray, np.ndarray]] = []
    needs = "is not a federated EMNIST file: it needs examples/<writer>/pixels and label"
    with reading(path, needs), h5py.File(path, "r") as file:
        examples: Any = _inside(file, "examples", h5py.Group)
        left = MOST_BYTES
        for i in sorted(examples):
            group = _inside(examples, i, h5py.Group) if len(found) < n_agents else None
            if group is not None and len(_numbers(group, "label", left)) >= min_images:
                stored = _numbers(group, "pixels", left)
                left -= stored.nbytes
                pixels, labels = stored[()], _numbers(group, "label", left)[()]
                found.append((f"writer {i}", 1 - pixels.astype(np.float32), labels.reshape(-1)))
    writers = [_writer(path, name, pixels, labels) for name, pixels, labels in found]
    _check_enough(path, len(writers), n_agents, f" with at least {min_images} images")
    return writers


def _inside(group: Any, name: str, kind: type[Any]) -> Any:
    """Return the member `name` of an HDF5 group; raise ValueError for a link or an object of another kind."""
    import h5py

    if not isinstance(group.get(name, getlink=True), h5py.HardLink) or not isinstance(group[name], kind):
        raise ValueError(f"{group.name}/{name} must be a {kind.__name__.lower()} in the file")
    return group[name]


def _numbers(group: Any, name: str, most: int) -> Any:
    """Return the dataset `name` of an HDF5 group, without reading the data.

    Raises ValueError if the data are not numbers, or take more than `most` bytes.
    """
    import h5py

    data = _inside(group, name, h5py.Dataset)
    if data.dtype.kind not in "biuf" or data.is_virtual or data.external:
        raise ValueError(f"{data.name} must be numbers in the file, got {data.dtype}")
    chunk = math.prod(data.chunks or (0,)) * data.dtype.itemsize
    if not data.ndim or data.nbytes > most or chunk > _MOST_CHUNK:
        raise ValueError(f"{data.name} must be a list of at most {most} bytes, got shape {data.shape}")
    return data


def load_pseudo_writers(n_agents: int, seed: int) -> list[Writer]:
    """Split scikit-learn's 1797 digits (8 x 8) at random into parts whose sizes differ by at most one.

    Raises SettingError for parts of fewer than 20 digits.
    """
    with needing("problems", "source=sklearn"):
        from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    most = len(labels) // 20
    if n_agents > most:
        raise SettingError("n_agents", f"must be at most {most} for source=sklearn, got {n_agents}")
    order = Streams(seed).generator("pseudo-writers").permutation(len(labels))
    pixels = (images / 16).astype(np.float32).reshape(-1, 8, 8)
    return [Writer(pixels[rows], labels[rows]) for rows in np.array_split(order, n_agents)]


def split(labels: np.ndarray, train_fraction: float, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Split the images at random into training and validation, and return the indices of both.

    Of each digit's images, the share `train_fraction` is for training; their number is rounded up.

    Example:
        >>> training, validation = split(np.array([0, 0, 0, 1, 1, 1]), 0.5, np.random.default_rng(0))
        >>> len(training), len(validation)
        (4, 2)
    """
    order = generator.permutation(len(labels))
    training = np.zeros(len(labels), dtype=bool)
    for digit in np.unique(labels):
        rows = order[labels[order] == digit]
        some = math.ceil(train_fraction * len(rows) - 1e-9)  # .55 * 20 is more than 11 in floats
        training[rows[: max(1, some)]] = True
    return np.flatnonzero(training), np.flatnonzero(~training)


def _writer(path: Path, name: str, images: np.ndarray, labels: np.ndarray) -> Writer:
    if images.shape[1:] != (28, 28) or len(images) != len(labels):
        shapes = f"{images.shape} and {labels.shape}"
        raise ValueError(f"{path}: {name} must have images of 28 x 28 pixels and a label for each, got shapes {shapes}")
    if not (images.min() >= 0 and images.max() <= 1):
        raise ValueError(f"{path}: the pixels of {name} must lie in [0, 1], got {images.min()} to {images.max()}")
    if not np.isin(labels, np.arange(DIGITS)).all():
        found = f"{labels.min()} to {labels.max()}"
        raise ValueError(f"{path}: the labels of {name} must be the digits 0 to 9, got {found}")
    return Writer(images, labels.astype(np.int64))


def _check_enough(path: Path, found: int, n_agents: int, which: str = "") -> None:
    if n_agents > found:
        raise SettingError("n_agents", f"must be at most {found}, the writers{which} in {path}, got {n_agents}")
