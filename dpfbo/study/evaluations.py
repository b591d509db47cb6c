"""The evaluations of `dpfbo.optimize`: journal, progress bar, limits and callbacks."""

import math
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

from dpfbo import checks
from dpfbo.formats.journal import Journal, StateError
from dpfbo.space.parameters import Space
from dpfbo.study.study import Study

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # tqdm warns if a notebook has no widgets and it shows text instead
    from tqdm.auto import tqdm

FILE, DESCRIPTION = "evaluations.jsonl", "optimization.json"  # `dpfbo.study.stored_result` composes the second
_SAME = 1e-9  # queries with a smaller relative difference are equal: another processor may round differently


@dataclass(frozen=True)
class Evaluation:
    """One evaluation of the objective, as the callbacks of `dpfbo.optimize` receive it.

    Args:
        agent: The agent's number.
        round: The round of the query, 0 for the initial points.
        configuration: The value of each parameter.
        value: The value that the objective returned; None if it failed.

    Example:
        >>> import dpfbo
        >>> def show(study: dpfbo.Study, evaluation: dpfbo.Evaluation) -> None:
        ...     print(evaluation.agent, evaluation.round, evaluation.value)
        >>> result = dpfbo.optimize(
        ...     lambda agent, x: agent, {"x": dpfbo.Float(0, 1)}, 2, "ts", rounds=1, n_init=1, callbacks=[show]
        ... )
        0 0 0.0
        1 0 1.0
        0 1 0.0
        1 1 1.0
    """

    agent: int
    round: int
    configuration: dict[str, Any]
    value: float | None


Callback = Callable[[Study, Evaluation], object]


class Stop(BaseException):
    """Ends `dpfbo.optimize`, which returns the result so far. reason: the value of `Optimization.stopped`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def stop() -> NoReturn:
    """End `dpfbo.optimize` from one of its callbacks; `dpfbo.optimize` returns the result so far.

    Example:
        >>> import dpfbo
        >>> def good_enough(study: dpfbo.Study, evaluation: dpfbo.Evaluation) -> None:
        ...     if evaluation.value is not None and evaluation.value > 0.9:
        ...         dpfbo.stop()
        >>> space = {"x": dpfbo.Float(0, 1)}
        >>> result = dpfbo.optimize(lambda agent, x: x["x"], space, 5, "ts", rounds=20, callbacks=[good_enough])
        >>> result.stopped
        'a callback'
        >>> max(best.value for best in result.best()) > 0.9
        True
    """
    raise Stop("a callback")


@dataclass(frozen=True)
class StopRules:
    """The limits at which `dpfbo.optimize` ends early; None for no limit."""

    max_evaluations: int | None = None
    timeout: float | None = None
    min_gain: float | None = None

    def __post_init__(self) -> None:
        if self.max_evaluations is not None:
            checks.integer("max_evaluations", self.max_evaluations, minimum=1)
        for name in ("timeout", "min_gain"):
            if getattr(self, name) is not None:
                checks.positive(name, getattr(self, name))


@dataclass
class Evaluations:
    """All evaluations of one study. `dpfbo.problems.Custom` takes them as its argument `record`.

    journal: contains the evaluations of earlier processes; each new evaluation is appended before the callbacks are
    called. progress: True shows a progress bar; None shows it only in a notebook or a terminal.

    Raises:
        Stop: `known` or `add` finds that a limit is reached, or a callback ends the study.
        StateError: `known` gets a query that differs from the journal's query with the same agent, round and index. The
            index counts the agent's queries in the round.
    """

    study: Study
    space: Space
    journal: Journal
    rules: StopRules
    callbacks: Sequence[Callback]
    progress: bool | None
    made: dict[tuple[int, int, int], tuple[list[float], float]] = field(default_factory=dict)  # by agent, round, place

    def __post_init__(self) -> None:
        for event in self.journal.events[1:]:
            value = math.nan if event["value"] is None else event["value"]
            self.made[event["agent"], event["round"], event["place"]] = event["x"], value
        self._until = None if self.rules.timeout is None else time.monotonic() + self.rules.timeout
        self._planned = self.study.n_agents * (self.study.n_init + self.study.rounds)
        shown = sys.stderr.isatty() or "notebook" in tqdm.__module__ if self.progress is None else self.progress
        name = self.study.algorithm.name
        self._bar = tqdm(total=self._planned, initial=len(self.made), desc=name, unit=" evaluations", disable=not shown)

    def known(self, agent: int, round: int, place: int, x: np.ndarray) -> float | None:
        if (agent, round, place) not in self.made:
            self._check_rules()
            return None
        before, value = self.made[agent, round, place]
        if not np.allclose(before, x, rtol=_SAME, atol=0.0):
            raise StateError(
                f"{self.journal.folder} has the value of another query of agent {agent} in round {round}: go on with "
                "the version of dpfbo that began the study, or give another folder"
            )
        return value

    def add(self, agent: int, round: int, place: int, x: np.ndarray, value: float) -> None:
        failed, numbers = math.isnan(value), x.tolist()
        event = {"agent": agent, "round": round, "place": place, "x": numbers, "value": None if failed else value}
        self.journal.append({"event": "evaluation", **event})
        self.made[agent, round, place] = numbers, value
        self._bar.update()
        told = Evaluation(agent, round, self.space.configuration(numbers), None if failed else value)
        for callback in self.callbacks:
            callback(self.study, told)
        self._check_rules()

    def _check_rules(self) -> None:
        if len(self.made) == self._planned:
            return
        most = self.rules.max_evaluations
        if most is not None and len(self.made) >= most:
            raise Stop(f"max_evaluations={most}")
        if self._until is not None and time.monotonic() > self._until:
            raise Stop(f"timeout={self.rules.timeout:g}")

    def show(self, mean: float) -> None:
        """Show the metric's mean beside the progress bar."""
        self._bar.set_postfix(mean=f"{mean:.4g}")

    def after(self, rounds: int) -> list[Evaluation]:
        """Return the evaluations of the unfinished round. rounds: the number of finished rounds."""
        return [
            Evaluation(agent, round, self.space.configuration(x), None if math.isnan(y) else y)
            for (agent, round, _), (x, y) in sorted(self.made.items())
            if round >= rounds
        ]

    def close(self) -> None:
        """Close the progress bar and unlock the journal; delete the journal's files if there is no evaluation."""
        self._bar.close()
        if not self.made and self.journal.folder is not None:
            self.journal.forget(FILE)
            self.journal.forget(DESCRIPTION)
        self.journal.close()
