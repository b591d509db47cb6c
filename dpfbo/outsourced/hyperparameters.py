"""Hyper-parameters of one GP with SE kernel and constant mean, by maximum marginal likelihood.

`dpfbo.gp.hyperparameters` fits many agents at once, each with one length-scale, zero mean and bounds for the unit
cube; this module fits one table in any units, with one length-scale or one for each feature. SciPy's
optimiser is imported where it is used: no process of agents needs it.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dpfbo import checks

_FACTOR = (1e-2, 1e2)  # bounds of a length-scale over the start's
_VARIANCE = (1e-4, 1e4)  # bounds of the variance over the start's variance
_NOISE = (1e-8, 1e4)  # bounds of the noise over the start's variance
_OTHER_STARTS = ((0.25, 0.5), (1.0, 0.1), (4.0, 0.1))  # (factor of the length-scales, share of noise in var(y))


@dataclass(frozen=True)
class Fitted:
    """SE kernel `variance * exp(-sum_f (x_f - x'_f)^2 / (2 lengthscales_f^2))`, measurement noise variance, mean."""

    lengthscales: tuple[float, ...]
    variance: float
    noise: float
    mean: float = 0.0

    def __post_init__(self) -> None:
        for lengthscale in self.lengthscales:
            checks.positive("lengthscales", lengthscale)
        checks.positive("variance", self.variance)
        checks.positive("noise", self.noise)
        checks.real("mean", self.mean)


def fit(x: Tensor, y: Tensor, start: Fitted, ard: bool) -> Fitted:
    """The most likely hyper-parameters of outcomes `y` (m) at rows `x` (m x d), m >= 2.

        L = -(y - mu)^T A^-1 (y - mu) / 2 - log|A| / 2 - m log(2 pi) / 2,   A = K + noise I
        mu = 1^T A^-1 y / 1^T A^-1 1

    (Rasmussen and Williams 2006, eq. 5.8; the mean is its generalised least-squares estimate.) L-BFGS-B climbs from
    `start` and from three other points; the result is the best end, at least as likely as the start.
    Length-scales stay within a factor of 100 of the start's, the variance within 1e4, the noise within 1e-8 and 1e4
    of the start's variance.

    ard: one length-scale for each feature, else one common factor of the start's. start: its mean is not used.
    Raises ValueError for fewer than two rows, shapes that do not match, or numbers that are not finite.
    """
    from scipy import optimize

    m = _check(x, y, start)
    X, Y, unit = _in_start_units(x, y, start)
    n_factors = len(start.lengthscales) if ard else 1
    low, high = np.log([*[_FACTOR] * n_factors, _VARIANCE, _NOISE]).T

    def negative(theta: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient, _ = profile(torch.from_numpy(theta), X, Y)
        return (-value / m, -gradient.numpy() / m) if math.isfinite(value) else (1e10, np.zeros_like(theta))

    total = max(float(Y.var()), _VARIANCE[0])
    others = ((factor, total * (1 - share), total * share) for factor, share in _OTHER_STARTS)
    best, lowest = np.zeros(0), math.inf
    for factor, variance, noise in ((1.0, 1.0, start.noise / start.variance), *others):
        theta = np.log([*[factor] * n_factors, variance, noise]).clip(low, high)
        found = optimize.minimize(negative, theta, jac=True, method="L-BFGS-B", bounds=optimize.Bounds(low, high))
        if found.fun < lowest:
            best, lowest = found.x, found.fun
    *factors, variance, noise = np.exp(best).tolist()
    factors = factors if ard else factors * len(start.lengthscales)
    mean = unit * profile(torch.from_numpy(best), X, Y)[2]
    lengthscales = tuple(f * l for f, l in zip(factors, start.lengthscales, strict=True))
    return Fitted(lengthscales, variance * start.variance, noise * start.variance, mean)


def log_likelihood(x: Tensor, y: Tensor, hyper: Fitted) -> float:
    """The likelihood `L` of `fit`, at the best mean for these hyper-parameters."""
    m = _check(x, y, hyper)
    X, Y, unit = _in_start_units(x, y, hyper)
    theta = torch.tensor([0.0, 0.0, math.log(hyper.noise / hyper.variance)], dtype=torch.float64, device="cpu")
    return profile(theta, X, Y)[0] - m * math.log(unit)


def profile(theta: Tensor, x: Tensor, y: Tensor) -> tuple[float, Tensor, float]:
    """`L` at its best mean, its gradient in `theta`, and that mean.

        dL/dtheta_i = sum((a a^T - A^-1) * dA/dtheta_i) / 2,   a = A^-1 (y - mu)

    (eq. 5.9; the optimal mean adds no term.) theta: logarithms of the d length-scales (or of a common one), of variance
    and noise; x: m x d, near zero on average; y: m. L is -inf where A is not positive definite.
    """
    m, d = x.shape
    lengthscales, variance, noise = theta[:-2].exp(), theta[-2].exp(), theta[-1].exp()
    x = x / lengthscales  # m x d
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
    by_lengthscale = Q.sum(0) @ x.square() - (x * (Q @ x)).sum(0)  # d: sum_ij Q_ij (x_i - x_j)^2 / 2
    if len(lengthscales) < d:
        by_lengthscale = by_lengthscale.sum(0, keepdim=True)
    gradient = torch.cat([by_lengthscale, 0.5 * torch.stack([Q.sum(), noise * W.trace()])])
    return float(value), gradient, float(mean)


def _check(x: Tensor, y: Tensor, hyper: Fitted) -> int:
    """The number of rows. Raises ValueError for tables that cannot be fitted."""
    if x.ndim != 2 or len(x) < 2 or y.shape != x.shape[:1] or x.shape[1] != len(hyper.lengthscales):
        raise ValueError(
            f"a fit needs at least 2 rows with an outcome each and {len(hyper.lengthscales)} features, "
            f"got rows {tuple(x.shape)} and outcomes {tuple(y.shape)}"
        )
    if not bool(torch.isfinite(x).all() and torch.isfinite(y).all()):
        raise ValueError("a fit needs finite rows and outcomes, got other numbers among them")
    return len(x)


def _in_start_units(x: Tensor, y: Tensor, start: Fitted) -> tuple[Tensor, Tensor, float]:
    """Centred rows in the start's length-scales, outcomes in its standard deviation, and that deviation."""
    unit = math.sqrt(start.variance)
    X = x.double() / torch.tensor(start.lengthscales, dtype=torch.float64, device="cpu")
    return X - X.mean(0), y.double() / unit, unit
