"""Rows of a table from its release: what somebody finds out who knows a few of them, or knows the best affine map."""

from dataclasses import dataclass

import torch
from torch import Tensor

_RANK = 1e-9  # of the largest singular value: smaller ones are rounding


@dataclass(frozen=True)
class Reconstruction:
    """Rows as an attacker sees them, n x d. rows: the truth. known: which rows the attacker knew beforehand."""

    attacker: str
    rows: Tensor
    recovered: Tensor
    known: Tensor

    @property
    def errors(self) -> Tensor:
        """Distance of every row from the truth, n."""
        return (self.recovered - self.rows).norm(dim=1)

    @property
    def largest(self) -> float:
        return float(self.errors.max())

    @property
    def rms(self) -> float:
        """Root mean square of the distances over all rows."""
        return float(self.errors.square().mean().sqrt())

    def per_sigma(self, sigma: float) -> float:
        """Root mean square over rows and coordinates in standard deviations of the noise: 1 for the release itself."""
        return self.rms / (sigma * self.rows.shape[1] ** 0.5)


def from_known_rows(values: Tensor, rows: Tensor) -> Reconstruction:
    """All rows from the release and d + 1 of them, far apart: the affine map that fits those.

    values: n x r; the attacker works in the column space of the centred release, at most d of its directions. Without
    noise and with r >= d it is that of the rows, and the map is exact; with r < d, d - r directions stay unknown.
    """
    known = far_apart(rows)
    U, s, _ = torch.linalg.svd(values - values.mean(0), full_matrices=False)
    rank = min(rows.shape[1], int((s > _RANK * s[0]).sum()))
    return Reconstruction("d + 1 rows known", rows, _fitted(U[:, :rank] * s[:rank], rows, known), known)


def best_affine(values: Tensor, rows: Tensor) -> Reconstruction:
    """All rows by the affine map of the release that has the least mean square error over all of them: no attacker
    with an affine map does better, whatever it knew beforehand."""
    everybody = torch.arange(len(rows))
    return Reconstruction("best affine map", rows, _fitted(values, rows, everybody), everybody[:0])


def blind(rows: Tensor) -> Reconstruction:
    """The mean row for every row: what needs no release."""
    return Reconstruction("mean of all rows", rows, rows.mean(0).expand_as(rows), torch.arange(0))


def far_apart(rows: Tensor) -> Tensor:
    """d + 1 rows that span much: the farthest from the mean, then always the farthest from the affine hull so far."""
    first = int((rows - rows.mean(0)).norm(dim=1).argmax())
    chosen, rest = [first], rows - rows[first]
    for _ in range(rows.shape[1]):
        lengths = rest.norm(dim=1)
        if float(lengths.max()) <= _RANK * float((rows - rows[first]).norm()):
            break  # a feature that the others determine
        chosen.append(int(lengths.argmax()))
        axis = rest[chosen[-1]] / lengths[chosen[-1]]
        rest = rest - torch.outer(rest @ axis, axis)
    return torch.tensor(chosen)


def _fitted(features: Tensor, rows: Tensor, known: Tensor) -> Tensor:
    """`[1, features] A` with A by least squares on the known rows."""
    design = torch.cat([torch.ones(len(features), 1, dtype=features.dtype), features], 1)
    scale = design.norm(dim=0)
    A = torch.linalg.lstsq(design[known] / scale, rows[known], driver="gelsd").solution
    return (design / scale) @ A
