"""The agents' own GPs as one batched GPyTorch model, with an SE or Matern kernel and an optional input warp.

The raw parameters of N agents are one N x p matrix. Its columns are the logarithms of the noise variance, the kernel
variance and the length-scales (one, or D with `ard`). If inputs are warped, the warp's log a and log b follow,
D columns each.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from warnings import catch_warnings, simplefilter

import gpytorch
import torch
from gpytorch.constraints import Positive
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from gpytorch.priors import NormalPrior
from linear_operator.utils.warnings import NumericalWarning
from torch import Tensor

from dpfbo.gp.own_gp import BOUNDS, KERNELS, AnyHyperparameters, KernelParameters, OwnGP

_BOUNDS = {**BOUNDS, "warp": (0.1, 10.0)}
_SPREAD = {"noise": 3.0, "variance": 2.0, "lengthscale": 1.0, "warp": 0.75}  # sd of the logarithms' priors
_EDGE = 1e-7  # distance from 0 and 1 within which the warp is constant: its slope may be infinite there


class Kumaraswamy(gpytorch.Module):
    """Kumaraswamy's distribution function on every axis, `w(x) = 1 - (1 - x^a)^b` (Snoek et al. 2014).

    a and b are the exponentials of `raw_a` and `raw_b`, n x 1 x D, which have normal priors of mean 0.
    """

    def __init__(self, dimension: int, batch: torch.Size) -> None:
        super().__init__()
        for name in ("raw_a", "raw_b"):
            self.register_parameter(name, torch.nn.Parameter(torch.zeros(*batch, 1, dimension)))
            self.register_prior(f"{name}_prior", NormalPrior(0.0, _SPREAD["warp"]), name)

    def forward(self, x: Tensor) -> Tensor:
        """Warp unit-cube points, n x k x D."""
        x = x.clamp(_EDGE, 1 - _EDGE)
        return 1 - (1 - x ** self.raw_a.exp()) ** self.raw_b.exp()


class AgentsModel(gpytorch.models.ExactGP):
    """n GPs with mean 0 and covariance `variance * k(w(x), w(x'))`, where w is the input warp.

    x: n x t x D; y: n x t.
    """

    def __init__(self, own: OwnGP, x: Tensor, y: Tensor) -> None:
        batch, D = torch.Size([len(x)]), x.shape[-1]
        given: dict[str, Any] = {"batch_shape": batch, "ard_num_dims": D if own.ard else None}
        with x.device:  # GPyTorch makes its parameters on the default device
            given["lengthscale_constraint"] = _logarithm()
            likelihood = gpytorch.likelihoods.GaussianLikelihood(noise_constraint=_logarithm(), batch_shape=batch)
            super().__init__(x, y, likelihood)
            kernel = RBFKernel(**given) if own.kernel == "rbf" else MaternKernel(KERNELS[own.kernel] / 2, **given)
            self.mean_module = gpytorch.means.ZeroMean(batch_shape=batch)
            self.covar_module = ScaleKernel(kernel, batch_shape=batch, outputscale_constraint=_logarithm())
            self.warp = Kumaraswamy(D, batch) if own.warp else None
            self.double()
            if own.priors:  # their modes are the values of the settings
                for module, raw, name in (
                    (likelihood.noise_covar, "raw_noise", "noise"),
                    (self.covar_module, "raw_outputscale", "variance"),
                    (kernel, "raw_lengthscale", "lengthscale"),
                ):
                    prior = NormalPrior(math.log(getattr(own, name)), _SPREAD[name]).double()
                    module.register_prior(f"{raw}_prior", prior, raw)

    def inputs(self, x: Tensor) -> Tensor:
        """Return the points, n x k x D, warped if the model has a warp."""
        return x if self.warp is None else self.warp(x)

    def forward(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
        u = self.inputs(x)
        return gpytorch.distributions.MultivariateNormal(self.mean_module(u), self.covar_module(u))

    def covariance(self, a: Tensor, b: Tensor) -> Tensor:
        """Compute the prior covariances between two sets of points, `n x k x D, n x t x D -> n x k x t`."""
        return self.covar_module(self.inputs(a), self.inputs(b)).to_dense()

    @property
    def lengthscales(self) -> Tensor:
        """The kernel's length-scales, n x 1 x D with `ard` and n x 1 x 1 without."""
        return self.covar_module.base_kernel.lengthscale

    def raw_parameters(self) -> list[torch.nn.Parameter]:
        """Return the raw parameters, each of shape (n, ...), in the order of `KernelParameters.raw`."""
        kernel = self.covar_module
        first = [self.likelihood.noise_covar.raw_noise, kernel.raw_outputscale, kernel.base_kernel.raw_lengthscale]
        return first if self.warp is None else [*first, self.warp.raw_a, self.warp.raw_b]


class Models:
    """A cache of models by number of agents."""

    def __init__(self) -> None:
        self._built: dict[int, AgentsModel] = {}

    def of(self, hyper: KernelParameters, x: Tensor, y: Tensor) -> AgentsModel:
        """Return the model of n agents, valid until the next call with the same n; x: n x t x D; y: n x t."""
        if (model := self._built.get(len(x))) is None:
            model = self._built[len(x)] = AgentsModel(hyper.own, x, y)
        model.set_train_data(x, y, strict=False)
        parameters = model.raw_parameters()
        for p, raw in zip(parameters, hyper.raw.split([p[0].numel() for p in parameters], 1), strict=True):
            p.data = raw.reshape(p.shape).contiguous()
        return model


@contextmanager
def exact_algebra() -> Iterator[None]:
    """Make GPyTorch use dense Cholesky factors only, and ignore its warnings about added jitter (at most 1e-6)."""
    dense = gpytorch.settings.max_eager_kernel_size(2**31)
    with gpytorch.settings.fast_computations(False, False, False), dense, catch_warnings():
        simplefilter("ignore", NumericalWarning)
        yield


def start(own: OwnGP, n_agents: int, dimension: int, device: torch.device) -> KernelParameters:
    """Return the hyper-parameters of every agent before the first fit."""
    row = [0.0 if name == "warp" else math.log(getattr(own, name)) for name in _names(own, dimension)]
    return KernelParameters(own, torch.tensor(row, dtype=torch.float64, device=device).repeat(n_agents, 1))


def kernel_parameters(hyper: AnyHyperparameters) -> KernelParameters:
    """Convert hyper-parameters to the raw parameters of GPyTorch models."""
    if isinstance(hyper, KernelParameters):
        return hyper
    return KernelParameters(OwnGP(), torch.stack([hyper.noise, hyper.variance, hyper.lengthscale], 1).log())


def bounds_and_precision(own: OwnGP, dimension: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Return the lower bounds, upper bounds and prior precisions (0: no prior) of an agent's p raw parameters."""
    rows = [
        (*map(math.log, _BOUNDS[name]), _SPREAD[name] ** -2 if own.priors or name == "warp" else 0.0)
        for name in _names(own, dimension)
    ]
    low, high, precision = torch.tensor(rows, dtype=torch.float64, device=device).unbind(1)
    return low, high, precision


def _names(own: OwnGP, dimension: int) -> list[str]:
    lengthscales, warps = dimension if own.ard else 1, 2 * dimension if own.warp else 0
    return ["noise", "variance", *["lengthscale"] * lengthscales, *["warp"] * warps]


def _logarithm() -> Positive:
    return Positive(torch.exp, torch.log)
