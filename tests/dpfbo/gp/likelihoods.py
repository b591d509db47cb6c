"""The marginal likelihood of SE kernels and the fits of both kinds, by the names that `OwnGP.fit` gives them."""

import torch
from torch import Tensor

from dpfbo.gp import gpytorch_fit, hyperparameters
from dpfbo.gp.gpytorch_model import Models
from dpfbo.gp.own_gp import Hyperparameters, KernelParameters, OwnGP


def likelihood(kind: str, theta: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Log likelihood and its gradient by theta, both divided by t: N and N x 3.

    theta: N x 3 logarithms of (l, variance, noise); x: N x t x D; y: N x t.
    """
    if kind == "gpytorch":
        value, gradient = gpytorch_fit.log_likelihood(KernelParameters(OwnGP(), theta.flip(1)), x, y, Models())
        return value, gradient.flip(1)  # the columns are in the other order
    lengthscale, variance, noise = theta.exp().unbind(1)
    terms = hyperparameters.terms(lengthscale, noise / variance, hyperparameters.squared_distances(x, x), y)
    return hyperparameters.log_likelihood(terms, variance, x.shape[1])


def closed_form(theta: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return likelihood("closed_form", theta, x, y)


def fitted(kind: str, x: Tensor, y: Tensor, lengthscale: float, variance: float, noise: float) -> Hyperparameters:
    """The fit from one start for all agents."""
    own = OwnGP(kind, lengthscale=lengthscale, variance=variance, noise=noise)
    found = hyperparameters.fit_own(x, y, own)
    assert isinstance(found, Hyperparameters)
    return found


def logarithms(hyper: Hyperparameters) -> Tensor:
    """Theta of `likelihood`, N x 3."""
    return torch.stack([hyper.lengthscale, hyper.variance, hyper.noise], 1).log()
