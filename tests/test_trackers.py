"""W&B as a mirror that never stops a run: what an offline run holds, and every way W&B can fail."""

from __future__ import annotations

import json
import logging
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from runners import trackers
from runners.trackers import WandbTracker

CONFIG = {"privacy": {"q": 0.35, "z": 1.0}, "seed": 3, "problem": "landmine"}
FAKE_KEY = "0" * 40
CLOSED_PORT = "http://127.0.0.1:9"
DISABLED_PROGRAM = """
import sys
from pathlib import Path
from runners.trackers import WandbTracker

tracker = WandbTracker(mode="disabled")
tracker.start({}, Path(sys.argv[1]), "run", "sweep", [])
tracker.log_round(0, {"regret/mean": 1.0})
tracker.finish({"delta": 1e-5}, [])
tracker.fail("never mind")
assert "wandb" not in sys.modules
"""


@pytest.fixture(autouse=True)
def own_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No key, no settings and no W&B of the user's; no service process left behind."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    for name in ("HOME", "WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    monkeypatch.setenv("NETRC", str(tmp_path / "home" / "netrc"))
    monkeypatch.setenv("WANDB_BASE_URL", CLOSED_PORT)
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    yield
    wandb = sys.modules.get("wandb")
    if hasattr(wandb, "teardown"):
        wandb.teardown()  # returns when the service process has ended
    assert "WANDB_SERVICE" not in os.environ  # a service that is still owned is named there


@pytest.fixture
def messages(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """What was logged, other than on W&B's own loggers, which reach nothing but its debug.log."""
    caplog.set_level(logging.INFO)
    return lambda: [record.getMessage() for record in caplog.records if not record.name.startswith("wandb")]


def start(tracker: WandbTracker, run_dir: Path) -> None:
    tracker.start(CONFIG, run_dir, name="landmine-3", group="sweep-a", tags=["test"])


def whole_run(tracker: WandbTracker, run_dir: Path) -> float:
    """Call every method, as a run does; return the seconds it took."""
    began = time.monotonic()
    start(tracker, run_dir)
    for number in range(3):
        tracker.log_round(number, {"regret/mean": 1.0, "epsilon": 0.5})
    tracker.finish({"delta": 1e-5}, [])
    tracker.fail("after the end")
    return time.monotonic() - began


def records(run_dir: Path) -> list[Any]:
    """Read W&B's transaction log: a 7-byte header, then LevelDB's log format with protobuf records."""
    import wandb
    from wandb.proto import wandb_internal_pb2

    wandb.teardown()  # the service writes the end of the file after `finish` has returned
    (path,) = run_dir.glob("wandb/offline-run-*/run-*.wandb")
    data = path.read_bytes()
    assert data[:4] == b":W&B"
    found, buffer, position = [], b"", 7
    while position + 7 <= len(data):
        left = 32768 - position % 32768  # of this block
        if left < 7:
            position += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, position)
        buffer += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # FULL or LAST; FIRST and MIDDLE go on in the next block
            record = wandb_internal_pb2.Record()
            record.ParseFromString(buffer)
            found.append(record)
            buffer = b""
    return found


def of_kind(run_dir: Path, kind: str) -> list[Any]:
    return [getattr(record, kind) for record in records(run_dir) if record.WhichOneof("record_type") == kind]


def values(items: Any) -> dict[str, Any]:
    return {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items}


def summary_of(run_dir: Path) -> dict[str, Any]:
    return {key: value for part in of_kind(run_dir, "summary") for key, value in values(part.update).items()}


def fake_wandb(monkeypatch: pytest.MonkeyPatch, **run: Any) -> SimpleNamespace:
    """Put a W&B in place whose run does nothing but what is given."""
    calls = SimpleNamespace(torn_down=0)

    def teardown(exit_code: int = 0) -> None:
        calls.torn_down += 1

    def nothing(*args: Any, **settings: Any) -> None:
        return None

    methods = {"define_metric": nothing, "log": nothing, "finish": nothing, "summary": {}} | run
    module = SimpleNamespace(
        Image=nothing,
        Settings=nothing,
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
    run_dir, figure = tmp_path / "result", tmp_path / "regret.png"
    Image.new("RGB", (4, 4)).save(figure)
    tracker = WandbTracker()
    start(tracker, run_dir)
    rounds = [
        {"regret/mean": 0.75, "epsilon": float("inf"), "regret/q90": None, "snr": float("nan")},
        {"regret/mean": 0.5, "epsilon": 0.25, "regret/q90": 0.875, "snr": np.float32(2.0)},
        {"regret/mean": 0.25, "epsilon": 0.375, "regret/q90": 0.625, "snr": 1},
    ]
    for number, metrics in enumerate(rounds):
        print(f"round {number}")
        tracker.log_round(number, metrics)
    summary = {"final": {"regret/mean": 0.25, "regret/q90": None}, "epsilon": {"pld": 0.375}, "delta": 1e-5}
    tracker.finish(summary, [figure, tmp_path / "regret.pdf"])

    (run,) = of_kind(run_dir, "run")
    assert (run.project, run.run_group, run.display_name, list(run.tags)) == (
        "dpfbo",
        "sweep-a",
        "landmine-3",
        ["test"],
    )
    config = values(run.config.update)
    assert {key: config[key] for key in CONFIG} == CONFIG

    rows = [values(row.item) for row in of_kind(run_dir, "history")]
    logged = [{key: value for key, value in row.items() if not key.startswith("_")} for row in rows]
    assert logged[:3] == [
        {"round": 0, "regret/mean": 0.75},
        {
            "round": 1,
            "regret/mean": 0.5,
            "epsilon": 0.25,
            "regret/q90": 0.875,
            "snr": 2,
            "regret_vs_epsilon": 0.5,
        },
        {
            "round": 2,
            "regret/mean": 0.25,
            "epsilon": 0.375,
            "regret/q90": 0.625,
            "snr": 1,
            "regret_vs_epsilon": 0.25,
        },
    ]
    assert [row["_step"] for row in rows[:3]] == [0, 1, 2]
    assert (logged[3]["figures/regret/_type"], logged[3]["round"], len(logged)) == ("image-file", 2, 4)

    final = summary_of(run_dir)
    assert (final["final/regret/mean"], final["epsilon/pld"], final["delta"]) == (0.25, 0.375, 1e-5)
    assert "final/regret/q90" not in final
    assert [exit.exit_code for exit in of_kind(run_dir, "exit")] == [0]
    assert of_kind(run_dir, "output_raw") == of_kind(run_dir, "output") == []  # no captured console
    assert messages() == []
    assert capfd.readouterr() == ("round 0\nround 1\nround 2\n", "")


def test_axes(tmp_path: Path) -> None:
    whole_run(WandbTracker(), tmp_path)
    metrics = of_kind(tmp_path, "metric")
    assert {metric.name or metric.glob_name: metric.step_metric for metric in metrics} == {
        "round": "",
        "regret/mean": "round",
        "regret_vs_epsilon": "epsilon",
        "*": "round",
    }


def test_files_stay_in_the_result_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    whole_run(WandbTracker(), tmp_path / "result")
    assert [path.name for path in (tmp_path / "result").iterdir()] == ["wandb"]
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert list((tmp_path / "result").glob("wandb/*/files/**/*.py")) == []  # no code
    assert list((tmp_path / "result").glob("wandb/*/files/*.patch")) == []  # no git state
    assert list((tmp_path / "result").glob("wandb/*/files/output.log")) == []  # no console


def test_fail_marks_the_run(tmp_path: Path) -> None:
    tracker = WandbTracker()
    start(tracker, tmp_path)
    tracker.log_round(0, {"regret/mean": 0.5})
    tracker.fail("the objective raised")
    tracker.finish({"delta": 1e-5}, [])  # too late: nothing happens
    assert [exit.exit_code for exit in of_kind(tmp_path, "exit")] == [1]
    assert summary_of(tmp_path)["error"] == "the objective raised"
    assert "delta" not in summary_of(tmp_path)


def test_runs_in_one_process_are_separate(tmp_path: Path, messages: Callable[[], list[str]]) -> None:
    for name in ("a", "b"):
        whole_run(WandbTracker(), tmp_path / name)
    ids = {of_kind(tmp_path / name, "run")[0].run_id for name in ("a", "b")}
    assert len(ids) == 2
    assert messages() == []


def test_unreadable_figure_still_closes_the_run(tmp_path: Path, messages: Callable[[], list[str]]) -> None:
    tracker = WandbTracker()
    start(tracker, tmp_path)
    tracker.finish({"delta": 1e-5}, [tmp_path / "missing.png"])
    assert [exit.exit_code for exit in of_kind(tmp_path, "exit")] == [0]
    assert summary_of(tmp_path)["delta"] == 1e-5
    assert len(messages()) == 1


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
    assert len(of_kind(tmp_path / "free", "history")) == 3
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


@pytest.mark.parametrize("server", ["refuses", "never answers"])
def test_online_without_a_network_gives_up_in_time(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    messages: Callable[[], list[str]],
    capfd: pytest.CaptureFixture[str],
    server: str,
) -> None:
    monkeypatch.setattr(trackers, "INIT_SECONDS", 1.5)
    monkeypatch.setenv("WANDB_API_KEY", FAKE_KEY)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, and says nothing
        if server == "never answers":
            monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        assert whole_run(WandbTracker(mode="online"), tmp_path) < 8.0
    assert len(messages()) == 1
    assert capfd.readouterr() == ("", "")


def test_wandb_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: Callable[[], list[str]]
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    whole_run(WandbTracker(), tmp_path)
    (message,) = messages()
    assert "ModuleNotFoundError" in message


def test_failure_during_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: Callable[[], list[str]]
) -> None:
    rounds: list[int] = []

    def log(row: dict, step: int, commit: bool) -> None:
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
        monkeypatch.setattr(trackers, name, 0.2)
    release = threading.Event()
    calls = fake_wandb(monkeypatch, **{method: lambda *args, **settings: release.wait()})
    try:
        assert whole_run(WandbTracker(), tmp_path) < 2.0
    finally:
        release.set()
    (message,) = messages()
    assert "no answer within" in message
    for _ in range(100):  # torn down on a thread that nobody waits for
        if calls.torn_down:
            break
        time.sleep(0.01)
    assert calls.torn_down == 1


def test_service_that_dies(tmp_path: Path, messages: Callable[[], list[str]]) -> None:
    """Needs the process id, which W&B does not tell; the run after it has a service again."""
    from wandb.sdk import wandb_setup

    tracker = WandbTracker()
    start(tracker, tmp_path / "a")
    process = wandb_setup.singleton().ensure_service()._proc._process
    process.kill()
    process.wait()
    tracker.log_round(0, {"regret/mean": 0.5})
    tracker.finish({}, [])
    assert len(messages()) == 1
    whole_run(WandbTracker(), tmp_path / "b")
    assert len(of_kind(tmp_path / "b", "history")) == 3
    assert len(messages()) == 1


def test_disabled_never_imports_wandb(tmp_path: Path) -> None:
    command = [sys.executable, "-c", DISABLED_PROGRAM, str(tmp_path / "result")]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not (tmp_path / "result").exists()


def test_methods_before_start_do_nothing(tmp_path: Path, messages: Callable[[], list[str]]) -> None:
    tracker = WandbTracker()
    tracker.log_round(0, {"regret/mean": 0.5})
    tracker.finish({}, [])
    tracker.fail("early")
    assert messages() == []


@pytest.mark.parametrize("mode", ["x", "", "Online"])
def test_unknown_mode(mode: str) -> None:
    with pytest.raises(ValueError) as caught:
        WandbTracker(mode=mode)
    assert str(caught.value) == f"tracker.wandb.mode must be one of online, offline, disabled, got {mode!r}"
