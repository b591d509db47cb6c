"""Studies and runs in one call."""

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
from dpfbo.study.algorithm import Algorithm
from dpfbo.study.optimization import Optimization
from dpfbo.study.presets import Preset, algorithm_named, mechanism_for, weights_for
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
    """The study of N agents that search a space together, each for the best configuration of its own objective.

    space: named parameters, or a domain. algorithm: a name of `dpfbo.algorithm_named`, or an `Algorithm`. epsilon: of
    the whole run at user level and delta (None: N^-1.1), from which follows the noise of a private algorithm, and
    nothing of another; None: the preset's noise multiplier. rounds: T, after `n_init` initial points. seed: of all that
    is public. rng: `os`, noise from the operating system, for real data; `seeded`, a simulation that can be repeated,
    and whose noise everybody who knows the seed can remove.

    Raises SettingError, one sentence with the name, for settings that do not go together.
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

    ledger: None for one in memory, enough for a simulation. Several studies may charge one, also at the same time,
    unless it is bound to one (`ledger.bind(study.coverage())`). on_round: called after every round. threads: on which
    blocks of agents do their steps; it changes no number.

    Raises SettingError if the problem has another domain or number of agents, or if real releases (rng `os`) would be
    charged to a ledger in memory, which is lost with the process. Raises LedgerError, before anything is evaluated, for
    a ledger that cannot be written.
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
    """Tune `f(agent, configuration)` for each of N agents, which share what they learn privately.

    f: the objective of an agent, 0..N-1, at a configuration, a dict of the space's parameters. maximize: False if small
    values are better. on_failure, retries, n_jobs, timeout: of failed and slow calls, see `dpfbo.Custom`. All else as
    in `create_study` and `run_study`, but that `rng` is `seeded`: this is a simulation, in which one process holds the
    data of all agents.

    Raises SettingError, one sentence with the name, for settings that do not go together; EvaluationError naming agent
    and configuration if f raises or returns no finite number.
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
