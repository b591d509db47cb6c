"""Tests run apart from the user's files and settings; with one thread a process, and the longest modules first."""

import contextlib
import gc
import os
import tempfile
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

from tests.isolation.environment import DATA, FOLDER, isolated
from tests.isolation.watch import REPORT, take_report, watch

torch.set_num_threads(1)

_session = contextlib.ExitStack()
if FOLDER not in os.environ:  # as it is in the second of two test processes
    _session.enter_context(isolated())
_folder = os.environ[FOLDER]
os.environ[REPORT] = f"{_folder}/report-{os.getpid()}"
watch()

# An order for speed alone: long ones first, so that neither process is left with one at the end; and those that start
# actors, which need both cores, beside those that do not.
LONGEST = (
    "tests/runners/executor/test_ray_cluster.py",  # needs a process in which no other Ray session was
    "tests/runners/executor/test_killed_runs.py",
    "tests/dpfbo/audit/test_server.py",
    "tests/deploy/test_ray_job.py",
    "tests/runners/test_run.py",
    "tests/runners/executor/test_ray_federated.py",
    "tests/runners/test_resume.py",
    "tests/isolation/test_isolation.py",
    "tests/analysis/test_private_prior.py",
    "tests/runners/sweep/test_command.py",
    "tests/runners/wandb/test_tracker.py",
    "tests/dpfbo/federated/test_dropout.py",
    "tests/runners/test_outsourced_run.py",
    "tests/runners/executor/test_ray_outsourced.py",
    "tests/runners/test_prior_run.py",
    "tests/dpfbo/audit/test_prior.py",
    "tests/runners/sweep/test_shared_runs.py",
    "tests/dpfbo/study/test_create.py",
    "tests/dpfbo/protocol/test_ask_tell.py",
    "tests/runners/test_study.py",
    "tests/runners/audit/test_files.py",
    "tests/test_package.py",
    "tests/soak/test_soak.py",
    "tests/dpfbo/problems/test_failures.py",
    "tests/runners/bench/test_plain_loop.py",
)


def pytest_collection_modifyitems(items):
    place = {module: k for k, module in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.nodeid.partition("::")[0], len(LONGEST)))


def pytest_collection_finish():
    """Leave what was imported for collection out of every later garbage collection."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol():
    """Run each test in an empty folder, where the defaults `results`, `figures` and `data` are."""
    with contextlib.chdir(tempfile.mkdtemp(prefix="cwd-", dir=_folder)):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown():
    try:
        return (yield)
    finally:
        if refused := take_report():
            pytest.fail(f"a test has touched the user's own files:\n{refused}", pytrace=False)


def pytest_unconfigure():
    _session.close()


@pytest.fixture
def real_data(monkeypatch):
    """Find a file below the user's DPFBO_DATA, which is then set: `real_data("landmine/LandmineData.mat")`.

    Where it is not, the test is skipped.
    """

    def find(name):
        folder = os.environ.get(DATA)
        if folder is None or not (file := Path(folder) / name).is_file():
            pytest.skip(f"no {name} in the folder DPFBO_DATA ({folder})")
        monkeypatch.setenv("DPFBO_DATA", folder)
        return file

    return find
