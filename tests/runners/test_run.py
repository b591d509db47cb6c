"""The run command: records, reproducibility and refusals."""

import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from dpfbo.privacy.ledger import Ledger
from runners.record.terminal import print_summary
from runners.recorded_run import run_configuration
from tests.helpers.compose import compose
from tests.helpers.small_runs import SMALL, call

QUIET = ["tracker.wandb.mode=disabled", "progress=false"]
CUSTOM = "problem.function=tests.helpers.objectives"
SQUARE = ("problem=custom", "problem.lower=[0,0]", "problem.upper=[1,1]")


def finished(folder):
    (summary,) = folder.rglob("summary.json")
    return summary.parent


def test_summary_has_everything(tmp_path):
    summary, folder = run_configuration(compose(*SMALL, *QUIET, f"results_dir={tmp_path}"))
    assert json.loads((folder / "summary.json").read_text()) == summary
    for key in (
        "experiment", "problem", "algorithm", "seed", "n_agents", "rounds", "metric", "curve", "final", "delta",
        "relation", "epsilon", "clip_fraction", "seconds",
    ):  # fmt: skip
        assert key in summary
    assert set(summary["epsilon"]) == {"moments", "rdp", "pld"}
    assert 0 < summary["epsilon"]["pld"] <= summary["epsilon"]["rdp"] <= summary["epsilon"]["moments"]
    assert summary["delta"] == pytest.approx(8**-1.1)
    assert summary["relation"] == "zero-out"
    assert len(summary["curve"]["mean"]) == len(summary["curve"]["se"]) == 7
    assert {"objective", "message", "server", "acquisition", "total"} <= set(summary["seconds"])
    rounds, server = pd.read_parquet(folder / "rounds.parquet"), pd.read_parquet(folder / "server.parquet")
    last = rounds[rounds["round"] == 6]["regret"]
    assert summary["final"]["mean"] == pytest.approx(last.mean())
    assert summary["final"]["se"] == pytest.approx(last.std(ddof=1) / np.sqrt(8))
    assert server["epsilon"].iloc[-1] == pytest.approx(summary["epsilon"]["pld"])
    assert len(Ledger(folder / "ledger.jsonl").charges) == 6
    assert folder.parent.parent.name == "single"
    assert folder.name == "0"


def test_same_seed_same_queries_and_no_second_charge(tmp_path):
    cfg = compose(*SMALL, *QUIET, f"results_dir={tmp_path}")
    _, folder = run_configuration(cfg)
    first = pd.read_parquet(folder / "rounds.parquet")
    summary, again = run_configuration(cfg)
    assert again == folder
    epsilon = pd.read_parquet(folder / "server.parquet")["epsilon"]
    assert epsilon.is_monotonic_increasing
    assert epsilon.iloc[0] < epsilon.iloc[-1]
    pd.testing.assert_frame_equal(first, pd.read_parquet(folder / "rounds.parquet"))
    assert summary["n_charges"] == 6


def test_operating_system_noise_is_fresh_and_charged_every_time(tmp_path):
    cfg = compose(*SMALL, *QUIET, f"results_dir={tmp_path}", "privacy.rng=os")
    first, _ = run_configuration(cfg)
    cfg.again = True
    second, _ = run_configuration(cfg)
    assert second["n_charges"] == 12
    assert second["epsilon"]["pld"] > first["epsilon"]["pld"]


@pytest.mark.parametrize(
    ("algorithm", "epsilon"),
    [("ts", 0.0), ("local", 0.0), ("random_server", 0.0), ("sobol_server", 0.0), ("fts", None), ("fts_original", None)],
)
def test_epsilon_without_a_mechanism(tmp_path, algorithm, epsilon):
    summary, _ = run_configuration(compose(f"algorithm={algorithm}", *SMALL, *QUIET, f"results_dir={tmp_path}"))
    assert set(summary["epsilon"].values()) == {epsilon}


def test_interrupted_run_keeps_its_ledger_and_resumes_without_a_second_charge(tmp_path):
    cfg = compose(*SMALL, *QUIET, f"results_dir={tmp_path}")

    def stop(done):
        if done.agents.round == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_configuration(cfg, stop)
    (ledger,) = tmp_path.rglob("ledger.jsonl")
    assert len(Ledger(ledger).charges) == 4
    assert not list(tmp_path.rglob("summary.json"))
    summary, _ = run_configuration(cfg)
    assert summary["n_charges"] == 6


REFUSED = [  # beside the mistakes of test_first_day
    ("privacy.z=1e-300", "privacy.z (noise_multiplier) must be 0 or at least 0.01"),
    ("privacy.S=5e-324", "which is no ordinary number"),
    ("algorithm.private=maybe", "algorithm.private must be one of True, False, got 'maybe'"),
    ("algorithm.server=peer", "algorithm.server must be null or the class of a server, got 'peer'"),
    ("algorithm.server=null", "algorithm.private needs a server that adds up messages, got none"),
    ("experiment_name=../../x", "experiment_name must be a plain folder name"),
    ("progress=banana", "progress must be one of True, False"),
    ("tracker=null", "Config group override must be a string or a list"),
    ("n_init=0", "n_init must be an integer of at least 1, got 0"),
    ("privacy.sampling=fixed_size", "cannot analyse SampledWithoutReplacementDpEvent"),
    ("algorithm.own_gp.fit=magic", "own_gp.fit must be one of 'closed_form', 'gpytorch', 'given', got 'magic'"),
    ("algorithm.own_gp.ard=true", "algorithm.own_gp.ard has no effect on fit=given: leave it out, got True"),
    ("privcy.z=1", "unknown override 'privcy.z' (did you mean 'privacy.z'?)"),
    ("privacy.q=[", "no viable alternative at input '['"),
]


@pytest.mark.parametrize(("override", "says"), REFUSED, ids=[o for o, _ in REFUSED])
def test_bad_input_is_one_sentence_and_leaves_nothing(monkeypatch, capsys, tmp_path, override, says):
    given = [o for o in SMALL if o.split("=")[0] != override.split("=")[0]]
    given = [o for o in given if not (override.startswith("problem=") and o.startswith("problem."))]
    code = call(monkeypatch, *given, f"results_dir={tmp_path / 'r'}", override)
    error = capsys.readouterr().err
    assert code in (1, 2)
    assert says.lower() in error.lower()
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("function", "says"),
    [
        ("broken", "raised RuntimeError: sensor off"),
        ("leaving", "raised SystemExit: 3"),
        ("not_a_number", "finite number, got nan"),
        ("absent", "imported"),
    ],
)
def test_custom_problem_failures(monkeypatch, capsys, tmp_path, function, says):
    code = call(monkeypatch, *SQUARE, f"{CUSTOM}:{function}", "rounds=2", f"results_dir={tmp_path / 'r'}")
    error = capsys.readouterr().err
    assert code == 1
    assert says in error
    assert "Traceback" not in error
    assert not list(tmp_path.rglob("*.parquet"))


def test_custom_problem_without_a_function(monkeypatch, capsys):
    assert call(monkeypatch, "problem=custom") == 1
    assert "problem.function must be given" in capsys.readouterr().err


def test_custom_problem_runs(monkeypatch, tmp_path):
    settings = ["problem.n_agents=4", "rounds=3", "n_init=3", "acquisition.n_candidates=50"]
    assert call(monkeypatch, *SQUARE, f"{CUSTOM}:sphere", *settings, f"results_dir={tmp_path}") == 0
    summary = json.loads((finished(tmp_path) / "summary.json").read_text())
    assert summary["metric"] == "best_value"
    assert summary["curve"]["mean"][-1] >= summary["curve"]["mean"][0]


def test_missing_data_says_what_to_run(monkeypatch, capsys, tmp_path):
    assert call(monkeypatch, "problem=landmine", f"data_dir={tmp_path}") == 1
    assert "python -m runners.fetch landmine" in capsys.readouterr().err


def test_results_folder_that_cannot_be_written(monkeypatch, capsys, tmp_path):
    (tmp_path / "file").write_text("in the way")
    assert call(monkeypatch, *SMALL, f"results_dir={tmp_path / 'file'}") == 1
    assert "cannot be written" in capsys.readouterr().err


def test_privacy_of_a_public_algorithm_is_noted(monkeypatch, capsys, tmp_path):
    assert call(monkeypatch, *SMALL, "algorithm=ts", "privacy.z=2", f"results_dir={tmp_path}") == 0
    assert "note: algorithm=ts is not private, privacy.z=2 has no effect" in capsys.readouterr().err


def test_as_a_command(tmp_path):
    command = [sys.executable, "-m", "runners.run"]
    settings = [*SMALL, "tracker.wandb.mode=disabled", f"results_dir={tmp_path}"]
    done = subprocess.run([*command, *settings], capture_output=True, text=True, check=True)
    assert "epsilon: moments" in done.stdout
    assert "relation zero-out" in done.stdout
    assert "round 6/6" in done.stderr
    assert finished(tmp_path).is_dir()
    wrong = subprocess.run([*command, "privacy.q=2"], capture_output=True, text=True, check=False)
    assert wrong.returncode == 1
    assert wrong.stderr == "error: privacy.q (sampling_probability) must lie in (0, 1], got 2\n"


def test_multirun(tmp_path):
    command = [sys.executable, "-m", "runners.run", "-m", "seed=0,1", *SMALL, *QUIET, f"results_dir={tmp_path}"]
    wrong = [sys.executable, "-m", "runners.run", "-m", "seeed=0,1"]
    done = subprocess.run(wrong, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "unknown override 'seeed' (did you mean 'seed'?)" in done.stderr
    subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert sorted(f.parent.name for f in tmp_path.rglob("summary.json")) == ["0", "1"]
    assert {f.name for f in tmp_path.iterdir()} == {"single", "multirun.yaml"}


def test_landmine_end_to_end(real_data, tmp_path):
    real_data("landmine/LandmineData.mat")
    cfg = compose("problem=landmine", "rounds=3", "seed=0", *QUIET, f"results_dir={tmp_path}")
    summary, folder = run_configuration(cfg)
    assert summary["n_agents"] == 29
    assert summary["metric"] == "one_minus_auc"
    assert summary["curve"]["mean"][0] > summary["final"]["mean"] > 0.2
    rounds = pd.read_parquet(folder / "rounds.parquet")
    x = np.stack(rounds["x"])
    assert (x >= [1e-4, 0.01]).all()
    assert (x <= [10, 10]).all()


@pytest.mark.parametrize(
    ("clipped", "normalized", "advised"), [(0.49, False, False), (0.51, False, True), (0.9, True, False)]
)
def test_a_run_that_clips_most_messages_is_advised(monkeypatch, capsys, tmp_path, clipped, normalized, advised):
    small = ["problem.n_agents=4", "rounds=1", "tracker.wandb.mode=disabled", f"results_dir={tmp_path}"]
    summary, folder = run_configuration(compose(*small))
    print_summary({**summary, "clip_fraction": clipped, "normalized": normalized}, folder)
    assert ("privacy.S is too small" in " ".join(capsys.readouterr().out.split())) is advised
