"""Hyper-parameters of one GP with SE kernel and constant mean, by maximum marginal likelihood."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dpfbo import checks

_FACTOR = (1e-2, 1e2)  # bounds of the length-scale divided by that of the start
_VARIANCE = (1e-4, 1e4)  # bounds of the variance divided by that of the start
_NOISE = (1e-8, 1e4)  # bounds of the noise divided by the variance of the start
_OTHER_STARTS = ((0.25, 0.5), (1.0, 0.1), (4.0, 0.1))  # (factor of the length-scale, share of noise in var(y))


@dataclass(frozen=True)
class Belief:
    """The modeler's GP: SE kernel `variance * exp(-|x - x'|^2 / (2 lengthscale^2))` in the units of the candidates.

    Args:
        lengthscale: The length-scale l.
        variance: The variance of the objective.
        noise: The variance of the measurement noise.
        mean: The mean of the objective.

    Raises:
        SettingError: A number is not finite, or a number other than the mean is not positive.
    """

    lengthscale: float
    variance: float
    noise: float
    mean: float = 0.0

    def __post_init__(self) -> None:
        for name in ("lengthscale", "variance", "noise"):
            checks.positive(name, getattr(self, name))
        checks.real("mean", self.mean)


def fit(x: Tensor, y: Tensor, start: Belief) -> Belief:
    """Return hyper-parameters that maximise the likelihood of outcomes `y` (m) at rows `x` (m x d), m >= 2.

        L = -(y - mu)^T A^-1 (y - mu) / 2 - log|A| / 2 - m log(2 pi) / 2,   A = K + noise I
        mu = 1^T A^-1 y / 1^T A^-1 1

    (Rasmussen and Williams 2006, eq. 5.8, with kernel matrix K and the generalised least-squares mean.) L-BFGS-B starts
    at `start`, whose mean is not used, and at three other points.
    """
    from scipy import optimize

    m, unit = len(x), math.sqrt(start.variance)
    X, Y = x.double() / start.lengthscale, y.double() / unit
    X = X - X.mean(0)
    low, high = np.log([_FACTOR, _VARIANCE, _NOISE]).T

    def negative(theta: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient, _ = profile(torch.from_numpy(theta), X, Y)
        return (-value / m, -gradient.numpy() / m) if math.isfinite(value) else (1e10, np.zeros_like(theta))

    total = max(float(Y.var()), _VARIANCE[0])
    others = ((factor, total * (1 - share), total * share) for factor, share in _OTHER_STARTS)
    best, lowest = np.zeros(0), math.inf
    for theta in ((1.0, 1.0, start.noise / start.variance), *others):
        begin = np.log(theta).clip(low, high)
        found = optimize.minimize(negative, begin, jac=True, method="L-BFGS-B", bounds=optimize.Bounds(low, high))
        if found.fun < lowest:
            best, lowest = found.x, found.fun
    factor, variance, noise = np.exp(best).tolist()
    mean = unit * profile(torch.from_numpy(best), X, Y)[2]
    return Belief(factor * start.lengthscale, variance * start.variance, noise * start.variance, mean)


def profile(theta: Tensor, x: Tensor, y: Tensor) -> tuple[float, Tensor, float]:
    """Return `(L, dL/dtheta, mu)`, where L is the log likelihood that `fit` maximises and mu is the optimal mean.

        dL/dtheta_i = sum((a a^T - A^-1) * dA/dtheta_i) / 2,   a = A^-1 (y - mu)

    (Rasmussen and Williams 2006, eq. 5.9.) A is the covariance matrix of y; if it is not positive definite, L is -inf.
    theta: logarithms of length-scale, variance and noise; x: m x d, centred to limit rounding errors; y: m.
    """
    m = len(x)
    lengthscale, variance, noise = theta[:1].exp(), theta[1].exp(), theta[2].exp()
    x = x / lengthscale  # m x d
    K = torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist").square_().mul_(-0.5).exp_().mul_(variance)
    L, info = torch.linalg.cholesky_ex(K + noise * torch.eye(m, dtype=x.dtype, device="cpu"))
    if int(info) != 0:
        return -math.inf, torch.zeros_like(theta), 0.0
    A_inv = torch.cholesky_inverse(L)
    weights = A_inv.sum(0)
    mean = (weights @ y) / weights.sum()
    a = A_inv @ (y - mean)  # m
    value = -0.5 * ((y - mean) @ a + m * math.log(2 * math.pi)) - L.diagonal().log().sum()
    W = torch.outer(a, a) - A_inv
    Q = W * K
    by_axis = Q.sum(0) @ x.square() - (x * (Q @ x)).sum(0)  # d: sum_ij Q_ij (x_i - x_j)^2 / 2
    gradient = torch.cat([by_axis.sum(0, keepdim=True), 0.5 * torch.stack([Q.sum(), noise * W.trace()])])
    return float(value), gradient, float(mean)
