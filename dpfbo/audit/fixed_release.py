"""Noise that makes a release independent of the sum, for a comparison of what lies beside it."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dpfbo.privacy.entropy import Entropy


@dataclass(frozen=True)
class FixedRelease:
    """Noise with a release that does not depend on the sum: `sigma` times numbers that depend on the round.

    It notes sum, release and the law of its noise in a folder, for the search.
    """

    notes: str

    def check(self, sigma: float, sensitivity: float) -> None:
        pass

    def inflation(self, size: int) -> float:
        return 1.0

    def add(self, total: Tensor, sigma: float, sensitivity: float, entropy: Entropy, round: int) -> Tensor:
        values = sigma * np.random.default_rng(round).standard_normal(tuple(total.shape))
        law = np.array([sigma, sensitivity])
        np.savez(Path(self.notes) / f"{round}.npz", total=total.numpy(), values=values, law=law)
        return torch.from_numpy(values)
