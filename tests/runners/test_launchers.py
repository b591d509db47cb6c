"""Several runs by a launcher of Hydra, `runners.run -m hydra/launcher=…`: each one is an ordinary run."""

import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec

import psutil
import pytest

from runners.compose.overrides import one_sentence
from tests.helpers.small_runs import QUIET, SMALL, call

RUN = [sys.executable, "-m", "runners.run", *SMALL, *QUIET]


def launcher(name, plugin):
    missing = find_spec("hydra_plugins") is None or find_spec(f"hydra_plugins.{plugin}") is None
    return pytest.param(name, marks=pytest.mark.skipif(missing, reason=f"{plugin} is not installed: extra launchers"))


JOBLIB = launcher("joblib", "hydra_joblib_launcher")
SUBMITIT = launcher("submitit_local", "hydra_submitit_launcher")


@pytest.mark.parametrize("name", [JOBLIB, SUBMITIT])
def test_each_is_an_ordinary_run(monkeypatch, capsys, tmp_path, name):
    settings = ["-m", f"hydra/launcher={name}", "seed=0,1", "privacy.z=1,-1", f"results_dir={tmp_path}"]
    done = subprocess.run([*RUN, *settings], capture_output=True, text=True)
    wrong = "privacy.z (noise_multiplier) must be a finite number of at least 0, got -1"
    errors = "".join(f"error: seed={seed} privacy.z=-1: {wrong}\n" for seed in (0, 1))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"{errors}2 of 4 runs are finished\n"
    assert sorted(f.parent.name for f in tmp_path.rglob("summary.json")) == ["0", "1"]
    assert {f.name for f in tmp_path.iterdir()} - {".submitit"} == {"single", "multirun.yaml"}
    assert call(monkeypatch, *SMALL, "privacy.z=1", "seed=1", f"results_dir={tmp_path}") == 0
    assert "finished before, with 6 rounds" in capsys.readouterr().err


def test_errors_name_what_differs(monkeypatch, capsys, tmp_path):
    wrong = "error: privacy.z (noise_multiplier) must be a finite number of at least 0, got -1\n"
    assert call(monkeypatch, "-m", *SMALL, "privacy.z=-1", f"results_dir={tmp_path}") == 1
    assert capsys.readouterr().err == f"{wrong}0 of 1 runs are finished\n"


@pytest.mark.parametrize("name", [JOBLIB])
def test_a_signal_ends_all_processes(tmp_path, name):
    settings = ["-m", f"hydra/launcher={name}", "seed=0,1", "rounds=5000", f"results_dir={tmp_path}"]
    command = subprocess.Popen([*RUN, *settings], stderr=subprocess.PIPE, text=True, start_new_session=True)
    give_up = time.monotonic() + 60
    try:
        while not list(tmp_path.rglob(".lock")):
            assert command.poll() is None and time.monotonic() < give_up
            time.sleep(0.1)
        processes = psutil.Process(command.pid).children(recursive=True)
        command.terminate()
        _, error = command.communicate(timeout=60)
        assert (command.returncode, error.count("\n")) == (130, 1) and error.startswith("error: interrupted")
        assert processes and psutil.wait_procs(processes, timeout=30)[1] == []
    finally:
        if command.poll() is None:
            os.killpg(command.pid, signal.SIGKILL)


@pytest.mark.parametrize("name", [JOBLIB])
def test_a_launcher_is_for_several_runs(monkeypatch, capsys, name):
    assert call(monkeypatch, f"hydra/launcher={name}") == 2
    assert capsys.readouterr().err == "error: hydra/launcher=joblib is for several runs: add -m\n"


def test_unknown_launcher(monkeypatch, capsys):
    assert call(monkeypatch, "-m", "hydra/launcher=nope") == 2
    error = capsys.readouterr().err
    assert error.startswith("error: unknown hydra/launcher 'nope': choose one of basic") and error.count("\n") == 1


def test_a_missing_plugin_is_named():
    error = one_sentence("In 'config': Could not find 'hydra/launcher/joblib'\n\nAvailable options")
    assert error == "hydra/launcher=joblib needs hydra-joblib-launcher: pip install 'dpfbo[launchers]'"
