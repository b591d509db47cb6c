"""Agents in Ray actors: the same records as in one process, and refusals that leave nothing behind."""

import math
from dataclasses import fields
from itertools import product

import numpy as np
import pandas as pd
import pytest
import ray
import torch

from dpfbo import round_log
from dpfbo.federated.broadcast import RegionVectors
from dpfbo.federated.population.shard import Shard
from runners.audit import files
from runners.compose.composition import Composition, build
from runners.executor.deployment import ExecutorError
from runners.executor.ray import cluster
from runners.executor.ray.actors import AgentActor
from runners.executor.ray.cluster import layout
from runners.executor.ray.federated import RayFederation
from runners.recorded_run import record_run
from tests.helpers.compose import compose
from tests.helpers.data_files import write_mini_landmine
from tests.helpers.ray_runs import BOX, GRID, SHORT, Reused, frames, records, run, same
from tests.helpers.small_runs import QUIET, call

PROBLEMS = {"grid": GRID, "box": BOX}


@pytest.fixture(scope="module")
def started():
    """A Ray that is told of more CPUs and GPUs than the machine has."""
    ray.init(address="local", num_cpus=16, num_gpus=1, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def reused(started):
    with pytest.MonkeyPatch.context() as monkeypatch:
        yield Reused(monkeypatch)


TENTH = ["executor=ray", "executor.num_gpus=0.1", "executor.device=cpu"]  # a tenth of the GPU that Ray was told of


def shards(k):
    """Overrides that cut six agents into 2 shards of three, or into 5 shards, one of them with two agents."""
    return [*TENTH, {2: "executor.agents_per_actor=3", 5: "executor.num_cpus=3"}[k]]


def refused(monkeypatch, capsys, tmp_path, overrides, says):
    """Assert that the command ends with one sentence and leaves nothing behind."""
    assert call(monkeypatch, *GRID, *overrides, f"results_dir={tmp_path / 'r'}") == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert says in error
    assert error.count("\n") == 1
    assert not list((tmp_path / "r").rglob("*"))


# Without Ray running: a run ends the Ray that it starts.


def test_objective_that_raises_is_the_same_sentence_and_ray_is_shut_down(monkeypatch, capsys, tmp_path):
    assert not ray.is_initialized()
    settings = [
        "problem=custom",
        "problem.lower=[0,0]",
        "problem.upper=[1,1]",
        "problem.function=tests.helpers.objectives:broken",
        "problem.n_agents=2",
        "rounds=2",
    ]
    assert call(monkeypatch, *settings, f"results_dir={tmp_path / 'local'}") == 1
    local = capsys.readouterr().err
    own = ["executor=ray", "executor.address=local", "+executor.init.num_cpus=2", "executor.agents_per_actor=2"]
    assert call(monkeypatch, *settings, *own, f"results_dir={tmp_path / 'ray'}") == 1
    assert capsys.readouterr().err == local
    assert "raised RuntimeError: sensor off" in local
    assert not ray.is_initialized()
    assert not list(tmp_path.rglob("*.parquet"))


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nowhere"])
@pytest.mark.parametrize("given", ["executor.address", "RAY_ADDRESS"])
def test_cluster_that_is_not_there(monkeypatch, capsys, tmp_path, given, address):
    if given == "RAY_ADDRESS":
        monkeypatch.setenv("RAY_ADDRESS", address)
    override = f"executor.address={address if given == 'executor.address' else 'null'}"
    refused(monkeypatch, capsys, tmp_path, ["executor=ray", override], override.replace("null", "None"))
    assert not ray.is_initialized()


# All others share one Ray.


def test_one_agent_an_actor_all_on_one_gpu(reused, tmp_path):
    two = [*GRID, "problem.n_agents=2"]
    _, local = run(tmp_path / "local", *two)
    summary, folder = run(tmp_path / "ray", *two, *TENTH, "executor.agents_per_actor=1")
    assert same(local, folder)
    assert summary["executor"]["shards"] == 2
    assert summary["executor"]["num_gpus"] == 0.1
    assert summary["executor"]["devices"] == ["cpu"]
    assert ray.is_initialized()  # the run did not start it


ALGORITHMS = ["dp_fts_de", "fts", "ts", "local", "fts_original", "random_server", "sobol_server"]
CUTS = [*product(ALGORITHMS, [("grid", 2), ("box", 5)]), *product(["dp_fts_de"], [("grid", 5), ("box", 2)])]


@pytest.mark.parametrize(("algorithm", "problem", "k"), [(algorithm, *cut) for algorithm, cut in CUTS])
def test_records_do_not_depend_on_the_executor(reused, tmp_path, algorithm, problem, k):
    settings = [*PROBLEMS[problem], f"algorithm={algorithm}"]
    expected, local = run(tmp_path / "local", *settings)
    summary, folder = run(tmp_path / "ray", *settings, *shards(k))
    assert summary["executor"]["shards"] == k
    assert same(local, folder)
    for key in ("setting", "curve", "final", "epsilon", "n_charges", "clip_fraction", "n_rejected"):
        assert summary[key] == expected[key]
    assert set(summary["seconds"]) == set(expected["seconds"])


def test_options_of_the_message_path_do_not_depend_on_the_executor(reused, tmp_path):
    means = ["algorithm=dp_fts_de_plus"]  # posterior means, centred and normalised, and tight noise
    path = ["algorithm.momentum=0.5", "algorithm.broadcasts=4", "privacy/schedule=power", "algorithm.follow=always"]
    _, local = run(tmp_path / "local", *BOX, *means, *path)
    summary, folder = run(tmp_path / "ray", *BOX, *means, *path, *shards(5))
    assert same(local, folder)
    assert summary["n_charges"] == 4
    assert set(frames(folder)[0].query("round == 6")["source"]) == {"own"}


def test_failed_evaluations_of_actors_are_in_the_run_folder(reused, tmp_path):
    space = "rate: {type: float, lower: 1e-4, upper: 1, log: true}, depth: {type: integer, lower: 1, upper: 12}, "
    space += "kind: {type: categorical, choices: [a, b, c]}"
    custom = ["problem=custom", "problem.function=tests.helpers.objectives:sometimes", "problem.n_agents=4"]
    custom += [f"problem.space={{{space}}}", "problem.on_failure=penalty", "algorithm=ts"]
    custom += ["acquisition.n_candidates=30", "acquisition.n_starts=1"]
    _, local = run(tmp_path / "local", *custom)
    _, folder = run(tmp_path / "ray", *custom, *shards(2))
    told = [(f / "failures.log").read_text() for f in (local, folder)]
    assert same(local, folder)
    assert [t.count("Traceback (most recent call last)") for t in told] == [told[0].count("sensor off: it counts")] * 2
    assert 'raise RuntimeError("sensor off")' in told[1]


@pytest.mark.parametrize("problem", ["grid", "box"])
def test_a_finished_local_run_goes_on_in_actors(reused, tmp_path, problem):
    _, whole = run(tmp_path / "whole", *PROBLEMS[problem])

    def single(*overrides):
        cfg = compose(*PROBLEMS[problem], "n_init=4", *QUIET, *overrides, f"results_dir={tmp_path}")
        return record_run(Composition.of(cfg), single=True)[1]

    folder = single("rounds=3")
    assert single("rounds=6", *shards(2)) == folder and same(folder, whole)


# the release of a private prior takes every message, and its features are pairs for each length-scale
PRIOR = ["privacy.q=1", "algorithm.M=24"]


@pytest.mark.parametrize(("problem", "k"), [("grid", 2), ("grid", 5), ("box", 2), ("box", 5)])
@pytest.mark.parametrize("algorithm", ["dp_prior", "shared_prior"])
def test_a_prior_does_not_depend_on_the_executor(reused, tmp_path, algorithm, problem, k):
    settings = [*PROBLEMS[problem], f"algorithm={algorithm}", *PRIOR]
    expected, local = run(tmp_path / "local", *settings)
    summary, folder = run(tmp_path / "ray", *settings, *shards(k))
    assert summary["executor"]["shards"] == k
    assert same(local, folder)
    assert summary["n_charges"] == 1
    for key in ("setting", "curve", "final", "epsilon", "n_charges", "clip_fraction", "n_rejected"):
        assert summary[key] == expected[key]
    assert set(summary["seconds"]) == set(expected["seconds"])
    assert "server" in set(frames(folder)[0].query("round >= 1")["source"])


@pytest.mark.parametrize("algorithm", [["algorithm=dp_fts_de"], ["algorithm=dp_prior", *PRIOR]])
def test_a_real_run_in_actors_leaves_only_what_follows_from_its_releases(reused, algorithm):
    found = files.search([*GRID, "n_init=4", *QUIET, *shards(2), *algorithm])
    assert found.findings == []
    assert {"server.parquet", "summary.json", "release.npz"} <= {name.rsplit("/")[-1] for name in found.files}


GPYTORCH = ["algorithm.own_gp.fit=gpytorch", "algorithm.own_draw.method=gpytorch", "acquisition.n_starts=3"]


@pytest.mark.parametrize(
    ("problem", "kernel", "k"),
    [
        pytest.param("grid", ["algorithm.own_gp.kernel=matern32"], 5, marks=pytest.mark.slow),
        ("box", ["algorithm.own_gp.kernel=matern52", "algorithm.own_gp.ard=true", "algorithm.own_gp.warp=true"], 5),
        ("box", ["algorithm.own_gp.priors=true"], 2),
    ],
    ids=["grid", "box", "priors"],
)
def test_draws_of_gpytorch_do_not_depend_on_the_executor(reused, tmp_path, problem, kernel, k):
    settings = [*PROBLEMS[problem], *GPYTORCH, *kernel, "algorithm=ts"]
    expected, local = run(tmp_path / "local", *settings)
    summary, folder = run(tmp_path / "ray", *settings, *shards(k))
    assert summary["executor"]["shards"] == k
    assert same(local, folder)
    assert summary["setting"] == expected["setting"]


def test_landmine_runs_with_draws_of_gpytorch(reused, tmp_path):
    data = write_mini_landmine(tmp_path)
    settings = ["problem=landmine", f"problem.data_dir={data}", "problem.n_agents=4", "problem.n_jobs=1", *GPYTORCH]
    settings += ["algorithm=ts", "acquisition.n_candidates=100"]
    _, local = run(tmp_path / "local", *settings)
    summary, folder = run(tmp_path / "ray", *settings, *TENTH, "executor.agents_per_actor=2")
    assert summary["executor"]["shards"] == 2
    assert summary["seconds"]["fit"] > 0
    assert same(local, folder)


@pytest.mark.parametrize(
    ("algorithm", "problem", "k"),
    [
        ("dp_fts_de", "grid", 5),
        ("dp_fts_de", "box", 5),
        ("dp_fts_de", "box", 2),
        ("fts_de", "box", 5),
        ("dp_prior", "grid", 5),
        ("shared_prior", "grid", 2),
    ],
)
def test_tree_aggregation_up_to_rounding(reused, monkeypatch, tmp_path, algorithm, problem, k):
    settings = [*PROBLEMS[problem], f"algorithm={algorithm}", *(PRIOR if "prior" in algorithm else [])]
    _, local = run(tmp_path / "local", *settings)
    monkeypatch.setattr(RayFederation, "_ask", without_messages(RayFederation._ask))
    summary, folder = run(tmp_path / "ray", *settings, *shards(k), "executor.aggregation=tree")
    assert summary["executor"]["tree"]
    (rounds, server), (other, other_server) = frames(local), frames(folder)
    assert np.abs(np.stack(rounds["x"]) - np.stack(other["x"])).max() <= (
        0 if problem == "grid" else 1e-6
    )  # where a maximum is
    pd.testing.assert_frame_equal(rounds.drop(columns="x"), other.drop(columns="x"), atol=1e-7)
    exact = [c for c in server if c != "snr"]
    pd.testing.assert_frame_equal(server[exact], other_server[exact], check_exact=True)
    assert np.allclose(server["snr"].astype(float), other_server["snr"].astype(float), rtol=1e-9, equal_nan=True)


def test_a_shard_that_dies_before_the_server_asks_adds_up_again(reused, monkeypatch, tmp_path):
    """The bits are the same, also if rounds are not in memory."""
    settings = [*BOX, "algorithm=dp_fts_de", *shards(5), "executor.aggregation=tree"]
    _, undisturbed = run(tmp_path / "undisturbed", *settings)
    killed, ask = [], RayFederation._ask

    def killing(self, t, step):
        if t == 3 and not killed:
            killed.append(self.shards[2].handle)
            ray.kill(killed[0])
        return ask(self, t, step)

    monkeypatch.setattr(RayFederation, "_ask", killing)
    monkeypatch.setattr(round_log, "MOST_BYTES", 0)
    summary, again = run(tmp_path / "again", *settings)
    assert same(undisturbed, again) and killed and summary["executor"]["restarts"] == 1


def test_rounds_that_are_not_in_memory_reach_actors(reused, monkeypatch, tmp_path):
    """A run goes on in other actors, and one of them is placed again later: each gets its agents' old rounds."""
    _, whole = run(tmp_path / "whole", *BOX)
    monkeypatch.setattr(round_log, "MOST_BYTES", 0)

    def single(rounds, *overrides, on_round=lambda done: None):
        cfg = compose(*BOX, "n_init=4", f"rounds={rounds}", *QUIET, *overrides, f"results_dir={tmp_path}")
        return record_run(Composition.of(cfg), on_round, single=True)[1]

    deployments, place = [], RayFederation.place
    monkeypatch.setattr(RayFederation, "place", lambda self: (deployments.append(self), place(self)))

    def replaced(done):
        if done.agents.round == 5:
            actor = deployments[0].shards[1]
            actor.kill()
            deployments[0]._start([actor])

    folder = single(3)
    assert single(6, *shards(2), on_round=replaced) == folder and same(folder, whole)


def without_messages(ask):
    """`ask` with worthless messages: a server that reads them fails."""

    def checked(self, t, step):
        step.sent = ["a message"] * len(step.sent)
        return ask(self, t, step)

    return checked


def test_messages_are_what_a_server_without_tree_gets(reused, monkeypatch, tmp_path):
    """The check of the test above notices messages."""
    monkeypatch.setattr(RayFederation, "_ask", without_messages(RayFederation._ask))
    summary, folder = run(tmp_path, *GRID, *shards(2))
    assert summary["n_rejected"] == frames(folder)[1]["n_chosen"].sum() > 0


REFUSED = [
    ("executor.agents_per_actor=0", "executor.agents_per_actor must be an integer of at least 1, got 0"),
    ("executor.agents_per_actor=some", "executor.agents_per_actor must be an integer of at least 1, got 'some'"),
    ("executor.num_cpus=-1", "executor.num_cpus must be a finite number of at least 0, got -1"),
    ("executor.num_cpus=17", "an actor needs 17 CPUs, 0.1 GPUs and 0.4 GB on one node, and the cluster has room for 0"),
    ("executor.num_gpus=2", "2 GPUs and 0.4 GB on one node, and the cluster has room for 0 (16 CPUs, 1 GPUs"),
    ("executor.num_gpus=some", "executor.num_gpus must be a finite number of at least 0, got 'some'"),
    (
        "executor.device=cuda",
        "executor.device=cuda needs a GPU here and torch sees none; executor.device=cpu uses none",
    ),
    ("executor.device=tpu", "executor.device must be one of 'auto', 'cpu', 'cuda', got 'tpu'"),
    ("executor.placement=WIDE", "executor.placement must be one of 'DEFAULT', 'SPREAD', got 'WIDE'"),
    ("executor.aggregation=ring", "executor.aggregation must be one of 'auto', 'messages', 'tree', got 'ring'"),
    ("executor.max_restarts=-1", "executor.max_restarts must be an integer of at least 0, got -1"),
    ("executor.placement_timeout=0", "executor.placement_timeout must be a finite number above 0, got 0"),
]


@pytest.mark.parametrize(("override", "says"), REFUSED, ids=[o for o, _ in REFUSED])
def test_bad_settings_are_one_sentence_and_leave_nothing(reused, monkeypatch, capsys, tmp_path, override, says):
    refused(monkeypatch, capsys, tmp_path, [*TENTH, "executor.agents_per_actor=3", override], says)
    assert ray.is_initialized()


def test_a_finished_run_stays_if_its_repetition_has_no_room(reused, tmp_path):
    _, folder = run(tmp_path, *GRID)
    before = records(folder)
    with pytest.raises(ExecutorError, match="room for 0"):
        run(tmp_path, *GRID, *TENTH, "executor.num_gpus=2", "again=true")
    assert records(folder) == before and not (folder / "earlier").exists()
    run(tmp_path, *GRID, "again=true")
    assert (folder / "earlier" / "1").is_dir()


def test_gpu_that_torch_does_not_see(reused, monkeypatch, capsys, tmp_path):
    """Ray was told of a GPU, so `auto` means a GPU. The server has not begun yet: it would create a ledger."""
    begun, begin = [], RayFederation._begin
    monkeypatch.setattr(RayFederation, "_begin", lambda self, actor: (begun.append(actor.name), begin(self, actor))[1])
    says = "executor.device=auto needs a GPU here and torch sees none"
    auto = ["executor.device=auto", "executor.agents_per_actor=6"]
    refused(monkeypatch, capsys, tmp_path, [*TENTH, *auto], says)
    assert begun == ["agents 0..5"]


@pytest.mark.parametrize(
    ("overrides", "actors"),
    [
        ({"agents_per_actor": 1, "num_gpus": 0.1}, 10),
        ({"agents_per_actor": 1, "num_gpus": 0.3}, 3),
        ({"agents_per_actor": 1, "num_cpus": 0.07}, 100),  # 7 / 0.07 is a little less in floating point
        ({"num_cpus": 0.1}, 70),
        ({"num_gpus": 0.1}, 7),  # auto: no more than the CPUs
        ({}, 7),
        ({"agents_per_actor": 1}, 120),  # by memory
    ],
)
def test_as_many_actors_as_there_is_room_for(monkeypatch, overrides, actors):
    there = {"CPU": 7.0, "GPU": 1.0, "memory": 120.5 * cluster._ACTOR_BYTES}
    monkeypatch.setattr(ray, "nodes", lambda: [{"Alive": True, "Resources": there}])

    def cut(N):
        settings = [f"executor.{key}={value}" for key, value in overrides.items()]
        experiment = build(compose(*GRID, f"problem.n_agents={N}", "executor=ray", *settings))
        return layout(experiment.settings.ray, experiment)

    assert len(cut(actors).ranges) == actors
    if "agents_per_actor" in overrides:
        with pytest.raises(ExecutorError, match=f"makes {actors + 1} actors .* room for {actors} "):
            cut(actors + 1)
    else:
        assert len(cut(actors + 1).ranges) == actors


@pytest.mark.parametrize("wanted", ["auto", 1, 3, 4, 7, 50])
@pytest.mark.parametrize("cpus", [1, 2, 16])
def test_every_agent_is_in_one_actor_and_actors_fit(monkeypatch, wanted, cpus):
    there = {"CPU": float(cpus), "memory": 1e12}
    monkeypatch.setattr(ray, "nodes", lambda: [{"Alive": True, "Resources": there}])
    experiment = build(compose(*GRID, "problem.n_agents=7", "executor=ray", f"executor.agents_per_actor={wanted}"))
    cut = layout(experiment.settings.ray, experiment)
    sizes = [b - a for a, b in cut.ranges]
    assert [n for a, b in cut.ranges for n in range(a, b)] == list(range(7))
    assert min(sizes) >= 1
    assert max(sizes) <= (math.ceil(7 / min(cpus, 7)) if wanted == "auto" else wanted)
    assert len(sizes) * cut.num_cpus <= cpus


def test_large_federations_add_up_in_the_shards(monkeypatch):
    there = {"CPU": 2.0, "memory": 1e12}
    monkeypatch.setattr(ray, "nodes", lambda: [{"Alive": True, "Resources": there}])

    def tree(*overrides):
        experiment = build(compose("problem=branin", "executor=ray", *overrides))
        return layout(experiment.settings.ray, experiment).tree

    large = ["problem.n_agents=20001", "algorithm.M=100"]
    assert tree(*large)
    assert not tree("problem.n_agents=20000", "algorithm.M=100")
    assert not tree(*large, "executor.aggregation=messages")
    assert not tree(*large, "algorithm=fts_original")  # it needs the messages themselves
    assert not tree("executor.aggregation=tree", "algorithm=random_server")


# The parts, in this process.

P, M = 2, 20


def numbers(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_shard_gives_a_sum_and_no_message(tmp_path):
    """An agent actor answers with P x M numbers and two counts, for any number of chosen agents."""
    settings = build(compose(*SHORT, *GRID)).settings
    actor = AgentActor.__ray_metadata__.modified_class(settings, 0, 6, str(tmp_path))
    experiment = build(compose(*SHORT, *GRID))
    actor._experiment, actor._shard = experiment, Shard(experiment.problem, experiment.agents, torch.arange(6))
    report, sent = actor.step(0, None, True)
    part = actor.add_up(0, torch.arange(6), numbers(P, 6), experiment.mechanism)
    assert sent.shape == (6, 20)
    assert actor.step(0, None, False)[1] is None  # a server that gets sums gets no messages
    assert part.total.shape == (P, M)
    assert part.total.untyped_storage().nbytes() == P * M * 8
    assert {f.name for f in fields(part)} == {"total", "n_clipped", "n_rejected"}
    with pytest.raises(ValueError, match="no messages of round 1"):
        actor.add_up(1, torch.arange(6), numbers(P, 6), experiment.mechanism)


@pytest.mark.parametrize("problem", ["grid", "box"])
def test_any_cut_of_the_agents_gives_the_same_bits(problem):
    """The test cuts into shards of one, two and three agents, in any order, adjacent or not."""
    experiment = build(compose(*SHORT, *PROBLEMS[problem]))
    broadcast = RegionVectors(numbers(experiment.agents.regions.P, M))

    def turns(ids):
        shard = Shard(experiment.problem, experiment.agents, torch.tensor(ids))
        return [shard.step(t, broadcast if t else None, True) for t in range(7)]

    whole = turns(range(6))
    for ids in ([0], [5], [1, 3], [4, 0], [5, 2, 1]):
        for turn, expected in zip(turns(ids), whole, strict=True):
            assert torch.equal(turn.messages, expected.messages[ids])
            for f in fields(turn.record)[1:]:
                assert torch.equal(getattr(turn.record, f.name), getattr(expected.record, f.name)[ids])
