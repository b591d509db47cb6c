"""The demo: a sweep that needs no data, and what `make demo` makes of it."""

import json

import pytest

from analysis import figures, tables
from runners.sweep import command
from runners.sweep.plan import plan
from tests.helpers.compose import with_seed

SMALL = [
    "rounds=3", "problem.n_agents=8", "problem.grid_size=50", "n_init=3", "algorithm.M=10", "seeds=0",
    "tracker.wandb.mode=disabled",
]  # fmt: skip


def test_is_the_problem_of_the_paper():
    demo = plan(["experiment=demo"])
    assert (demo.experiment, len(demo.settings), len(demo.trials)) == ("demo", 8, 24)
    cfgs = [setting.cfg for setting in demo.settings]
    for cfg in cfgs:
        assert (cfg.problem.n_agents, cfg.rounds, cfg.problem.grid_size) == (200, 40, 1000)
        assert cfg.tracker.wandb.mode == "offline"
    trials = [with_seed(demo.settings[0], seed) for seed in demo.seeds]
    assert [trial.problem.function_seed for trial in trials] == [0, 1, 2]
    noise = [(cfg.algorithm.name, cfg.privacy.epsilon, cfg.privacy.z) for cfg in cfgs if cfg.algorithm.private]
    (*fixed, (prior, target, calibrated)) = noise
    assert fixed == [(name, None, z) for name in ("dp_fts", "dp_fts_de") for z in (1, 2)]
    assert (prior, target, calibrated) == ("dp_prior", 1, pytest.approx(2.575, abs=0.01))  # one analytic Gaussian


def test_feeds_table_and_figures(tmp_path, capfd):
    assert command.main(["experiment=demo", f"results_dir={tmp_path}", *SMALL]) == 0
    capfd.readouterr()
    assert tables.main(["demo", f"results_dir={tmp_path}", "--json"]) == 0
    rows = json.loads(capfd.readouterr().out)
    assert [row["label"] for row in rows] == [
        "TS", "local EI", "FTS-DE, P = 2", "DP-FTS, z = 2", "DP-FTS, z = 1", "DP-FTS-DE, P = 2, z = 2",
        "DP-FTS-DE, P = 2, z = 1", "private prior, ε = 1",
    ]  # fmt: skip
    assert figures.main(["demo", f"results_dir={tmp_path}", "--out", str(tmp_path / "figures")]) == 0
    assert len(list((tmp_path / "figures").iterdir())) == 8
