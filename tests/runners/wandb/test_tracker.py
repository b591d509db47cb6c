"""W&B never stops a run: the contents of offline runs, and all failures of W&B."""

from __future__ import annotations

import json
import logging
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from omegaconf import OmegaConf

from dpfbo.privacy.budget import BudgetSpent
from dpfbo.run_result import Round
from runners import private_apis
from runners.recorded_run import run_configuration
from runners.wandb import layout
from runners.wandb import tracker as tracker_module
from runners.wandb.tracker import WandbTracker
from tests.helpers.compose import compose
from tests.helpers.wandb_records import (
    FAKE_KEY,
    config_of,
    of_kind,
    own_wandb,  # noqa: F401
    records_in,
    rows,
    summary_of,
    values,
)

CONFIG = {"privacy": {"q": 0.35, "z": 1.0}, "seed": 3, "problem": "landmine"}
SUMMARY = {
    "final": {"mean": 0.25, "se": None},
    "epsilon": {"pld": 0.375, "moments": 0.5},
    "accountant": "pld",
    "delta": 1e-5,
    "seconds": {"server": 3.0},
    "curve": {"mean": [0.75, 0.5, 0.25]},
}
SMALL = ["problem=branin", "problem.n_agents=8", "rounds=3", "n_init=3", "algorithm.M=10", "progress=false"]
DISABLED_PROGRAM = """
import sys
from pathlib import Path
from runners.wandb.tracker import WandbTracker

tracker = WandbTracker(mode="disabled")
tracker.start({}, Path(sys.argv[1]), "run", "sweep", [])
tracker.log_round(0, {"regret/mean": 1.0})
tracker.finish({"delta": 1e-5})
tracker.fail("never mind")
assert "wandb" not in sys.modules
"""
WORKER_PROGRAM = """
import os, sys, threading
from pathlib import Path
from runners.wandb.tracker import WandbTracker

def work():
    for number in range(2):
        tracker = WandbTracker()
        tracker.start({}, Path(sys.argv[1]) / str(number), "run", "sweep", [])
        tracker.log_round(0, {"regret/mean": 1.0})
        tracker.finish({"delta": 1e-5})

thread = threading.Thread(target=work)
thread.start()
thread.join()
os._exit(0)  # a worker of Ray does not take leave either
"""


@pytest.fixture
def messages(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """The logged messages without those of W&B's own loggers, which only reach its debug.log."""
    caplog.set_level(logging.INFO)
    return lambda: [record.getMessage() for record in caplog.records if not record.name.startswith("wandb")]


def start(tracker: WandbTracker, run_dir: Path, epsilon: float | None = 0.0) -> None:
    tracker.start(CONFIG, run_dir, "landmine-3", "sweep-a", ["test"], commit="abc+", epsilon=epsilon)


def run_with_epsilons(run_dir: Path, *epsilons: float | None, before: float | None = 0.0) -> list[dict[str, Any]]:
    """Log rounds with a broadcast each and a last one without; returns the epsilon of each row."""
    tracker = WandbTracker()
    start(tracker, run_dir, before)
    for number, epsilon in enumerate(epsilons):
        tracker.log_round(number, {"regret/mean": 1 / (number + 1), "epsilon": epsilon})
    tracker.log_round(len(epsilons), {"regret/mean": 1 / (len(epsilons) + 1)})
    tracker.fail("no more")
    shown = ("privacy/epsilon", "regret_vs_epsilon")
    return [{key: row[key] for key in shown if key in row} for row in rows(run_dir)]


def whole_run(tracker: WandbTracker, run_dir: Path) -> float:
    """Call every method, as a run does; return the seconds it took."""
    began = time.monotonic()
    start(tracker, run_dir)
    for number in range(3):
        tracker.log_round(number, {"regret/mean": 1.0, "epsilon": 0.5})
    tracker.finish(SUMMARY)
    tracker.fail("after the end")
    return time.monotonic() - began


def fake_wandb(monkeypatch: pytest.MonkeyPatch, **run: Any) -> SimpleNamespace:
    """Replace W&B by one whose run only has the given methods."""
    calls = SimpleNamespace(torn_down=0)

    def teardown(exit_code: int = 0) -> None:
        calls.torn_down += 1

    def nothing(*args: Any, **settings: Any) -> None:
        return None

    methods = {"define_metric": nothing, "log": nothing, "finish": nothing, "summary": {}, "starting_step": 0} | run
    module = SimpleNamespace(
        Image=nothing,
        Settings=type("Settings", (SimpleNamespace,), {"model_fields": {}}),
        Table=nothing,
        plot=SimpleNamespace(scatter=nothing),
        init=lambda **settings: SimpleNamespace(**methods),
        login=lambda **settings: True,
        setup=nothing,
        teardown=teardown,
    )
    monkeypatch.setitem(sys.modules, "wandb", module)
    return calls


def test_offline_run_holds_config_regret_epsilon_and_figure(
    tmp_path: Path, messages: Callable[[], list[str]], capfd: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "result"
    tracker = WandbTracker()
    start(tracker, run_dir)
    rounds: list[dict[str, Any]] = [
        {"regret/mean": 0.75, "epsilon": 0.25, "regret/q90": None, "server/snr": float("nan")},
        {"regret/mean": 0.5, "epsilon": 0.375, "regret/q90": 0.875, "server/snr": np.float32(2.0)},
        {"regret/mean": 0.25, "regret/q90": 0.625, "seconds/server": 1},
    ]
    for number, metrics in enumerate(rounds):
        print(f"round {number}")
        tracker.log_round(number, metrics)
    tracker.finish(SUMMARY)

    (run,) = of_kind(run_dir, "run")
    assert (run.project, run.run_group, run.display_name) == ("dpfbo", "sweep-a", "landmine-3")
    assert list(run.tags) == ["test", "simulation"]
    config = config_of(run_dir)
    assert {key: config[key] for key in CONFIG} == CONFIG
    assert config["commit"] == "abc+"

    logged = rows(run_dir)
    assert logged[:3] == [
        {"round": 0, "regret/mean": 0.75, "privacy/epsilon": 0, "regret_vs_epsilon": 0.75},
        {
            "round": 1,
            "regret/mean": 0.5,
            "privacy/epsilon": 0.25,
            "regret_vs_epsilon": 0.5,
            "regret/q90": 0.875,
            "server/snr": 2,
        },
        {
            "round": 2,
            "regret/mean": 0.25,
            "privacy/epsilon": 0.375,
            "regret_vs_epsilon": 0.25,
            "regret/q90": 0.625,
            "seconds/server": 1,
        },
    ]
    assert [values(row.item)["_step"] for row in of_kind(run_dir, "history")] == [0, 1, 2, 3]

    final = summary_of(run_dir)
    assert (final["final_regret"], final["final_epsilon"], final["epsilon/moments"]) == (0.25, 0.375, 0.5)
    assert (final["regret_vs_epsilon"], final["privacy/epsilon"]) == ({"last": 0.25}, {"last": 0.375})
    assert (final["server/snr"], final["seconds/server"]) == ({"mean": 2}, 3)  # seconds of all rounds
    assert not {"final/se", "curve/mean"} & set(final)
    assert [exit.exit_code for exit in of_kind(run_dir, "exit")] == [0]
    assert of_kind(run_dir, "output_raw") == of_kind(run_dir, "output") == []  # no captured console
    assert messages() == []
    assert capfd.readouterr() == ("round 0\nround 1\nround 2\n", "")


def test_regret_against_epsilon_comes_first(tmp_path: Path) -> None:
    """Sections are made of prefixes and sorted; metrics without one are in "Charts"."""
    run_dir = tmp_path / "result"
    tracker = WandbTracker()
    start(tracker, run_dir)
    for number in range(2):
        names = ("regret/mean", "epsilon", "server/snr", "seconds/fit", "regret/median")
        tracker.log_round(number, dict.fromkeys(names, 1.0))
    tracker.finish(SUMMARY)
    axes = {metric.name or metric.glob_name: metric for metric in of_kind(run_dir, "metric")}
    assert {name: metric.step_metric for name, metric in axes.items()} == {
        "round": "",
        "privacy/epsilon": "round",
        "regret_vs_epsilon": "privacy/epsilon",
        "regret/*": "round",
        "server/*": "round",
        "progress/seconds_left": "round",
        "seconds/*": "round",
    }
    assert [name for name, metric in axes.items() if metric.options.hidden] == ["round"]
    charts = {name for row in rows(run_dir)[:2] for name in row}
    sections: dict[str, list[str]] = {}
    for name in sorted(charts):
        sections.setdefault(name.split("/")[0] if "/" in name else "Charts", []).append(name)
    assert sorted(sections, key=str.lower)[0] == sorted(sections)[0] == "Charts"
    assert sections["Charts"] == ["regret_vs_epsilon", "round"]


def test_final_point_is_in_a_chart_of_all_runs(tmp_path: Path) -> None:
    whole_run(WandbTracker(), tmp_path)
    (config,) = of_kind(tmp_path, "config")
    chart = values(config.update)["_wandb/visualize/final_regret_vs_epsilon"]["panel_config"]
    assert chart["panelDefId"] == "wandb/scatter/v0"
    assert chart["fieldSettings"] == {"x": "epsilon", "y": "regret"}
    (table,) = tmp_path.glob("wandb/offline-run-*/files/media/table/**/*.table.json")
    assert json.loads(table.read_text()) == {"columns": ["epsilon", "regret"], "data": [[0.375, 0.25]]}


@pytest.mark.parametrize(
    ("epsilons", "before", "expected"),
    [
        ((0.25, 0.5), 0.0, [(0, 1), (0.25, 1 / 2), (0.5, 1 / 3)]),
        ((None, None), 0.0, [None] * 3),  # released without noise
        ((float("inf"),), 0.0, [None] * 2),
        ((), 0.0, [(0, 1)]),  # nothing is ever released
        ((), None, [None]),  # messages go between agents, without a server
    ],
)
def test_regret_stands_at_the_epsilon_that_was_spent_on_it(
    tmp_path: Path, epsilons: tuple[float | None, ...], before: float | None, expected: list[tuple[float, float] | None]
) -> None:
    names = ("privacy/epsilon", "regret_vs_epsilon")
    points = [dict(zip(names, point, strict=True)) if point else {} for point in expected]
    assert run_with_epsilons(tmp_path, *epsilons, before=before) == points


def test_no_point_without_a_finite_epsilon(tmp_path: Path, messages: Callable[[], list[str]]) -> None:
    tracker = WandbTracker()
    start(tracker, tmp_path)
    tracker.finish({**SUMMARY, "epsilon": {"pld": None, "moments": None}})
    final = summary_of(tmp_path)
    assert final["final_regret"] == 0.25
    assert "final_epsilon" not in final
    assert not list(tmp_path.glob("wandb/offline-run-*/files/media/table"))
    assert messages() == []


def test_config_tells_what_is_released(tmp_path: Path) -> None:
    whole_run(WandbTracker(), tmp_path)
    told = config_of(tmp_path)["visibility"]
    assert set(told) == {"released", "simulation-only"}
    assert {"privacy/epsilon", "server/sigma", "server/sensitivity", "final_epsilon"} <= set(told["released"])
    private = {"regret/*", "regret_vs_epsilon", "server/snr", "server/n_chosen", "server/n_dropped", "seconds/*"}
    private |= {"progress/seconds_left"}
    assert private <= set(told["simulation-only"])


@pytest.mark.parametrize("algorithm", ["ts", "fts", "dp_fts_de"])
def test_settings_that_a_method_does_not_use_are_null(algorithm):
    cfg = OmegaConf.to_container(compose(f"algorithm={algorithm}"), resolve=True)
    found = layout.config_of(cfg, "0123456789ab", "synthetic, x", released_only=False)
    assert (found["setting"], found["method"], found["label"]) == ("0123456789ab", algorithm, "synthetic, x (012345)")
    private, shares, weighted = algorithm == "dp_fts_de", algorithm != "ts", algorithm == "dp_fts_de"
    assert (found["privacy"] == cfg["privacy"]) == private and (found["privacy"]["q"] is None) != private
    assert found["privacy"]["budget"].keys() == cfg["privacy"]["budget"].keys()
    assert (found["algorithm"]["message"] is not None) == (found["algorithm"]["M"] is not None) == shares
    assert (found["weights"] == cfg["weights"]) == weighted
    assert found["algorithm"]["own_gp"] == cfg["algorithm"]["own_gp"] and found["problem"] == cfg["problem"]


def test_nothing_of_the_machine_is_kept(tmp_path: Path) -> None:
    whole_run(WandbTracker(), tmp_path)
    assert of_kind(tmp_path, "environment") == of_kind(tmp_path, "stats") == []
    assert not list(tmp_path.glob("wandb/*/files/requirements.txt"))
    assert set(private_apis.WANDB_UNWANTED) <= set(sys.modules["wandb"].Settings.model_fields)  # the installed ones


@pytest.mark.parametrize("mode", ["online", "disabled"])
def test_environment_does_not_change_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    others = {
        "MODE": mode,
        "RUN_ID": "fixed",
        "RESUME": "must",
        "PROJECT": "other",
        "NAME": "other",
        "DIR": "/dev/null",
    }
    for name, value in {**others, "RUN_GROUP": "other", "TAGS": "other"}.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    whole_run(WandbTracker(), tmp_path)
    (run,) = of_kind(tmp_path, "run")
    assert (run.project, run.run_group, run.display_name) == ("dpfbo", "sweep-a", "landmine-3")
    assert list(run.tags) == ["test", "simulation"]
    assert run.run_id != "fixed"


def test_resumed_run_is_one_full_curve(tmp_path: Path) -> None:
    """A killed attempt is replaced unless it was uploaded."""
    start(WandbTracker(), tmp_path)
    (killed,) = tmp_path.glob("wandb/offline-run-*")
    tracker = WandbTracker()
    start(tracker, tmp_path)
    for number in range(4):
        tracker.log_round(number, {"regret/mean": 1.0})
    tracker.finish(SUMMARY)
    assert not killed.exists()
    assert [row["round"] for row in rows(tmp_path)[:4]] == [0, 1, 2, 3]
    (kept,) = tmp_path.glob("wandb/offline-run-*")
    (kept / "run-x.wandb.synced").touch()
    whole_run(WandbTracker(), tmp_path)
    assert len(list(tmp_path.glob("wandb/offline-run-*"))) == 2
    assert kept.exists()


def test_files_stay_in_the_result_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    whole_run(WandbTracker(), tmp_path / "result")
    assert sorted(path.name for path in (tmp_path / "result").iterdir()) == ["wandb", "wandb.json"]
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert list((tmp_path / "result").glob("wandb/*/files/**/*.py")) == []  # no code
    assert list((tmp_path / "result").glob("wandb/*/files/*.patch")) == []  # no git state
    assert list((tmp_path / "result").glob("wandb/*/files/output.log")) == []  # no console


def test_fail_marks_the_run(tmp_path: Path) -> None:
    tracker = WandbTracker()
    start(tracker, tmp_path)
    tracker.log_round(0, {"regret/mean": 0.5})
    tracker.fail("the objective raised")
    tracker.finish({"delta": 1e-5})  # too late: nothing happens
    assert [exit.exit_code for exit in of_kind(tmp_path, "exit")] == [1]
    assert summary_of(tmp_path)["error"] == "the objective raised"
    assert "delta" not in summary_of(tmp_path)


def test_runs_in_one_process_are_separate(tmp_path: Path, messages: Callable[[], list[str]]) -> None:
    for name in ("a", "b"):
        whole_run(WandbTracker(), tmp_path / name)
    ids = {of_kind(tmp_path / name, "run")[0].run_id for name in ("a", "b")}
    assert len(ids) == 2
    assert messages() == []


@pytest.mark.parametrize("blocked", ["result", "result/wandb"])
def test_file_in_the_way(tmp_path: Path, messages: Callable[[], list[str]], blocked: str) -> None:
    (tmp_path / blocked).parent.mkdir(exist_ok=True)
    (tmp_path / blocked).write_text("in the way")
    whole_run(WandbTracker(), tmp_path / "result")
    (message,) = messages()
    assert "W&B tracking is off" in message
    assert (tmp_path / blocked).read_text() == "in the way"


def test_next_run_after_a_failed_one_is_tracked(tmp_path: Path, messages: Callable[[], list[str]]) -> None:
    (tmp_path / "blocked").write_text("")
    whole_run(WandbTracker(), tmp_path / "blocked")
    whole_run(WandbTracker(), tmp_path / "free")
    assert len(of_kind(tmp_path / "free", "history")) == 4
    assert len(messages()) == 1


def test_online_without_a_key_never_asks_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: Callable[[], list[str]]
) -> None:
    from wandb.sdk.lib.wbauth import prompt

    asked: list[dict] = []
    monkeypatch.setattr(prompt, "prompt_and_save_api_key", lambda **settings: asked.append(settings))
    assert whole_run(WandbTracker(mode="online"), tmp_path) < 10.0
    (message,) = messages()
    assert "no W&B API key" in message
    assert asked == []


def test_online_with_a_server_that_never_answers_gives_up_in_time(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    messages: Callable[[], list[str]],
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A test below has a server that refuses."""
    monkeypatch.setattr(tracker_module, "INIT_SECONDS", 1.5)
    monkeypatch.setenv("WANDB_API_KEY", FAKE_KEY)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, and says nothing
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        assert whole_run(WandbTracker(mode="online"), tmp_path) < 8.0
    assert len(messages()) == 1
    assert capfd.readouterr() == ("", "")


def test_wandb_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: Callable[[], list[str]]
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setattr(tracker_module, "_missing", set())
    whole_run(WandbTracker(), tmp_path / "a")
    whole_run(WandbTracker(), tmp_path / "b")
    (message,) = messages()  # one for all runs of the process
    assert "ModuleNotFoundError" in message and "pip install" in message


def test_failure_during_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: Callable[[], list[str]]
) -> None:
    rounds: list[int] = []

    def log(row: dict, step: int, commit: bool = True) -> None:
        rounds.append(step)
        if step == 1:
            raise SystemExit("service\ndied")

    calls = fake_wandb(monkeypatch, log=log)
    whole_run(WandbTracker(), tmp_path)
    (message,) = messages()
    assert message.endswith("SystemExit: service died")
    assert rounds == [0, 1]
    assert calls.torn_down == 1


@pytest.mark.parametrize("method", ["define_metric", "log", "finish"])
def test_wandb_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: Callable[[], list[str]], method: str
) -> None:
    for name in ("INIT_SECONDS", "FINISH_SECONDS", "ANSWER_SECONDS"):
        monkeypatch.setattr(tracker_module, name, 0.2)
    release = threading.Event()
    calls = fake_wandb(monkeypatch, **{method: lambda *args, **settings: release.wait()})
    try:
        assert whole_run(WandbTracker(), tmp_path) < 2.0
    finally:
        release.set()
    (message,) = messages()
    assert "no answer within" in message
    for _ in range(100):  # a daemon thread does the teardown
        if calls.torn_down:
            break
        time.sleep(0.01)
    assert calls.torn_down == 1


def test_rounds_do_not_wait_for_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[int] = []
    release = threading.Event()

    def log(row: dict, step: int = -1, commit: bool = True) -> None:
        release.wait(5.0)
        logged.append(step)

    fake_wandb(monkeypatch, log=log)
    tracker = WandbTracker()
    start(tracker, tmp_path)
    for number in range(5):
        tracker.log_round(number, {"regret/mean": 1.0})
    assert logged == []
    release.set()
    tracker.finish({})
    assert logged == [0, 1, 2, 3, 4]


def test_service_that_dies(tmp_path: Path, messages: Callable[[], list[str]]) -> None:
    """The next run has a service again. The test finds the process id, which W&B does not tell, by itself."""
    from wandb.sdk import wandb_setup

    tracker = WandbTracker()
    start(tracker, tmp_path / "a")
    process = wandb_setup.singleton().ensure_service()._proc._process
    process.kill()
    process.wait()
    tracker.log_round(0, {"regret/mean": 0.5})
    tracker.finish({})
    assert len(messages()) == 1
    whole_run(WandbTracker(), tmp_path / "b")
    assert len(of_kind(tmp_path / "b", "history")) == 4
    assert len(messages()) == 1


def test_disabled_never_imports_wandb(tmp_path: Path) -> None:
    command = [sys.executable, "-c", DISABLED_PROGRAM, str(tmp_path / "result")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not (tmp_path / "result").exists()


def test_methods_before_start_do_nothing(tmp_path: Path, messages: Callable[[], list[str]]) -> None:
    tracker = WandbTracker()
    tracker.log_round(0, {"regret/mean": 0.5})
    tracker.finish({})
    tracker.fail("early")
    assert messages() == []


@pytest.mark.parametrize("mode", ["x", "", "Online"])
def test_unknown_mode(mode: str) -> None:
    with pytest.raises(ValueError) as caught:
        WandbTracker(mode=mode)
    assert str(caught.value).startswith(
        f"tracker.wandb.mode must be one of 'online', 'offline', 'disabled', got {mode!r}"
    )


def composed(tmp_path: Path, *overrides: str) -> Any:
    return compose(*SMALL, f"results_dir={tmp_path}", *overrides)


def test_executed_run_is_all_there(tmp_path: Path, messages: Callable[[], list[str]]) -> None:
    summary, folder = run_configuration(
        composed(tmp_path, "experiment_name=mine", "privacy.rng=os", "tracker.wandb.show=all")
    )
    (run,) = of_kind(folder, "run")
    assert run.run_group == "mine"
    assert list(run.tags) == ["branin", "dp_fts_de", "simulation"]
    config = config_of(folder)
    assert (config["rounds"], config["privacy"]["rng"], config["commit"]) == (3, "os", summary["commit"])
    logged = rows(folder)
    assert [row["round"] for row in logged[:4]] == [0, 1, 2, 3]
    assert [row["regret_vs_epsilon"] for row in logged[:4]] == pytest.approx(summary["curve"]["mean"])
    spent = [0.0, *pq.read_table(folder / "server.parquet")["epsilon"].to_pylist()]
    assert [row["privacy/epsilon"] for row in logged[:4]] == pytest.approx(spent)
    assert {"regret/median", "server/sigma", "server/sensitivity", "seconds/server"} <= set(logged[0])
    left = [row["progress/seconds_left"] for row in logged if "progress/seconds_left" in row]
    assert len(left) == 4 and min(left) == left[-1] == 0  # rounds=3 and the initial points
    assert not {"server/snr", "server/n_chosen", "server/n_dropped"} & {name for row in logged for name in row}
    final = summary_of(folder)
    assert (final["final_regret"], final["final_epsilon"]) == pytest.approx((summary["final"]["mean"], spent[-1]))
    assert [text for text in messages() if "W&B" in text] == []


def test_exchange_between_agents_has_no_epsilon(tmp_path: Path) -> None:
    _, folder = run_configuration(composed(tmp_path, "algorithm=fts_original"))
    assert not {"privacy/epsilon", "regret_vs_epsilon"} & {name for row in rows(folder) for name in row}


def test_a_prior_is_paid_once_and_followed_to_the_end(tmp_path: Path, messages: Callable[[], list[str]]) -> None:
    prior = ["algorithm=dp_prior", "algorithm.M=24", "privacy.q=1", "privacy.rng=os", "tracker.wandb.show=all"]
    summary, folder = run_configuration(composed(tmp_path, *prior))
    config = config_of(folder)
    assert config["algorithm"]["averaged_gp"]["factors"] == [1, 2, 4]
    logged = rows(folder)[:4]
    assert [row["regret_vs_epsilon"] for row in logged] == pytest.approx(summary["curve"]["mean"])
    (spent,) = pq.read_table(folder / "server.parquet")["epsilon"].to_pylist()
    assert [row["privacy/epsilon"] for row in logged] == pytest.approx([0, *[spent] * 3])
    assert [text for text in messages() if "W&B" in text] == []


def test_interrupted_run_goes_on_as_one_full_curve(tmp_path: Path) -> None:
    def interrupt(done: Round) -> None:
        if done.agents.round == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_configuration(composed(tmp_path), interrupt)
    summary, folder = run_configuration(composed(tmp_path))
    assert [row["regret/mean"] for row in rows(folder)[:4]] == pytest.approx(summary["curve"]["mean"])
    assert [exit.exit_code for exit in of_kind(folder, "exit")] == [0]


@pytest.mark.parametrize("failure", ["folder", "no key", "no network", "service"])
def test_run_is_whole_whatever_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: Callable[[], list[str]], failure: str
) -> None:
    from wandb.sdk import wandb_setup

    def on_round(done: Round) -> None:
        if failure == "service" and done.agents.round == 1:
            process = wandb_setup.singleton().ensure_service()._proc._process
            process.kill()
            process.wait()

    monkeypatch.setattr(tracker_module, "INIT_SECONDS", 1.5)
    overrides = ["tracker.wandb.mode=online"] if failure.startswith("no") else []
    if failure == "no network":
        monkeypatch.setenv("WANDB_API_KEY", FAKE_KEY)
    cfg = composed(tmp_path, *overrides)
    if failure == "folder":
        (tmp_path / "single").mkdir()
        (tmp_path / "single" / "wandb").write_text("in the way")
    summary, folder = run_configuration(cfg, on_round)
    assert json.loads((folder / "summary.json").read_text()) == summary
    assert pq.read_table(folder / "rounds.parquet")["round"].to_pylist()[-1] == 3
    assert sum("W&B tracking is off" in text for text in messages()) == 1


def test_several_processes_at_once(tmp_path: Path) -> None:
    """As in a sweep, each process makes runs one after another, off the main thread."""
    program = [sys.executable, "-c", WORKER_PROGRAM]
    workers = [subprocess.Popen([*program, str(tmp_path / name)], stderr=subprocess.PIPE) for name in ("a", "b")]
    assert [worker.communicate(timeout=60)[1] for worker in workers] == [b"", b""]
    folders = sorted(tmp_path.glob("[ab]/*"))
    assert len(folders) == 4
    assert [len(of_kind(folder, "exit")) for folder in folders] == [1] * 4
    assert len({of_kind(folder, "run")[0].run_id for folder in folders}) == 4


REAL = {"privacy": {"rng": "os"}, "algorithm": {"private": True}}


@pytest.mark.parametrize(
    ("show", "config", "released_only"),
    [
        ("auto", REAL, True),
        ("auto", {"privacy": {"rng": "seeded"}, "algorithm": {"private": True}}, False),
        ("auto", {"privacy": {"rng": "os"}, "algorithm": {"private": False}}, True),
        ("released", {}, True),
        ("all", REAL, False),
    ],
)
def test_a_real_deployment_shows_what_is_released_and_nothing_else(tmp_path, show, config, released_only):
    tracker = WandbTracker(show=show)
    problem = {"name": "property", "file": "/home/me/own.csv", "data_dir": "/home/me"}
    tracker.start({**config, "problem": problem}, tmp_path, "run", "sweep", ["test"])
    metrics = {"regret/mean": 0.25, "epsilon": 0.5, "server/sigma": 2.0, "server/snr": 0.125, "seconds/fit": 3.0}
    tracker.log_round(0, metrics)
    tracker.log_round(1, metrics)
    best = [{"agent": 0, "round": 1, "value": 0.75, "rate": 0.01, "kind": "a"}]
    best += [{"agent": 1, "round": 0, "value": 0.5, "rate": 0.1, "kind": "b"}]
    tracker.finish({**SUMMARY, "clip_fraction": 0.75, "n_charges": 2, "best": best})
    logged, summary = {key for row in rows(tmp_path) for key in row}, summary_of(tmp_path)
    private = {"regret/mean", "regret_vs_epsilon", "server/snr", "seconds/fit"}
    assert logged & private == (set() if released_only else private)
    assert {"round", "privacy/epsilon", "server/sigma"} <= logged
    assert "n_charges" in summary and "final_epsilon" in summary
    for key in ("final_regret", "final/mean", "clip_fraction"):
        assert (key in summary) != released_only
    assert config_of(tmp_path)["problem"] == ({"name": "property"} if released_only else problem)
    (run,) = of_kind(tmp_path, "run")
    assert ("released" if released_only else "simulation") in run.tags
    private = config is REAL and not released_only  # for their owner alone
    assert ((tmp_path / "wandb").stat().st_mode & 0o077 == 0) == private
    tables = [json.loads(path.read_text()) for path in tmp_path.rglob("best_configurations*.table.json")]
    assert bool(tables) != released_only
    if not released_only:
        assert tables[0]["columns"] == ["agent", "round", "value", "rate", "kind"]
        assert tables[0]["data"] == [[0, 1, 0.75, 0.01, "a"], [1, 0, 0.5, 0.1, "b"]]


def test_a_failure_of_a_real_deployment_keeps_its_words_to_itself(tmp_path):
    tracker = WandbTracker()
    tracker.start(REAL, tmp_path, "run", "sweep", [])
    tracker.fail("objective of agent 3 at x = 0.25 raised ValueError")
    assert "agent 3" not in json.dumps(summary_of(tmp_path))
    assert summary_of(tmp_path)["error"].startswith("the run failed")


def test_what_to_show_is_checked():
    with pytest.raises(ValueError, match=r"tracker\.wandb\.show must be one of 'auto', 'all', 'released', got 'some'"):
        WandbTracker(show="some")


def test_records_are_an_artifact_if_asked(tmp_path):
    (tmp_path / "summary.json").write_text("{}")
    (tmp_path / "checkpoint").mkdir()
    whole_run(WandbTracker(artifacts=True), tmp_path)
    (run,) = of_kind(tmp_path, "run")
    assert run.job_type == "trial"
    found = [artifact for artifact in of_kind(tmp_path, "artifact") if artifact.type == "records"]
    assert [[entry.path for entry in artifact.manifest.contents] for artifact in found] == [["summary.json"]]
    assert [entry.local_path for entry in found[0].manifest.contents] == [str(tmp_path / "summary.json")]
    whole_run(WandbTracker(), tmp_path)
    assert "records" not in [artifact.type for artifact in of_kind(tmp_path, "artifact")]


@pytest.mark.parametrize("show", ["auto", "released"])
def test_a_tracker_of_a_real_deployment_takes_no_artifacts(tmp_path, show):
    with pytest.raises(ValueError, match="artifacts=true uploads values that are not released"):
        WandbTracker(show=show, artifacts=True).start(REAL, tmp_path, "run", "sweep", [])
    assert not (tmp_path / "wandb").exists()


@pytest.mark.parametrize("alerts", [True, False])
def test_a_budget_that_ends_broadcasts_or_refuses_a_run_sends_an_alert_if_asked(tmp_path, alerts):
    settings = ["privacy.accountants=[pld]", "privacy.z=1", "privacy.delta=0.001"]
    simulated, _ = run_configuration(composed(tmp_path / "cost", *settings, "tracker.wandb.mode=disabled"))
    spent = simulated["epsilon"]["pld"]
    settings += ["privacy.rng=os", f"tracker.wandb.alerts={alerts}", f"results_dir={tmp_path}"]
    enough = f"privacy.budget.epsilon={spent * 1.001}"
    _, folder = run_configuration(composed(tmp_path, *settings, enough))
    assert of_kind(folder, "alert") == [], "the budget pays for all"
    kept = {path: path.read_bytes() for path in folder.glob("*") if path.is_file()}
    before = set(tmp_path.glob("single/wandb/offline-run-*"))
    with pytest.raises(BudgetSpent):
        run_configuration(composed(tmp_path, *settings, enough, "again=true"))
    refused = set(tmp_path.glob("single/wandb/offline-run-*")) - before
    assert len(refused) == alerts and all(path.exists() for path in before)
    said = [r for path in refused for r in records_in(path) if r.WhichOneof("record_type") == "alert"]
    assert ["3 more broadcasts would cost more" in record.alert.text for record in said] == [True] * alerts
    assert {path: path.read_bytes() for path in folder.glob("*") if path.is_file()} == kept

    part = [f"privacy.budget.epsilon={spent * 0.9}", "privacy.budget.when_spent=stop"]
    summary, folder = run_configuration(composed(tmp_path, *settings, *part))
    assert summary["n_charges"] < 3
    ends = [alert.text.partition(": ")[2] for alert in of_kind(folder, "alert")]
    assert ends == [f"its budget pays for {summary['n_charges']} of 3 broadcasts"] * alerts
