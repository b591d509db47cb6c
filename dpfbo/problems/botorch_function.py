"""BoTorch's synthetic test functions, shifted and perturbed for each agent."""

import difflib
import inspect
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from dpfbo.checks import SettingError
from dpfbo.extras import needing
from dpfbo.gp import batches, optimize
from dpfbo.problems.problem import GeneratedProblem, check_settings
from dpfbo.rng import Streams
from dpfbo.space.domain import Box

MAX_DIMENSION = 10
_SAMPLE = 4096  # Sobol points for the function's mean and standard deviation
_WAVES, _LENGTHSCALE = 64, 0.3  # the number of cosines in a perturbation, and their length-scale in the unit cube
_BLOCK = 512  # points evaluated at once: too few for PyTorch to split them over threads


@dataclass(frozen=True)
class BotorchFunction(GeneratedProblem):
    """Maximises `y_n(u) = top - (top - f(fold(u - shift_n))) exp(perturbation g_n(u) / top)`, u in the unit cube.

    f is BoTorch's `function`, negated if BoTorch minimises it, and standardised by mean and standard deviation over a
    Sobol sequence. Local searches start at BoTorch's published maximisers, and top is the largest value of f that the
    searches reach. If BoTorch states no maximiser, top is the largest value of f in the Sobol sequence. fold reflects
    points at the faces of the cube. g_n is a smooth random function with length-scale 0.3 and N(0, 1) values. If top is
    the true maximum of f, every y_n has the same maximum.

    Points x are in BoTorch's bounds. The metric is noiseless simple regret in units of the function's standard
    deviation. If BoTorch states no maximiser, the metric is the noiseless best value so far.

    Args:
        function: The name of an unconstrained synthetic test function of BoTorch.
        dim: The dimension D, at most 10; None for the function's own dimension.
        n_agents: The number of agents N.
        shift: shift_n is uniform in [-shift, shift]^D, in units of the axis lengths. This range is cut so that the
            maximiser stays in the domain.
        perturbation: The standard deviation of the perturbation where f is near its mean 0.
        noise_variance: The variance of the observation noise.
        function_seed: The seed of shifts and perturbations.

    Raises:
        SettingError: BoTorch has no such function or dimension, or a setting is outside its range.
        MissingPackage: BoTorch is not installed.
    """

    function: str
    dim: int | None = None
    n_agents: int = 20
    shift: float = 0.05
    perturbation: float = 0.1
    noise_variance: float = 0.01
    function_seed: int = 0
    name: str = "botorch"

    def __post_init__(self) -> None:
        check_settings(self)
        if self.shift > 1:
            raise SettingError("shift", f"must be at most 1, got {self.shift!r}")
        if not self._unit[1] > 0:
            raise SettingError("dim", f"must be larger for {self.function}, which is constant for {self.dim}")

    @cached_property
    def domain(self) -> Box:
        lower, upper = self._botorch.bounds.tolist()
        return Box(tuple(lower), tuple(upper))

    @property
    def metric(self) -> str:
        return "best_value" if self._maximiser is None else "simple_regret"

    @property
    def lower_is_better(self) -> bool:
        return self._maximiser is not None

    @property
    def reference(self) -> Tensor | None:
        if self._maximiser is None:
            return None
        return torch.full((self.n_agents,), self._top, dtype=torch.float64, device="cpu")

    def true_value(self, agents: Tensor, x: Tensor, y: Tensor) -> Tensor:
        agents = agents.cpu()
        low, high = self._botorch.bounds
        u = (x.cpu() - low) / (high - low)  # n x k x D
        inner = 1 - (1 - (u - self._shifts(agents)[:, None]).abs()).abs()
        mean, sd = self._unit
        gap = self._top - (self._raw(inner) - mean) / sd
        factor = torch.exp(self.perturbation / self._top * self._perturbations(agents, u))
        return (self._top - gap * factor).to(x.device)

    @cached_property
    def _botorch(self) -> Any:
        with torch.device("cpu"):
            return _test_function(self.function, self.dim)

    def _raw(self, u: Tensor) -> Tensor:
        """Return BoTorch's function at unit-cube points, negated if BoTorch minimises it, `... x D -> ...`.

        The value at a point does not depend on the other points.
        """
        points = self.domain.to_natural(u).flatten(0, -2).clamp(*self._botorch.bounds)
        n, full = len(points), batches.padded(points)
        with torch.device("cpu"):
            values = torch.cat([self._botorch.evaluate_true(block) for block in full.split(_BLOCK)])
        return (-values if self._botorch.is_minimization_problem else values)[:n].unflatten(0, u.shape[:-1])

    @cached_property
    def _sample(self) -> Tensor:
        with torch.device("cpu"):
            points = torch.quasirandom.SobolEngine(self.domain.dimension).draw(_SAMPLE, dtype=torch.float64)
        return self._raw(points)

    @cached_property
    def _unit(self) -> tuple[float, float]:
        return float(self._sample.mean()), float(self._sample.std())

    @cached_property
    def _maximiser(self) -> Tensor | None:
        """The best unit-cube point (D) found by searches from the published maximisers; None if BoTorch states none."""
        if self._botorch._optimizers is None:
            return None
        low, high = self._botorch.bounds
        start = (self._botorch.optimizers - low) / (high - low)

        def negative(u: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, None]:
            u = u.clone().requires_grad_()
            with torch.enable_grad():
                value = -self._raw(u) / self._unit[1]
            return value.detach(), torch.autograd.grad(value.sum(), u)[0].nan_to_num(0, 0, 0), None

        zero = torch.zeros_like(start)
        stopping = optimize.Stopping(gradient=1e-9, relative_decrease=1e-15)
        u, value = optimize.minimize(negative, start, zero, zero + 1, zero[:, 0] + 1e-4, stopping)
        return u[value.argmin()]

    @cached_property
    def _top(self) -> float:
        mean, sd = self._unit
        best = self._sample.max() if self._maximiser is None else self._raw(self._maximiser[None])[0]
        return (float(best) - mean) / sd

    def _shifts(self, agents: Tensor) -> Tensor:
        """Return the shift of each given agent: one row of D numbers per agent."""
        low = torch.full((self.domain.dimension,), -self.shift, dtype=torch.float64, device="cpu")
        high = -low
        if self._maximiser is not None:
            low, high = low.maximum(-self._maximiser), high.minimum(1 - self._maximiser)
        return low + Streams(self.function_seed).uniform("problem/shift", agents, 0, len(low)) * (high - low)

    def _perturbations(self, agents: Tensor, u: Tensor) -> Tensor:
        """Return values, n x k, of `g_n(u) = sqrt(2 / F) sum_f cos(s_f . u + b_f)` with F random Fourier features."""
        D, streams = u.shape[-1], Streams(self.function_seed)
        s = streams.normal("problem/frequencies", agents, 0, _WAVES * D).view(-1, 1, _WAVES, D) / _LENGTHSCALE
        angle = 2 * math.pi * streams.uniform("problem/phases", agents, 0, _WAVES)[:, None]
        for d in range(D):
            angle = angle + u[..., d, None] * s[..., d]  # n x k x F
        return math.sqrt(2 / _WAVES) * angle.cos().sum(-1)


def _test_function(name: str, dim: int | None) -> Any:
    with needing("botorch", "BotorchFunction"):
        from botorch.test_functions import synthetic
    kinds: dict[str, Any] = {
        key: kind
        for key, kind in vars(synthetic).items()
        if inspect.isclass(kind) and issubclass(kind, synthetic.SyntheticTestFunction) and not inspect.isabstract(kind)
        if not issubclass(kind, synthetic.ConstrainedBaseTestProblem)
    }
    if name not in kinds:
        close = difflib.get_close_matches(str(name), kinds) or sorted(kinds)
        rule = f"must be an unconstrained synthetic test function of BoTorch, such as {', '.join(close)}, got {name!r}"
        raise SettingError("function", rule)
    kind = kinds[name]
    if "dim" not in inspect.signature(kind).parameters and dim not in (None, kind.dim):
        raise SettingError("dim", f"must be {kind.dim} for {name}, got {dim}")
    try:
        function = kind(dim=dim) if dim not in (None, getattr(kind, "dim", None)) else kind()
    except Exception as error:
        raise SettingError("dim", f"is not one that BoTorch's {name} takes, got {dim}: {error}") from error
    if function.discrete_inds or function.categorical_inds:
        raise SettingError("function", f"must have continuous inputs only, got {name!r}")
    if function.dim > MAX_DIMENSION:
        raise SettingError("dim", f"must be at most {MAX_DIMENSION}, got {function.dim} for {name}")
    return function
