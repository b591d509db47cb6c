"""One W&B service for all workers of a machine: shared, replaced when it dies, and never in the way."""

import os
import signal
import subprocess
import sys

import pytest

from runners import private_apis
from runners.record import wandb_service
from tests.helpers.wandb_records import FAKE_KEY, of_kind, own_wandb  # noqa: F401

pytest.importorskip("wandb")

PROGRAM = """
import os, sys
from pathlib import Path
from runners.record import wandb_service
from runners.record.wandb_tracker import WandbTracker

wandb_service.share()
for name in sys.argv[2:]:
    tracker = WandbTracker()
    folder = Path(sys.argv[1]) / name / "0"
    tracker.start({}, folder, name, "sweep", [])
    tracker.log_round(0, {"regret/mean": 1.0})
    tracker.finish({"delta": 1e-5})
print(os.environ.get("WANDB_SERVICE"))
"""


@pytest.fixture
def machine(own_wandb, tmp_path, monkeypatch):  # noqa: F811
    """A temporary folder of its own, which is what a machine's service is found by; its services end with the test."""
    short = tmp_path / "t"
    short.mkdir()
    monkeypatch.setenv("TMPDIR", str(short))
    addresses = set()
    yield addresses
    for address in addresses:
        stop(address)


def run(tmp_path, *names):
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), *names]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def said(process, addresses):
    out, error = process.communicate(timeout=60)
    assert error == ""
    addresses.add(out.strip())
    return out.strip()


def stop(address):
    process = subprocess.run(["pgrep", "-f", f"pid {address.split('-')[1]} "], capture_output=True, text=True)
    for number in process.stdout.split():
        os.kill(int(number), signal.SIGKILL)


def test_workers_of_a_machine_share_a_service_that_outlives_them(machine, tmp_path):
    workers = [run(tmp_path, "a", "b"), run(tmp_path, "c")]
    (first,) = {said(worker, machine) for worker in workers}
    assert private_apis.wandb_service_answers(first)
    for name in ("a", "b", "c"):
        assert [exit.exit_code for exit in of_kind(tmp_path / name / "0", "exit")] == [0]

    stop(first)  # it dies: the next worker starts another
    second = said(run(tmp_path, "d"), machine)
    assert second != first and len(of_kind(tmp_path / "d" / "0", "exit")) == 1


def test_a_folder_that_others_can_use_is_not_trusted(machine, tmp_path, monkeypatch):
    monkeypatch.setattr(wandb_service, "_sharing", True)
    monkeypatch.setattr(wandb_service.tempfile, "gettempdir", lambda: str(tmp_path))
    folder = tmp_path / f"dpfbo-wandb-{os.getuid()}"
    folder.mkdir()
    folder.chmod(0o777)
    wandb_service.join()
    assert "WANDB_SERVICE" not in os.environ and not list(folder.iterdir())


def test_only_offline_runs_of_those_that_share_join(machine, tmp_path, monkeypatch):
    joined = []
    monkeypatch.setattr(wandb_service, "_running_or_started", lambda folder: joined.append(folder) or "")
    monkeypatch.setenv("WANDB_SERVICE", "")  # so that it is as before after the test
    wandb_service.join()
    assert joined == []
    monkeypatch.setattr(wandb_service, "_sharing", True)
    monkeypatch.setenv("WANDB_API_KEY", FAKE_KEY)
    from runners.record import wandb_tracker

    monkeypatch.setattr(wandb_tracker, "INIT_SECONDS", 0.5)
    wandb_tracker.WandbTracker(mode="online").start({}, tmp_path / "run", "run", "sweep", [])
    assert joined == []
    wandb_service.join()
    assert len(joined) == 1
    monkeypatch.delenv("WANDB_SERVICE")


@pytest.mark.parametrize("address", ["", "nonsense", "3-1-unix-/nowhere", "3-1-tcp-localhost-9", "3-1-tcp-localhost-x"])
def test_an_address_without_a_service(address):
    assert not private_apis.wandb_service_answers(address)
