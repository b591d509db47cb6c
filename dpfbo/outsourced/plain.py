"""No transform: the modeler sees the rows. GP-UCB without privacy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from dpfbo.accounting.events import round_event
from dpfbo.entropy import Entropy
from dpfbo.mechanism import Release
from dpfbo.outsourced import NORM, Candidates, centred, scaled_to_norm
from dpfbo.outsourced.table import Public, Table

if TYPE_CHECKING:
    import dp_accounting


@dataclass(frozen=True)
class Plain:
    """Z = X, scaled to norm 25 and centred like the published transform. Nothing is private."""

    private: ClassVar[bool] = False
    relation: ClassVar[str] = ""

    def event(self, public: Public) -> dp_accounting.DpEvent:
        return round_event(1.0, None)

    def scale(self, table: Table) -> float:
        return NORM / float(table.rows.norm(dim=1).max())

    def release(self, table: Table, entropy: Entropy) -> Release:
        values = centred(scaled_to_norm(table.rows))
        return Release(values, 0.0, math.inf, float(torch.linalg.norm(values)), 0.0, len(values), 0, 0)

    def candidates(self, values: Tensor, public: Public) -> Candidates:
        return Candidates(values)

    def rows(self, values: Tensor, table: Table) -> list[Tensor] | None:
        return None

    def published_claim(self, public: Public) -> str | None:
        return None
