"""The status command reads every state of a trial from its files."""

import json
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from dpfbo.formats.run_folder import Progress, RunFolder
from runners import status
from runners.sweep import durations
from runners.sweep.trials import (  # fmt: skip
    PHASES,
    Trial,
    TrialState,
    forget_failure,
    known_trials,
    read_plan,
    record_failure,
    seeds_in_words,
    state,
    write_plan,
)

SUMMARY = {
    "problem": "branin", "algorithm": "ts", "metric": "simple_regret", "rounds": 4, "final": {"mean": 0.25},
    "epsilon": {"pld": 1.5, "rdp": 2.0}, "accountant": "pld", "delta": 0.01, "relation": "zero-out",
}  # fmt: skip


def trial(seed, setting="abcdef123456", label="ts"):
    return Trial(label, ("algorithm=ts",), setting, seed, 4, "simple_regret")


def finish(folder, **changes):
    folder.path.mkdir(parents=True, exist_ok=True)
    (folder.path / "summary.json").write_text(json.dumps({**SUMMARY, **changes}))


@pytest.fixture
def sweep(tmp_path):
    """Five seeds, one in each state; one is running until the test ends."""
    experiment = tmp_path / "results" / "mine"
    write_plan(experiment, [trial(seed) for seed in range(5)])
    folders = [trial(seed).folder(experiment) for seed in range(5)]
    finish(folders[0])
    for folder, round in ((folders[1], 2), (folders[2], 3)):
        folder.path.mkdir(parents=True)
        folder.note_progress(Progress(round, 4, 0.5, None, {}, {}))
    record_failure(folders[3], "sensor off", "Traceback ...")
    with folders[1].opened():
        yield experiment


def test_every_state(sweep):
    states = status.report(sweep).states
    assert [s.phase for s in states.values()] == list(PHASES)
    done, running, interrupted, failed, waiting = states.values()
    assert (done.round, done.mean, done.epsilon, done.delta, done.accountant) == (4, 0.25, 1.5, 0.01, "pld")
    assert (running.round, running.mean, running.epsilon) == (2, 0.5, float("inf"))
    assert interrupted.round == 3
    assert failed.error == "sensor off"
    assert waiting == TrialState("waiting")


def test_time_left_comes_from_finished_trials(sweep, capsys):
    report = status.report(sweep)
    assert durations.seconds_left(sweep, report.trials, report.states) is None  # the finished one does not tell
    for setting, seconds in (("abcdef123456", 7000.0), ("other", 0.0)):
        told = {"seconds": {"total": seconds}, "setting": setting}
        finish(trial(0, setting).folder(sweep), **told)
    usual = 7000 + durations.OVERHEAD
    # half of the running trial is left, a quarter of the interrupted one, and all of the waiting one
    assert durations.seconds_left(sweep, report.trials, report.states) == pytest.approx(1.75 * usual)
    assert status.main(["mine", f"results_dir={sweep.parent}"]) == 0
    assert "about 3:24:11 left" in " ".join(capsys.readouterr().out.split())
    longer = replace(trial(0, "longer"), rounds=40)  # nothing is known of its setting: its rounds take as long
    states = {longer.key: TrialState("running", round=10)}
    finish(trial(0, "other").folder(sweep), seconds={"total": 7000.0}, setting="other")
    assert durations.seconds_left(sweep, [longer], states) == pytest.approx(30 * usual / 4)
    quiet = {key: TrialState("waiting") for key in report.states}
    assert durations.seconds_left(sweep, report.trials, quiet) is None


def test_a_finished_trial_is_done_whatever_else_lies_there(tmp_path):
    folder = RunFolder(tmp_path / "0")
    finish(folder, epsilon={"pld": None})
    record_failure(folder, "earlier", "")
    folder.note_progress(Progress(1, 4, 0.5, 0.0, {}, {}))
    with folder.opened():
        assert state(folder).phase == "done"
    assert state(folder).as_json()["epsilon"] is None
    (folder.path / "summary.json").write_text("{")
    assert state(folder).phase == "failed"
    forget_failure(folder)
    assert state(folder).phase == "interrupted"


def test_table_and_errors(sweep, capsys):
    assert status.main(["mine", f"results_dir={sweep.parent}"]) == 0
    out = capsys.readouterr().out
    assert "mine: 1 of 5 done, 1 running, 1 interrupted, 1 failed, 1 waiting" in out
    assert "2 / 4" in out
    assert "3 / 4 stopped" in out
    assert "0.2500" in out
    assert "sensor off" in out
    assert "privacy-loss distributions at delta 0.01, relation zero-out, user level" in " ".join(out.split())


def test_json(sweep, capsys):
    assert status.main(["--json", f"results_dir={sweep.parent}"]) == 0
    (report,) = json.loads(capsys.readouterr().out)
    assert report["experiment"] == "mine"
    assert report["counts"] == dict.fromkeys(PHASES, 1)
    assert [t["state"] for t in report["trials"]] == list(PHASES)
    assert report["trials"][1]["epsilon"] is None
    assert report["trials"][3]["error"] == "sensor off"


def test_quantiles_of_runs_of_many_agents(tmp_path, capsys):
    """They are the means of the finished seeds; runs of few agents have none, and no column."""
    experiment = tmp_path / "mine"
    for seed, low in ((0, 0.01), (1, 0.03)):
        final = {"mean": 0.25, "quantiles": {"5": low, "50": 0.2, "95": 0.625}}
        finish(RunFolder(experiment / "aaaaaabbbbbb" / str(seed)), final=final)
    finish(RunFolder(experiment / "ccccccdddddd" / "0"))
    assert status.main(["mine", f"results_dir={tmp_path}"]) == 0
    out = capsys.readouterr().out
    assert "of the agents" in out and "5, 50, 95 %" in out and "0.02 0.2 0.625" in " ".join(out.split())
    assert status.main(["mine", "--json", f"results_dir={tmp_path}"]) == 0
    trials = json.loads(capsys.readouterr().out)[0]["trials"]
    assert [t["quantiles"] for t in trials] == [
        {"5": 0.01, "50": 0.2, "95": 0.625},
        {"5": 0.03, "50": 0.2, "95": 0.625},
        None,
    ]
    finish(RunFolder(experiment / "aaaaaabbbbbb" / "0"), final={"mean": 0.25, "quantiles": {"5": "low"}})
    assert status.report(experiment).states["aaaaaabbbbbb", 0].quantiles is None


def test_unknown_experiment_is_one_sentence(sweep, capsys, tmp_path):
    assert status.main(["other", f"results_dir={sweep.parent}"]) == 1
    assert capsys.readouterr().err == f"error: no trial of 'other' in {sweep.parent} (there are results of mine)\n"
    assert status.main([f"results_dir={tmp_path / 'nowhere'}"]) == 1
    assert capsys.readouterr().err.startswith("error: there are no results in ")


@pytest.mark.parametrize("arguments", [["../x"], ["--jsn"]])
def test_bad_arguments(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        status.main(arguments)
    assert stop.value.code == 2
    assert "Traceback" not in capsys.readouterr().err


def test_plain_runs_without_a_plan(tmp_path, capsys):
    experiment = tmp_path / "single"
    finish(RunFolder(experiment / "aaaaaabbbbbb" / "0"))
    folder = RunFolder(experiment / "ccccccdddddd" / "7")
    folder.path.mkdir(parents=True)
    folder.note_progress(Progress(1, 9, 0.5, 0.25, {}, {}))
    (experiment / "ccccccdddddd" / "notes").mkdir()
    found = known_trials(experiment)
    assert [(t.label, t.seed, t.rounds, t.metric) for t in found] == [
        ("branin ts aaaaaa", 0, 4, "simple_regret"), ("cccccc", 7, 9, None),
    ]  # fmt: skip
    assert status.main([f"results_dir={tmp_path}"]) == 0
    assert "single: 1 of 2 done, 1 interrupted" in capsys.readouterr().out


def test_plans_are_merged_and_whole(tmp_path):
    write_plan(tmp_path, [trial(0), trial(1)])
    write_plan(tmp_path, [trial(1, label="newer"), trial(2)])
    assert [(t.seed, t.label) for t in read_plan(tmp_path)] == [(0, "ts"), (1, "newer"), (2, "ts")]
    assert read_plan(tmp_path)[0] == trial(0)
    assert [path.name for path in tmp_path.iterdir()] == ["sweep.json"]
    for broken in ("[]", "{", '{"trials": [{"seed": 1}]}'):
        (tmp_path / "sweep.json").write_text(broken)
        assert read_plan(tmp_path) == []


@pytest.mark.parametrize(
    ("field", "value"),
    [("setting", name) for name in ("", "..", "../../other", "a/b", "x" * 201, "a\0", 3, None)]
    + [("seed", seed) for seed in (-1, 1.5, "0", 10**18)],
)
def test_a_plan_that_names_no_folders_is_no_plan(tmp_path, field, value):
    """A hostile sweep.json leads nobody out of its folder."""
    write_plan(tmp_path, [trial(0), trial(1)])
    content = json.loads((tmp_path / "sweep.json").read_text())
    content["trials"][1][field] = value
    (tmp_path / "sweep.json").write_text(json.dumps(content))
    assert read_plan(tmp_path) == []


def test_seeds_in_words():
    assert seeds_in_words([3, 0, 1, 2, 7, 9, 10]) == "0..3, 7, 9..10"
    assert seeds_in_words([]) == ""


def test_starts_without_ray_and_torch():
    code = "import sys, runners.status; print({'ray', 'torch', 'hydra'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


def test_living_actors_of_a_ray_are_shown_with_their_gpu_memory(monkeypatch, capsys, tmp_path):
    state = pytest.importorskip("runners.executor.ray.state", reason="ray[default] is not installed")
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\nprintf '12, 300\\n12, 40\\n13, [N/A]\\n14, 9000\\n'")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    named = {"class_name": "AgentActor", "required_resources": {"CPU": 1.0, "GPU": 0.25}}

    def actor(pid, node, status="ALIVE", **changes):
        return SimpleNamespace(
            **{"repr_name": f"dpfbo agents {pid}", **named, **changes}, pid=pid, node_id=node, state=status
        )

    found = [actor(14, "there"), actor(13, "here"), actor(12, "here"), actor(11, "here", "DEAD")]
    found += [actor(None, None, "PENDING_CREATION", repr_name=""), actor(15, "here", repr_name="run_trial")]
    monkeypatch.setattr(state, "list_actors", lambda **_: found)
    nodes = [
        SimpleNamespace(node_id="here", node_ip="127.0.0.1"),
        SimpleNamespace(node_id="there", node_ip="192.0.2.77"),
    ]
    monkeypatch.setattr(state, "list_nodes", lambda **_: nodes)

    assert status.main(["--ray", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["actor"], row["state"], row["gpu_memory"]) for row in rows] == [
        ("AgentActor", "pending_creation", None), ("a trial", "alive", None), ("dpfbo agents 12", "alive", 340),
        ("dpfbo agents 13", "alive", None), ("dpfbo agents 14", "alive", None),
    ]  # fmt: skip
    assert status.main(["--ray"]) == 0
    shown = capsys.readouterr().out
    assert "0.25" in shown and "340" in shown and "dpfbo agents 14" in shown and "dpfbo agents 11" not in shown
