"""Each of the two test processes has one thread, and the modules that take longest begin first."""

import gc
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

torch.set_num_threads(1)

# An order for speed alone: long ones first, so that neither process is left with one at the end; and those that start
# actors, which need both cores, beside those that do not.
LONGEST = (
    "tests/runners/executor/test_ray_cluster.py",  # needs a process in which no other Ray session was
    "tests/runners/executor/test_killed_runs.py",
    "tests/dpfbo/audit/test_server.py",
    "tests/runners/test_run.py",
    "tests/runners/executor/test_ray_federated.py",
    "tests/runners/test_resume.py",
    "tests/runners/bench/test_plain_loop.py",
    "tests/analysis/test_private_prior.py",
    "tests/runners/sweep/test_command.py",
    "tests/runners/test_demo.py",
    "tests/runners/record/test_wandb_tracker.py",
    "tests/dpfbo/federated/test_dropout.py",
    "tests/runners/test_outsourced_run.py",
    "tests/runners/executor/test_ray_outsourced.py",
    "tests/runners/test_prior_run.py",
    "tests/dpfbo/audit/test_prior.py",
    "tests/runners/sweep/test_shared_runs.py",
    "tests/dpfbo/study/test_create.py",
    "tests/dpfbo/protocol/test_ask_tell.py",
    "tests/runners/test_study.py",
)


def pytest_collection_modifyitems(items):
    place = {module: k for k, module in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.nodeid.partition("::")[0], len(LONGEST)))


def pytest_collection_finish():
    """Leave what was imported for collection out of every later garbage collection."""
    gc.collect()
    gc.freeze()
