"""The Python interface: one call, the same runs as the commands', and one sentence for what cannot be."""

import os
import subprocess
import sys
from dataclasses import fields, replace

import pyarrow.parquet as pq
import pytest
import torch

import dpfbo
from dpfbo import Categorical, Float, Integer, Preset, SettingError, Space
from dpfbo.federated.schedule import PowerSchedule, Steps
from dpfbo.federated.weights.decay import Decay
from dpfbo.federated.weights.softmax import Softmax
from dpfbo.gp import Acquisition
from dpfbo.privacy.budget import BudgetSpent
from dpfbo.privacy.ledger import Charge, LedgerError
from dpfbo.problems.custom import EvaluationError
from dpfbo.study.algorithm import ALGORITHMS, algorithm_named, mechanism_for, weights_for
from runners.compose.composition import Composition
from runners.recorded_run import record_run
from tests.helpers.compose import compose
from tests.helpers.objectives import tuned

SPACE = Space({"rate": Float(1e-4, 1.0, log=True), "depth": Integer(1, 12), "kind": Categorical(["a", "b", "c"])})
FEW = Acquisition(n_candidates=50, n_starts=2)
PLAIN = (
    "problem.space={rate: {type: float, lower: 1e-4, upper: 1, log: true}, "
    "depth: {type: integer, lower: 1, upper: 12}, kind: {type: categorical, choices: [a, b, c]}}"
)
SAME = [
    "problem=custom", "problem.function=tests.helpers.objectives:tuned", PLAIN, "problem.n_agents=6", "rounds=4",
    "n_init=3", "acquisition.n_candidates=50", "acquisition.n_starts=2", "tracker.wandb.mode=disabled", "seed=3",
]  # fmt: skip


def found(algorithm="dp_prior", f=tuned, **settings):
    settings = {"n_agents": 6, "rounds": 4, "n_init": 3, "seed": 3, "acquisition": FEW, **settings}
    return dpfbo.optimize(f, SPACE, algorithm=algorithm, **settings)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_named_algorithm_is_the_one_of_the_commands(name):
    settings = Composition.of(compose(*SAME, f"algorithm={name}")).settings
    algorithm = algorithm_named(name)
    for field in fields(algorithm):
        assert getattr(algorithm, field.name) == getattr(settings.algorithm, field.name), field.name
    assert weights_for(algorithm) == settings.weights
    assert mechanism_for(algorithm, n_init=3) == settings.privacy.mechanism


@pytest.mark.parametrize("name", ["dp_prior", "dp_fts_de", "ts"])
def test_one_call_makes_the_run_of_the_command(tmp_path, name):
    private = ["privacy.epsilon=2"] if name.startswith("dp_") else []
    budget = {"epsilon": 2.0} if private else {}
    overrides = [*SAME, f"algorithm={name}", *private, f"results_dir={tmp_path}"]
    summary, folder = record_run(Composition.of(compose(*overrides)))
    ours = found(name, **budget)
    assert ours.to_pandas().equals(pq.read_table(folder / "rounds.parquet").to_pandas())
    assert ours.epsilons == summary["epsilon"]
    assert (ours.delta, ours.relation) == (summary["delta"], summary["relation"])
    assert ours.curve == summary["curve"]["mean"]


@pytest.mark.parametrize("maximize", [True, False])
def test_the_best_of_each_agent_is_in_natural_units(maximize):
    sign = 1 if maximize else -1
    result = found("ts", lambda agent, x: sign * tuned(agent, x), maximize=maximize)
    frame = result.to_pandas()
    for best in result.best():
        own = frame[frame["agent"] == best.agent].reset_index()
        row = own.loc[own["y"].idxmax() if maximize else own["y"].idxmin()]
        assert best.value == row["y"] == own["best"].iloc[-1] and own["regret"].isna().all()
        assert best.configuration == {"rate": row["x.rate"], "depth": row["x.depth"], "kind": row["x.kind"]}
        assert best.value == pytest.approx(sign * tuned(best.agent, best.configuration), abs=1e-12)
        assert best.round == row["round"]
    assert [best.agent for best in result.best()] == list(range(6))


@pytest.mark.parametrize("name", ["ts", "dp_fts_de", "dp_prior"])
@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_the_unit_of_the_objective_does_not_matter(name, scale):
    plain, scaled = found(name), found(name, lambda agent, x: scale * tuned(agent, x) + 5 * scale)
    assert [b.configuration["kind"] for b in plain.best()] == [b.configuration["kind"] for b in scaled.best()]
    torch.testing.assert_close(
        torch.tensor(scaled.curve) / scale - 5, torch.tensor(plain.curve), rtol=0, atol=1e-5
    )  # fmt: skip


def test_a_private_run_costs_its_epsilon_and_others_nothing_or_anything():
    assert found("dp_prior", epsilon=0.5).epsilon == pytest.approx(0.5, rel=1e-2)
    assert found("ts").epsilon == 0
    assert found("fts").epsilon is None
    assert "epsilon none" in str(found("fts"))
    assert str(found("dp_prior")).endswith("by pld; simulation: a known seed voids it")
    assert "simulation" not in str(found("ts"))
    large = "(large: it allows a chance of 14% that epsilon protects nobody; 0.001 is usual)"
    assert f"epsilon 0.50 at delta 0.139 {large}" in str(found("dp_prior", epsilon=0.5))


@pytest.mark.parametrize("name", ["dp_fts_de", "dp_prior"])
def test_delta_is_that_of_all_agents(name):
    """N^-1.1 exactly, whatever the number of sub-regions; the noise is calibrated to it, too."""
    made = dpfbo.create_study(
        SPACE, n_agents=12, algorithm=name, noise_multiplier=1.0, rounds=2, rng="seeded",
        preset=Preset(P=4, sampling_probability=1.0),
    )  # fmt: skip
    assert replace(made, rng="os").plan.delta == 1e-3
    assert (4 if name == "dp_fts_de" else 1) == made.algorithm.P
    assert made.plan.delta == 12**-1.1
    found, same, other = (
        replace(made, accountant="rdp", delta=delta).multiplier_for(2.0) for delta in (None, 12**-1.1, 8**-1.1)
    )
    assert found == same != other


def test_calibration_leaves_every_round_the_smallest_noise():
    """However large the target, z is 0.01, and twice that where a schedule halves the noise of one round."""
    made = dpfbo.create_study(
        SPACE,
        n_agents=12,
        algorithm="dp_fts_de",
        noise_multiplier=1.0,
        rounds=3,
        preset=Preset(sampling_probability=1.0),
    )
    halved = replace(made.mechanism, schedule=Steps([2.0, 0.5, 1.0]))
    assert replace(made, accountant="rdp", mechanism=halved).multiplier_for(1e9) == 0.02
    assert replace(made, accountant="rdp").multiplier_for(1e9) == 0.01


def test_real_releases_need_a_ledger_on_disk(tmp_path):
    for ledger in (None, dpfbo.Ledger()):
        with pytest.raises(SettingError, match="ledger must be a dpfbo.Ledger with a path where releases are real"):
            found(rng="os", ledger=ledger)
    ledger = dpfbo.Ledger(tmp_path / "ledger.jsonl")
    found(rng="os", ledger=ledger)
    assert len(dpfbo.Ledger(tmp_path / "ledger.jsonl").charges) == 1


def test_an_objective_that_changes_the_working_directory_changes_no_ledger(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    ledger = dpfbo.Ledger("ledger.jsonl")

    def wandering(agent, x):
        os.chdir(tmp_path / "elsewhere")
        return tuned(agent, x)

    found(f=wandering, rng="os", ledger=ledger)
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert dpfbo.Ledger(tmp_path / "ledger.jsonl").carried_over == 1


def test_a_ledger_that_cannot_be_written_is_refused_before_an_evaluation(tmp_path):
    with pytest.raises(LedgerError, match="folder of ledger .* is missing: create .*/absent first"):
        dpfbo.Ledger(tmp_path / "absent" / "ledger.jsonl")
    (tmp_path / "there").mkdir()
    ledger, seen = dpfbo.Ledger(tmp_path / "there" / "ledger.jsonl"), []
    (tmp_path / "there").rmdir()
    with pytest.raises(LedgerError, match="cannot be written: No such file or directory$"):
        found(f=lambda agent, x: seen.append(agent) or 0.0, rng="os", ledger=ledger)
    assert seen == []


class Alternating(Softmax):
    """Weights that the level of its parent does not tell."""

    def __call__(self, round, assignment, P):
        return super().__call__(0 if round % 2 else 10**6, assignment, P)


def test_a_weighting_that_changes_its_parents_weights_is_planned_by_its_own():
    study = dpfbo.create_study(
        SPACE, n_agents=6, algorithm="dp_fts_de", noise_multiplier=1.0, rounds=4, n_init=2, acquisition=FEW
    )
    mechanism = replace(study.mechanism, calibration="paper", charge="effective")
    study = replace(study, weights=Alternating(Decay(1, 1)), mechanism=mechanism)
    assignment = study.agents.regions.assign(torch.arange(6))
    charged = [mechanism.dp_event(study.weights(t, assignment, study.algorithm.P), t) for t in range(4)]
    assert list(study.events) == charged and charged[0] != charged[1]


class ChargedMeanwhile:
    """Keeps nothing; before a release is charged, another run charges the same ledger."""

    def __init__(self, charge):
        self.load, self.save = lambda round: None, lambda round, release: charge()


@pytest.mark.parametrize("when_spent", ["refuse", "stop"])
@pytest.mark.parametrize("room", [False, True])
def test_a_charge_of_another_run_since_the_check_of_the_budget_counts(tmp_path, when_spent, room):
    study = dpfbo.create_study(SPACE, n_agents=6, algorithm="dp_fts_de", rounds=4, n_init=2, acquisition=FEW)
    path, event = tmp_path / "ledger.jsonl", study.events[0]
    other = Charge.of(0, event, 1.0, 1.0, torch.ones(2, dtype=torch.float64))
    plan = study.plan.limited(study.plan.epsilon([event] * (1 + room)), when_spent=when_spent)
    kept = ChargedMeanwhile(lambda: dpfbo.Ledger(path).charge(other))
    server = study.server(dpfbo.Ledger(path), kept, plan=plan)
    if room:
        assert server.round(0, None)[1].epsilon == pytest.approx(plan.budget.epsilon)
    elif when_spent == "stop":
        assert server.round(0, None) == (None, None, None)
    else:
        with pytest.raises(BudgetSpent, match="broadcasts charged so far: 1"):
            server.round(0, None)
    assert [c.digest == other.digest for c in dpfbo.Ledger(path).charges] == [True, False][: 1 + room]


def test_a_study_composed_from_objects_runs_any_problem():
    problem = dpfbo.problems.Branin(n_agents=6)
    algorithm = dpfbo.algorithm_named("dp_fts_de", dpfbo.Preset(M=20, P=2))
    study = dpfbo.create_study(
        problem.domain,
        n_agents=6,
        algorithm=algorithm,
        noise_multiplier=1.0,
        rounds=3,
        n_init=2,
        rng="seeded",
        acquisition=FEW,
    )
    rounds = []
    result = dpfbo.run_study(study, problem, on_round=lambda done: rounds.append(done.agents.round))
    assert rounds == [0, 1, 2, 3]
    assert len(result.ledger.charges) == 3
    assert len(result.best()[0].configuration) == 2


def test_a_plot_has_labelled_axes():
    ax = found("dp_prior").plot()
    assert ax.get_xlabel() == "round"
    assert ax.get_ylabel() == "best value, mean of 6 agents"
    assert ax.get_legend_handles_labels()[1] == ["dp_prior, ε = 1.00"]


def test_the_number_of_threads_is_as_it_was():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with pytest.raises(EvaluationError):
            found("ts", lambda agent, x: 1 / 0)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"algorithm": "dp_ftsde"}, "algorithm must be one of 'ts', .*, got 'dp_ftsde'"),
        ({"epsilon": 0}, "epsilon must be a finite number above 0, got 0"),
        ({"n_agents": 0}, "n_agents must be an integer of at least 1, got 0"),
        ({"rounds": 1.5}, "rounds must be an integer of at least 1, got 1.5"),
        ({"seed": -1}, "seed must be an integer of at least 0, got -1"),
        ({"n_init": 1}, "n_init must be at least 2 for algorithm=dp_prior"),
        ({"delta": 1}, r"delta must lie in \(0, 1\), got 1"),
        ({"rng": "numpy"}, "rng must be one of 'seeded', 'os', got 'numpy'"),
        ({"threads": 0}, "threads must be an integer of at least 1, got 0"),
        ({"algorithm": "dp_fts_de", "n_agents": 1}, "n_agents must be at least 2 for algorithm=dp_fts_de, got 1"),
        ({"epsilon": 1.0, "noise_multiplier": 2.0}, "noise_multiplier must be left out where epsilon=1.0 determines"),
        *(
            (
                {"algorithm": "ts", name: 0.5},
                f"{name} has no effect on algorithm=ts, which is not private: leave it out",
            )
            for name in ("epsilon", "delta", "noise_multiplier")
        ),
    ],
)
def test_what_cannot_be_is_one_sentence(settings, sentence):
    with pytest.raises(SettingError, match=sentence):
        found(**settings)


def test_another_problem_is_refused():
    study = dpfbo.create_study(SPACE, n_agents=6, rng="seeded", acquisition=FEW)
    with pytest.raises(SettingError, match="problem must have the domain and the number of agents of the study"):
        dpfbo.run_study(study, dpfbo.problems.Branin(n_agents=6))


def test_the_number_of_threads_changes_no_digit():
    before = torch.get_num_threads()
    try:
        frames = []
        for threads in (1, 2):
            torch.set_num_threads(threads)
            frames.append(found("dp_prior", epsilon=4.0).to_pandas())
    finally:
        torch.set_num_threads(before)
    assert frames[0].equals(frames[1])


def test_nothing_of_hydra_ray_and_wandb_is_loaded():
    program = (
        "import sys, dpfbo; dpfbo.optimize(lambda n, x: -x['a'], {'a': {'type': 'float', 'lower': 0, 'upper': 1}}, "
        "n_agents=3, rounds=1, n_init=2); print([m for m in ('hydra', 'ray', 'wandb') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_digest_changes_with_every_setting_and_is_the_same_in_every_process():
    def digest(space, **others):
        return dpfbo.create_study(space, n_agents=3, rng="seeded", **others).digest

    a, k = dpfbo.Float(0, 1), dpfbo.Categorical(["x", "y"])
    points = torch.linspace(0, 1, 2000, dtype=torch.float64)[:, None]
    moved = points.clone()
    moved[1000] += 1e-9
    grids = [dpfbo.Grid(p, (0.0,), (1.0,)) for p in (points, moved)]
    spaces = [
        {"a": a, "k": k},
        {"b": a, "k": k},
        {"k": k, "a": a},
        {"a": a, "k": dpfbo.Categorical(["y", "x"])},
        *grids,
    ]
    digests = [digest(space, algorithm="ts") for space in spaces]
    assert len(set(digests)) == len(spaces)
    assert digest(spaces[0], algorithm="ts") == digests[0] != digest(spaces[0], algorithm="ts", seed=1)
    program = "import dpfbo; print(dpfbo.create_study({'a': dpfbo.Float(0, 1), 'k': dpfbo.Categorical(['x', 'y'])}, "
    program += "n_agents=3, rng='seeded', algorithm='ts').digest)"
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == digests[0]


@pytest.mark.parametrize("value", [2**70, 10**9])
@pytest.mark.parametrize("name", ["rounds", "n_agents", "n_init"])
def test_sizes_that_no_run_can_have_are_refused_at_once(name, value):
    with pytest.raises(SettingError, match=f"^{name} must be at most 10+, got {value}$"):
        found(**{name: value})


@pytest.mark.parametrize("settings", [{"n_jobs": 2**70}, {"threads": 2**70}])
def test_more_workers_than_a_machine_has_are_refused(settings):
    with pytest.raises(SettingError, match="must be at most 1024, got "):
        found("ts", **settings)


def test_a_tiny_epsilon_is_not_said_to_be_nothing():
    words = str(found("dp_prior", epsilon=1e-9))  # at this delta the calibrated noise costs no epsilon at all
    assert "nothing is sent" not in words and "epsilon 0 at delta 0.139" in words
    assert "epsilon 0: nothing is sent or released" in str(found("ts"))


@pytest.mark.parametrize("size", [1.7e308, -1.7e308, 2e100])
def test_values_whose_squares_are_infinite_are_failed_evaluations(size):
    with pytest.raises(EvaluationError, match=r"must return a number up to 1e\+100, got "):
        found("ts", lambda agent, x: size)
    left_out = found("ts", lambda agent, x: size if agent else tuned(agent, x), on_failure="penalty")
    assert [best.agent for best in left_out.best()] == [0]


def test_the_events_of_the_most_rounds_are_made_once_for_each_kind():
    made = dpfbo.create_study(SPACE, n_agents=6, algorithm="dp_fts_de", noise_multiplier=1.0, rounds=100_000)
    few = dpfbo.create_study(SPACE, n_agents=6, algorithm="dp_fts_de", noise_multiplier=1.0, rounds=60)
    events = made.events
    assert len(events) == 100_000 and len({id(event) for event in events}) < 100
    assert events[:60] == few.events
    for t in (0, 15, 30, 45, 59):
        weights = few.weights(t, few.agents.regions.assign(torch.arange(6)), few.algorithm.P)
        assert few.events[t] == few.step.dp_event(weights, t)


def test_many_rounds_of_other_noise_each_are_refused():
    made = dpfbo.create_study(SPACE, n_agents=6, algorithm="dp_fts_de", noise_multiplier=1.0, rounds=1001)
    changing = replace(made, mechanism=replace(made.mechanism, schedule=PowerSchedule(0.1)))
    with pytest.raises(
        SettingError, match="^rounds must be at most 1000 where noise or weights always change, got 1001"
    ):
        changing.events  # noqa: B018
