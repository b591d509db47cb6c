"""The settings of an agent's own Gaussian process, and the hyper-parameters of all agents."""

from dataclasses import dataclass

import torch
from torch import Tensor

from dpfbo import checks
from dpfbo.checks import SettingError

BOUNDS = {"lengthscale": (5e-3, 1e2), "variance": (1e-6, 1e3), "noise": (1e-8, 1e2)}
KERNELS = {"rbf": 0, "matern32": 3, "matern52": 5}  # degrees of freedom of the t spectral density; 0: normal density
FITS = ("closed_form", "gpytorch", "given")
_EXTENSIONS = {"kernel": "rbf", "ard": False, "warp": False, "priors": False}  # the values that the closed form needs


@dataclass(frozen=True)
class Hyperparameters:
    """The hyper-parameters of N agents' SE kernels, each of shape N. noise: the variance of the observation noise."""

    lengthscale: Tensor
    variance: Tensor
    noise: Tensor

    def select(self, rows: Tensor) -> "Hyperparameters":
        return Hyperparameters(self.lengthscale[rows], self.variance[rows], self.noise[rows])


@dataclass(frozen=True)
class OwnGP:
    """The settings of each agent's own Gaussian process, whose mean is zero.

    A fit starts at the hyper-parameters given here. It maximises the marginal likelihood times the prior densities, if
    there are priors. `ard`, `warp` and `priors` need `fit="gpytorch"`; a kernel other than `rbf` needs `fit="gpytorch"`
    or `fit="given"`.

    Args:
        fit: How to compute a fit, `closed_form` or `gpytorch`; `given` for no fit, so that the hyper-parameters stay as
            given here.
        every: A fit is due whenever the number of observations is a multiple of this number.
        lengthscale: The length-scale, in unit-cube coordinates.
        variance: The variance of the kernel.
        noise: The variance of the observation noise.
        kernel: The kernel, multiplied by `variance`: `rbf` (SE), `matern32` or `matern52`.
        ard: True to fit one length-scale per axis.
        warp: True to warp every axis by Kumaraswamy's `1 - (1 - x^a)^b`, with fitted a and b.
        priors: True for normal priors of the logarithms of length-scales, variance and noise. The means of the priors
            are the logarithms of the values given here.
        standardize: True to standardise an agent's observations by their mean and standard deviation; hyper-parameters
            are then in standardised units.

    Raises:
        SettingError: An option is invalid, or `fit` does not suit `ard`, `warp`, `priors` or `kernel` (see above).
        ValueError: A hyper-parameter lies outside its bounds.

    Example:
        >>> OwnGP(every=5).due(10), OwnGP(every=5).due(11), OwnGP("given").due(10)
        (True, False, False)
    """

    fit: str = "closed_form"
    every: int = 5
    lengthscale: float = 1.0
    variance: float = 0.1
    noise: float = 1e-6
    kernel: str = "rbf"
    ard: bool = False
    warp: bool = False
    priors: bool = False
    standardize: bool = False

    def __post_init__(self) -> None:
        checks.one_of("fit", self.fit, FITS)
        checks.integer("every", self.every, minimum=1)
        for name, (low, high) in BOUNDS.items():
            value = getattr(self, name)
            checks.positive(name, value)
            if not low <= value <= high:
                raise ValueError(f"own_gp.{name} must lie in [{low}, {high}], got {value!r}")
        checks.one_of("kernel", self.kernel, tuple(KERNELS))
        for name in ("ard", "warp", "priors", "standardize"):
            checks.one_of(name, getattr(self, name), (True, False))
        if self.fit == "closed_form" and self.extensions:
            raise SettingError("fit", f"must be gpytorch or given for {self.extensions[0]}, got {self.fit!r}")
        for name in ("ard", "warp", "priors"):
            if self.fit == "given" and getattr(self, name) is True:
                raise SettingError(name, "has no effect on fit=given: leave it out, got True")

    @property
    def extensions(self) -> list[str]:
        """The settings of this GP that a closed-form fit does not support, such as `kernel=matern52`."""
        differ = {name: getattr(self, name) for name, plain in _EXTENSIONS.items() if getattr(self, name) != plain}
        return [f"{name}={value}" for name, value in differ.items()]

    def start(self, n_agents: int, device: torch.device | None = None) -> Hyperparameters:
        """Return the hyper-parameters of every agent's SE kernel before the first fit."""
        one = torch.ones(n_agents, dtype=torch.float64, device=device)
        return Hyperparameters(self.lengthscale * one, self.variance * one, self.noise * one)

    def due(self, n_observations: int) -> bool:
        """Return whether a fit is due at this number of observations."""
        return self.fit != "given" and n_observations % self.every == 0


@dataclass(frozen=True)
class KernelParameters:
    """The hyper-parameters of N agents' GPyTorch models.

    raw: N x p, the logarithms of each agent's p hyper-parameters, in the order that the module `gpytorch_model` states.
    """

    own: OwnGP
    raw: Tensor

    def select(self, rows: Tensor) -> "KernelParameters":
        return KernelParameters(self.own, self.raw[rows])

    @property
    def noise(self) -> Tensor:
        """The variance of the observation noise of each of the N agents."""
        return self.raw[:, 0].exp()


AnyHyperparameters = Hyperparameters | KernelParameters
