"""The control without a model: only the number of rows is released, and the modeler picks at random."""

from dataclasses import dataclass

import torch
from torch import Tensor

from dpfbo.outsourced.table import Public, Table
from dpfbo.outsourced.transforms import Candidates, Transform, Unreleased
from dpfbo.privacy.entropy import Entropy
from dpfbo.privacy.release import Diagnostics, Release


@dataclass(frozen=True)
class Indices(Transform):
    """A zero for each row, known beforehand: epsilon is 0, and no model can learn from it."""

    def scale(self, table: Table) -> float:
        return 1.0

    def release(self, table: Table, entropy: Entropy) -> tuple[Release, Unreleased]:
        n = len(table.rows)
        zeros = torch.zeros(n, 1, dtype=torch.float64, device="cpu")
        diagnostics = Diagnostics(signal=0.0, noise=0.0, n_chosen=n, n_clipped=0, n_rejected=0)
        return Release(zeros, sigma=0.0, sensitivity=0.0), Unreleased(diagnostics)

    def candidates(self, values: Tensor, public: Public) -> Candidates:
        return Candidates(values)
