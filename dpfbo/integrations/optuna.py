"""An Optuna sampler: a site keeps its Optuna study, storage and dashboard, and gets the private prior."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from dpfbo.checks import SettingError, nearest
from dpfbo.extras import needing
from dpfbo.formats.journal import StateError
from dpfbo.protocol.agent import Agent
from dpfbo.space.other_libraries import optuna_distributions

with needing("optuna", "a sampler for Optuna"):
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler
    from optuna.study import Study, StudyDirection
    from optuna.trial import FrozenTrial, TrialState

_NUMBER = "dpfbo:number"  # attribute of a trial: the number of its point among those that the agent was asked for

Exchange = Callable[[bytes], bytes | None]


class AgentSampler(BaseSampler):
    """Chooses the parameters of one site's Optuna study by its `dpfbo.Agent`.

    Trials that the Optuna study holds from before reach the agent's model (`Agent.tell`). A pruned or failed trial
    counts as the worst value so far, and one that was enqueued with parameters of its own counts with these. Trials
    with the state RUNNING wait for their value; those of a process that died must be ended (Optuna's heartbeats, or
    `study.tell(number, state=FAIL)`), or their initial points are given out once more.

    Args:
        agent: The site's agent, with a folder, from which a restarted process continues.
        exchange: Sends the site's message to the server, and returns the broadcast that follows, or None while it is
            not there. It is called before each trial, with the same message until the broadcast has come. It can be
            left out for algorithms that send nothing.

    Raises:
        SettingError: The agent's study names no parameters.
        MissingPackage: Optuna is not installed.

    Guarantee:
        Messages and broadcasts are those of `dpfbo.Agent` and `dpfbo.Coordinator`, whose guarantee holds. Earlier
        trials do not enter the message of the private prior.

    Example:
        >>> import dpfbo, optuna
        >>> from dpfbo.integrations.optuna import AgentSampler
        >>> optuna.logging.set_verbosity(optuna.logging.WARNING)
        >>> study = dpfbo.create_study({"x": dpfbo.Float(0, 1)}, n_agents=1, algorithm="local", rounds=10, n_init=4)
        >>> site = optuna.create_study(direction="maximize", sampler=AgentSampler(dpfbo.Agent(study, 0)))
        >>> site.optimize(lambda trial: -((trial.suggest_float("x", 0, 1) - 0.3) ** 2), n_trials=10)
        >>> abs(site.best_params["x"] - 0.3) < 0.05
        True
    """

    def __init__(self, agent: Agent, exchange: Exchange | None = None) -> None:
        space = agent.study.space
        if space is None:
            raise SettingError("agent", "must be of a study with named parameters")
        flat = {name: replace(p, when=None) for name, p in space.parameters.items()}
        self._space: dict[str, BaseDistribution] = optuna_distributions(flat)
        self._natural = space.natural
        self._agent, self._exchange, self._lock = agent, exchange, threading.RLock()

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return self._space

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """The agent's next configuration.

        Raises:
            SettingError: The Optuna study has several objectives or another direction than the agent.
            StateError: A message is due, and there is no `exchange`.
        """
        with self._lock:
            self._check_direction(study)
            self._tell_earlier(study)
            self._exchange_bytes()
            number = self._next(study, trial)
            study._storage.set_trial_system_attr(trial._trial_id, _NUMBER, number)
            return dict(self._agent.pending[number])  # type: ignore[arg-type]  # a study with names has dicts

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Raise SettingError for a parameter that the agent's study does not have, or not with these values."""
        if param_name not in self._space:
            rule = f"must be a parameter of the agent's study{nearest(param_name, self._space)}"
        elif param_distribution != self._space[param_name]:
            rule = f"must be {self._space[param_name]} as in the agent's study, got {param_distribution}"
        else:
            rule = "is inactive in this configuration: ask for it only where its condition holds"
        raise SettingError(param_name, rule)

    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None) -> None:
        with self._lock:
            number = trial.system_attrs.get(_NUMBER)
            if number not in self._agent.pending:
                return  # an initial point that was given out twice
            if state != TrialState.COMPLETE or not values:
                self._agent.tell(number, failed=True)
            elif self._natural(self._agent.pending[number]).equal(self._natural(trial.params)):  # type: ignore[arg-type]
                self._agent.tell(number, values[0])
            else:  # it was enqueued with parameters of its own; the agent's point stays pending
                self._agent.tell(trial.params, values[0])

    def _check_direction(self, study: Study) -> None:
        wanted = StudyDirection.MAXIMIZE if self._agent.maximize else StudyDirection.MINIMIZE
        if study.directions != [wanted]:
            found = [direction.name.lower() for direction in study.directions]
            rule = f"must be {wanted.name.lower()!r}, as Agent(maximize={self._agent.maximize}) says, got {found}"
            raise SettingError("direction", rule)

    def _tell_earlier(self, study: Study) -> None:
        """Tell of the trials that another sampler made."""
        for earlier in study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)):
            if _NUMBER not in earlier.system_attrs and earlier.value is not None:
                self._agent.tell(earlier.params, earlier.value)

    def _exchange_bytes(self) -> None:
        """Send the message that is due, or the one that still waits for its broadcast."""
        due = self._agent.message_due
        if not due and self._agent.awaited is None:
            return
        if self._exchange is None:
            raise StateError("a message to the server is due: give the sampler an exchange")
        data = self._exchange(self._agent.message(None if due else self._agent.awaited))
        if data is not None:
            self._agent.receive(data)

    def _next(self, study: Study, trial: FrozenTrial) -> int:
        """The number of a point that no running trial has, or else of a new one."""
        others = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        held = {t.system_attrs.get(_NUMBER) for t in others if t.number != trial.number}
        free = [number for number in self._agent.pending if number not in held]
        if not free:
            try:
                self._agent.ask()
            except StateError:  # initial points wait for trials that may be dead
                return min(self._agent.pending)
            free = [max(self._agent.pending)]
        return free[0]
