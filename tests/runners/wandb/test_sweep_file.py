"""Sweeps that W&B runs: their files, and runs of its agents, on a stand-in for the server."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from runners.wandb import command
from tests.helpers.wandb_records import own_wandb  # noqa: F401

pytest.importorskip("wandb")
pytestmark = pytest.mark.usefixtures("own_wandb")

RUN = ["problem=branin", "problem.n_agents=4", "algorithm.M=10", "rounds=2", "n_init=3"]
SPACE = ["privacy.q=interval(0.1,1)", "privacy.z=tag(log,interval(0.5,4))", "n_init=int(interval(2,5))"]


def sweep(*words):
    return command.main(["sweep", *words])


def test_a_file_has_all_values_and_seeds_as_parameters_and_the_rest_in_its_command(capsys):
    lists = ["algorithm.P=1,2", "algorithm.follow=always,inverse_sqrt"]
    assert sweep(*RUN, *SPACE, *lists, "seeds=0..2", "results_dir=elsewhere", "--method", "bayes") == 0
    found = yaml.safe_load(capsys.readouterr().out)
    assert (found["method"], found["metric"]) == ("bayes", {"name": "final_regret", "goal": "minimize"})
    assert found["parameters"] == {
        "privacy.q": {"distribution": "uniform", "min": 0.1, "max": 1},
        "privacy.z": {"distribution": "log_uniform_values", "min": 0.5, "max": 4},
        "n_init": {"distribution": "int_uniform", "min": 2, "max": 5},
        "algorithm.P": {"values": [1, 2]},
        "algorithm.follow": {"values": ["always", "inverse_sqrt"]},
        "seed": {"values": [0, 1, 2]},
    }
    first, last = found["command"][:4], found["command"][-1]
    assert (first, last) == (["${env}", "${interpreter}", "-m", "runners.run"], "${args_no_hyphens}")
    fixed = [word for word in RUN if not word.startswith("n_init")]
    assert found["command"][4:-1] == [*fixed, "results_dir=elsewhere", "tracker.wandb.mode=online"]


def test_a_grid_of_real_releases_has_no_metric_because_it_shows_none(capsys):
    assert sweep(*RUN, "privacy.z=1,2", "privacy.rng=os") == 0
    found = yaml.safe_load(capsys.readouterr().out)
    assert found["method"] == "grid" and "metric" not in found


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["privacy.zz=1,2"], "unknown override 'privacy.zz'"),
        (["privacy.z=1,-1"], "privacy.z (noise_multiplier) must be a finite number of at least 0, got -1"),
        (["privacy.z=interval(1,2)"], "privacy.z must be a list of values for --method grid"),
        (["--method", "random"], "--method random needs keys with an interval()"),
        (["privacy.z=1,2", "privacy.rng=os", "--method", "bayes"], "epsilon does not cover settings that are chosen"),
        (["problem=branin,synthetic", "--method", "random"], "compares trials of one problem and metric"),
        (["privacy.z=1,2", "tracker.wandb.show=released", "--method", "bayes"], "tracker.wandb.show=released hides"),
        (["privacy.z=1,2", "tracker.wandb.artifacts=true", "privacy.rng=os"], "it needs tracker.wandb.show=all"),
        (["tracker.wandb.mode=offline"], "tracker.wandb.mode must be online in a W&B sweep, got 'offline'"),
        (["sweep.search=optuna"], "sweep.search=optuna is for runners.sweep"),
        (["seed=1"], "seed cannot be given to a sweep"),
        (["seeds=x"], "seeds must be integers"),
        (["experiment=fig2c"], "experiment=fig2c names its settings one by one: add sweep.settings=null"),
    ],
)
def test_words_that_a_wandb_sweep_cannot_have_are_refused_in_one_sentence(tmp_path, capsys, words, says):
    assert sweep(*RUN, *words, "--save", str(tmp_path / "sweep.yaml")) == 1
    said = capsys.readouterr()
    assert says in said.err and len(said.err.strip().splitlines()) == 1 and not said.out
    assert not (tmp_path / "sweep.yaml").exists()


@pytest.mark.slow  # half a minute, most of it pauses of the agent
def test_agents_run_what_the_file_says_as_runs_of_their_sweep(server, tmp_path, capsys):
    """`wandb sweep` and `wandb agent` themselves: the second time with runs that were finished before."""
    file, results = tmp_path / "sweep.yaml", tmp_path / "results"
    words = ["experiment=fig2c", "sweep.settings=null", "problem.grid_size=30", *RUN[1:], "algorithm=ts,dp_fts_de"]
    assert sweep(*words, "seeds=1", f"results_dir={results}", "experiment_name=mine", "--save", str(file)) == 0
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "PYTHONPATH": os.pathsep.join(sys.path)}
    first = []
    for attempt in ("first", "second"):
        server.runs.clear()
        for line in (["sweep", str(file)], ["agent", "--count", "2", "team/dpfbo/sweep1"]):
            program = [sys.executable, "-m", "wandb", *line]
            done = subprocess.run(program, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
            assert done.returncode == 0, done.stderr
        assert server.runs.keys() == {"agent0", "agent1"}, attempt
        found = []
        for name, method in (("agent1", "ts"), ("agent0", "dp_fts_de")):
            run = server.runs[name]
            assert run.facts["sweep"] == "sweep1" and run.facts["jobType"] == "trial"
            assert (run.config["method"], run.config["seed"]) == (method, 1)
            assert [row["round"] for row in run.history if "round" in row] == [0, 1, 2]
            (summary,) = [s for s in summaries(results) if s["algorithm"] == method]
            assert run.summary["final_regret"] == pytest.approx(summary["final"]["mean"]) and run.exit_code == 0
            found.append(summary)
        first = first or found
        assert found == first, "nothing ran anew"


def summaries(results):
    return [json.loads(path.read_text()) for path in results.rglob("summary.json")]
