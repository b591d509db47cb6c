"""The transform without privacy: the modeler sees the rows and runs plain GP-UCB."""

from dataclasses import dataclass

from torch import Tensor

from dpfbo.outsourced.transforms import AsRows
from dpfbo.privacy.entropy import Entropy


@dataclass(frozen=True)
class Plain(AsRows):
    """Releases the scaled, centred rows, n x d, without any privacy.

    All rows are scaled by one factor to a largest norm of 25, and their mean is then subtracted.

    Example:
        >>> import dpfbo
        >>> table = dpfbo.problems.GridGP(side_points=5).table
        >>> release, _ = Plain().release(table, dpfbo.privacy.SystemEntropy())
        >>> release.values.shape, round(float(release.values.norm(dim=1).max()), 6)
        (torch.Size([25, 2]), 25.0)
    """

    def made_of(self, rows: Tensor, entropy: Entropy) -> Tensor:
        return rows
