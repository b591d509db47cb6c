"""The published transform of PO-GP-UCB (Kharkovskii, Dai, Low 2020, Algo. 1), whose privacy claim does not hold.

The published claim is (eps, delta)-differential privacy for tables that differ in one row by a norm of at most 1. The
claim does not hold if n > d + 1. Let X_c be the scaled, centred rows, n x d, of rank d. The release is

    Z = X_c W    for some random d x r matrix W,

so every column of Z lies in the column space of X_c, a d-dimensional subspace of the (n - 1)-dimensional space of
centred vectors. A neighbouring table can have another column space, and the two distributions of Z are then mutually
singular: delta is 1 for every epsilon.

Moreover, three steps depend on secret data. All rows are multiplied by one factor, so that the largest norm is 25. The
mean of the rows is subtracted. If the least singular value of X_c is below a threshold, all singular values of X_c are
increased; this changes W, but not the column space.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from dpfbo import checks
from dpfbo.outsourced.table import Public, Table
from dpfbo.outsourced.transforms import AsRows, centred, scaled_to_norm
from dpfbo.privacy.accounting import check_delta
from dpfbo.privacy.entropy import Entropy, gaussian

INFLATIONS = ("paper", "authors")


def threshold(r: int, epsilon: float, delta: float) -> float:
    """Return the threshold for singular values, `w = 16 sqrt(r ln(2 / delta)) / eps * ln(16 r / delta)`.

    r is the number of columns of the release. Raises ValueError for r < 1, eps <= 0, or delta outside (0, 1).
    """
    checks.integer("r", r, minimum=1)
    checks.positive("epsilon", epsilon)
    check_delta(delta)
    return 16 * math.sqrt(r * math.log(2 / delta)) / epsilon * math.log(16 * r / delta)


def singular_values(rows: Tensor) -> Tensor:
    """Return the min(n, d) singular values of the rows, after scaling and centring, in descending order."""
    return torch.linalg.svdvals(centred(scaled_to_norm(rows)))


@dataclass(frozen=True)
class RandomProjection(AsRows):
    """Releases `Z = X_c M / sqrt(r)`, n x r, with a d x r matrix M of standard normals (Algo. 1).

    X_c is the scaled, centred table. If its least singular value is below w (`threshold`), all its singular values are
    increased first. The published claim of privacy does not hold if n > d + 1; the module's docstring says why.

    Args:
        r: The number of columns of Z.
        epsilon: The epsilon of the published claim.
        delta: The delta of the published claim.
        inflation: `paper` increases a singular value s to sqrt(s^2 + w^2); `authors` increases it to s + w, as the
            authors' code does.

    Raises:
        SettingError: r is below 1, epsilon is not positive, delta lies outside (0, 1), or inflation is unknown.

    Example:
        >>> import dpfbo
        >>> table = dpfbo.problems.GridGP(side_points=5).table
        >>> transform = RandomProjection(r=3, epsilon=1.0, delta=1e-3)
        >>> release, _ = transform.release(table, dpfbo.privacy.SystemEntropy())
        >>> release.values.shape, transform.private  # without a guarantee
        (torch.Size([25, 3]), False)
    """

    r: int
    epsilon: float
    delta: float
    inflation: str = "paper"
    random: ClassVar[bool] = True

    def __post_init__(self) -> None:
        threshold(self.r, self.epsilon, self.delta)
        checks.one_of("inflation", self.inflation, INFLATIONS)

    def made_of(self, rows: Tensor, entropy: Entropy) -> Tensor:
        M = gaussian(entropy, "projection", 0, (rows.shape[1], self.r))
        return self.raised(rows) @ M / math.sqrt(self.r)

    def raised(self, rows: Tensor) -> Tensor:
        """Return the rows, n x d, with all singular values increased if the least one is below the threshold w.

        The least singular value of the result is at least w.
        """
        w = threshold(self.r, self.epsilon, self.delta)
        U, s, Vt = torch.linalg.svd(rows, full_matrices=False)  # thin: n x d, never n x n
        if float(s.min()) >= w:
            return rows
        larger = torch.sqrt(s.square() + w**2) if self.inflation == "paper" else s + w
        return (U * larger) @ Vt

    def published_claim(self, public: Public) -> str:
        claim = f"published claim (eps {self.epsilon:.4g}, delta {self.delta:.3g})"
        if public.n > public.dimension + 1:
            return (
                f"{claim}; not a guarantee when n > d + 1, here n = {public.n}, d = {public.dimension}: the columns of "
                "Z lie in the column space of the rows, and a neighbouring table has another one"
            )
        return f"{claim}; its proof does not cover this transform, although the known attack needs n > d + 1"

    def private_facts(self, table: Table) -> dict[str, Any]:
        """Return the rows' least singular value, the threshold w, and whether singular values were raised."""
        smallest = float(singular_values(table.rows).min())
        w = threshold(self.r, self.epsilon, self.delta)
        return {"sigma_min": smallest, "w": w, "raised": smallest < w}
