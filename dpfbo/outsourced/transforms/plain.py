"""No transform: the modeler sees the rows (GP-UCB without privacy)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dpfbo.outsourced.table import Public, Table
from dpfbo.outsourced.transforms import NORM, Candidates, Transform, Unreleased, centred, scaled_to_norm
from dpfbo.privacy.accounting.events import round_event
from dpfbo.privacy.entropy import Entropy
from dpfbo.privacy.release import Diagnostics, Release

if TYPE_CHECKING:
    import dp_accounting


@dataclass(frozen=True)
class Plain(Transform):
    """Z = X, scaled to norm 25 and centred like the published transform. Nothing is private."""

    def event(self, public: Public) -> dp_accounting.DpEvent | None:
        return round_event(1.0, None)

    def scale(self, table: Table) -> float:
        return NORM / float(table.rows.norm(dim=1).max())

    def release(self, table: Table, entropy: Entropy) -> tuple[Release, Unreleased]:
        Z = centred(scaled_to_norm(table.rows))
        diagnostics = Diagnostics(float(torch.linalg.norm(Z)), noise=0.0, n_chosen=len(Z), n_clipped=0, n_rejected=0)
        return Release(Z, sigma=0.0, sensitivity=math.inf), Unreleased(diagnostics)

    def candidates(self, values: Tensor, public: Public) -> Candidates:
        return Candidates(values)
