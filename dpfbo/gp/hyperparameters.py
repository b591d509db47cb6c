"""Maximum likelihood fit of an agent's own Gaussian process, which has zero mean and an SE kernel.

With R the kernel matrix at variance 1, `eta = noise / variance`, `A = R + eta I` and `a = A^-1 y`, the log likelihood
of t observations y and its derivatives are (Rasmussen and Williams 2006, eq. 5.8 and 5.9)

    L = -y^T a / (2 variance) - log|A| / 2 - t log(2 pi variance) / 2
    dL/dtheta_i = (a^T A_i a / variance - tr(A^-1 A_i)) / 2,    A_i = dA/dtheta_i

Given theta = (log l, log eta) with length-scale l, the best variance is `y^T a / t`, clamped so that variance and noise
stay within their bounds. Newton's method searches over theta.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from dpfbo.gp import batches, newton
from dpfbo.gp.own_gp import BOUNDS, AnyHyperparameters, Hyperparameters, OwnGP
from dpfbo.gp.posterior import cholesky

_LIMITS = newton.Limits(1e-5, 40)
_LONGEST = 2.0  # length of the longest step, in logarithms
_BLOCK = 2**19  # numbers in the Gram matrices of a block on a CPU
_ACCELERATOR_BLOCK = 2**25


def start(own: OwnGP, n_agents: int, dimension: int, device: torch.device) -> AnyHyperparameters:
    """Return the hyper-parameters of every agent before the first fit."""
    if not own.extensions:
        return own.start(n_agents, device)
    from dpfbo.gp import gpytorch_model

    return gpytorch_model.start(own, n_agents, dimension, device)


def fit_own(x: Tensor, y: Tensor, own: OwnGP, kernel_parameters: bool = False) -> AnyHyperparameters:
    """Fit the hyper-parameters of every agent to x, N x t x D, and y, N x t.

    A fit by GPyTorch returns `KernelParameters` if `kernel_parameters` is True. All other fits return
    `Hyperparameters`.
    """
    if own.fit == "closed_form":
        return fit(x, y, own.start(len(x), x.device))
    from dpfbo.gp import gpytorch_fit

    found = gpytorch_fit.fit(x, y, own)
    if kernel_parameters:
        return found
    noise, variance, lengthscale = found.raw.exp().unbind(1)
    return Hyperparameters(lengthscale, variance, noise)


def gram_cholesky(x: Tensor, hyper: Hyperparameters, noise: Tensor) -> Tensor:
    """Compute the Cholesky factors of `K(x, x) + noise I`, N x t x t. x: N x t x D; noise: N."""
    K = se_kernel(squared_distances(x, x), hyper)
    return cholesky(K + torch.diag_embed(noise[:, None].expand(-1, x.shape[1])))


def se_kernel(D2: Tensor, hyper: Hyperparameters) -> Tensor:
    """Compute `variance * exp(-D2 / (2 l^2))` from squared distances, `N x t x k -> N x t x k`."""
    return (D2 * (-0.5 / hyper.lengthscale**2)[:, None, None]).exp_().mul_(hyper.variance[:, None, None])


def squared_distances(a: Tensor, b: Tensor) -> Tensor:
    """Compute `|a_i - b_j|^2`, `N x t x D, N x k x D -> N x t x k`."""
    total = (a[:, :, None, 0] - b[:, None, :, 0]).square_()
    for d in range(1, a.shape[-1]):
        difference = a[:, :, None, d] - b[:, None, :, d]
        total.addcmul_(difference, difference)
    return total


@dataclass(frozen=True)
class Terms:
    """The terms, N each, of the log likelihood and of its derivatives in log l (index `l`) and log eta (index `n`).

    The module's docstring defines A, a, l and eta. A_i and A_ll are first and second derivatives of A.

    ok: A is positive definite; log_det: `log|A|`; yy: `y^T a`; l, n: `a^T A_i a`; ll: `a^T A_ll a`; q_ij:
    `a^T A_i A^-1 A_j a`; tr_i: `tr(A^-1 A_i)`; tr_ll: `tr(A^-1 A_ll)`; trr_ij: `tr(A^-1 A_i A^-1 A_j)`.
    """

    ok: Tensor
    log_det: Tensor
    yy: Tensor
    l: Tensor
    n: Tensor
    ll: Tensor
    q_ll: Tensor
    q_ln: Tensor
    q_nn: Tensor
    tr_l: Tensor
    tr_n: Tensor
    tr_ll: Tensor
    trr_ll: Tensor
    trr_ln: Tensor
    trr_nn: Tensor


def terms(lengthscale: Tensor, eta: Tensor, D2: Tensor, y: Tensor) -> Terms:
    """Compute the terms of the log likelihood.

    lengthscale: N; eta: N, noise / variance; D2: N x t x t squared distances; y: N x t.
    """
    scaled = D2 * lengthscale.square().reciprocal()[:, None, None]  # D2 / l^2
    A = (-0.5 * scaled).exp_()  # R so far
    A_l = scaled * A
    A.diagonal(dim1=1, dim2=2).add_(eta[:, None])
    L, info = torch.linalg.cholesky_ex(A)
    failed = info.nonzero()[:, 0]
    if len(failed):
        L[failed] = torch.eye(L.shape[1], dtype=L.dtype, device=L.device)  # an invertible stand-in; `ok` is False
    W = torch.cholesky_inverse(L)  # A^-1
    a = W @ y.unsqueeze(-1)  # N x t x 1
    u, B, Wa = A_l @ a, W @ A_l, W @ a
    scaled_l = scaled.mul_(A_l)  # A_ll + 2 A_l
    l, n, tr_l, tr_n = _dot(a, u), eta * _dot(a, a), _trace(B), eta * _trace(W)
    return Terms(
        info == 0, 2 * L.diagonal(dim1=1, dim2=2).log().sum(1), _dot(y.unsqueeze(-1), a), l, n,
        _dot(a, scaled_l @ a) - 2 * l, _dot(u, B @ a), eta * _dot(u, Wa), eta.square() * _dot(a, Wa),
        tr_l, tr_n, (W * scaled_l).sum((1, 2)) - 2 * tr_l,
        (B * B.mT).sum((1, 2)), eta * (B * W).sum((1, 2)), eta.square() * W.square().sum((1, 2)),
    )  # fmt: skip


def log_likelihood(k: Terms, variance: Tensor, t: int) -> tuple[Tensor, Tensor]:
    """Return `L / t` (N) and its gradient in the logs of length-scale, variance and noise (N x 3).

    L is the log likelihood of t observations. `L / t` is -inf where `k.ok` is False.
    """
    value = -0.5 * (k.yy / variance + k.log_det + t * (2 * math.pi * variance).log())
    by_noise = k.n / variance - k.tr_n
    gradient = torch.stack([k.l / variance - k.tr_l, k.yy / variance - t - by_noise, by_noise], 1)
    return torch.where(k.ok, value, -torch.inf) / t, 0.5 * gradient / t


def profile(theta: Tensor, D2: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return `-L / t` (N) at the best variance, with its gradient (N x 2) and Hessian (N x 2 x 2) in theta.

    L is the log likelihood of t observations. theta: N x 2, the logarithms of length-scale and eta = noise / variance;
    D2: N x t x t squared distances; y: N x t.
    """
    lengthscale, eta = theta.exp().unbind(1)
    t, k = y.shape[1], terms(lengthscale, eta, D2, y)
    v, free, given_noise = best_variance(k.yy, eta, t)
    value, gradient = log_likelihood(k, v, t)
    by_l, by_variance, by_noise = gradient.unbind(1)
    # Hessian of -2 L at a fixed variance; then corrected where the variance depends on eta, or on l and eta
    H_ll = (2 * k.q_ll - k.ll) / v + k.tr_ll - k.trr_ll
    H_ln = 2 * k.q_ln / v - k.trr_ln
    H_nn = (2 * k.q_nn - k.n) / v + k.tr_n - k.trr_nn
    vl, vn, vv = k.l / v, k.n / v, k.yy / v
    out = torch.where(free, 1 / vv, 0.0)
    along = given_noise.to(v.dtype)  # variance = noise / eta with the noise at a bound
    H_ll, H_ln = H_ll - out * vl * vl, H_ln - out * vl * vn - along * vl
    H_nn = H_nn - out * vn * vn + along * (vv - 2 * vn)
    slopes = torch.stack([-by_l, along * by_variance - (1 - along) * by_noise], 1)
    hessian = torch.stack([H_ll, H_ln, H_ln, H_nn], 1).view(-1, 2, 2) * (0.5 / t)
    return -value, slopes, hessian


def fit(x: Tensor, y: Tensor, start: Hyperparameters) -> Hyperparameters:
    """Fit hyper-parameters by maximum likelihood within `BOUNDS`.

    The search begins at the length-scale and the ratio noise / variance of `start`. An agent whose likelihood is not
    finite there keeps `start`. x: N x t x D; y: N x t.
    """
    block = _BLOCK if x.device.type == "cpu" else _ACCELERATOR_BLOCK
    found = [
        _fit(x[rows], y[rows], start.select(rows))
        for rows in torch.arange(len(x), device=x.device).split(max(batches.PRODUCTS, block // x.shape[1] ** 2))
    ]
    return Hyperparameters(*(torch.cat(values) for values in zip(*(vars(h).values() for h in found), strict=True)))


@torch.inference_mode()  # saves a tenth of the time of small operations
def _fit(x: Tensor, y: Tensor, start: Hyperparameters) -> Hyperparameters:
    D2 = squared_distances(x, x)
    (low_l, high_l), (low_v, high_v), (low_n, high_n) = (BOUNDS[name] for name in ("lengthscale", "variance", "noise"))
    low, high = (
        torch.tensor(bound, dtype=x.dtype, device=x.device).log().expand(len(x), 2)
        for bound in ((low_l, low_n / high_v), (high_l, high_n / low_v))
    )
    theta = torch.stack([start.lengthscale, start.noise / start.variance], 1).log()
    longest = torch.full_like(theta[:, 0], _LONGEST)
    theta, value = newton.minimize(profile, theta, low, high, longest, _LIMITS, (D2, y))
    lengthscale, eta = theta.exp().unbind(1)
    A = (D2 * (-0.5 / lengthscale.square())[:, None, None]).exp_() + torch.diag_embed(eta[:, None].expand_as(y))
    L, _ = torch.linalg.cholesky_ex(A)
    yy = torch.linalg.solve_triangular(L, y.unsqueeze(-1), upper=False).square().sum((1, 2))
    v, _, _ = best_variance(yy, eta, y.shape[1])
    found = value.isfinite()
    return Hyperparameters(*(
        torch.where(found, new.clamp(*bound), old)
        for new, old, bound in zip((lengthscale, v, eta * v), vars(start).values(), BOUNDS.values(), strict=True)
    ))  # fmt: skip


def best_variance(yy: Tensor, eta: Tensor, t: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the variances that maximise the likelihood within the bounds, and two masks, N each.

    The first mask marks variances that needed no clamping. The second marks variances that were clamped to keep the
    noise within its bounds. yy: see `Terms`; eta: noise / variance; t: the number of observations.
    """
    (low_v, high_v), (low_n, high_n) = BOUNDS["variance"], BOUNDS["noise"]
    low, high, best = low_n / eta, high_n / eta, yy / t
    v = best.clamp(low.clamp(min=low_v), high.clamp(max=high_v))
    free = v == best
    return v, free, ~free & ((v == low) | (v == high))


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum((1, 2))


def _trace(matrices: Tensor) -> Tensor:
    return matrices.diagonal(dim1=1, dim2=2).sum(1)
