"""An agent's own Gaussian process: zero mean, SE kernel, hyper-parameters by maximum marginal likelihood.

All agents are one batch. Two objectives for the same fit: `closed_form`, value and gradient written out (the
default), and `gpytorch`, GPyTorch's exact marginal log likelihood with autograd. They agree to rounding
(tested); the first takes a third of the time.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import gpytorch
import torch
from torch import Tensor

from dpfbo import checks, optimize
from dpfbo.posterior import cholesky

BOUNDS = {"lengthscale": (5e-3, 1e2), "variance": (1e-6, 1e3), "noise": (1e-8, 1e2)}
_STOPPING = optimize.Stopping(gradient=1e-4, relative_decrease=1e-6, max_iterations=50)
_FIRST_STEP = 0.5  # in units of the logarithms

Likelihood = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Hyperparameters:
    """Of the SE kernel `variance * exp(-|x - x'|^2 / (2 lengthscale^2))` and the observation noise variance; each N."""

    lengthscale: Tensor
    variance: Tensor
    noise: Tensor

    def select(self, rows: Tensor) -> "Hyperparameters":
        return Hyperparameters(self.lengthscale[rows], self.variance[rows], self.noise[rows])


@dataclass(frozen=True)
class OwnGP:
    """How each agent's hyper-parameters come about.

    fit: `closed_form` or `gpytorch`, maximum marginal likelihood whenever the number of observations is a
    multiple of `every`, every time from the values here (starting from the last fit ends in worse optima); or
    `given`, the values here all along. lengthscale (in the unit cube), variance, noise (variance of an
    observation): start or given values.
    """

    fit: str = "closed_form"
    every: int = 5
    lengthscale: float = 1.0
    variance: float = 0.1
    noise: float = 1e-6

    def __post_init__(self) -> None:
        checks.one_of("own_gp.fit", self.fit, [*LIKELIHOODS, "given"])
        checks.integer("own_gp.every", self.every, minimum=1)
        for name, (low, high) in BOUNDS.items():
            value = getattr(self, name)
            checks.positive(f"own_gp.{name}", value)
            if not low <= value <= high:
                raise ValueError(f"own_gp.{name} must lie in [{low}, {high}], got {value!r}")

    def start(self, n_agents: int) -> Hyperparameters:
        """The values of every agent before the first fit."""
        one = torch.ones(n_agents, dtype=torch.float64)
        return Hyperparameters(self.lengthscale * one, self.variance * one, self.noise * one)

    def due(self, n_observations: int) -> bool:
        """Whether the agents refit at this number of observations."""
        return self.fit != "given" and n_observations % self.every == 0


def squared_distances(a: Tensor, b: Tensor) -> Tensor:
    """`|a_i - b_j|^2`, `N x t x D, N x k x D -> N x t x k`."""
    return sum((a[:, :, None, d] - b[:, None, :, d]) ** 2 for d in range(a.shape[-1]))  # type: ignore[return-value]


def se_kernel(D2: Tensor, hyper: Hyperparameters) -> Tensor:
    """`variance * exp(-D2 / (2 l^2))`, `N x t x k -> N x t x k`."""
    return hyper.variance[:, None, None] * torch.exp(-0.5 * D2 / hyper.lengthscale[:, None, None] ** 2)


def fit(x: Tensor, y: Tensor, start: Hyperparameters, objective: str = "closed_form") -> Hyperparameters:
    """Maximise each agent's log marginal likelihood over (log l, log variance, log noise), from `start`.

    x: N x t x D; y: N x t. Returns the fitted hyper-parameters. An agent whose likelihood is not finite at the
    start keeps the start.
    """
    likelihood = LIKELIHOODS[objective]
    low, high = (torch.tensor(b, dtype=x.dtype).log().expand(len(x), 3) for b in zip(*BOUNDS.values(), strict=True))
    theta0 = torch.stack([start.lengthscale, start.variance, start.noise], 1).log()

    def negative(theta: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, None]:
        value, gradient = likelihood(theta, x[rows], y[rows])
        return -value, -gradient, None

    first = torch.full((len(x),), _FIRST_STEP, dtype=x.dtype)
    theta, _ = optimize.minimize(negative, theta0, low, high, first, _STOPPING)
    lengthscale, variance, noise = theta.exp().unbind(1)
    return Hyperparameters(lengthscale, variance, noise)


def closed_form(theta: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Log marginal likelihood (Rasmussen and Williams 2006, eq. 5.8 and 5.9) and its gradient, divided by t.

        L = -y^T A^-1 y / 2 - log|A| / 2 - t log(2 pi) / 2,   dL/dtheta = tr((a a^T - A^-1) dA/dtheta) / 2,   a = A^-1 y

    theta: N x 3 logarithms of (l, variance, noise); x: N x t x D; y: N x t. Returns N and N x 3; a value is -inf
    where A is not positive definite.
    """
    hyper = Hyperparameters(*theta.exp().unbind(1))
    t = x.shape[1]
    D2 = squared_distances(x, x)
    K = se_kernel(D2, hyper)
    L, info = torch.linalg.cholesky_ex(K + torch.diag_embed(hyper.noise[:, None].expand(-1, t)))
    A_inv = torch.cholesky_inverse(L)
    a = (A_inv @ y.unsqueeze(-1)).squeeze(-1)
    log_det = 2 * L.diagonal(dim1=1, dim2=2).log().sum(1)
    value = -0.5 * ((y * a).sum(1) + log_det + t * math.log(2 * math.pi))
    Q = a[:, :, None] * a[:, None, :] - A_inv  # N x t x t
    QK = Q * K
    d_lengthscale = 0.5 * (QK * D2).sum((1, 2)) / hyper.lengthscale**2
    d_variance = 0.5 * QK.sum((1, 2))
    d_noise = 0.5 * Q.diagonal(dim1=1, dim2=2).sum(1) * hyper.noise
    gradient = torch.stack([d_lengthscale, d_variance, d_noise], 1)
    return torch.where(info == 0, value, -torch.inf) / t, gradient / t


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


def gpytorch_likelihood(theta: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The same value and gradient as `closed_form`, by GPyTorch and autograd."""
    hyper = Hyperparameters(*theta.exp().unbind(1))
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
    return value.detach(), torch.stack(columns, 1)


LIKELIHOODS: dict[str, Likelihood] = {"closed_form": closed_form, "gpytorch": gpytorch_likelihood}


def gram_cholesky(x: Tensor, hyper: Hyperparameters, noise: Tensor) -> Tensor:
    """Cholesky factors of `K(x, x) + noise I`, `N x t x t`."""
    K = se_kernel(squared_distances(x, x), hyper)
    return cholesky(K + torch.diag_embed(noise[:, None].expand(-1, x.shape[1])))
