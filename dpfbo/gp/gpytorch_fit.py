"""Fits of the agents' own GPs by GPyTorch's exact marginal log likelihood and Fisher scoring."""

import torch
from gpytorch.mlls import ExactMarginalLogLikelihood
from linear_operator.utils.errors import NanError, NotPSDError
from torch import Tensor

from dpfbo.gp import batches, gpytorch_model, optimize
from dpfbo.gp.gpytorch_model import Models
from dpfbo.gp.own_gp import KernelParameters, OwnGP

_STOPPING = optimize.Stopping(gradient=1e-4, relative_decrease=1e-5, max_iterations=50)
_STEP = 1.0  # length of the longest step, in raw parameters
_DIFFERENCE = 1e-4  # step of the difference quotients, in raw parameters


def fit(x: Tensor, y: Tensor, own: OwnGP) -> KernelParameters:
    """Maximise each agent's log marginal likelihood plus its log prior densities, starting at the values of `own`.

    x: N x t x D; y: N x t. An agent whose likelihood is not finite at the start keeps the values of `own`.
    """
    n, t, D = x.shape
    start = gpytorch_model.start(own, n, D, x.device)
    models = Models()
    low, high, precision = gpytorch_model.bounds_and_precision(own, D, x.device)

    def negative(raw: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        f, g, H = torch.empty_like(raw[:, 0]), torch.empty_like(raw), raw.new_empty(*raw.shape, raw.shape[1])
        for k in batches.blocks(len(rows), raw.shape[1] * t**2, x.device):
            hyper, at = KernelParameters(own, raw[k]), x[rows[k]]
            value, gradient = log_likelihood(hyper, at, y[rows[k]], models)
            f[k], g[k], H[k] = -value, -gradient, information(hyper, at, models) + torch.diag(precision / t)
        return f, g, H

    longest = torch.full((n,), _STEP, dtype=x.dtype, device=x.device)
    raw, _ = optimize.minimize(negative, start.raw, low.expand(n, -1), high.expand(n, -1), longest, _STOPPING)
    return KernelParameters(own, raw)


def log_likelihood(hyper: KernelParameters, x: Tensor, y: Tensor, models: Models) -> tuple[Tensor, Tensor]:
    """Return `(log marginal likelihood + log prior densities) / t` (N) and its gradient (N x p).

    An agent whose covariance has no Cholesky factor gets -inf.
    """
    n = len(x)
    rows = batches.filled(n, batches.PRODUCTS, x.device)
    try:
        value, gradient = _value_and_gradient(hyper.select(rows), x[rows], y[rows], models)
        return value[:n], gradient[:n]
    except (NotPSDError, NanError):
        if n == 1:
            return torch.full_like(y[:, 0], -torch.inf), torch.zeros_like(hyper.raw)
    halves = torch.arange(n, device=x.device).chunk(2)
    parts = [log_likelihood(hyper.select(half), x[half], y[half], models) for half in halves]
    values, gradients = zip(*parts, strict=True)
    return torch.cat(values), torch.cat(gradients)


def information(hyper: KernelParameters, x: Tensor, models: Models) -> Tensor:
    """Return the Fisher information of the raw parameters, divided by t: `tr(A^-1 A_i A^-1 A_j) / (2 t)`, N x p x p.

    A (N x t x t) is the covariance of an agent's t observations, noise included, and A_i is its difference quotient in
    parameter i. Where A is not positive definite or the information is not finite, the result is the identity. x:
    N x t x D.
    """
    (n, p), t = hyper.raw.shape, x.shape[1]
    # each agent's parameters p + 1 times: unchanged, then with each of them moved in turn
    moved = hyper.raw[:, None] + _DIFFERENCE * torch.eye(p + 1, p, dtype=x.dtype, device=x.device).roll(1, 0)
    at = x[:, None].expand(-1, p + 1, -1, -1).flatten(0, 1)
    model = models.of(KernelParameters(hyper.own, moved.flatten(0, 1)), at, at[..., 0])
    with x.device, torch.no_grad():
        A = model.covariance(at, at).view(n, p + 1, t, t)
        A.diagonal(dim1=2, dim2=3).add_(moved[:, :, :1].exp())
    slopes = (A[:, 1:] - A[:, :1]) / _DIFFERENCE  # n x p x t x t
    L, info = torch.linalg.cholesky_ex(A[:, 0])
    B = torch.cholesky_solve(slopes.transpose(1, 2).reshape(n, t, p * t), L).view(n, t, p, t).transpose(1, 2)
    F = 0.5 / t * (B.flatten(2) @ B.mT.flatten(2).mT)
    usable = (info == 0) & torch.isfinite(F).all(2).all(1)
    return torch.where(usable[:, None, None], F, torch.eye(p, dtype=x.dtype, device=x.device))


def _value_and_gradient(hyper: KernelParameters, x: Tensor, y: Tensor, models: Models) -> tuple[Tensor, Tensor]:
    model = models.of(hyper, x, y).train()
    with x.device, gpytorch_model.exact_algebra():
        value = ExactMarginalLogLikelihood(model.likelihood, model)(model(x), y)
        raw = model.raw_parameters()
        slopes = torch.autograd.grad(value.sum(), raw, allow_unused=True, materialize_grads=True)
    return value.detach(), torch.cat([slope.reshape(len(x), -1) for slope in slopes], 1)
