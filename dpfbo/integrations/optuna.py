"""An Optuna sampler by which a site's agent chooses parameters."""

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

_NUMBER = "dpfbo:number"  # attribute of a trial: the number of its point in `Agent.pending`
_ENQUEUED = "fixed_params"  # attribute in which Optuna keeps the parameters of an enqueued trial

Exchange = Callable[[bytes], bytes | None]


class AgentSampler(BaseSampler):
    """Chooses the parameters of a site's Optuna study with the site's `dpfbo.Agent`.

    The agent also learns of completed trials that the Optuna study already contains. A pruned or failed trial counts as
    the worst value so far, but it is ignored if it was enqueued with parameters that differ from the agent's choice.
    If an enqueued trial completes, the agent records its value at the enqueued parameters.

    The sampler gives each point to only one trial in state RUNNING, with one exception. The agent needs the values of
    all initial points before it chooses further points. If a trial starts earlier and no initial point is left, the
    trial repeats an initial point that another trial is evaluating. The trials of a process that has died stay in state
    RUNNING, so end them (by Optuna's heartbeats or by `study.tell(number, state=FAIL)`).

    Args:
        agent: The site's agent. If it has a folder, a restarted process continues from there.
        exchange: A function that sends the site's message to the server and returns the next broadcast, or None if the
            broadcast is not available yet. If a message is due before a trial, the sampler calls `exchange` with it. If
            no message is due, but the last one still waits for its broadcast, the sampler calls `exchange` with the
            last one again. Not needed for algorithms that send no messages.

    Raises:
        SettingError: The agent's study has no named parameters.
        MissingPackage: Optuna is not installed.

    Guarantee:
        The guarantees of `dpfbo.Agent` and `dpfbo.Coordinator` apply: their messages and broadcasts are used unchanged.
        The message of the private prior (algorithm `dp_prior`) uses only trials whose parameters the agent chose.

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
        """Return the agent's next configuration.

        Raises:
            SettingError: The Optuna study has several objectives or a direction other than the agent's.
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
        """Refuse a parameter that the agent's configuration does not contain.

        Raises:
            SettingError: The agent's study has no such parameter, or has it with another distribution, or the parameter
                is inactive in this configuration.
        """
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
                return  # another trial with the same initial point has ended before
            point: dict[str, Any] = self._agent.pending[number]  # type: ignore[assignment]
            if state != TrialState.COMPLETE or not values:
                enqueued = trial.system_attrs.get(_ENQUEUED, {})
                if all(point.get(name) == value for name, value in enqueued.items()):
                    self._agent.tell(number, failed=True)
            elif self._natural(point).equal(self._natural(trial.params)):
                self._agent.tell(number, values[0])
            else:  # the trial was enqueued with other parameters; the agent's point stays pending
                self._agent.tell(trial.params, values[0])

    def _check_direction(self, study: Study) -> None:
        wanted = StudyDirection.MAXIMIZE if self._agent.maximize else StudyDirection.MINIMIZE
        if study.directions != [wanted]:
            found = [direction.name.lower() for direction in study.directions]
            rule = f"must be {wanted.name.lower()!r}, as Agent(maximize={self._agent.maximize}) says, got {found}"
            raise SettingError("direction", rule)

    def _tell_earlier(self, study: Study) -> None:
        """Give the agent the completed trials whose parameters this sampler did not choose."""
        for earlier in study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)):
            if _NUMBER not in earlier.system_attrs and earlier.value is not None:
                self._agent.tell(earlier.params, earlier.value)

    def _exchange_bytes(self) -> None:
        """Send the message that is due, or repeat the last message if the broadcast in answer has not arrived yet."""
        due = self._agent.message_due
        if not due and self._agent.awaited is None:
            return
        if self._exchange is None:
            raise StateError("a message to the server is due: give the sampler an exchange")
        data = self._exchange(self._agent.message(None if due else self._agent.awaited))
        if data is not None:
            self._agent.receive(data)

    def _next(self, study: Study, trial: FrozenTrial) -> int:
        """Return the number of the point that this trial evaluates.

        The first choice is a pending point that no other running trial holds; the second is a new point. If the agent
        refuses to give a new point, the trial repeats the first pending point.
        """
        others = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        held = {t.system_attrs.get(_NUMBER) for t in others if t.number != trial.number}
        free = [number for number in self._agent.pending if number not in held]
        if not free:
            try:
                self._agent.ask()
            except StateError:  # initial points belong to trials whose processes may have died
                return min(self._agent.pending)
            free = [max(self._agent.pending)]
        return free[0]
