"""Shares and slices of a GPU: processes keep to their share of its memory, actors get the slices that Ray knows."""

import os
import subprocess
import sys

import pytest
import torch

SLICES = """
import os, ray
ray.init(address="local", num_cpus=2, num_gpus=2, include_dashboard=False, log_to_driver=False)
class Holder:
    def slice(self):
        return os.environ["CUDA_VISIBLE_DEVICES"]
held = [ray.remote(Holder).options(num_gpus=1, num_cpus=0).remote() for _ in range(2)]
print(sorted(ray.get([h.slice.remote() for h in held])))
"""
TENTH = """
import torch
from runners.executor.deployment import limit_gpu_memory
limit_gpu_memory(0.1)
total = torch.cuda.get_device_properties(0).total_memory
torch.empty(int(0.05 * total), dtype=torch.uint8, device="cuda")
try:
    torch.empty(int(0.2 * total), dtype=torch.uint8, device="cuda")
except torch.cuda.OutOfMemoryError:
    print("refused")
"""


def printed(program, **environment):
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **environment}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_actors_get_the_slices_of_a_gpu_that_ray_was_told_of():
    environment = {"CUDA_VISIBLE_DEVICES": "MIG-aaa,MIG-bbb", "RAY_ADDRESS": "", "RAY_USAGE_STATS_ENABLED": "0"}
    assert printed(SLICES, **environment) == "['MIG-aaa', 'MIG-bbb']"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_process_keeps_to_its_share_of_the_memory():
    assert printed(TENTH) == "refused"
