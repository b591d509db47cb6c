"""Online runs, against a stand-in for the server that keeps what it gets."""

import json
import signal
import subprocess
import sys

import pytest

from runners.recorded_run import run_configuration
from runners.wandb.attempts import read_note
from tests.helpers.compose import compose
from tests.helpers.small_runs import Stop, interrupted
from tests.helpers.wandb_records import own_wandb  # noqa: F401

pytest.importorskip("wandb")

SMALL = ["problem=branin", "problem.n_agents=6", "rounds=4", "n_init=3", "algorithm.M=10", "progress=false"]
ONLINE = [*SMALL, "tracker.wandb.mode=online", "privacy.accountants=[rdp]", "privacy.accountant=rdp"]
KILLED_PROGRAM = """
import sys, time
from pathlib import Path
from runners.wandb.tracker import WandbTracker

tracker = WandbTracker(mode="online")
tracker.start({}, Path(sys.argv[1]), "run", "sweep", [])
for number in range(3):
    tracker.log_round(number, {"regret/mean": 1.0})
print("logged", flush=True)
time.sleep(60)
"""


def rounds_of(run):
    return [row["round"] for row in run.history if "round" in row]


def test_an_online_run_is_all_on_the_server(server, tmp_path):
    cfg = compose(*ONLINE, "experiment_name=mine", f"results_dir={tmp_path}")
    summary, folder = run_configuration(cfg)
    (run,) = server.runs.values()
    assert run.facts["displayName"] == f"branin-dp_fts_de-{summary['setting']}-0"
    assert (run.facts["groupName"], run.facts["tags"]) == ("mine", ["branin", "dp_fts_de", "simulation"])
    config = run.config
    assert (config["setting"], config["method"]) == (summary["setting"], "dp_fts_de")
    assert config["label"] == f"{summary['label']} ({summary['setting'][:6]})" and config["commit"] == summary["commit"]
    assert [row["_step"] for row in run.history] == list(range(len(run.history)))
    assert rounds_of(run) == [0, 1, 2, 3, 4]
    curve = [row["regret_vs_epsilon"] for row in run.history if "regret_vs_epsilon" in row]
    assert curve == pytest.approx(summary["curve"]["mean"])
    assert run.summary["final_regret"] == summary["final"]["mean"]
    assert run.summary["final_epsilon"] == pytest.approx(summary["epsilon"]["rdp"])
    assert any("final_regret_vs_epsilon" in name for name in run.files)
    assert run.exit_code == 0
    note = read_note(folder)
    assert (note.id, note.finished, note.rounds) == (run.name, True, 4)


def test_a_run_that_was_interrupted_goes_on_as_the_same_run_without_a_step_twice(server, tmp_path):
    cfg = compose(*ONLINE, f"results_dir={tmp_path}")
    interrupted(cfg, after=1)
    (run,) = server.runs.values()
    assert rounds_of(run) == [0, 1] and run.exit_code == 1 and "Stop" in run.summary["error"]
    seen, sent = dict(run.lines["wandb-history.jsonl"]), len(run.posts)
    summary, _ = run_configuration(cfg)
    assert list(server.runs.values()) == [run]
    assert rounds_of(run) == [0, 1, 2, 3, 4]
    steps = [row["_step"] for row in run.history]
    assert steps == sorted(set(steps))
    assert [row["regret/mean"] for row in run.history[:5]] == pytest.approx(summary["curve"]["mean"])
    later = [
        post["files"]["wandb-history.jsonl"] for post in run.posts[sent:] if "wandb-history.jsonl" in post["files"]
    ]
    assert min(chunk["offset"] for chunk in later) == 2  # nothing of the first two rows is sent again
    assert {k: run.lines["wandb-history.jsonl"][k] for k in seen} == seen
    assert run.exit_code == 0


def test_a_killed_process_leaves_a_run_that_the_next_one_finishes(server, tmp_path):
    """W&B sends rows every 15 s, so the test itself puts those of the killed process on the server."""
    folder = tmp_path / "setting" / "0"
    command = [sys.executable, "-c", KILLED_PROGRAM, str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "logged\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    (run,) = server.runs.values()
    assert run.exit_code is None
    rows = [{"_step": k, "round": k, "regret/mean": 1.0} for k in range(3)]
    run.lines["wandb-history.jsonl"] = {k: json.dumps(row) for k, row in enumerate(rows)}

    program = KILLED_PROGRAM.replace("range(3)", "range(5)").replace("time.sleep(60)", "tracker.finish({})")
    subprocess.run([sys.executable, "-c", program, str(folder)], check=True, timeout=60)
    assert list(server.runs.values()) == [run]
    assert [(row["_step"], row["round"]) for row in run.history] == [(k, k) for k in range(5)]
    assert run.exit_code == 0 and read_note(folder).finished


def test_a_repeated_run_is_a_new_one(server, tmp_path):
    cfg = compose(*ONLINE, f"results_dir={tmp_path}", "rounds=1")
    run_configuration(cfg)
    run_configuration(compose(*ONLINE, f"results_dir={tmp_path}", "rounds=1", "again=true"))
    assert [rounds_of(run) for run in server.runs.values()] == [[0, 1], [0, 1]]


def test_real_releases_send_nothing_before_their_end(server, tmp_path):
    cfg = compose(*ONLINE, f"results_dir={tmp_path}", "privacy.rng=os")
    with pytest.raises(Stop):
        run_configuration(cfg, lambda done: stop_after(done, server))
    run_configuration(cfg)
    text = json.dumps([run.posts for run in server.runs.values()])
    assert "server/sigma" in text and "privacy/epsilon" in text
    assert not any(
        word in text for word in ("regret/", "regret_vs", "final_regret", "snr", "n_chosen", "seconds/", "curve")
    )


def stop_after(done, server):
    if done.agents.round == 2:
        assert not any("wandb-history.jsonl" in run.lines for run in server.runs.values())
        raise Stop
