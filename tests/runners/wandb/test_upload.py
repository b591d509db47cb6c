"""Offline runs are uploaded, also while they go on, to a stand-in for the server."""

import subprocess
import sys
import threading
import time

import pytest

from runners.wandb import command, upload
from runners.wandb.tracker import WandbTracker
from tests.helpers.wandb_records import own_wandb  # noqa: F401

pytest.importorskip("wandb")

PROGRAM = """
import sys, time
from pathlib import Path
from runners import private_apis
from dpfbo.formats.run_folder import RunFolder
from runners.wandb.tracker import WandbTracker

private_apis.WANDB_UNWANTED["x_transaction_log_flush_interval"] = 0.1
experiment = Path(sys.argv[1]) / "mine"
folder = RunFolder(experiment / "setting" / "0")
with folder.opened():
    tracker = WandbTracker()
    tracker.start({}, folder.path, "run", "mine", [], folder=experiment)
    for number in range(6):
        if number == 3:
            time.sleep(1.0)  # W&B writes the rows to its file
            print("half", flush=True)
            sys.stdin.readline()
        tracker.log_round(number, {"regret/mean": 1.0})
tracker.finish({"final": {"mean": 0.25}})
"""


def half_a_run(folder):
    command = [sys.executable, "-c", PROGRAM, str(folder)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, **pipes)
    assert process.stdout.readline() == "half\n"
    return process


def wait_for_run(server):
    """Wait until the server knows the run; W&B sends rows every 15 s, and those that are left at the end."""
    give_up = time.monotonic() + 30
    while not any(run.posts for run in server.runs.values()) and time.monotonic() < give_up:
        time.sleep(0.05)


def test_a_run_that_goes_on_is_followed_to_its_end(server, tmp_path, capfd):
    process, codes = half_a_run(tmp_path), []
    following = threading.Thread(target=lambda: codes.append(command.main(["sync", f"results_dir={tmp_path}"])))
    following.start()
    wait_for_run(server)
    (run,) = server.runs.values()
    assert run.exit_code is None and process.poll() is None
    process.communicate("\n")
    following.join(60)
    assert codes == [0] and process.returncode == 0
    assert [row["_step"] for row in run.history] == [0, 1, 2, 3, 4, 5]
    assert run.exit_code == 0 and run.summary["final_regret"] == 0.25
    assert command.main(["sync", f"results_dir={tmp_path}"]) == 0
    assert "nothing to upload" in capfd.readouterr().out


@pytest.mark.slow
def test_a_run_that_is_killed_is_not_waited_for(server, tmp_path, monkeypatch, capfd):
    for name in ("GRACE_SECONDS", "LEAVE_SECONDS"):
        monkeypatch.setattr(upload, name, 3.0)
    monkeypatch.setattr(upload, "POLL_SECONDS", 0.1)
    process, codes = half_a_run(tmp_path), []
    following = threading.Thread(target=lambda: codes.append(command.main(["sync", "mine", f"results_dir={tmp_path}"])))
    following.start()
    wait_for_run(server)
    process.kill()
    process.communicate()
    following.join(60)
    assert codes == [0] and "ended without closing W&B" in capfd.readouterr().out
    assert command.main(["sync", "mine", f"results_dir={tmp_path}"]) == 0
    (run,) = server.runs.values()
    steps = {row["_step"] for row in run.history}  # `wandb sync` sends rows again that were sent while the run lived
    assert steps == {0, 1, 2}, "the same command uploads what the run wrote"


def test_an_unknown_experiment_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        command.main(["sync", "nothing", f"results_dir={tmp_path}"])
    assert stop.value.code == 2 and "must be the name of a folder" in capsys.readouterr().err


def test_a_results_folder_that_is_missing_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        command.main(["sync", f"results_dir={tmp_path / 'absent'}"])
    assert ended.value.code == 2
    assert "results_dir must be a folder, got" in capsys.readouterr().err


def test_the_alert_and_the_records_of_an_offline_run_reach_the_server_with_its_upload(server, tmp_path):
    folder = tmp_path / "mine" / "setting" / "0"
    folder.mkdir(parents=True)
    (folder / "summary.json").write_text('{"delta": 1e-5}')
    tracker = WandbTracker(artifacts=True, alerts=True)
    tracker.start({}, folder, "run", "mine", [], folder=tmp_path / "mine")
    tracker.alert("a title", "a text")
    tracker.finish({"delta": 1e-5})
    assert server.alerts == server.artifacts == []
    assert command.main(["sync", "mine", f"results_dir={tmp_path}"]) == 0
    assert [(alert["title"], alert["text"]) for alert in server.alerts] == [("a title", "a text")]
    assert [artifact["artifactTypeName"] for artifact in server.artifacts] == ["records"]
    assert b'{"delta": 1e-5}' in server.sent_files.values()
