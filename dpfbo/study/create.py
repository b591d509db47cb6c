"""Functions that describe a study and run it."""

import warnings
from collections.abc import Mapping
from typing import Any

from dpfbo import checks
from dpfbo.checks import SettingError
from dpfbo.federated.distributed import without_trust
from dpfbo.federated.federation import run as run_federated
from dpfbo.gp.acquisition import Acquisition
from dpfbo.privacy.accounting import check_delta
from dpfbo.privacy.ledger import Ledger
from dpfbo.problems.problem import Problem
from dpfbo.run_result import OnRound
from dpfbo.space.domain import Domain
from dpfbo.space.parameters import Space
from dpfbo.study.algorithm import Algorithm, Preset, algorithm_named, mechanism_for, weights_for
from dpfbo.study.optimization import Optimization
from dpfbo.study.study import Study


@checks.explaining_arguments({"f": "the objective to run_study, as a dpfbo.Custom"})
def create_study(
    space: Space | Mapping[str, Any] | Domain,
    *,
    n_agents: int,
    algorithm: str | Algorithm = "dp_prior",
    epsilon: float | None = None,
    rounds: int = 20,
    n_init: int = 5,
    seed: int = 0,
    delta: float | None = None,
    noise_multiplier: float | None = None,
    rng: str = "os",
    trust: str = "server",
    max_dropouts: int = 0,
    colluders: int = 0,
    preset: Preset = Preset(),
    acquisition: Acquisition = Acquisition(),
) -> Study:
    """Describe a run of N agents, each of which searches a space for the best configuration of its own objective.

    Args:
        space: Named parameters, or a domain such as `Box`.
        n_agents: The number of agents, N.
        algorithm: A name of `dpfbo.algorithm_named`, or an `Algorithm`.
        epsilon: The privacy budget of the whole run, at user level. It determines the noise of a private algorithm.
            If it is None and no `noise_multiplier` is given, it is 1.
        rounds: The number of rounds after the initial points, T.
        n_init: The number of initial points of each agent.
        seed: The public seed of all random numbers. If rng is `os`, the noise and the sampling of agents do not depend
            on it.
        delta: The delta of the guarantee. None means min(N^-1.1, .001) if rng is `os`, and N^-1.1 if rng is `seeded`.
        noise_multiplier: The noise multiplier z of a private algorithm, in place of epsilon.
        rng: `os` for real data: the operating system draws the noise. `seeded` for a simulation that can be repeated;
            anybody who knows the seed can remove the noise.
        trust: `server` if the agents trust the server, which then adds the noise. `nobody` if each agent adds a share
            of the noise and the server sees only the noisy sum (`dpfbo.secure.SecureSite`).
        max_dropouts: With trust `nobody`, the number of agents that may drop out of the sum.
        colluders: With trust `nobody`, the number of agents that may reveal all they know to the server.
        preset: The settings that depend on the problem. If `algorithm` is an `Algorithm`, only `sampling_probability`
            and `decay` are used.
        acquisition: How agents maximise their acquisition functions over the domain.

    Returns:
        The study. It contains only public settings.

    Raises:
        SettingError: A setting is out of range or contradicts another.

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
    if not isinstance(preset, Preset):
        raise SettingError("preset", f"must be a dpfbo.Preset, got {checks.shown(preset)}")
    chosen = algorithm if isinstance(algorithm, Algorithm) else algorithm_named(algorithm, preset)
    checks.one_of("trust", trust, ("server", "nobody"))
    mechanism = mechanism_for(chosen, n_init, preset)
    for name, number in (("max_dropouts", max_dropouts), ("colluders", colluders)):
        checks.integer(name, number, minimum=0)
        if number and trust == "server":
            raise SettingError(name, f"must be 0 with trust='server', got {number!r}")
    if trust == "nobody":
        mechanism = without_trust(mechanism, max_dropouts, colluders)
    study = Study(
        domain, n_agents, rounds, n_init, chosen, mechanism, weights_for(chosen, preset),
        acquisition, seed=seed, rng=rng, delta=delta, space=named,
    )  # fmt: skip
    study.agents  # noqa: B018  (raises for settings that do not fit the space)
    if delta is not None:
        check_delta(delta)
    privacy = {"epsilon": epsilon, "delta": delta, "noise_multiplier": noise_multiplier}
    for name, value in privacy.items():
        if value is not None and not chosen.private:
            rule = f"has no effect on algorithm={chosen.name}, which is not private: leave it out, got {value!r}"
            raise SettingError(name, rule)
    if noise_multiplier is not None:
        if epsilon is not None:
            rule = f"must be left out where epsilon={epsilon!r} determines it, got {noise_multiplier!r}"
            raise SettingError("noise_multiplier", rule)
        return study.with_multiplier(noise_multiplier)
    return study.calibrated(1.0 if epsilon is None else epsilon) if chosen.private else study


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
        ledger: The ledger that records the cost of each broadcast; None for one in memory, for a simulation. Several
            studies may share a ledger, even at the same time. `ledger.bind(study.coverage())` reserves an empty ledger
            for one study.
        on_round: A function that receives each finished `Round`.
        threads: The number of threads for agents' computations; it changes no result.

    Returns:
        The queries and values of all agents, and the epsilon of the broadcasts.

    Raises:
        SettingError: The problem and the study differ in domain or number of agents, or real releases (rng `os`) would
            be charged to a ledger in memory.
        LedgerError: The ledger of a private algorithm cannot be written.

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
    checks.integer("threads", threads, minimum=1, maximum=checks.MOST_WORKERS)
    ledger = checked_ledger(study, ledger, level=3)
    server, population = study.server(ledger), study.population(problem, threads)
    result = run_federated(population, server, study.rounds, on_round, study.result(), study.broadcasts)
    return Optimization(study, problem, result, ledger)


def checked_ledger(study: Study, ledger: Ledger | None, level: int) -> Ledger:
    """Check the ledger of a run and return it; if it is None, return a new ledger in memory.

    Warns if the release of a private prior will have little signal. level: the `stacklevel` of this warning.

    Raises SettingError if real releases (rng `os`) have no ledger on disk, and LedgerError if a private algorithm's
    ledger cannot be written.
    """
    ledger = Ledger() if ledger is None else ledger
    if not isinstance(ledger, Ledger):
        raise SettingError("ledger", f"must be a dpfbo.Ledger, got {ledger!r}")
    if ledger.path is None and study.rng == "os" and study.algorithm.private:
        raise SettingError("ledger", "must be a dpfbo.Ledger with a path where releases are real (rng os)")
    if study.algorithm.private:
        with ledger.locked():  # raises if the ledger cannot be written, before anything is evaluated
            pass
    if study.outlook is not None and study.outlook.weak:
        warnings.warn(f"{study.outlook}; agents will tune almost alone, as 'local' does at no cost", stacklevel=level)
    return ledger
