"""The demo: its runs, skips, resumption and refusals."""

import json
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from analysis import figures, tables
from dpfbo.privacy.ledger import Ledger
from runners import demo
from runners.compose.identity import setting_hash
from runners.record.run_folder import RunFolder

SMALL = [
    "rounds=3", "problem.n_agents=8", "problem.grid_size=50", "n_init=3", "algorithm.M=10",
    "tracker.wandb.mode=disabled",
]  # fmt: skip


def command(folder, *more):
    return demo.main([f"results_dir={folder}", "--seeds", "1", *more, *SMALL])


def stamps(folder):
    return {path: path.stat().st_mtime_ns for path in Path(folder).rglob("summary.json")}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    assert command(folder) == 0
    return folder


@pytest.fixture
def copy(finished, tmp_path):
    """The results of a finished demo, for a test to change."""
    return Path(shutil.copytree(finished, tmp_path / "results"))


def test_runs_every_setting(finished):
    summaries = [json.loads(path.read_text()) for path in finished.rglob("summary.json")]
    runs = demo.compose(str(finished), 1, SMALL)
    assert sorted(s["setting"] for s in summaries) == sorted(setting_hash(run.cfg) for run in runs)
    assert {s["experiment"] for s in summaries} == {"demo"}
    assert {(s["algorithm"], s["private"]) for s in summaries} == {
        ("ts", False), ("fts_de", False), ("dp_fts", True), ("dp_fts_de", True), ("dp_prior", True),
    }  # fmt: skip
    assert sum(s["algorithm"] == "dp_fts_de" for s in summaries) == 2
    assert all(run.finished for run in runs)


def test_is_the_problem_of_the_paper():
    runs = demo.compose("results", 3)
    assert len(runs) == 21
    assert len({run.folder for run in runs}) == 21
    for run in runs:
        assert (run.cfg.problem.n_agents, run.cfg.rounds, run.cfg.problem.grid_size) == (200, 40, 1000)
        assert run.cfg.problem.function_seed == run.cfg.seed
        assert run.folder.name == str(run.cfg.seed)
        assert run.cfg.tracker.wandb.mode == "offline"
    private = {(run.cfg.privacy.epsilon, run.cfg.privacy.z) for run in runs if run.cfg.algorithm.private}
    (calibrated,) = {z for target, z in private if target == 1.0}
    assert {z for target, z in private if target is None} == {1.0, 2.0}
    assert calibrated == pytest.approx(2.26, abs=0.02)  # one release, analytic Gaussian


def test_finished_runs_are_skipped(finished, capfd):
    before = stamps(finished)
    assert command(finished) == 0
    assert stamps(finished) == before
    assert "7 of 7 runs are finished and skipped" in capfd.readouterr().err


def test_unfinished_run_goes_on_without_a_second_charge(copy, capfd):
    before = stamps(copy)
    run = next(run for run in demo.compose(str(copy), 1, SMALL) if run.cfg.algorithm.private)
    summary = json.loads((run.folder / "summary.json").read_text())
    (run.folder / "summary.json").unlink()
    assert command(copy) == 0
    again = json.loads((run.folder / "summary.json").read_text())
    assert again["epsilon"] == summary["epsilon"]
    assert again["curve"] == summary["curve"]
    assert len(Ledger(run.folder / "ledger.jsonl").charges) == 3
    after = stamps(copy)
    assert [path for path in before if after[path] != before[path]] == [run.folder / "summary.json"]
    assert "6 of 7 runs are finished" in capfd.readouterr().err


def test_more_seeds_add_runs(copy):
    before = stamps(copy)
    assert demo.main([f"results_dir={copy}", "--seeds", "2", *SMALL]) == 0
    after = stamps(copy)
    assert len(after) == 14
    assert {path: after[path] for path in before} == before


def test_fresh_deletes_only_the_runs_of_the_demo(copy):
    others = [copy / "single" / "a" / "0" / "summary.json", copy / "demo" / "other" / "0" / "summary.json"]
    for other in others:
        other.parent.mkdir(parents=True)
        other.write_text("{}")
    run = demo.compose(str(copy), 1, SMALL)[0]
    (run.folder / "wandb").mkdir()
    (run.folder / "wandb" / "left_over").write_text("")
    before = stamps(copy)
    assert command(copy, "--fresh") == 0
    after = stamps(copy)
    assert not (run.folder / "wandb").exists()
    assert [path for path in before if after[path] == before[path]] == [p for p in before if p in others]


def test_fresh_leaves_a_run_that_is_being_written(copy, capfd):
    run = demo.compose(str(copy), 1, SMALL)[-1]
    with RunFolder(run.folder).opened():
        assert command(copy, "--fresh") == 1
    assert "another run is writing" in capfd.readouterr().err
    assert run.finished


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["rounds=0"], 1, "error: rounds must be an integer of at least 1, got 0"),
        (["privacy.q=2"], 1, "error: privacy.q must lie in (0, 1], got 2"),
        (["rouns=3"], 2, "did you mean 'rounds'?"),
        (["problem=sinthetic"], 2, "did you mean 'synthetic'?"),
        (["results_dir=/dev/null/x"], 1, "cannot be written"),
    ],
)
def test_refuses_in_one_sentence(arguments, code, words, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    assert demo.main(["--seeds", "1", *arguments]) == code
    out, err = capfd.readouterr()
    lines = [line for line in err.splitlines() if line]
    assert words in lines[-1]
    assert "Traceback" not in err
    assert out == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [["--seeds", "0"], ["seed=3"], ["experiment_name=x"], ["--nonsense"]])
def test_usage(arguments, capfd):
    with pytest.raises(SystemExit) as stop:
        demo.main(arguments)
    assert stop.value.code == 2
    assert "error: " in capfd.readouterr().err.splitlines()[-1]


@pytest.mark.slow
def test_interrupted_and_then_finished(tmp_path):
    small = ["rounds=20", *SMALL[1:]]
    arguments = [sys.executable, "-m", "runners.demo", f"results_dir={tmp_path}", "--seeds", "1", *small]
    listen = partial(signal.signal, signal.SIGINT, signal.default_int_handler)  # a background job ignores it
    process = subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True, preexec_fn=listen)
    deadline = time.monotonic() + 60
    while not list(tmp_path.rglob("ledger.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.splitlines()[-1].startswith("error: interrupted")
    assert "Traceback" not in err
    assert len(stamps(tmp_path)) < 7
    assert demo.main([f"results_dir={tmp_path}", "--seeds", "1", *small]) == 0
    assert len(stamps(tmp_path)) == 7


def test_feeds_table_and_figures(finished, tmp_path, capfd):
    assert tables.main(["demo", f"results_dir={finished}", "--json"]) == 0
    rows = json.loads(capfd.readouterr().out)
    assert [row["label"] for row in rows] == [
        "TS", "FTS-DE, P = 2", "DP-FTS, z = 2", "DP-FTS, z = 1", "DP-FTS-DE, P = 2, z = 2", "DP-FTS-DE, P = 2, z = 1",
        "private prior, ε = 1",
    ]  # fmt: skip
    assert figures.main(["demo", f"results_dir={finished}", "--out", str(tmp_path / "figures")]) == 0
    assert len(list((tmp_path / "figures").iterdir())) == 8
