"""Reconstruction of a table's rows from its release, by three attackers.

The attackers know some of the rows, or the best affine map from the release to the rows, or the mean row.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

_RANK = 1e-9  # singular values below this share of the largest are rounding errors


@dataclass(frozen=True)
class Reconstruction:
    """A table as an attacker reconstructed it.

    rows: the true rows, n x d. recovered: their estimates, n x d. known: indices of the rows that the attacker knew.
    """

    attacker: str
    rows: Tensor
    recovered: Tensor
    known: Tensor

    @property
    def largest(self) -> float:
        """The largest distance of an estimated row from the true one."""
        return float((self.recovered - self.rows).norm(dim=1).max())

    @property
    def rms(self) -> float:
        """The root mean square distance of the estimated rows from the true ones."""
        return float((self.recovered - self.rows).square().sum(1).mean().sqrt())

    def per_sigma(self, sigma: float) -> float:
        """Return the root mean square error of a coordinate, divided by `sigma`.

        sigma: the standard deviation of the release's noise. The result would be about 1 if the attacker used the noisy
        released rows as estimates.
        """
        return self.rms / (sigma * self.rows.shape[1] ** 0.5)


def reconstructions(values: Tensor, rows: Tensor) -> tuple[Reconstruction, ...]:
    """Return the rows as three attackers reconstruct them from released values.

    values: n x r. rows: the true rows, n x d.

    The first attacker knows d + 1 of the rows, and fits an affine map from the release's first principal components (at
    most d) to these rows. Without noise and with r >= d, the map is exact. If r < d, d - r directions stay unknown. The
    second attacker knows the affine map from released to true rows that has the least mean square error over all rows.
    The third attacker knows only the mean of the true rows, and uses this mean as the estimate of every row.
    """
    known, nothing = far_apart(rows), torch.arange(0)
    U, s, _ = torch.linalg.svd(values - values.mean(0), full_matrices=False)
    rank = min(rows.shape[1], int((s > _RANK * s[0]).sum()))
    return (
        Reconstruction("d + 1 rows known", rows, _fitted(U[:, :rank] * s[:rank], rows, known), known),
        Reconstruction("best affine map", rows, _fitted(values, rows, torch.arange(len(rows))), nothing),
        Reconstruction("mean of all rows", rows, rows.mean(0).expand_as(rows), nothing),
    )


def far_apart(rows: Tensor) -> Tensor:
    """Return indices of d + 1 rows: first the farthest from the mean, then always the farthest from those chosen.

    rows: n x d. The distance is to the affine hull of the chosen rows. Fewer rows are chosen if a feature is an affine
    function of the others.
    """
    first = int((rows - rows.mean(0)).norm(dim=1).argmax())
    chosen, rest = [first], rows - rows[first]
    for _ in range(rows.shape[1]):
        lengths = rest.norm(dim=1)
        if float(lengths.max()) <= _RANK * float((rows - rows[first]).norm()):
            break  # one feature is an affine function of the others
        chosen.append(int(lengths.argmax()))
        axis = rest[chosen[-1]] / lengths[chosen[-1]]
        rest = rest - torch.outer(rest @ axis, axis)
    return torch.tensor(chosen)


def _fitted(features: Tensor, rows: Tensor, known: Tensor) -> Tensor:
    """Return `[1, features] A`, with A fitted to the known rows by least squares."""
    design = torch.cat([torch.ones(len(features), 1, dtype=features.dtype), features], 1)
    scale = design.norm(dim=0)
    A = torch.linalg.lstsq(design[known] / scale, rows[known], driver="gelsd").solution
    return (design / scale) @ A
