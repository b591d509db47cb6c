"""Any Python callable as the agents' objective."""

import importlib
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dpfbo import checks
from dpfbo.checks import SettingError
from dpfbo.gp.domain import Box
from dpfbo.rng import Streams


class EvaluationError(RuntimeError):
    """The objective raised, or did not return a finite number."""


@dataclass(frozen=True)
class Custom:
    """`f(agent_id, x) -> y`, one call for each agent and query; x is a numpy vector in the bounds' units.

    function: `package.module:name`, importable from the working directory. lower, upper: bounds, one value an
    axis. maximize: False turns the sign. optimum: the best value if known, one number for all agents or one
    each; the metric is then simple regret, otherwise the best value so far, in the function's own sign. Raises
    ValueError if the function cannot be imported.
    """

    function: str
    lower: Sequence[float]
    upper: Sequence[float]
    n_agents: int
    maximize: bool = True
    optimum: float | Sequence[float] | None = None
    noise_variance: float | None = None
    name: str = "custom"

    def __post_init__(self) -> None:
        checks.integer("n_agents", self.n_agents, minimum=1)
        if self.optimum is not None and np.size(self.optimum) not in (1, self.n_agents):
            raise SettingError(
                "optimum", f"needs one value or one for each of {self.n_agents} agents, got {self.optimum}"
            )
        self.domain, self._objective  # noqa: B018  (both raise ValueError for bad settings)

    @cached_property
    def domain(self) -> Box:
        try:
            return Box(tuple(float(v) for v in self.lower), tuple(float(v) for v in self.upper))
        except TypeError as error:
            raise SettingError("lower", f"(and upper) must be a list of numbers: {error}") from error

    @property
    def metric(self) -> str:
        return "best_value" if self.optimum is None else "simple_regret"

    @property
    def lower_is_better(self) -> bool:
        return self.optimum is not None or not self.maximize

    @cached_property
    def reference(self) -> Tensor | None:
        if self.optimum is None:
            return None if self.maximize else torch.zeros(self.n_agents, dtype=torch.float64, device="cpu")
        return self._sign * torch.as_tensor(self.optimum, dtype=torch.float64, device="cpu").expand(self.n_agents)

    @property
    def _sign(self) -> float:
        return 1.0 if self.maximize else -1.0

    @cached_property
    def _objective(self) -> Callable[[int, np.ndarray], float]:
        module, _, attribute = str(self.function).partition(":")
        if not module or not attribute:
            raise SettingError("function", f"must read 'package.module:name', got {self.function!r}")
        if str(Path.cwd()) not in sys.path:
            sys.path.insert(0, str(Path.cwd()))
        try:
            function = getattr(importlib.import_module(module), attribute)
        except Exception as error:
            raise SettingError("function", f"{self.function!r} cannot be imported: {error}") from error
        if not callable(function):
            raise SettingError("function", f"{self.function!r} is not callable")
        return function

    def evaluate(self, agents: Tensor, x: Tensor, streams: Streams, round: int) -> Tensor:
        """One call of the function for each agent and query.

        Raises EvaluationError naming agent and point if a call raises or does not return a finite number.
        """
        y = [[self._call(n, p) for p in points] for n, points in zip(agents.tolist(), x.cpu().numpy(), strict=True)]
        return self._sign * torch.tensor(y, dtype=torch.float64, device=x.device)

    def true_value(self, agents: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return y

    def _call(self, agent: int, point: np.ndarray) -> float:
        where = f"function {self.function!r} at agent {agent}, x = {point.tolist()}"
        try:
            result = self._objective(agent, point.copy())
        except Exception as error:
            raise EvaluationError(f"{where} raised {type(error).__name__}: {error}") from error
        try:
            value = float(result)
        except (TypeError, ValueError) as error:
            raise EvaluationError(f"{where} must return a number, got {result!r}") from error
        if not math.isfinite(value):
            raise EvaluationError(f"{where} must return a finite number, got {value}")
        return value
