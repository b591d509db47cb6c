"""An agent's own Gaussian process: zero mean, SE kernel, hyper-parameters by maximum marginal likelihood.

All agents are one batch. There are two objectives for the same fit: `closed_form` (the default), with derivatives
written out and maximised by Fisher scoring, and `gpytorch`, GPyTorch's exact marginal log likelihood with autograd,
maximised by BFGS. Their values and gradients agree to rounding (tested). Other kernels, and priors, are GPyTorch's
alone (`gpytorch_fit`). It is imported where it is used: its import takes seconds.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from dpfbo.gp import optimize
from dpfbo.gp.own_gp import BOUNDS, AnyHyperparameters, Hyperparameters, KernelParameters, OwnGP
from dpfbo.gp.posterior import cholesky

_STOPPING = optimize.Stopping(gradient=1e-4, relative_decrease=1e-5, max_iterations=30)
_STEP = 1.0  # length of the first step, in logarithms of the hyper-parameters

Likelihood = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor | None]]


def start(own: OwnGP, n_agents: int, dimension: int, device: torch.device) -> AnyHyperparameters:
    """The hyper-parameters of every agent before the first fit."""
    if not own.extensions:
        return own.start(n_agents, device)
    from dpfbo.gp import gpytorch_model

    return gpytorch_model.start(own, n_agents, dimension, device)


def fit_own(x: Tensor, y: Tensor, own: OwnGP, kernel_parameters: bool = False) -> AnyHyperparameters:
    """Every agent's hyper-parameters, fitted from the values of the settings. x: N x t x D; y: N x t.

    kernel_parameters: GPyTorch fits the kernel, whichever it is, by Fisher scoring.
    """
    if not kernel_parameters:
        return fit(x, y, own.start(len(x), x.device), own.fit)
    from dpfbo.gp import gpytorch_fit

    return gpytorch_fit.fit(x, y, own)


def check(own: OwnGP, dimension: int) -> None:
    """Raise SettingError if the settings name a kernel that agents cannot have."""
    if own.extensions:
        from dpfbo.gp import gpytorch_model

        gpytorch_model.check(own, dimension)


def squared_distances(a: Tensor, b: Tensor) -> Tensor:
    """`|a_i - b_j|^2`, `N x t x D, N x k x D -> N x t x k`."""
    total = (a[:, :, None, 0] - b[:, None, :, 0]).square_()
    for d in range(1, a.shape[-1]):
        difference = a[:, :, None, d] - b[:, None, :, d]
        total.addcmul_(difference, difference)
    return total


def se_kernel(D2: Tensor, hyper: Hyperparameters) -> Tensor:
    """`variance * exp(-D2 / (2 l^2))`, `N x t x k -> N x t x k`."""
    return (D2 * (-0.5 / hyper.lengthscale**2)[:, None, None]).exp_().mul_(hyper.variance[:, None, None])


def fit(x: Tensor, y: Tensor, start: Hyperparameters, objective: str = "closed_form") -> Hyperparameters:
    """Maximise each agent's log marginal likelihood over (log l, log variance, log noise), from `start`.

    x: N x t x D; y: N x t. Returns the fitted hyper-parameters. An agent whose likelihood is not finite at the
    start keeps the start.
    """
    likelihood = likelihood_of(objective)
    low, high = (
        torch.tensor(bound, dtype=x.dtype, device=x.device).log().expand(len(x), 3)
        for bound in zip(*BOUNDS.values(), strict=True)
    )
    theta0 = torch.stack([start.lengthscale, start.variance, start.noise], 1).log()

    def negative(theta: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        value, gradient, information = likelihood(theta, x[rows], y[rows])
        return -value, -gradient, information

    first = torch.full((len(x),), _STEP, dtype=x.dtype, device=x.device)
    theta, _ = optimize.minimize(negative, theta0, low, high, first, _STOPPING)
    lengthscale, variance, noise = theta.exp().unbind(1)
    return Hyperparameters(lengthscale, variance, noise)


def closed_form(theta: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Log marginal likelihood, its gradient and its Fisher information, all divided by t.

        L = -y^T A^-1 y / 2 - log|A| / 2 - t log(2 pi) / 2,                   A = K + noise I,  a = A^-1 y
        dL/dtheta_i = (a^T A_i a - tr(A^-1 A_i)) / 2,                         A_i = dA/dtheta_i
        F_ij = tr(A^-1 A_i A^-1 A_j) / 2, the expected negative Hessian

    (Rasmussen and Williams 2006, eq. 5.8 and 5.9; Fisher scoring is the usual second-order method for it).

    theta: N x 3 logarithms of (l, variance, noise); x: N x t x D; y: N x t. Returns N, N x 3 and N x 3 x 3; a value
    is -inf where A is not positive definite.
    """
    hyper, t = Hyperparameters(*theta.exp().unbind(1)), x.shape[1]
    D2 = squared_distances(x, x)
    K = se_kernel(D2, hyper)
    K_l = D2.mul_(K).div_(hyper.lengthscale.square()[:, None, None])  # dA / d log l; dA / d log variance is K
    A = K  # K is overwritten: it is not needed by itself any more
    A.diagonal(dim1=1, dim2=2).add_(hyper.noise[:, None])
    L, info = torch.linalg.cholesky_ex(A)
    A_inv = torch.cholesky_inverse(L)
    a = (A_inv @ y.unsqueeze(-1)).squeeze(-1)
    log_det = 2 * L.diagonal(dim1=1, dim2=2).log().sum(1)
    value = -0.5 * ((y * a).sum(1) + log_det + t * math.log(2 * math.pi))

    B = A_inv @ K_l
    noise = hyper.noise
    tr_l, tr_n = _trace(B), noise * _trace(A_inv)  # tr(A^-1 A_i); tr_v = t - tr_n since K = A - noise I
    a_n = noise * (a * a).sum(1)
    quadratic = [(a * (K_l @ a.unsqueeze(-1)).squeeze(-1)).sum(1), (a * y).sum(1) - a_n, a_n]
    gradient = 0.5 * (torch.stack(quadratic, 1) - torch.stack([tr_l, t - tr_n, tr_n], 1))

    ll, ln, nn = (B * B.mT).sum((1, 2)), noise * (B * A_inv).sum((1, 2)), noise**2 * A_inv.square().sum((1, 2))
    information = 0.5 * torch.stack([ll, tr_l - ln, ln, tr_l - ln, t - 2 * tr_n + nn, tr_n - nn, ln, tr_n - nn, nn], 1)
    return torch.where(info == 0, value, -torch.inf) / t, gradient / t, information.view(-1, 3, 3) / t


def _trace(matrices: Tensor) -> Tensor:
    return matrices.diagonal(dim1=1, dim2=2).sum(1)


def likelihood_of(objective: str) -> Likelihood:
    """The objective of a fit by its name, `closed_form` or `gpytorch`."""
    if objective == "closed_form":
        return closed_form
    from dpfbo.gp.gpytorch_fit import se_likelihood

    return se_likelihood


def gram_cholesky(x: Tensor, hyper: AnyHyperparameters, noise: Tensor) -> Tensor:
    """Cholesky factors of `K(x, x) + noise I`, `N x t x t`."""
    if isinstance(hyper, KernelParameters):
        from dpfbo.gp.gpytorch_model import gram

        K = gram(hyper, x)
    else:
        K = se_kernel(squared_distances(x, x), hyper)
    return cholesky(K + torch.diag_embed(noise[:, None].expand(-1, x.shape[1])))
