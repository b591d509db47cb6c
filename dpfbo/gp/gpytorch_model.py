"""The agents' own GPs as one batched model of GPyTorch, with any of its kernels and a warp of their inputs.

Every parameter that must be positive is the exponential of GPyTorch's raw parameter. The raw parameters of N agents are
one N x p matrix: the logarithms of noise variance and kernel variance, then the kernel's own and the warp's.
"""

import inspect
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any
from warnings import catch_warnings, simplefilter

import gpytorch
import torch
from gpytorch.constraints import Positive
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, ScaleKernel
from gpytorch.priors import NormalPrior
from linear_operator.utils.warnings import NumericalWarning
from torch import Tensor

from dpfbo.checks import SettingError
from dpfbo.gp.own_gp import BOUNDS, AnyHyperparameters, KernelParameters, OwnGP

_SMOOTHNESS = {"matern32": 1.5, "matern52": 2.5}
_WARP = ("raw_a", "raw_b")  # the parameters of the warp
_WARP_SPREAD = 0.75  # of the priors of log a and log b (Snoek et al. 2014)
_EDGE = 1e-7  # distance from 0 and 1 within which the warp is constant: its slope may be infinite there
_SPREAD = {"raw_lengthscale": 1.0, "raw_outputscale": 2.0, "raw_noise": 3.0}  # of the other priors, in logarithms
_RAW_BOUNDS = {
    "raw_lengthscale": BOUNDS["lengthscale"], "raw_outputscale": BOUNDS["variance"], "raw_noise": BOUNDS["noise"],
    **dict.fromkeys(_WARP, (0.1, 10.0)),
}  # fmt: skip
_POSITIVE = (1e-3, 1e3)  # bounds of other positive parameters, such as a period
_FREE = 10.0  # bound of raw parameters under other constraints, in absolute value


class Kumaraswamy(gpytorch.Module):
    """Kumaraswamy's distribution function on every axis, `w(x) = 1 - (1 - x^a)^b` (Snoek et al. 2014).

    a and b are exponentials of `raw_a` and `raw_b`, n x 1 x D, with normal priors of mean 0. a = b = 1 is the identity.
    """

    def __init__(self, dimension: int, batch: torch.Size) -> None:
        super().__init__()
        for name in _WARP:
            self.register_parameter(name, torch.nn.Parameter(torch.zeros(*batch, 1, dimension)))
            self.register_prior(f"{name}_prior", NormalPrior(0.0, _WARP_SPREAD), name)

    def forward(self, x: Tensor) -> Tensor:
        """Warp unit-cube points, n x k x D."""
        x = x.clamp(_EDGE, 1 - _EDGE)
        return 1 - (1 - x ** self.raw_a.exp()) ** self.raw_b.exp()


class AgentsModel(gpytorch.models.ExactGP):
    """n GPs with mean zero and covariance `variance * k(w(x), w(x'))`, at first with the start values of `own`.

    x: n x t x D, y: n x t, the observations, on one device.
    """

    def __init__(self, own: OwnGP, x: Tensor, y: Tensor) -> None:
        batch, D = torch.Size([len(x)]), x.shape[-1]
        with x.device:  # GPyTorch makes its parameters on the default device
            likelihood = gpytorch.likelihoods.GaussianLikelihood(noise_constraint=Positive(), batch_shape=batch)
            super().__init__(x, y, likelihood)
            self.mean_module = gpytorch.means.ZeroMean(batch_shape=batch)
            self.covar_module = ScaleKernel(_kernel_of(own, D, batch), batch_shape=batch)
            self.warp = Kumaraswamy(D, batch) if own.warp else None
            self.double()
            _use_logarithms(self)
            if own.priors:
                _register_priors(self, own)
        _start(self, own)

    def inputs(self, x: Tensor) -> Tensor:
        """The points at which the kernel is evaluated, n x k x D."""
        return x if self.warp is None else self.warp(x)

    def forward(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
        u = self.inputs(x)
        return gpytorch.distributions.MultivariateNormal(self.mean_module(u), self.covar_module(u))

    def covariance(self, a: Tensor, b: Tensor) -> Tensor:
        """The prior covariances between two sets of points, `n x k x D, n x t x D -> n x k x t`."""
        return self.covar_module(self.inputs(a), self.inputs(b)).to_dense()


class Models:
    """Models by their number of agents; building one takes longer than evaluating it on few points.

    Each is built once, and then gets other data and hyper-parameters.
    """

    def __init__(self) -> None:
        self._built: dict[int, AgentsModel] = {}

    def of(self, hyper: KernelParameters, x: Tensor, y: Tensor) -> AgentsModel:
        """The model of n agents, valid until the next call for n; x: n x t x D; y: n x t."""
        if (model := self._built.get(len(x))) is None:
            model = self._built[len(x)] = AgentsModel(hyper.own, x, y)
        model.set_train_data(x, y, strict=False)
        at = 0
        for p in parameters(model):
            width = p.numel() // len(p)
            p.data = hyper.raw[:, at : at + width].reshape(p.shape).contiguous()
            at += width
        return model


def gram(hyper: KernelParameters, x: Tensor) -> Tensor:
    """`K(x, x)` without noise, N x t x t; x: N x t x D."""
    with x.device, torch.no_grad(), exact_algebra():
        return Models().of(hyper, x, torch.zeros_like(x[..., 0])).eval().covariance(x, x)


@contextmanager
def exact_algebra() -> Iterator[None]:
    """Make GPyTorch compute by Cholesky factors alone, with dense matrices of any size.

    Its warnings of jitter, at most 1e-6, that it adds to nearly singular matrices are ignored; beyond that it raises.
    """
    dense = gpytorch.settings.max_eager_kernel_size(2**31)
    with gpytorch.settings.fast_computations(False, False, False), dense, catch_warnings():
        simplefilter("ignore", NumericalWarning)
        yield


def check(own: OwnGP, dimension: int) -> None:
    """Raise SettingError if the settings name a kernel that a batch of agents cannot have."""
    n = dimension + 2  # no other size of the model
    x = torch.linspace(0, 1, 3 * n * dimension, dtype=torch.float64, device="cpu").view(n, 3, dimension)
    model = AgentsModel(own, x, x[..., 0])
    told = own.kernel if isinstance(own.kernel, str) else dict(own.kernel)
    if any(p.shape[:1] != (n,) for p in model.parameters()):
        raise SettingError("own_gp.kernel", f"must have parameters for every agent (batch_shape), got {told!r}")
    if own.ard and not any(k.ard_num_dims for k in _kernels(model) if k.has_lengthscale):
        raise SettingError("own_gp.ard", f"needs a kernel with length-scales, got own_gp.kernel={told!r}")
    try:
        with torch.no_grad():
            K = model.covariance(x, x)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise SettingError("own_gp.kernel", f"has no values on {dimension} axes ({error}), got {told!r}") from error
    if K.shape != (n, 3, 3) or not torch.isfinite(K).all():
        raise SettingError("own_gp.kernel", f"has no covariances of the points of {dimension} axes, got {told!r}")


def start(own: OwnGP, n_agents: int, dimension: int, device: torch.device) -> KernelParameters:
    """The hyper-parameters of every agent before the first fit."""
    x = torch.zeros(n_agents, 1, dimension, dtype=torch.float64, device=device)
    return KernelParameters(own, raw_parameters(AgentsModel(own, x, x[..., 0])))


def kernel_parameters(hyper: AnyHyperparameters) -> KernelParameters:
    """The same hyper-parameters as parameters of GPyTorch."""
    if isinstance(hyper, KernelParameters):
        return hyper
    return KernelParameters(OwnGP(), torch.stack([hyper.noise, hyper.variance, hyper.lengthscale], 1).log())


def parameters(model: AgentsModel) -> list[torch.nn.Parameter]:
    """The raw parameters, n x .. each, ordered as the columns of `KernelParameters.raw`."""
    first = [model.likelihood.noise_covar.raw_noise, model.covar_module.raw_outputscale]
    return [*first, *(p for p in model.parameters() if all(p is not q for q in first))]


def raw_parameters(model: AgentsModel) -> Tensor:
    """The raw parameters as one matrix, n x p."""
    return torch.cat([p.detach().reshape(len(p), -1) for p in parameters(model)], 1)


def bounds_and_precision(own: OwnGP, dimension: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Lower bounds, upper bounds and the priors' precisions (0 without a prior) of the raw parameters, p each."""
    x = torch.zeros(1, 1, dimension, dtype=torch.float64, device=device)
    model = AgentsModel(own, x, x[..., 0])
    names = {id(p): (name.rsplit(".", 1)[-1], c) for name, p, c in model.named_parameters_and_constraints()}
    found: list[tuple[float, float, float]] = []
    for p in parameters(model):
        name, constraint = names[id(p)]
        bound = [math.log(b) for b in _RAW_BOUNDS.get(name, _POSITIVE)]
        if name not in _WARP and not isinstance(constraint, Positive):
            bound = [-_FREE, _FREE]
        spread = _WARP_SPREAD if name in _WARP else _SPREAD.get(name, math.inf) if own.priors else math.inf
        found += [(bound[0], bound[1], spread**-2)] * p.numel()
    low, high, precision = torch.tensor(found, dtype=torch.float64, device=device).unbind(1)
    return low, high, precision


def lengthscales(model: AgentsModel) -> Tensor:
    """The length-scales of the kernel, n x 1 x D, or n x 1 x 1 for one that all axes share."""
    return model.covar_module.base_kernel.lengthscale


def degrees_of_freedom(model: AgentsModel) -> int | None:
    """Degrees of freedom of the kernel's spectral density, a Student t; 0 for a normal one, None if not known."""
    kernel = model.covar_module.base_kernel
    if kernel.active_dims is not None:
        return None
    if type(kernel) is MaternKernel:
        return round(2 * kernel.nu)
    return 0 if type(kernel) is RBFKernel else None


def _kernel_of(own: OwnGP, dimension: int, batch: torch.Size) -> Kernel:
    """The kernel that the settings name, without its variance; SettingError if it cannot be built."""
    given: dict[str, Any] = {"batch_shape": batch, **({"ard_num_dims": dimension} if own.ard else {})}
    if own.kernel == "rbf":
        return RBFKernel(**given)
    if isinstance(own.kernel, str):
        return MaternKernel(_SMOOTHNESS[own.kernel], **given)
    try:
        kernel = _built(own.kernel, given)
    except Exception as error:  # of the user's choice of a class and its arguments
        raise SettingError("own_gp.kernel", f"cannot be built ({error}), got {dict(own.kernel)!r}") from error
    if not isinstance(kernel, Kernel):
        raise SettingError("own_gp.kernel", f"must be a kernel of GPyTorch, got {dict(own.kernel)!r}")
    return kernel


def _built(node: Any, given: dict[str, Any]) -> Any:
    """The object of a `_target_` node and of those inside it; given: further arguments of every kernel."""
    if isinstance(node, list | tuple):
        return [_built(item, given) for item in node]
    if not isinstance(node, Mapping) or "_target_" not in node:
        return node
    module, _, name = node["_target_"].rpartition(".")
    cls = getattr(import_module(module), name)
    arguments = {key: _built(value, given) for key, value in node.items() if key not in ("_target_", "_args_")}
    if isinstance(cls, type) and issubclass(cls, Kernel):
        named = {name for base in cls.__mro__ for name in inspect.signature(base).parameters}
        for name in arguments.keys() - named:  # GPyTorch would ignore it
            raise TypeError(f"{cls.__name__} has no argument {name!r}")
        known = inspect.signature(cls).parameters.values()
        takes = {key for key in given if any(p.name == key or p.kind is p.VAR_KEYWORD for p in known)}
        if not getattr(cls, "has_lengthscale", False):
            takes.discard("ard_num_dims")
        arguments = {**{key: given[key] for key in takes}, **arguments}
    return cls(*_built(node.get("_args_", []), given), **arguments)


def _start(model: AgentsModel, own: OwnGP) -> None:
    """Give noise, variance and length-scales the values of the settings; other parameters keep GPyTorch's values."""
    model.likelihood.noise_covar.raw_noise.data.fill_(math.log(own.noise))
    model.covar_module.raw_outputscale.data.fill_(math.log(own.variance))
    for kernel in _kernels(model):
        if kernel.has_lengthscale and isinstance(kernel.raw_lengthscale_constraint, Positive):
            kernel.raw_lengthscale.data.fill_(math.log(own.lengthscale))


def _use_logarithms(model: AgentsModel) -> None:
    """Replace GPyTorch's softplus by the exponential, and keep the parameters' values."""
    for module in model.modules():
        for name, constraint in list(getattr(module, "_constraints", {}).items()):
            if type(constraint) is Positive:
                parameter = name.removesuffix("_constraint")
                raw = getattr(module, parameter)
                raw.data = constraint.transform(raw.data).log()
                module.register_constraint(parameter, Positive(torch.exp, torch.log).double())


def _register_priors(model: AgentsModel, own: OwnGP) -> None:
    """Add the priors of noise, variance and length-scales to the marginal likelihood."""
    modules = [(model.likelihood.noise_covar, "raw_noise", own.noise)]
    modules.append((model.covar_module, "raw_outputscale", own.variance))
    modules += [(kernel, "raw_lengthscale", own.lengthscale) for kernel in _kernels(model) if kernel.has_lengthscale]
    for module, name, value in modules:
        module.register_prior(f"{name}_prior", NormalPrior(math.log(value), _SPREAD[name]).double(), name)


def _kernels(model: AgentsModel) -> list[Kernel]:
    """The kernel and all kernels inside it, without the one that multiplies by the variance."""
    return [module for module in model.covar_module.base_kernel.modules() if isinstance(module, Kernel)]
