"""Any Python callable as the agents' objective."""

import importlib
import inspect
import logging
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from dpfbo import checks
from dpfbo.checks import SettingError
from dpfbo.problems.objectives.worker_calls import CallOutcome, WorkerCalls, as_number, outcome_of
from dpfbo.rng import Streams
from dpfbo.space.domain import Box
from dpfbo.space.mixed import MixedBox
from dpfbo.space.parameters import Space

logger = logging.getLogger(__name__)

_SHOWN = 100  # characters shown of a result that is not a number


class EvaluationError(RuntimeError):
    """The objective raised an error, or did not return a finite number.

    Args:
        sentence: The message, which names the function, the agent, the point, and what happened.
        traceback: The text of the objective's traceback; empty if there is none.
    """

    def __init__(self, sentence: str, traceback: str = "") -> None:
        super().__init__(sentence, traceback)
        self.traceback = traceback

    def __str__(self) -> str:
        return str(self.args[0])


class EvaluationRecord(Protocol):
    """The evaluations of a run. `Custom` calls the function only for queries without a recorded value."""

    def known(self, agent: int, round: int, place: int, x: np.ndarray) -> float | None:
        """Return the value of an earlier evaluation, NaN if it failed; None if there was no such evaluation.

        place: the index of the query among the agent's queries in this round. x: the query, D numbers.
        """

    def add(self, agent: int, round: int, place: int, x: np.ndarray, value: float) -> None:
        """Add an evaluation. value: what the function returned, without a change of sign; NaN if it failed."""


@dataclass(frozen=True)
class Custom:
    """Uses a function `f(agent, x) -> y` as the objective of every agent; each call evaluates one query.

    Args:
        function: A callable, or `package.module:name`, importable from the working directory.
        lower: Lower bounds, one for each axis; x is then a NumPy vector.
        upper: Upper bounds, one for each axis.
        n_agents: The number of agents N.
        maximize: False to minimise the function.
        optimum: The optimal value, one for all agents or one per agent; the metric is then simple regret. None if
            unknown; the metric is then the best value that the function has returned so far.
        noise_variance: The variance of the observation noise; None if unknown.
        space: Named parameters in place of bounds (`dpfbo.Space` or a mapping); x is then a dict with the value of
            every parameter.
        on_failure: The reaction to a call that still fails after all `retries`. `stop` raises EvaluationError;
            `penalty` logs the failure, which counts as the agent's worst value so far. A call fails if it raises an
            error or returns no finite number.
        retries: The largest number of repetitions of a call that failed.
        n_jobs: The number of parallel calls; -1 for one call per CPU. Parallel calls run in separate processes.
        timeout: The seconds after which a call counts as failed and its process is ended; None for no limit.
        name: The problem's name in records.
        record: The record of evaluations, or None. Recorded evaluations are not repeated, and new ones are added.

    Raises:
        SettingError: Bounds or parameters are wrong, or the function cannot be imported.

    Example:
        >>> import dpfbo
        >>> space = {"x": dpfbo.Integer(0, 9)}
        >>> problem = dpfbo.Custom(lambda agent, x: -((x["x"] - agent) ** 2), n_agents=3, space=space)
        >>> study = dpfbo.create_study(problem.domain, n_agents=3, algorithm="ts", rounds=9, n_init=2, rng="seeded")
        >>> [best.configuration for best in dpfbo.run_study(study, problem).best()]
        [{'x': 0}, {'x': 1}, {'x': 2}]
    """

    function: str | Callable[[int, Any], float]
    lower: Sequence[float] | None = None
    upper: Sequence[float] | None = None
    n_agents: int = 10
    maximize: bool = True
    optimum: float | Sequence[float] | None = None
    noise_variance: float | None = None
    space: Space | Mapping[str, Any] | None = None
    on_failure: str = "stop"
    retries: int = 0
    n_jobs: int = 1
    timeout: float | None = None
    name: str = "custom"
    record: EvaluationRecord | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        checks.one_of("maximize", self.maximize, (True, False))
        checks.one_of("on_failure", self.on_failure, ("stop", "penalty"))
        checks.integer("retries", self.retries, minimum=0)
        checks.workers("n_jobs", self.n_jobs)
        if self.timeout is not None:
            checks.positive("timeout", self.timeout)
        if self.space is not None and not isinstance(self.space, Space):
            object.__setattr__(self, "space", Space(self.space))
        checks.integer("n_agents", self.n_agents, minimum=1, maximum=checks.MOST_AGENTS)
        if self.optimum is not None and np.size(self.optimum) not in (1, self.n_agents):
            rule = f"needs one value or one for each of {self.n_agents} agents, got {self.optimum}"
            raise SettingError("optimum", rule)
        self.domain, self._objective  # noqa: B018  (both raise ValueError for bad settings)

    @cached_property
    def domain(self) -> Box | MixedBox:
        if isinstance(self.space, Space):
            if self.lower is not None or self.upper is not None:
                raise SettingError("space", "must be given without lower and upper")
            return self.space.domain
        if self.lower is None or self.upper is None:
            raise SettingError("lower", "and upper, or a space of named parameters, must be given")
        lower, upper = self._bounds("lower", self.lower), self._bounds("upper", self.upper)
        if len(lower) != len(upper):
            raise SettingError("lower", f"must have as many values as upper, one per axis, got {lower} and {upper}")
        if not all(low < high for low, high in zip(lower, upper, strict=True)):
            raise SettingError("lower", f"must be below upper on every axis, got {lower} and {upper}")
        return Box(lower, upper)

    @staticmethod
    def _bounds(name: str, given: Any) -> tuple[float, ...]:
        try:
            values = tuple(float(value) for value in given) if not isinstance(given, str) else ()
        except (TypeError, ValueError):
            values = ()
        if not values or not all(map(math.isfinite, values)):
            raise SettingError(name, f"must be a list of finite numbers, one per axis, got {given!r}")
        return values

    @property
    def metric(self) -> str:
        return "best_value" if self.optimum is None else "simple_regret"

    @property
    def lower_is_better(self) -> bool:
        return self.optimum is not None or not self.maximize

    @cached_property
    def reference(self) -> Tensor | None:
        if self.optimum is None:
            return None
        return self._sign * torch.as_tensor(self.optimum, dtype=torch.float64, device="cpu").expand(self.n_agents)

    @property
    def _sign(self) -> float:
        return 1.0 if self.maximize else -1.0

    @cached_property
    def _objective(self) -> Callable[[int, Any], float]:
        if callable(self.function):
            return _of_two(self.function)
        module, _, attribute = str(self.function).partition(":")
        if not module or not attribute:
            kind = "read" if isinstance(self.function, str) else "be a function, or read"
            raise SettingError("function", f"must {kind} 'package.module:name', got {checks.shown(self.function)}")
        if str(Path.cwd()) not in sys.path:
            sys.path.insert(0, str(Path.cwd()))
        try:
            function = getattr(importlib.import_module(module), attribute)
        except Exception as error:
            raise SettingError("function", f"{self.function!r} cannot be imported: {error}") from error
        if not callable(function):
            raise SettingError("function", f"{self.function!r} is not callable")
        return _of_two(function)

    def evaluate(self, agents: Tensor, x: Tensor, streams: Streams, round: int) -> Tensor:
        """Call the function for each agent and point, see `Problem.evaluate`.

        If `on_failure` is `penalty`, failed calls give NaN.

        Raises:
            EvaluationError: A call failed, and `on_failure` is `stop`.
        """
        points = x.cpu().numpy()
        calls = [(n, place, p) for n, own in zip(agents.tolist(), points, strict=True) for place, p in enumerate(own)]
        found = [None if self.record is None else self.record.known(n, round, k, p) for n, k, p in calls]
        left = [i for i, value in enumerate(found) if value is None]
        y = [math.nan if value is None else value for value in found]
        for i, value in self._values([(calls[i][0], calls[i][2]) for i in left]):
            y[left[i]] = value
            if self.record is not None:
                agent, place, point = calls[left[i]]
                self.record.add(agent, round, place, point, value)
        return self._sign * torch.tensor(y, dtype=torch.float64, device=x.device).reshape(x.shape[:2])

    def true_value(self, agents: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return y

    @property
    def _in_this_process(self) -> bool:
        return self.n_jobs == 1 and self.timeout is None

    @cached_property
    def _workers(self) -> WorkerCalls:
        return WorkerCalls(self._objective, self.n_jobs, self.timeout)

    def close(self) -> None:
        """End the processes that were started for `n_jobs` or `timeout`; the next evaluation starts new ones."""
        workers = vars(self).pop("_workers", None)
        if workers is not None:
            workers.close()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_workers", "record")}

    def _values(self, calls: list[tuple[int, np.ndarray]]) -> Iterator[tuple[int, float]]:
        """Yield the index and the value of each call as it ends; the value of a failed call is NaN."""
        configured = [(agent, self._configuration(point)) for agent, point in calls]
        blocks = [[i] for i in range(len(calls))] if self._in_this_process else [list(range(len(calls)))]
        for left in blocks if calls else ():
            for attempt in range(self.retries + 1):
                asked, left = left, []
                for i, outcome in self._outcomes([configured[i] for i in asked]):
                    call = configured[asked[i]]
                    try:
                        value = self._number(*call, outcome)
                    except EvaluationError as error:
                        last, value = attempt == self.retries, math.nan
                        if last and self.on_failure == "stop":
                            raise
                        then = "it counts as the worst value so far" if last else "it is called again"
                        logger.warning("%s: %s", error, then, extra={"traceback": error.traceback})
                        if not last:
                            left.append(asked[i])
                            continue
                    yield asked[i], value

    def _outcomes(self, calls: list[tuple[int, Any]]) -> Iterable[tuple[int, CallOutcome]]:
        if self._in_this_process:
            copied = ((agent, x.copy()) for agent, x in calls)  # the function may modify its argument
            return ((i, outcome_of(self._objective, *call)) for i, call in enumerate(copied))
        return self._workers.outcomes(calls) if calls else ()

    def _number(self, agent: int, x: Any, outcome: CallOutcome) -> float:
        name = self.function if isinstance(self.function, str) else getattr(self.function, "__name__", "function")
        where = f"function {name!r} at agent {agent}, x = {x if isinstance(x, dict) else x.tolist()}"
        result = outcome.result
        if outcome.kind != "returned":
            raised = "raised " if outcome.kind == "raised" else ""
            raise EvaluationError(f"{where} {raised}{result}", outcome.traceback) from outcome.error
        value = as_number(result)
        if value is None:
            said = result[:_SHOWN] if isinstance(result, str) else checks.shown(result)
            raise EvaluationError(f"{where} must return a number, got {said}")
        if not abs(value) <= checks.LARGEST_VALUE:
            wanted = f"number up to {checks.LARGEST_VALUE:g}" if math.isfinite(value) else "finite number"
            raise EvaluationError(f"{where} must return a {wanted}, got {value}")
        return value

    def _configuration(self, point: np.ndarray) -> Any:
        return self.space.configuration(point.tolist()) if isinstance(self.space, Space) else point.copy()


def _of_two(function: Callable[..., Any]) -> Callable[[int, Any], float]:
    """Return the function; raise SettingError if it cannot be called with two arguments."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a compiled function may have no signature
        return function
    try:
        signature.bind(0, {})
    except TypeError as error:
        found = f"{getattr(function, '__name__', 'one')}{signature}"
        rule = f"must take two arguments, the agent's number and the configuration, got {found}"
        raise SettingError("function", rule) from error
    return function
