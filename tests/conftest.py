"""Each of the two test processes has one thread, and the modules that take longest begin first."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

torch.set_num_threads(1)

# an order for speed alone: the other process has something to do until the last of them ends
LONGEST = (
    "tests/runners/executor/test_killed_runs.py",
    "tests/runners/executor/test_ray_federated.py",
    "tests/runners/sweep/test_command.py",
    "tests/dpfbo/audit/test_server.py",
    "tests/runners/test_run.py",
    "tests/runners/test_resume.py",
    "tests/dpfbo/federated/test_dropout.py",
    "tests/runners/executor/test_ray_outsourced.py",
    "tests/runners/test_demo.py",
    "tests/runners/bench/test_plain_loop.py",
    "tests/analysis/test_private_prior.py",
    "tests/runners/executor/test_ray_cluster.py",
    "tests/runners/sweep/test_shared_runs.py",
    "tests/runners/record/test_wandb_tracker.py",
)


def pytest_collection_modifyitems(items):
    place = {module: k for k, module in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.nodeid.partition("::")[0], len(LONGEST)))
