"""Sources of the random numbers behind sampling and noise; readers of broadcasts must not know these numbers."""

import math
import os
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from dpfbo.rng import Streams, box_muller


class Entropy(Protocol):
    """A source of uniform numbers for the server.

    Attributes:
        reproducible: True if the numbers follow from a seed; such a source is for simulations only.
    """

    @property
    def reproducible(self) -> bool: ...

    def uniform(self, purpose: str, round: int, size: int) -> Tensor:
        """Draw `size` uniform numbers in [0, 1), float64."""


@dataclass(frozen=True)
class SeededEntropy:
    """Draws uniform numbers from the run's seed, for simulations only: anyone who knows the seed can remove the noise.

    Args:
        streams: The random streams of the run's seed.

    Example:
        >>> entropy = SeededEntropy(Streams(0))
        >>> torch.equal(entropy.uniform("noise", round=3, size=5), entropy.uniform("noise", round=3, size=5))
        True
    """

    streams: Streams
    reproducible: bool = True

    def uniform(self, purpose: str, round: int, size: int) -> Tensor:
        return torch.from_numpy(self.streams.generator(f"server/{purpose}", round).random(size))


@dataclass(frozen=True)
class SystemEntropy:
    """Draws uniform numbers from the operating system: fresh ones in every call, which are never stored.

    Example:
        >>> entropy = SystemEntropy()
        >>> torch.equal(entropy.uniform("noise", round=3, size=5), entropy.uniform("noise", round=3, size=5))
        False
    """

    reproducible: bool = False

    def uniform(self, purpose: str, round: int, size: int) -> Tensor:
        words = np.frombuffer(os.urandom(8 * size), dtype=np.uint64)
        return torch.from_numpy((words >> np.uint64(11)).astype(np.float64) * 2.0**-53)


def gaussian(entropy: Entropy, purpose: str, round: int, shape: tuple[int, ...]) -> Tensor:
    """Draw standard normals of the given shape from an entropy source."""
    size = math.prod(shape)
    return box_muller(entropy.uniform(purpose, round, 2 * math.ceil(size / 2)))[:size].view(shape)
