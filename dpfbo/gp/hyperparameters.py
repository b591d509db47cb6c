"""An agent's own Gaussian process: zero mean, SE kernel, hyper-parameters by maximum marginal likelihood.

All agents are one batch. There are two objectives for the same fit: `closed_form` (the default), with derivatives
written out and maximised by Newton's method (`profile_likelihood`), and `gpytorch`, GPyTorch's exact marginal log
likelihood with autograd, maximised by BFGS. Their values and gradients agree to rounding (tested). Other kernels, and
priors, are GPyTorch's alone (`gpytorch_fit`). It is imported where it is used: its import takes seconds.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from dpfbo.gp import optimize, profile_likelihood
from dpfbo.gp.own_gp import BOUNDS, AnyHyperparameters, Hyperparameters, KernelParameters, OwnGP
from dpfbo.gp.posterior import cholesky
from dpfbo.gp.profile_likelihood import squared_distances

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


def se_kernel(D2: Tensor, hyper: Hyperparameters) -> Tensor:
    """`variance * exp(-D2 / (2 l^2))`, `N x t x k -> N x t x k`."""
    return (D2 * (-0.5 / hyper.lengthscale**2)[:, None, None]).exp_().mul_(hyper.variance[:, None, None])


def fit(x: Tensor, y: Tensor, start: Hyperparameters, objective: str = "closed_form") -> Hyperparameters:
    """Maximise each agent's log marginal likelihood over (log l, log variance, log noise), from `start`.

    x: N x t x D; y: N x t. Returns the fitted hyper-parameters. An agent whose likelihood is not finite at the
    start keeps the start.
    """
    if objective == "closed_form":
        return profile_likelihood.fit(x, y, start)
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


def closed_form(theta: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, None]:
    """Log marginal likelihood and its gradient, both divided by t; see `profile_likelihood`.

    theta: N x 3 logarithms of (l, variance, noise); x: N x t x D; y: N x t. Returns N and N x 3; a value is -inf where
    the covariance is not positive definite.
    """
    lengthscale, variance, noise = theta.exp().unbind(1)
    k = profile_likelihood.terms(lengthscale, noise / variance, squared_distances(x, x), y)
    return *profile_likelihood.log_likelihood(k, variance, x.shape[1]), None


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
