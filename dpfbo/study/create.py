"""Functions that describe a study, run it, or do both in one call."""

import warnings
from collections.abc import Callable, Mapping
from typing import Any

from dpfbo import checks
from dpfbo.checks import SettingError
from dpfbo.federated.federation import run as run_federated
from dpfbo.gp.acquisition import Acquisition
from dpfbo.privacy.ledger import Ledger
from dpfbo.problems.custom import Custom
from dpfbo.problems.problem import Problem
from dpfbo.run_result import OnRound
from dpfbo.space.domain import Domain
from dpfbo.space.parameters import Space
from dpfbo.study.algorithm import Algorithm, Preset, algorithm_named, mechanism_for, weights_for
from dpfbo.study.optimization import Optimization
from dpfbo.study.study import Study


def create_study(
    space: Space | Mapping[str, Any] | Domain,
    *,
    n_agents: int,
    algorithm: str | Algorithm = "dp_prior",
    epsilon: float | None = 1.0,
    rounds: int = 20,
    n_init: int = 5,
    seed: int = 0,
    delta: float | None = None,
    rng: str = "os",
    preset: Preset = Preset(),
    acquisition: Acquisition = Acquisition(),
) -> Study:
    """Describe a run of N agents that search a space together, each for the best configuration of its own objective.

    Args:
        space: Named parameters, or a domain such as `Box`.
        n_agents: The number of agents, N.
        algorithm: A name of `dpfbo.algorithm_named`, or an `Algorithm`.
        epsilon: The privacy budget of the whole run, at user level. It determines the noise of a private algorithm;
            other algorithms ignore it. None to use the preset's noise multiplier instead.
        rounds: The number of rounds after the initial points, T.
        n_init: The number of initial points of each agent.
        seed: The public seed of all random numbers, except of the noise and the choice of agents if rng is `os`.
        delta: The delta of epsilon; None for N^-1.1, which is large for small N.
        rng: `os` for real data: the operating system draws the noise. `seeded` for a simulation: it can be repeated,
            and anybody who knows the seed can remove the noise.
        preset: The settings of the named algorithms that depend on the problem.
        acquisition: The search for the maximum of a function on a box.

    Returns:
        The study, which is public.

    Raises:
        SettingError: A setting is out of range or contradicts another setting; the error names the setting.

    Example:
        >>> import dpfbo
        >>> space = {"rate": dpfbo.Float(1e-4, 1.0, log=True), "depth": dpfbo.Integer(1, 12)}
        >>> study = dpfbo.create_study(space, n_agents=100, algorithm="dp_prior", epsilon=1.0, delta=1e-3, rounds=5)
        >>> study.promise
        'epsilon 1.00 at delta 0.001, relation zero-out, user level, by pld'
        >>> study.mechanism.noise_multiplier
        2.575
    """
    named = Space(space) if isinstance(space, Mapping) else space if isinstance(space, Space) else None
    domain: Any = space if named is None else named.domain
    if not hasattr(domain, "dimension"):
        raise SettingError("space", f"must be parameters by name, a dpfbo.Space or a domain, got {space!r}")
    checks.integer("n_agents", n_agents, minimum=1, maximum=checks.MOST_AGENTS)
    checks.integer("n_init", n_init, minimum=1, maximum=checks.MOST_INITIAL)
    chosen = algorithm if isinstance(algorithm, Algorithm) else algorithm_named(algorithm, preset)
    study = Study(
        domain, n_agents, rounds, n_init, chosen, mechanism_for(chosen, n_init, preset), weights_for(chosen, preset),
        acquisition, seed=seed, rng=rng, delta=delta, space=named,
    )  # fmt: skip
    study.agents  # noqa: B018  (raises for settings that do not fit the space)
    return study.calibrated(epsilon) if chosen.private and epsilon is not None else study


def run_study(
    study: Study,
    problem: Problem,
    ledger: Ledger | None = None,
    on_round: OnRound = lambda done: None,
    threads: int = 1,
) -> Optimization:
    """Run all rounds of a study in this process.

    Args:
        study: The description of the run.
        problem: The objectives, with the study's domain and number of agents.
        ledger: The ledger that records the cost of each broadcast; None for a ledger in memory, which suffices for a
            simulation. Several studies may use the same ledger, even at the same time, unless it is bound to one study
            (`ledger.bind(study.coverage())`).
        on_round: A function that is called after every round.
        threads: The number of threads on which blocks of agents compute; it changes no result.

    Returns:
        The queries and values of all agents, and the epsilon of the broadcasts.

    Raises:
        SettingError: The problem has another domain or number of agents, or real releases (rng `os`) would be charged
            to a ledger in memory, which is lost with the process.
        LedgerError: The ledger cannot be written; a private algorithm checks this before it evaluates anything.

    Example:
        >>> import dpfbo
        >>> problem = dpfbo.problems.Branin(n_agents=6)
        >>> study = dpfbo.create_study(problem.domain, n_agents=6, algorithm="ts", rounds=3, n_init=2, rng="seeded")
        >>> result = dpfbo.run_study(study, problem)
        >>> len(result.curve), result.epsilon
        (4, 0.0)
    """
    if problem.domain != study.domain or problem.n_agents != study.n_agents:
        raise SettingError("problem", "must have the domain and the number of agents of the study")
    ledger = Ledger() if ledger is None else ledger
    if not isinstance(ledger, Ledger):
        raise SettingError("ledger", f"must be a dpfbo.Ledger, got {ledger!r}")
    if ledger.path is None and study.rng == "os" and study.algorithm.private:
        raise SettingError("ledger", "must be a dpfbo.Ledger with a path where releases are real (rng os)")
    checks.integer("threads", threads, minimum=1, maximum=checks.MOST_WORKERS)
    if study.algorithm.private:
        with ledger.locked():  # raises for one that cannot be written, before anything is evaluated
            pass
    if study.outlook is not None and study.outlook.weak:
        warnings.warn(f"{study.outlook}; agents will tune almost alone, as 'local' does at no cost", stacklevel=2)
    server, population = study.server(ledger), study.population(problem, threads)
    result = run_federated(population, server, study.rounds, on_round, study.result(), study.broadcasts)
    return Optimization(study, problem, result, ledger)


def optimize(
    f: Callable[[int, Any], float],
    space: Space | Mapping[str, Any],
    n_agents: int = 20,
    algorithm: str | Algorithm = "dp_prior",
    epsilon: float | None = 1.0,
    rounds: int = 20,
    seed: int = 0,
    *,
    maximize: bool = True,
    on_failure: str = "stop",
    retries: int = 0,
    n_jobs: int = 1,
    timeout: float | None = None,
    n_init: int = 5,
    delta: float | None = None,
    rng: str = "seeded",
    ledger: Ledger | None = None,
    preset: Preset = Preset(),
    acquisition: Acquisition = Acquisition(),
    on_round: OnRound = lambda done: None,
    threads: int = 1,
) -> Optimization:
    """Tune `f(agent, configuration)` for each of N agents, which learn from each other with differential privacy.

    This is a simulation: one process holds the data of all agents.

    Args:
        f: The objective. It receives the agent's number, 0..N-1, and a configuration, a dict of the space's parameters.
        space: Named parameters.
        n_agents: The number of agents, N.
        algorithm: A name of `dpfbo.algorithm_named`, or an `Algorithm`.
        epsilon: The privacy budget of the whole run, at user level; None to use the preset's noise multiplier.
        rounds: The number of rounds after the initial points, T.
        seed: The seed of all random numbers, except of the noise and the choice of agents if rng is `os`.
        maximize: False if small values are better.
        on_failure: `stop` or `penalty`. `dpfbo.Custom` explains this and the next three arguments.
        retries: The number of further calls of f after a failed call.
        n_jobs: The number of calls of f at a time.
        timeout: Seconds after which a call of f counts as failed; None for no limit.
        n_init: The number of initial points of each agent.
        delta: The delta of epsilon; None for N^-1.1.
        rng: `seeded`; or `os`, to let the operating system draw the noise, which needs a ledger with a path.
        ledger: The ledger that records the cost of each broadcast; None for a ledger in memory.
        preset: The settings of the named algorithms that depend on the problem.
        acquisition: The search for the maximum of a function on a box.
        on_round: A function that is called after every round.
        threads: The number of threads on which blocks of agents compute; it changes no result.

    Returns:
        The queries and values of all agents, and the epsilon of the broadcasts.

    Raises:
        SettingError: A setting is out of range or contradicts another setting; the error names the setting.
        EvaluationError: f raised, or did not return a finite number; the error names agent and configuration.

    Example:
        >>> import dpfbo
        >>> def score(agent, x):
        ...     return -((x["depth"] - 4) ** 2)
        >>> result = dpfbo.optimize(
        ...     score, {"depth": dpfbo.Integer(1, 12)}, n_agents=10, epsilon=1.0, delta=1e-3, rounds=3
        ... )
        >>> result.best()[0].configuration
        {'depth': 4}
        >>> round(result.epsilon, 2)
        1.0
    """
    space = space if isinstance(space, Space) else Space(space)
    problem = Custom(
        f, n_agents=n_agents, maximize=maximize, space=space, on_failure=on_failure, retries=retries, n_jobs=n_jobs,
        timeout=timeout,
    )  # fmt: skip
    study = create_study(
        space, n_agents=n_agents, algorithm=algorithm, epsilon=epsilon, rounds=rounds, n_init=n_init, seed=seed,
        delta=delta, rng=rng, preset=preset, acquisition=acquisition,
    )  # fmt: skip
    try:
        return run_study(study, problem, ledger, on_round, threads)
    finally:
        problem.close()
