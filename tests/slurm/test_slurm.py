"""Sweeps as Slurm jobs, on a Slurm that these tests start: submitted, requeued, told to stop, cancelled."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from dpfbo.privacy.ledger import Ledger
from tests.helpers import lost_nodes
from tests.helpers.small_runs import QUIET, SMALL
from tests.slurm.cluster import missing, slurm

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(bool(missing()), reason=f"Slurm is not installed here: {', '.join(missing())} not found"),
]
SEEDS = 5
ON_SLURM = ["launcher=slurm", "launcher.nodes=2", "launcher.cpus_per_task=1"]
# tests that are interrupted while a job runs, whose steps do not heed SIGTERM
INTERRUPTED = """
import signal, subprocess, sys
from pathlib import Path
from tests.slurm.cluster import slurm

signal.signal(signal.SIGINT, signal.default_int_handler)  # also where a shell has started the tests in the background
folder = Path(sys.argv[1])
job = f"#!/bin/sh\\ntrap '' TERM\\nsrun sh -c 'touch {folder}/runs; sleep 600'"
with slurm(folder, nodes=1) as environment:
    subprocess.run(["sbatch", "--output=/dev/null"], input=job, text=True, env=environment, check=True)
    subprocess.run(["srun", "--overlap", "sleep", "600"], env=environment)
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with slurm(tmp_path_factory.mktemp("slurm")) as environment:
        yield {**environment, "OMP_NUM_THREADS": "1"}


class LoginNode:
    """The commands of a user on a login node."""

    def __init__(self, environment, results):
        self.environment, self.results = environment, results
        self.experiment = results / "lost"

    def call(self, *command, code=0):
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True)
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr

    def sweep(self, *arguments, code=0):
        return self.call(sys.executable, "-m", "runners.sweep", *arguments, f"results_dir={self.results}", code=code)

    def submit(self, *more):
        told = self.sweep(*lost_nodes.RUN, "privacy.rng=seeded,os", f"seeds=0..{SEEDS - 1}", *ON_SLURM, *more, "--json")
        return json.loads(told.partition("\n")[0])["job"]  # the estimate follows

    def status(self):
        command = [sys.executable, "-m", "runners.status", "lost", f"results_dir={self.results}"]
        return self.call(*command), json.loads(self.call(*command, "--json"))[0]

    def queue(self, job):
        ask = ["squeue", "--noheader", "--jobs", job, "--states=all", "--format=%T"]
        return subprocess.run(ask, env=self.environment, capture_output=True, text=True).stdout.strip()

    def wait(self, condition, seconds=240.0):
        give_up = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < give_up, self.log()
            time.sleep(0.2)

    def wait_until_some_are_done(self):
        """At least one trial is done, and another one runs."""
        self.wait(lambda: list(self.results.rglob("summary.json")) and list(self.results.rglob(".lock")))
        assert len(list(self.results.rglob("summary.json"))) < 2 * SEEDS

    def runs_a_trial(self, raylet):
        """True if a process of this raylet holds the lock of a run's folder."""
        workers = subprocess.run(["pgrep", "-P", str(raylet)], capture_output=True, text=True).stdout.split()
        opened = (fd for worker in workers for fd in Path(f"/proc/{worker}/fd").glob("*"))
        return any(os.path.realpath(fd).endswith("/.lock") for fd in opened)

    def wait_for_the_end(self, job):
        self.wait(lambda: self.queue(job) in ("", "COMPLETED", "CANCELLED", "FAILED"))

    def log(self):
        return "\n".join(path.read_text() for path in self.results.rglob("*.log"))

    def records_are_those_without_slurm(self, folder):
        """Every trial is done once; a seeded one has the records of a run in this process."""
        report = self.status()[1]
        assert report["counts"] == {"done": 2 * SEEDS, "running": 0, "interrupted": 0, "failed": 0, "waiting": 0}
        for trial in report["trials"]:
            run = self.experiment / trial["setting"] / str(trial["seed"])
            assert lost_nodes.faults(run) == []
            rounds = [charge.round for charge in Ledger(run / "ledger.jsonl").charges]
            assert rounds == sorted(rounds) and set(rounds) == set(range(lost_nodes.ROUNDS))
        seeded = next(t for t in report["trials"] if "seeded" in t["label"])["setting"]
        for seed in (0, SEEDS - 1):
            alone = lost_nodes.undisturbed(folder, seed)
            for name in lost_nodes.RECORDS:
                assert (self.experiment / seeded / str(seed) / name).read_bytes() == (alone / name).read_bytes()
        return report


@pytest.fixture
def login(cluster, tmp_path):
    return LoginNode(cluster, tmp_path / "results")


def test_submitted_and_run_on_two_nodes(login, tmp_path):
    job = login.submit()
    again = login.sweep(*lost_nodes.RUN, *ON_SLURM, code=1)
    assert f"error: Slurm job {job} of lost is" in again and "--cancel experiment_name=lost" in again
    login.wait_until_some_are_done()
    shown, _ = login.status()
    assert f"Slurm job {job}: RUNNING, 2 nodes n[" in shown
    login.wait_for_the_end(job)
    login.records_are_those_without_slurm(tmp_path / "alone")
    assert "2 of 2 nodes" in login.log() and "10 of 10 done" in login.log()
    assert "Slurm job" not in login.status()[0]
    assert not list(login.experiment.glob("slurm/*.address"))


@pytest.mark.parametrize("stop", [["scontrol", "requeue"], ["scancel", "--signal=TERM"]], ids=["requeue", "TERM"])
def test_requeued_goes_on_where_it_was(login, tmp_path, stop):
    job = login.submit()
    login.wait_until_some_are_done()
    before = {path: path.stat().st_mtime_ns for path in login.results.rglob("summary.json")}
    login.call(*stop, job)
    login.wait(lambda: "Restarts=1" in login.call("scontrol", "show", "job", job))
    login.wait_for_the_end(job)
    login.records_are_those_without_slurm(tmp_path / "alone")
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert login.log().count("of 2 nodes") == 2 and "trials are finished and skipped" in login.log()


def test_a_node_whose_ray_dies_joins_again(login, tmp_path):
    job = login.submit()
    login.wait_until_some_are_done()
    (meeting,) = login.experiment.glob(f"slurm/{job}-0.address")
    folder = json.loads(meeting.read_text())["folder"]
    raylets = [int(p) for p in login.call("pgrep", "-f", f"raylet.*{folder}/").split()]
    joined = [pid for pid in raylets if b"--head" not in Path(f"/proc/{pid}/cmdline").read_bytes()]
    login.wait(lambda: login.runs_a_trial(joined[-1]))
    os.kill(joined[-1], signal.SIGKILL)
    login.wait_for_the_end(job)
    report = login.records_are_those_without_slurm(tmp_path / "alone")
    assert sum(trial["preemptions"] for trial in report["trials"]) >= 1


def test_cancelled_and_given_again(login, tmp_path):
    job = login.submit()
    login.wait_until_some_are_done()
    assert login.sweep("--cancel", "experiment_name=lost") == f"Slurm job {job}: cancelled\n"
    assert login.queue(job) in ("", "CANCELLED")
    assert "no Slurm job of lost is in the queue" in login.sweep("--cancel", "experiment_name=lost", code=1)
    left = login.status()[1]["counts"]
    assert left["done"] >= 1 and left["failed"] == 0 and left["done"] < 2 * SEEDS
    second = login.submit()
    assert second != job
    login.wait_for_the_end(second)
    login.records_are_those_without_slurm(tmp_path / "alone")


def test_a_job_that_slurm_refuses_leaves_nothing(login):
    told = login.sweep(*lost_nodes.RUN, *ON_SLURM, "launcher.partition=none", code=1)
    *_, error = told.splitlines()
    assert error.startswith("error: sbatch: ") and "partition" in error and told.count("error: sbatch: ") == 1
    assert not login.results.exists()


def test_hydras_launcher_runs_jobs(login):
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher", reason="extra launchers: hydra-submitit-launcher")
    settings = [*SMALL, *QUIET, "hydra/launcher=submitit_slurm", "seed=0,1", f"results_dir={login.results}"]
    told = login.call(sys.executable, "-m", "runners.run", "-m", *settings, "privacy.z=1,-1", code=1)
    assert "error: seed=1 privacy.z=-1: privacy.z (noise_multiplier) must be" in told
    assert told.endswith("2 of 4 runs are finished\n")
    assert sorted(path.parent.name for path in login.results.rglob("summary.json")) == ["0", "1"]
    refused = login.call(sys.executable, "-m", "runners.run", "-m", *settings, "hydra.launcher.partition=none", code=1)
    assert refused.splitlines()[-1].startswith("error: hydra/launcher=submitit_slurm: sbatch")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_interrupted_tests_leave_no_process(tmp_path, number):
    with (tmp_path / "stderr").open("w") as stderr:
        tests = subprocess.Popen([sys.executable, "-c", INTERRUPTED, str(tmp_path)], stderr=stderr)
    try:
        give_up = time.monotonic() + 90
        while not (tmp_path / "runs").exists():
            assert tests.poll() is None and time.monotonic() < give_up, (tmp_path / "stderr").read_text()
            time.sleep(0.2)
        processes = psutil.Process(tests.pid).children(recursive=True)
        assert {"munged", "slurmctld", "slurmd", "slurmstepd", "srun", "sleep"} <= {p.name() for p in processes}
        tests.send_signal(number)
        assert tests.wait(60) != 0
        assert psutil.wait_procs(processes, timeout=60)[1] == []
    finally:
        tests.kill()
