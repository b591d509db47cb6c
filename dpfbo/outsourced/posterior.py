"""The modeler's GP posterior over all candidates, updated by one measurement at a time.

With `L` the Cholesky factor of `K(S, S) + noise I` over the measured candidates S, and `V = L^-1 K(S, all)`:

    mean = m + V^T L^-1 (y - m),    variance = k(z, z) - sum_i V_i^2

A new measurement adds one row to L and V, and a term to each sum, in O(m t) for m candidates after t measurements.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dpfbo.gp.posterior import cholesky
from dpfbo.outsourced.transforms import Candidates


@dataclass(frozen=True)
class Kernel:
    """`amplitude exp(-|a - a'|^2 / 2) + nugget [same candidate]` on points divided by their length-scales.

    noise: variance of a measurement. mean: the objective's mean.
    """

    amplitude: float
    nugget: float
    noise: float
    mean: float


def noise_aware_kernel(
    candidates: Candidates, lengthscale: float, variance: float, noise: float, mean: float
) -> tuple[Tensor, Kernel]:
    """The points divided by length-scales, and the SE kernel convolved with the distribution of the inputs.

    Two inputs `z + e, z' + e'` with independent `e ~ N(0, diag v)` have the expected covariance

        variance prod_k (l^2 / (l^2 + 2 v_k))^(1/2) exp(-sum_k (z_k - z'_k)^2 / (2 (l^2 + 2 v_k)))

    and each input has the full variance. The rest of the variance is a nugget of the candidate if all its measurements
    take the same input, and noise of the measurement if each takes another (`fresh`).
    """
    v = candidates.input_variance
    if v is None:
        return candidates.points / lengthscale, Kernel(variance, 0.0, noise, mean)
    widened = lengthscale**2 + 2 * v
    amplitude = variance * math.sqrt(float((lengthscale**2 / widened).prod()))
    rest = variance - amplitude
    nugget, extra = (0.0, rest) if candidates.fresh else (rest, 0.0)
    return candidates.points / widened.sqrt(), Kernel(amplitude, nugget, noise + extra, mean)


class CandidatePosterior:
    """Mean and variance of the objective at m candidates; the variance includes the nugget and no measurement noise.

    points: m x r, in length-scales. capacity: largest number of measurements.
    """

    def __init__(self, points: Tensor, kernel: Kernel, capacity: int) -> None:
        self.kernel, self._points = kernel, points
        self._squares = points.square().sum(1)
        self._V = torch.zeros(capacity, len(points), dtype=points.dtype, device=points.device)
        self._count = 0
        self.mean = torch.full_like(self._squares, kernel.mean)
        self.variance = torch.full_like(self._squares, kernel.amplitude + kernel.nugget)

    def observe(self, index: int, y: float) -> None:
        """Add one measurement of a candidate. O(m t)."""
        t, V = self._count, self._V
        if t == len(V):
            raise ValueError(f"this posterior holds at most {len(V)} measurements")
        known = V[:t]
        row = torch.addmv(self._covariances(index), known.T, known[:, index], alpha=-1)
        pivot = math.sqrt(max(float(row[index]), 0.0) + self.kernel.noise)
        row /= pivot
        self.mean += row * ((y - float(self.mean[index])) / pivot)
        self.variance -= row.square()
        V[t] = row
        self._count += 1

    def refit(self, indices: Sequence[int], y: Sequence[float]) -> None:
        """Replace all measurements by these, in one factorisation. O(m t^2)."""
        t = len(indices)
        if t > len(self._V):
            raise ValueError(f"this posterior holds at most {len(self._V)} measurements, got {t}")
        chosen = torch.tensor(indices, dtype=torch.long, device=self._points.device)
        K = torch.stack([self._covariances(i) for i in indices]) if t else self._V[:0]
        noise = self.kernel.noise * torch.eye(t, dtype=K.dtype, device=K.device)
        L = cholesky((K[:, chosen] + noise)[None])[0] if t else noise
        V = torch.linalg.solve_triangular(L, K, upper=False) if t else K
        residual = torch.tensor(y, dtype=K.dtype, device=K.device) - self.kernel.mean
        weights = torch.linalg.solve_triangular(L, residual[:, None], upper=False)[:, 0] if t else residual
        self._V[:t], self._count = V, t
        self.mean = self.kernel.mean + V.T @ weights
        self.variance = self.kernel.amplitude + self.kernel.nugget - V.square().sum(0)

    def _covariances(self, index: int) -> Tensor:
        """The covariances of one candidate with all, m."""
        point = self._points[index]
        distances = (self._squares + self._squares[index] - 2 * (self._points @ point)).clamp_(min=0)
        row = self.kernel.amplitude * torch.exp(-0.5 * distances)
        row[index] = self.kernel.amplitude + self.kernel.nugget
        return row
