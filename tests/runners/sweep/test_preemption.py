"""Nodes and processes that go away while a sweep runs: trials go on, and an error of their own is a failure."""

import json
import re
from io import StringIO

import pytest
from omegaconf import OmegaConf
from rich.console import Console

from dpfbo.formats.run_folder import RunFolder
from runners import status
from runners.identity.setting import names_of
from runners.sweep import progress_table
from runners.sweep.attempt import run_trial
from runners.sweep.trials import Trial, TrialState, record_preemption, state
from tests.helpers import lost_nodes
from tests.helpers.compose import compose


@pytest.mark.slow
def test_nodes_that_go_away_fail_no_trial(tmp_path):
    swept = lost_nodes.sweep(tmp_path / "r", seeds=2, kills=1, seed=0)
    assert swept.code == 0 and swept.faults == []
    assert [trial["state"] for trial in swept.report["trials"]] == ["done"] * 4
    assert swept.kills >= 1 and swept.preemptions >= 1
    lines = [json.loads(line) for path in tmp_path.rglob("preemptions.jsonl") for line in path.open()]
    assert len(lines) == swept.preemptions
    assert all("went away" in line["reason"] or "died" in line["reason"] for line in lines)
    experiment = tmp_path / "r" / "lost"
    seeded = next(t for t in swept.report["trials"] if "rng=seeded" in t["label"] or "seeded" in t["label"])
    ours, alone = experiment / seeded["setting"] / str(seeded["seed"]), lost_nodes.undisturbed(tmp_path / "a", 0)
    for name in lost_nodes.RECORDS:
        assert (ours / name).read_bytes() == (alone / name).read_bytes()
    assert "after which trials went on" in progress_table.counts(status.report(experiment).states)


@pytest.mark.parametrize(
    ("account", "words"),
    [
        ("The actor died because its node has died. Node Id: 1f", "its node went away"),
        ("Worker exit type: NODE_OUT_OF_MEMORY. Task was killed due to the node running low on memory.", "memory"),
        ("The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR", "its process died"),
        ("ray.exceptions.RayTaskError\nTraceback (most recent call last)\nImportError: no x", "ImportError: no x"),
    ],
)
def test_the_cause_of_a_death_in_words(account, words):
    from runners.sweep.tune import cause_of_death

    assert words in cause_of_death(account)


def test_preemptions_are_counted(tmp_path):
    folder = RunFolder(tmp_path / "e" / "s" / "0")
    assert state(folder).preemptions == 0
    for _ in range(2):
        record_preemption(folder, "its node went away")
    assert state(folder) == TrialState("waiting", preemptions=2)
    said = progress_table.counts({("s", 0): state(folder)})
    assert said == "0 of 1 done, 1 waiting, 2 preemptions, after which trials went on"


def test_runs_of_other_lengths_are_not_averaged():
    trials = [Trial("x", (), "s", seed, rounds, None) for seed, rounds in ((0, 3), (1, 12), (2, 3))]
    states = {t.key: TrialState("done", mean=float(t.rounds)) for t in trials}
    assert [row.mean() for row in progress_table.rows(trials, states)] == ["3.0000 ± 0.0000", "12.0000"]


def test_results_that_a_node_does_not_see_are_a_failure(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cfg = compose("algorithm=ts", "tracker.wandb.mode=disabled", f"results_dir={tmp_path}/absent")
    told = run_trial({"trial": (0, 3)}, {0: (names_of(cfg).setting, OmegaConf.to_container(cfg))}, str(tmp_path))
    state = json.loads(told["told"])["state"]
    assert state["phase"] == "failed" and "is not on this node: all nodes must share one results_dir" in state["error"]
    assert list(tmp_path.iterdir()) == []


def test_plain_logs_say_the_time_left(monkeypatch):
    console, trials = (
        Console(file=StringIO(), force_terminal=False),
        [Trial("x", (), "s", k, 10, "m") for k in range(4)],
    )
    table = progress_table.ProgressTable(trials, {t.key: TrialState("waiting") for t in trials}, console)
    clock = iter(range(0, 1000, 30))
    monkeypatch.setattr(table._bar, "get_time", lambda: float(next(clock)))
    table._bar.reset(table._task)
    for trial in trials:
        table.update(trial, TrialState("done", mean=1.0, epsilon=0.0))
    lines = console.file.getvalue().splitlines()
    left = [float(m[1]) for line in lines if (m := re.search(r"; about 0:\d\d:(\d\d) left$", line))]
    assert len(lines) == 4 and len(left) >= 2 and not lines[3].endswith("left")
