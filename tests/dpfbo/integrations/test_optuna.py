"""Sites that keep their Optuna studies make the queries of dpfbo's simulation, also across restarts."""

import pytest
import torch

import dpfbo
from dpfbo import Agent, Categorical, Coordinator, Float, Integer, SettingError, Space, StateError
from dpfbo.gp import Acquisition
from tests.helpers.objectives import tuned

optuna = pytest.importorskip("optuna")
AgentSampler = pytest.importorskip("dpfbo.integrations.optuna").AgentSampler

SPACE = Space({"rate": Float(1e-4, 1.0, log=True), "depth": Integer(1, 12), "kind": Categorical(["a", "b", "c"])})
N, T, N_INIT = 3, 3, 3
FEW = Acquisition(n_candidates=50, n_starts=2)


@pytest.fixture(autouse=True)
def quiet():
    optuna.logging.set_verbosity(optuna.logging.WARNING)


def study_of(algorithm="dp_prior", space=SPACE):
    privacy = {"epsilon": 4.0, "delta": 1e-3} if algorithm.startswith("dp_") else {}
    return dpfbo.create_study(
        space, n_agents=N, algorithm=algorithm, rounds=T, n_init=N_INIT, rng="seeded", acquisition=FEW, **privacy
    )


def suggested(trial):
    rate = trial.suggest_float("rate", 1e-4, 1.0, log=True)
    return {"rate": rate, "depth": trial.suggest_int("depth", 1, 12), "kind": trial.suggest_categorical("kind", "abc")}


def site_of(study, n, storage, folder=None, exchange=None, maximize=True):
    agent = Agent(study, n, folder, maximize)
    return optuna.create_study(
        storage=storage, study_name=f"site {n}", direction="maximize" if maximize else "minimize",
        load_if_exists=True, sampler=AgentSampler(agent, exchange),
    ), agent  # fmt: skip


def rows(study):
    x = torch.cat([r.x for r in study.result.rounds], 1)
    return [[SPACE.configuration(point) for point in agent] for agent in x]


def test_sites_make_the_queries_of_the_simulation(tmp_path):
    study = study_of()
    held: dict[int, bytes] = {}
    server = Coordinator(study)

    def exchange(n, data):
        held[n] = data
        if len(held) == N and not server.finished:
            for sender, message in held.items():
                server.receive(sender, message)
            held["broadcast"] = server.release()
        return held.get("broadcast")

    storage = f"sqlite:///{tmp_path}/optuna.db"
    for _ in range(2):  # the second time after a restart of all sites
        sites = [site_of(study, n, storage, tmp_path / str(n), lambda data, n=n: exchange(n, data)) for n in range(N)]
        for _k in range(N_INIT):
            for n, (site, _) in enumerate(sites):
                if len(site.trials) < N_INIT:
                    site.optimize(lambda trial, n=n: tuned(n, suggested(trial)), n_trials=1)
        for _, agent in sites:
            agent.close()
    sites = [site_of(study, n, storage, tmp_path / str(n), lambda data, n=n: exchange(n, data)) for n in range(N)]
    for n, (_, agent) in enumerate(sites):
        exchange(n, agent.message())
    for n, (site, _) in enumerate(sites):
        site.optimize(lambda trial, n=n: tuned(n, suggested(trial)), n_trials=T)
    problem = dpfbo.Custom(tuned, n_agents=N, space=SPACE)
    simulated = dpfbo.run_study(study, problem)
    assert [[trial.params for trial in site.trials] for site, _ in sites] == rows(simulated)
    assert len(server.ledger.charges) == 1


def test_failed_and_pruned_trials_count_as_the_worst_value():
    study = study_of("local")
    site, agent = site_of(study, 0, None)
    told = []

    def moody(trial):
        value = tuned(0, suggested(trial))
        if trial.number == 1:
            raise optuna.TrialPruned
        if trial.number == 2:
            raise ValueError("sensor off")
        told.append(value)
        return value

    site.optimize(moody, n_trials=N_INIT + T, catch=ValueError)
    assert agent.pending == {} and agent.best()[1] == max(told)
    plain = Agent(study, 0)
    for x in plain.ask(N_INIT):
        failed = len(plain.pending) < N_INIT
        plain.tell(x, failed=True) if failed else plain.tell(x, tuned(0, x))
    assert plain.ask() == site.trials[N_INIT].params


def test_trials_from_before_and_enqueued_ones_are_told_and_cost_no_point():
    site = optuna.create_study(direction="maximize", sampler=optuna.samplers.RandomSampler(seed=0))
    site.optimize(lambda trial: tuned(0, suggested(trial)), n_trials=4)
    study = study_of("local")
    agent = Agent(study, 0)
    site.sampler = AgentSampler(agent)
    own = {"rate": 0.01, "depth": 5, "kind": "b"}
    site.enqueue_trial(own)
    site.optimize(lambda trial: tuned(0, suggested(trial)), n_trials=1 + N_INIT + 1)
    assert site.trials[4].params == own and agent.best() == (own, tuned(0, own))
    other = Agent(study, 0)
    for trial in site.trials[:5]:
        other.tell(trial.params, trial.value)
    for x, trial in zip(other.ask(N_INIT), site.trials[5:], strict=False):
        assert trial.params == x
        other.tell(x, trial.value)
    assert site.trials[-1].params == other.ask()


def test_a_failed_enqueued_trial_leaves_the_agents_point_pending():
    study = study_of("local")
    agent = Agent(study, 0)
    site = optuna.create_study(direction="maximize", sampler=AgentSampler(agent))
    first = Agent(study, 0).ask()
    site.enqueue_trial({"rate": 0.01, "depth": 5, "kind": "b"})
    site.enqueue_trial({"depth": 5 if first["depth"] != 5 else 4})  # the other parameters are the agent's
    trials = [site.ask() for _ in range(2)]
    for trial in trials:
        suggested(trial)
        site.tell(trial, state=optuna.trial.TrialState.FAIL)
    assert agent.best() is None
    assert suggested(site.ask()) == first


def test_trials_of_dead_processes_give_their_points_out_again(tmp_path):
    study, storage = study_of("local"), f"sqlite:///{tmp_path}/optuna.db"
    site, agent = site_of(study, 0, storage, tmp_path / "site")
    points = [suggested(site.ask()) for _ in range(N_INIT)]  # nobody ever tells
    agent.close()
    site, agent = site_of(study, 0, storage, tmp_path / "site")
    again = [suggested(site.ask()) for _ in range(2)]
    assert again == [points[0]] * 2
    for number in range(N_INIT):
        site.tell(number, state=optuna.trial.TrialState.FAIL)
    site.optimize(lambda trial: tuned(0, suggested(trial)), n_trials=2)
    assert site.trials[-1].params not in points


def test_points_that_wait_at_the_same_time_differ():
    site, _ = site_of(study_of("local"), 0, None)
    site.optimize(lambda trial: tuned(0, suggested(trial)), n_trials=N_INIT)
    assert len({str(suggested(site.ask())) for _ in range(4)}) == 4


def test_small_values_are_better_where_both_say_so():
    site, agent = site_of(study_of("local"), 1, None, maximize=False)
    site.optimize(lambda trial: -tuned(1, suggested(trial)), n_trials=N_INIT + T)
    assert agent.best() == (site.best_params, site.best_value)


def test_conditions_are_those_of_the_space():
    space = Space({
        "kernel": Categorical(["linear", "rbf"]), "gamma": Float(1e-3, 1, log=True, when={"kernel": "rbf"}), "fixed": 3,
    })  # fmt: skip
    site, _ = site_of(study_of("local", space), 0, None)

    def score(trial):
        kernel = trial.suggest_categorical("kernel", ["linear", "rbf"])
        return trial.suggest_float("gamma", 1e-3, 1, log=True) if kernel == "rbf" else 0.0

    site.optimize(score, n_trials=N_INIT + T)
    assert {len(trial.params) for trial in site.trials} == {1, 2} and site.best_params["kernel"] == "rbf"
    with pytest.raises(SettingError, match="gamma is inactive in this configuration"):
        site.optimize(lambda trial: (score(trial), trial.suggest_float("gamma", 1e-3, 1, log=True))[0], n_trials=20)


def test_parameters_that_the_study_does_not_have_are_refused():
    site, _ = site_of(study_of("local"), 0, None)
    with pytest.raises(SettingError, match=r"rat must be a parameter of .* \(did you mean 'rate'\?\)"):
        site.optimize(lambda trial: trial.suggest_float("rat", 1e-4, 1.0, log=True), n_trials=1)
    with pytest.raises(SettingError, match="rate must be FloatDistribution.* as in the agent's study, got FloatDis"):
        site.optimize(lambda trial: trial.suggest_float("rate", 1e-9, 1e-8, log=True), n_trials=1)
    with pytest.raises(SettingError, match="depth must be in the configuration"):
        site.optimize(lambda trial: trial.suggest_float("rate", 1e-4, 1.0, log=True), n_trials=1)


def test_another_direction_and_a_missing_exchange_are_refused():
    study = study_of()
    site = optuna.create_study(direction="minimize", sampler=AgentSampler(Agent(study, 0)))
    with pytest.raises(SettingError, match=r"direction must be 'maximize', as Agent\(maximize=True\) says, got"):
        site.optimize(lambda trial: tuned(0, suggested(trial)), n_trials=1)
    site, _ = site_of(study, 0, None)
    with pytest.raises(StateError, match="a message to the server is due: give the sampler an exchange"):
        site.optimize(lambda trial: tuned(0, suggested(trial)), n_trials=N_INIT + 1)
    nameless = dpfbo.create_study(dpfbo.Box((0.0,), (1.0,)), n_agents=2, algorithm="local")
    with pytest.raises(SettingError, match="agent must be of a study with named parameters"):
        AgentSampler(Agent(nameless, 0))
