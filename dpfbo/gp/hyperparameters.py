"""An agent's own Gaussian process: zero mean, SE kernel, hyper-parameters by maximum marginal likelihood.

All agents are one batch. There are two objectives for the same fit: `closed_form` (the default), with derivatives
written out and maximised by Fisher scoring, and `gpytorch`, GPyTorch's exact marginal log likelihood with autograd,
maximised by BFGS. Their values and gradients agree to rounding (tested).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import gpytorch
import torch
from torch import Tensor

from dpfbo import checks
from dpfbo.gp import optimize
from dpfbo.gp.posterior import cholesky

BOUNDS = {"lengthscale": (5e-3, 1e2), "variance": (1e-6, 1e3), "noise": (1e-8, 1e2)}
_STOPPING = optimize.Stopping(gradient=1e-4, relative_decrease=1e-5, max_iterations=30)
_STEP = 1.0  # length of the first step, in logarithms of the hyper-parameters

Likelihood = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor | None]]


@dataclass(frozen=True)
class Hyperparameters:
    """SE kernel `variance * exp(-|x - x'|^2 / (2 lengthscale^2))` and variance of the observation noise; N each."""

    lengthscale: Tensor
    variance: Tensor
    noise: Tensor

    def select(self, rows: Tensor) -> "Hyperparameters":
        return Hyperparameters(self.lengthscale[rows], self.variance[rows], self.noise[rows])


@dataclass(frozen=True)
class OwnGP:
    """The settings of each agent's own GP.

    fit: `closed_form` or `gpytorch` maximises the marginal likelihood whenever the number of observations is a
    multiple of `every`, each time from the values here; `given` keeps the values here. lengthscale (in the unit cube),
    variance, noise (variance of an observation): start or given values.
    """

    fit: str = "closed_form"
    every: int = 5
    lengthscale: float = 1.0
    variance: float = 0.1
    noise: float = 1e-6

    def __post_init__(self) -> None:
        checks.one_of("fit", self.fit, [*LIKELIHOODS, "given"])
        checks.integer("every", self.every, minimum=1)
        for name, (low, high) in BOUNDS.items():
            value = getattr(self, name)
            checks.positive(name, value)
            if not low <= value <= high:
                raise ValueError(f"own_gp.{name} must lie in [{low}, {high}], got {value!r}")

    def start(self, n_agents: int, device: torch.device | None = None) -> Hyperparameters:
        """The values of every agent before the first fit."""
        one = torch.ones(n_agents, dtype=torch.float64, device=device)
        return Hyperparameters(self.lengthscale * one, self.variance * one, self.noise * one)

    def due(self, n_observations: int) -> bool:
        """True if the agents refit at this number of observations."""
        return self.fit != "given" and n_observations % self.every == 0


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
    likelihood = LIKELIHOODS[objective]
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


class SEModel(gpytorch.models.ExactGP):
    """The agents' GPs as one batched GPyTorch model, on the same hyper-parameters."""

    def __init__(self, x: Tensor, y: Tensor, hyper: Hyperparameters) -> None:
        batch = torch.Size([len(x)])
        likelihood = gpytorch.likelihoods.GaussianLikelihood(
            noise_constraint=gpytorch.constraints.GreaterThan(BOUNDS["noise"][0] / 2), batch_shape=batch
        )
        super().__init__(x, y, likelihood)
        self.mean_module = gpytorch.means.ZeroMean(batch_shape=batch)
        rbf = gpytorch.kernels.RBFKernel(batch_shape=batch)
        self.covar_module = gpytorch.kernels.ScaleKernel(rbf, batch_shape=batch)
        self.double()
        rbf.lengthscale = hyper.lengthscale[:, None, None]
        self.covar_module.outputscale = hyper.variance
        likelihood.noise = hyper.noise[:, None]

    def forward(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def gpytorch_likelihood(theta: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, None]:
    """The same value and gradient as `closed_form`, by GPyTorch and autograd; no Fisher information."""
    hyper = Hyperparameters(*theta.exp().unbind(1))
    with x.device:  # GPyTorch makes its parameters on the default device
        model = SEModel(x, y, hyper).train()
    raw = [model.covar_module.base_kernel.raw_lengthscale, model.covar_module.raw_outputscale]
    raw.append(model.likelihood.noise_covar.raw_noise)
    with gpytorch.settings.cholesky_max_tries(1), gpytorch.settings.fast_computations(log_prob=False):
        value = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)(model(x), y)
    gradients = torch.autograd.grad(value.sum(), raw)
    constraints = [
        model.covar_module.base_kernel.raw_lengthscale_constraint,
        model.covar_module.raw_outputscale_constraint,
        model.likelihood.noise_covar.raw_noise_constraint,
    ]
    columns = []
    for parameter, gradient, constraint, natural in zip(
        raw, gradients, constraints, theta.exp().unbind(1), strict=True
    ):
        parameter = parameter.detach().requires_grad_()
        slope = torch.autograd.grad(constraint.transform(parameter).sum(), parameter)[0]  # d natural / d raw
        columns.append((gradient / slope).reshape(-1) * natural)
    return value.detach(), torch.stack(columns, 1), None


LIKELIHOODS: dict[str, Likelihood] = {"closed_form": closed_form, "gpytorch": gpytorch_likelihood}


def gram_cholesky(x: Tensor, hyper: Hyperparameters, noise: Tensor) -> Tensor:
    """Cholesky factors of `K(x, x) + noise I`, `N x t x t`."""
    K = se_kernel(squared_distances(x, x), hyper)
    return cholesky(K + torch.diag_embed(noise[:, None].expand(-1, x.shape[1])))
