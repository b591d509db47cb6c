"""No transform: the modeler sees the rows (GP-UCB without privacy)."""

from dataclasses import dataclass

from torch import Tensor

from dpfbo.outsourced.transforms import AsRows
from dpfbo.privacy.entropy import Entropy


@dataclass(frozen=True)
class Plain(AsRows):
    """Z = X, scaled to norm 25 and centred like the published transform. Nothing is private."""

    def made_of(self, rows: Tensor, entropy: Entropy) -> Tensor:
        return rows
