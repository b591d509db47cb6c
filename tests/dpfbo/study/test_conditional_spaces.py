"""Studies of spaces with conditions, steps and lists as choices: objectives see active parameters, files have nulls."""

import json
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

import dpfbo
from dpfbo import Agent, Categorical, Coordinator, Float, Integer, SettingError, Space
from dpfbo.gp import Acquisition
from dpfbo.gp.own_gp import OwnGP
from dpfbo.problems.custom import Custom
from dpfbo.records import Shown
from dpfbo.study.algorithm import algorithm_named
from dpfbo.tables import row_groups
from runners import best, study
from runners.compose.composition import Composition
from runners.recorded_run import record_run
from tests.helpers.compose import compose
from tests.helpers.objectives import conditional
from tests.helpers.studies import call

SPACE = Space(
    {
        "kernel": Categorical(["linear", "rbf", "poly"]),
        "gamma": Float(1e-3, 1, log=True, when={"kernel": ["rbf", "poly"]}),
        "degree": Integer(2, 6, when={"kernel": "poly"}),
        "scale": Float(0, 1, step=0.1, when={"degree": [3, 4]}),
        "layers": Categorical([(64, 64), (32,)]),
        "c": Float(0, 1),
    }
)
YAML = """
kernel: {type: categorical, choices: [linear, rbf, poly]}
gamma: {type: float, lower: 1e-3, upper: 1, log: true, when: {kernel: [rbf, poly]}}
degree: {type: integer, lower: 2, upper: 6, when: {kernel: poly}}
scale: {type: float, lower: 0, upper: 1, step: 0.1, when: {degree: [3, 4]}}
layers: {type: categorical, choices: [[64, 64], [32]]}
c: {type: float, lower: 0, upper: 1}
"""
N, T, N_INIT = 5, 4, 4
FEW = Acquisition(n_candidates=100, n_starts=3)
SAME = {"n_agents": N, "rounds": T, "n_init": N_INIT, "seed": 3, "acquisition": FEW}
PRIVATE = {"epsilon": 2.0, "delta": 1e-3}
COLUMNS = [f"x.{name}" for name in SPACE.parameters]


def optimized(algorithm="dp_prior", f=conditional, **changes):
    privacy = PRIVATE if getattr(algorithm, "name", algorithm).startswith("dp_") else {}
    return dpfbo.optimize(f, SPACE, algorithm=algorithm, **{**SAME, **privacy, **changes})


def configurations(result):
    x = torch.cat([record.x for record in result.result.rounds], 1)
    return [[SPACE.configuration(point) for point in agent] for agent in x]


def check_columns(frame):
    """Columns `x.<name>` of a table hold the active parameters, and nulls."""
    kernel, degree = frame["x.kernel"], frame["x.degree"]
    assert (frame["x.gamma"].isna() == (kernel == "linear")).all()
    assert (degree.isna() == (kernel != "poly")).all()
    assert (frame["x.scale"].isna() == ~degree.isin([3, 4])).all()
    assert frame["x.layers"].isin(["[64, 64]", "[32]"]).all()
    assert frame[COLUMNS].isna().any().to_dict() == {c: c in ("x.gamma", "x.degree", "x.scale") for c in COLUMNS}


@pytest.mark.parametrize("algorithm", ["dp_prior", "ts", "local", "fts", "dp_fts", "sobol_server"])
def test_objectives_receive_active_parameters_alone(algorithm):
    result = optimized(algorithm)
    u = torch.cat([record.u for record in result.result.rounds], 1)
    assert torch.equal(SPACE.domain.snap(u), u)
    for found in result.best():
        assert conditional(found.agent, found.configuration) == found.value
        assert type(found.configuration["layers"]) is tuple
    check_columns(result.to_pandas())


def test_other_draws_have_conditions_too():
    algorithm = replace(algorithm_named("ts"), own_gp=OwnGP(kernel="matern52", fit="gpytorch"))
    algorithm = replace(algorithm, own_draw=replace(algorithm.own_draw, method="gpytorch"))
    check_columns(optimized(algorithm, rounds=2).to_pandas())


def test_agents_learn_about_conditional_parameters():
    """Their best is far better than the best of as many configurations by chance."""
    by_chance = optimized("sobol_server", rounds=15).curve[-1]
    assert optimized("local", rounds=15).curve[-1] > by_chance + 0.05


def test_several_sub_regions_are_refused():
    with pytest.raises(SettingError, match=r"P must be 1 for a space with conditions \(when\), got 2"):
        optimized("fts_de")


def test_a_digest_changes_with_every_condition_step_and_list():
    def digest(**changes):
        space = {**SPACE.parameters, **changes}
        return dpfbo.create_study(space, algorithm="ts", **SAME).digest

    digests = [
        digest(),
        digest(degree=Integer(2, 6)),
        digest(degree=Integer(2, 6, when={"kernel": "rbf"}), scale=Float(0, 1)),
        digest(scale=Float(0, 1, step=0.2, when={"degree": [3, 4]})),
        digest(layers=Categorical([(64, 64), (16,)])),
    ]
    assert len(set(digests)) == len(digests)


@pytest.mark.parametrize("rows", [3, 7, 1000])
def test_row_groups_have_one_type_a_column_whatever_is_active(rows):
    result = optimized("ts")
    groups = list(row_groups(result.result.rounds, torch.arange(N), Shown(), SPACE, rows))
    assert len({group.schema.to_string() for group in groups}) == 1
    types = {name: str(groups[0].schema.field(name).type) for name in COLUMNS}
    assert types == {
        "x.kernel": "string", "x.gamma": "double", "x.degree": "int64", "x.scale": "double", "x.layers": "string",
        "x.c": "double",
    }  # fmt: skip
    assert any(group["x.degree"].null_count == len(group) for group in groups) or rows > 3
    values = [row for group in groups for row in group.select(COLUMNS).to_pylist()]
    flat = [found for t in range(N_INIT + T) for found in [agent[t] for agent in configurations(result)]]
    texts = [{f"x.{k}": json.dumps(v) if k == "layers" else v for k, v in c.items()} for c in flat]
    given = [{k: v for k, v in row.items() if v is not None} for row in values]
    assert sorted(map(str, map(sorted_items, given))) == sorted(map(str, map(sorted_items, texts)))


def sorted_items(row):
    return sorted(row.items())


def test_agents_and_a_coordinator_make_the_run_of_the_simulation():
    study = dpfbo.create_study(SPACE, algorithm="dp_prior", rng="seeded", **SAME, **PRIVATE)
    expected = dpfbo.run_study(study, Custom(conditional, n_agents=N, space=SPACE))
    agents, server = [Agent(study, n) for n in range(N)], Coordinator(study)
    found = [[] for _ in range(N)]

    def evaluate(n):
        x = agents[n].ask()
        given = json.loads(json.dumps(x))  # lists in place of tuples
        agents[n].tell(given, conditional(n, x))
        found[n].append(x)

    for n in range(N):
        for _ in range(N_INIT):
            evaluate(n)
    for n in range(N):
        server.receive(n, agents[n].message())
    broadcast = server.release()
    for n in range(N):
        agents[n].receive(broadcast)
        for _ in range(T):
            evaluate(n)
    assert found == configurations(expected)


def test_an_agent_refuses_values_of_inactive_parameters_and_takes_points_of_its_own():
    agent = Agent(dpfbo.create_study(SPACE, algorithm="ts", rng="seeded", **SAME), 0)
    for _ in range(N_INIT):
        x = agent.ask()
        agent.tell(x, conditional(0, x))
    with pytest.raises(SettingError, match="gamma must be left out where kernel is 'linear', got 0.1"):
        agent.tell({"kernel": "linear", "gamma": 0.1, "layers": [32], "c": 0.3}, 1.0)
    agent.tell({"kernel": "linear", "layers": [32], "c": 0.25}, 9.0)
    assert agent.best() == ({"kernel": "linear", "layers": (32,), "c": 0.25}, 9.0)
    agent.tell([0, 0.5, 3, 0.7, 1, 0.75], 10.0)  # natural numbers of inactive parameters say nothing
    assert agent.best() == ({"kernel": "linear", "layers": (32,), "c": 0.75}, 10.0)
    assert torch.equal(SPACE.domain.snap(agent._model.state.x), agent._model.state.x)


def test_a_run_with_the_space_in_a_yaml_file(tmp_path, capsys):
    (tmp_path / "space.yaml").write_text(YAML)
    settings = [
        "problem=custom", "problem.function=tests.helpers.objectives:conditional",
        f"problem.space={tmp_path}/space.yaml", f"problem.n_agents={N}", f"rounds={T}",
        f"n_init={N_INIT}", "seed=3", "acquisition.n_candidates=100",
        "acquisition.n_starts=3", "algorithm=dp_prior", "privacy.epsilon=2", "privacy.delta=1e-3",
        "tracker.wandb.mode=disabled", f"results_dir={tmp_path}",
    ]  # fmt: skip
    summary, folder = record_run(Composition.of(compose(*settings)))
    frame = pq.read_table(folder / "rounds.parquet").to_pandas()
    check_columns(frame)
    ours = optimized().to_pandas()
    assert np.array_equal(np.stack(frame["x"]), np.stack(ours["x"]))
    for row, known in zip(json.loads((folder / "summary.json").read_text())["best"], summary["best"], strict=True):
        assert row == known
        active = SPACE.configuration(np.stack(frame["x"])[frame.groupby("agent")["y"].idxmax()[row["agent"]]])
        texts = {k: json.dumps(v) if k == "layers" else v for k, v in active.items()}
        assert {k: v for k, v in row.items() if v is not None} == {
            "agent": row["agent"], "round": row["round"], "value": row["value"], **texts
        }  # fmt: skip
    assert best.main([str(folder)]) == 0
    assert "None" not in capsys.readouterr().out


def test_a_study_on_the_command_line(tmp_path):
    (tmp_path / "space.yaml").write_text(YAML)
    file = tmp_path / "study.json"
    call("new", file, "--space", tmp_path / "space.yaml", "--agents", 2, "--algorithm", "ts", "--n-init", N_INIT)
    call("join", tmp_path / "site", file, "--agent", 0)
    seen = set()
    for _ in range(N_INIT + 3):
        asked = call("ask", tmp_path / "site")
        assert type(asked["configuration"]["layers"]) is list
        seen.add(asked["configuration"]["kernel"])
        value = conditional(0, asked["configuration"])
        call("tell", tmp_path / "site", json.dumps({**asked, "value": value}))
    assert len(seen) > 1
    assert (
        study.main(["tell", str(tmp_path / "site"), json.dumps({"configuration": {"kernel": "no"}, "value": 1})]) == 1
    )
