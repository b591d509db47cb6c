"""The frame of an experiment's trials."""

import json
import subprocess
import sys

import pytest

from runners.recorded_run import run_configuration
from runners.sweep import results
from runners.sweep.plan import plan
from runners.sweep.trials import record_stop, state, write_plan
from tests.helpers.compose import with_seed

TINY = [
    "problem=branin", "problem.n_agents=4", "rounds=2", "algorithm.M=10", "acquisition.n_candidates=20",
    "acquisition.n_starts=1", "tracker.wandb.mode=disabled", "privacy.accountants=[moments,rdp,fixed_size,gdp]",
    "privacy.accountant=rdp", "experiment_name=mine", "algorithm=dp_fts",
]  # fmt: skip


def test_results_as_a_frame(tmp_path):
    with pytest.raises(FileNotFoundError, match="no trial in"):
        results(tmp_path / "mine")
    sweep = plan([*TINY, "privacy.z=1,2,3", "seeds=0,1", f"results_dir={tmp_path}"])
    write_plan(sweep.folder, [trial for _, trial in sweep.trials])
    for setting, trial in sweep.trials[:3]:
        if trial.label != "z=3":
            run_configuration(with_seed(setting, trial.seed))
    folder = sweep.trials[2][1].folder(sweep.folder)
    folder.path.mkdir(parents=True)
    record_stop(folder, "asha", state(sweep.trials[0][1].folder(sweep.folder)))
    frame = results(tmp_path / "mine")
    assert list(frame["state"]) == ["done", "done", "interrupted", "waiting", "waiting", "waiting"]
    assert list(frame["config/privacy.z"]) == [1, 2, 3, 1, 2, 3] and list(frame["seed"]) == [0, 0, 0, 1, 1, 1]
    assert [column for column in frame if column.startswith("config/")] == ["config/privacy.z"]
    assert list(frame["stopped_by"].fillna("")) == ["", "", "asha", "", "", ""]
    summary = json.loads((tmp_path / "mine" / frame["setting"][1] / "0" / "summary.json").read_text())
    row = frame.iloc[1]
    assert (row["mean"], row["se"], row["delta"]) == (
        summary["final"]["mean"],
        summary["final"]["se"],
        summary["delta"],
    )
    assert row["epsilon/rdp"] == summary["epsilon"]["rdp"] and row["path"].endswith("/0") and row["seconds"] > 0
    assert frame["mean"].isna().tolist() == [False, False, False, True, True, True]


def test_a_key_that_follows_the_seed_has_no_column(tmp_path):
    problem = ["problem=synthetic", "problem.n_agents=3"]  # each seed has its own function
    sweep = plan([*TINY[2:], *problem, "privacy.z=1,2", "seeds=0,1", f"results_dir={tmp_path}"])
    write_plan(sweep.folder, [trial for _, trial in sweep.trials])
    for setting, trial in sweep.trials:
        run_configuration(with_seed(setting, trial.seed))
    frame = results(tmp_path / "mine")
    assert [column for column in frame if column.startswith("config/")] == ["config/privacy.z"]


def test_a_frame_needs_neither_torch_nor_ray():
    code = "import sys; from runners.sweep import results; print('torch' in sys.modules, 'ray' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
