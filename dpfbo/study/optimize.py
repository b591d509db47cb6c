"""Run a study of the caller's own function in one call."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dpfbo import checks
from dpfbo.checks import SettingError
from dpfbo.federated.federation import run as run_federated
from dpfbo.formats.journal import Journal
from dpfbo.gp.acquisition import Acquisition
from dpfbo.privacy.ledger import Ledger
from dpfbo.problems.custom import Custom, EvaluationError
from dpfbo.run_result import OnRound, Round
from dpfbo.space.parameters import Space
from dpfbo.study import stored_result
from dpfbo.study.algorithm import Algorithm, Preset
from dpfbo.study.create import checked_ledger, create_study
from dpfbo.study.evaluations import DESCRIPTION, FILE, Callback, Evaluations, Stop, StopRules
from dpfbo.study.optimization import Optimization
from dpfbo.study.study import Study
from dpfbo.study.study_folder import StudyFolder

_OF_OTHERS = {  # argument names of other libraries, and what to use here instead
    **dict.fromkeys(("direction", "minimize"), "maximize=False if small values are better"),
    **dict.fromkeys(("n_trials", "n_calls", "n_iter", "max_evals"), "rounds, or max_evaluations of all agents"),
    **dict.fromkeys(("n_startup_trials", "n_initial_points", "init_points"), "n_init"),
    **dict.fromkeys(("objective", "func", "fn"), "f, called as f(agent, configuration)"),
    **dict.fromkeys(("search_space", "bounds", "dimensions", "parameters", "distributions"), "space"),
    **dict.fromkeys(("sampler", "method", "strategy"), "algorithm"),
    **dict.fromkeys(("random_state", "random_seed"), "seed"),
    **dict.fromkeys(("n_clients", "n_sites", "num_clients", "clients"), "n_agents"),
    **dict.fromkeys(("storage", "study_name", "load_if_exists", "checkpoint"), "folder"),
    **dict.fromkeys(("show_progress_bar", "verbose"), "progress"),
    **dict.fromkeys(("n_workers", "n_procs"), "n_jobs"),
    "catch": "on_failure='penalty'",
    "target_epsilon": "epsilon", "target_delta": "delta", "sigma": "noise_multiplier", "callback": "callbacks",
}  # fmt: skip


@checks.explaining_arguments(_OF_OTHERS)
def optimize(
    f: Callable[[int, Any], float],
    space: Space | Mapping[str, Any],
    n_agents: int = 20,
    algorithm: str | Algorithm = "dp_prior",
    epsilon: float | None = None,
    rounds: int = 20,
    seed: int = 0,
    *,
    folder: str | os.PathLike[str] | None = None,
    maximize: bool = True,
    on_failure: str = "stop",
    retries: int = 0,
    n_jobs: int = 1,
    call_timeout: float | None = None,
    n_init: int = 5,
    delta: float | None = None,
    noise_multiplier: float | None = None,
    rng: str = "seeded",
    ledger: Ledger | None = None,
    preset: Preset = Preset(),
    acquisition: Acquisition = Acquisition(),
    progress: bool | None = None,
    callbacks: Sequence[Callback] = (),
    max_evaluations: int | None = None,
    timeout: float | None = None,
    min_gain: float | None = None,
    on_round: OnRound = lambda done: None,
    threads: int = 1,
) -> Optimization:
    """Tune `f(agent, configuration)` for each of N agents, which learn from each other with differential privacy.

    This is a simulation: one process holds the data of all agents.

    Ctrl-C, a limit such as `timeout`, or `dpfbo.stop()` in a callback can end the study early. The call then returns
    the result so far; `result.stopped` says why. If a folder was given, call `optimize` again with the same arguments
    to continue the study, even after an exception or a kill. The result is the same as without the interruption. Each
    study has its own subfolder.

    Args:
        f: The objective. It receives the agent's number, 0..N-1, and a configuration, a dict of the space's parameters.
        space: Named parameters.
        n_agents: The number of agents, N.
        algorithm: A name of `dpfbo.algorithm_named`, or an `Algorithm`.
        epsilon: The privacy budget of the whole run, at user level. It determines the noise of a private algorithm.
            If it is None and no `noise_multiplier` is given, it is 1.
        rounds: The number of rounds after the initial points, T.
        seed: The seed of all random numbers. If rng is `os`, the noise and the sampling of agents do not depend on it.
        folder: The folder to which each evaluation is written durably at once; None to write nothing.
        maximize: False if small values are better.
        on_failure: The reaction to a failed call of f: `stop` or `penalty`, as in `dpfbo.Custom`.
        retries: The number of further calls of f after a failed call.
        n_jobs: The number of parallel calls of f, as in `dpfbo.Custom`.
        call_timeout: The seconds after which a call of f counts as failed; None for no limit.
        n_init: The number of initial points of each agent.
        delta: The delta of the guarantee. None means min(N^-1.1, .001) if rng is `os`, and N^-1.1 if rng is `seeded`.
        noise_multiplier: The noise multiplier z of a private algorithm, in place of epsilon.
        rng: `seeded` if the seed determines the noise; `os` if the operating system draws the noise. With `os`, give a
            folder or a ledger with a path.
        ledger: The ledger that records the cost of each broadcast; None for the ledger in the folder or, without a
            folder, a new one in memory.
        preset: The settings that depend on the problem. If `algorithm` is an `Algorithm`, only `sampling_probability`
            and `decay` are used.
        acquisition: How agents maximise their acquisition functions over the domain.
        progress: True shows a progress bar; None shows it only in a terminal or a notebook.
        callbacks: Functions that receive the study and an `Evaluation` after each evaluation.
        max_evaluations: The total number of evaluations after which the study ends.
        timeout: The seconds after which the study ends, once the running evaluation is complete.
        min_gain: The study ends after a round in which no agent expects an improvement of this size from its next
            query. Only for `local`, `shared_prior` and `dp_prior`, whose agents maximise expected improvement.
        on_round: A function that receives each finished `Round`.
        threads: The number of threads for agents' computations; it changes no result.

    Returns:
        The queries and values of all agents, and the epsilon of the broadcasts.

    Raises:
        SettingError: A setting is out of range or contradicts another.
        EvaluationError: A call of f failed after all retries, and `on_failure` is `stop`.
        MissingPackage: A folder is given, but a package that writes its files is not installed.
        ResultsError: Another process is using the study's folder.

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
    if callable(space):
        raise SettingError("space", f"comes after the function, optimize(f, space), got {checks.shown(space)}")
    space = space if isinstance(space, Space) else Space(space)
    if not isinstance(callbacks, Sequence) or not all(map(callable, callbacks)):
        raise SettingError("callbacks", f"must be a list of functions, got {checks.shown(callbacks)}")
    if folder is not None and not isinstance(folder, str | os.PathLike):
        raise SettingError("folder", f"must be a path, got {checks.shown(folder)}")
    checks.one_of("progress", progress, (True, False, None))
    rules = StopRules(max_evaluations, timeout, min_gain)
    checks.integer("threads", threads, minimum=1, maximum=checks.MOST_WORKERS)
    problem = Custom(
        f, n_agents=n_agents, maximize=maximize, space=space, on_failure=on_failure, retries=retries, n_jobs=n_jobs,
        timeout=call_timeout,
    )  # fmt: skip
    study = create_study(
        space, n_agents=n_agents, algorithm=algorithm, epsilon=epsilon, rounds=rounds, n_init=n_init, seed=seed,
        delta=delta, noise_multiplier=noise_multiplier, rng=rng, preset=preset, acquisition=acquisition,
    )  # fmt: skip
    if min_gain is not None and study.algorithm.averaged_gp is None:
        rule = f"has no effect on algorithm={study.algorithm.name}, which has no expected improvement: leave it out"
        raise SettingError("min_gain", f"{rule}, got {min_gain!r}")
    study.plan  # noqa: B018  (raises if the accountant cannot analyse the study)
    if folder is None:
        journal = Journal(None, "", {"event": "study"})
        evaluations = Evaluations(study, space, journal, rules, callbacks, progress)
        return _run(study, replace(problem, record=evaluations), evaluations, ledger, None, on_round, threads)
    target = study.algorithm.private and noise_multiplier is None
    place = StudyFolder.of(Path(folder), study, (1.0 if epsilon is None else epsilon) if target else None)
    name = getattr(f, "__qualname__", type(f).__qualname__)
    with place.opened():
        journal = Journal(place.files.path, FILE, place.first_event(name, problem))
        evaluations = Evaluations(study, space, journal, rules, callbacks, progress)
        journal.keep(DESCRIPTION, stored_result.description(study, problem))
        ledger = Ledger(place.files.ledger_path) if ledger is None else ledger
        return _run(study, replace(problem, record=evaluations), evaluations, ledger, place, on_round, threads)


def _run(
    study: Study,
    problem: Custom,
    evaluations: Evaluations,
    ledger: Ledger | None,
    place: StudyFolder | None,
    on_round: OnRound,
    threads: int,
) -> Optimization:
    stopped, result = None, study.result()
    path = None if place is None else place.files.path
    try:
        ledger = checked_ledger(study, ledger, level=4)
        if place is not None and place.restore(result, ledger):
            return Optimization(study, problem, result, ledger, folder=path)
        population = study.population(problem, threads)
        population.shard.restore(result.rounds)
        server = study.server(ledger, None if place is None else place.checkpoint.release_file())

        def keep(done: Round) -> None:
            if place is not None:
                place.add(done, Optimization(study, problem, result, ledger))
            evaluations.show(done.agents.mean)
            on_round(done)
            check_gain()

        def check_gain() -> None:
            least, t = evaluations.rules.min_gain, len(result.rounds)
            if least is None or not 0 < t <= study.rounds:
                return
            if float(population.shard.expected_gains(t, result.broadcast).max()) < least:
                raise Stop(f"min_gain={least:g}")

        try:
            check_gain()
            run_federated(population, server, study.rounds, keep, result, study.broadcasts)
        except KeyboardInterrupt:
            stopped = "an interrupt"
        except Stop as end:
            stopped = end.reason
        found = Optimization(study, problem, result, ledger, stopped, evaluations.after(len(result.rounds)), path)
        if place is not None and len(result.rounds) and stopped != "an interrupt":
            place.write(found)
        return found
    except EvaluationError as error:
        if place is not None:
            place.files.note_failure(str(error), error)
        raise
    finally:
        evaluations.close()
        problem.close()
