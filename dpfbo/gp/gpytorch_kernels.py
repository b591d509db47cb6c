"""The kernels of the agents' GPs, of GPyTorch, by their settings; and the warp of their inputs."""

import inspect
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import gpytorch
import torch
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel
from gpytorch.priors import NormalPrior
from torch import Tensor

from dpfbo.checks import SettingError
from dpfbo.gp.own_gp import OwnGP

WARP = ("raw_a", "raw_b")  # the parameters of the warp
WARP_SPREAD = 0.75  # of the priors of log a and log b (Snoek et al. 2014)
_SMOOTHNESS = {"matern32": 1.5, "matern52": 2.5}
_EDGE = 1e-7  # distance from 0 and 1 within which the warp is constant: its slope may be infinite there


class Kumaraswamy(gpytorch.Module):
    """Kumaraswamy's distribution function on every axis, `w(x) = 1 - (1 - x^a)^b` (Snoek et al. 2014).

    a, b: exponentials of `raw_a` and `raw_b`, n x 1 x D, with normal priors of mean 0. a = b = 1 is the identity.
    """

    def __init__(self, dimension: int, batch: torch.Size) -> None:
        super().__init__()
        for name in WARP:
            self.register_parameter(name, torch.nn.Parameter(torch.zeros(*batch, 1, dimension)))
            self.register_prior(f"{name}_prior", NormalPrior(0.0, WARP_SPREAD), name)

    def forward(self, x: Tensor) -> Tensor:
        """Unit-cube points `n x k x D` to points of the unit cube."""
        x = x.clamp(_EDGE, 1 - _EDGE)
        return 1 - (1 - x ** self.raw_a.exp()) ** self.raw_b.exp()


def kernel_of(own: OwnGP, dimension: int, batch: torch.Size) -> Kernel:
    """The kernel that the settings name, without its variance. Raises SettingError if it cannot be built."""
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
    """The object of a `_target_` node, and of those inside it. given: further arguments of every kernel."""
    if isinstance(node, list | tuple):
        return [_built(item, given) for item in node]
    if not isinstance(node, Mapping) or "_target_" not in node:
        return node
    module, _, name = node["_target_"].rpartition(".")
    cls = getattr(import_module(module), name)
    arguments = {key: _built(value, given) for key, value in node.items() if key not in ("_target_", "_args_")}
    if isinstance(cls, type) and issubclass(cls, Kernel):
        _check_known(cls, arguments)
        known = inspect.signature(cls).parameters.values()
        takes = {key for key in given if any(p.name == key or p.kind is p.VAR_KEYWORD for p in known)}
        if not getattr(cls, "has_lengthscale", False):
            takes.discard("ard_num_dims")
        arguments = {**{key: given[key] for key in takes}, **arguments}
    return cls(*_built(node.get("_args_", []), given), **arguments)


def _check_known(cls: type[Kernel], arguments: dict[str, Any]) -> None:
    """Raise TypeError for an argument that no constructor of the kernel names: GPyTorch would ignore it."""
    known = {name for base in cls.__mro__ for name in inspect.signature(base).parameters}
    for name in arguments.keys() - known:
        raise TypeError(f"{cls.__name__} has no argument {name!r}")


def degrees_of_freedom(kernel: Kernel) -> int | None:
    """Degrees of freedom of the kernel's spectral density, a Student t; 0 for a normal one, None if not known."""
    if kernel.active_dims is not None:
        return None
    if type(kernel) is MaternKernel:
        return round(2 * kernel.nu)
    return 0 if type(kernel) is RBFKernel else None
