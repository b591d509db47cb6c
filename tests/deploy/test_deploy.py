"""The files of deploy/ keep rules that can be checked without Docker, Kubernetes and Slurm."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from runners.sweep import command
from tests.deploy import dockerfile
from tests.deploy.manifests import DEPLOY, DOCKERFILE, RAYJOB, ROOT, entrypoint, faults, on_gpus
from tests.docs import pages


@pytest.mark.parametrize("variant", [str, on_gpus])
def test_the_manifests_have_known_fields_and_fit_together(variant):
    assert list(faults(variant(RAYJOB))) == []


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("  backoffLimit: 2", "  backofLimit: 2", "unexpected"),
        ("  backoffLimit: 2", '  backoffLimit: "2"', "not of type 'integer'"),
        ("mode: token", "mode: tokens", "'token' was expected"),
        ("runAsUser: 1000", "runAsUser: 0", "minimum"),
        ("fsGroup: 1000", "fsGroup: 1001", "cannot write its volumes"),
        ("claimName: dpfbo-data", "claimName: dpfbo-date", "a claim does not exist"),
        ("{name: data, mountPath", "{name: date, mountPath", "mounts and volumes differ"),
        ("mountPath: /results}", "mountPath: /results, readOnly: true}", "cannot write results_dir"),
        ("results_dir=/results", "results_dir=/elsewhere", "cannot write results_dir"),
        ("registry.example/dpfbo:1\n", "registry.example/dpfbo:2\n", "different images"),
        ("registry.example/dpfbo:1\n", "registry.example/dpfbo\n", "no version"),
        ('requests: {cpu: "4"', 'requests: {cpu: "3"', "requests differ"),
        ('"2.60.0"', '"2.59.0"', "rayVersion is not that of constraints.txt"),
        ("sweep.address=auto", "sweep.max_retries=5", "a Ray of its own"),
        ("experiment=fig2c", "experiment=fig2c privacy.z='1,2'", "needs quotes"),
        ('num-cpus: "0"', 'num-cpus: "2"', "beside the driver"),
        ("cpus_per_trial=1", "cpus_per_trial=3", "not a multiple"),
        ('cpu: "4", memory: 8Gi}', 'cpu: "4", memory: 2Gi}', "less than 1 GiB"),
        ("cpus_per_trial=1", "cpus_per_trial=1 sweep.gpus_per_trial=1", "by GPUs differ"),
        ("minReplicas: 2", "minReplicas: 0", "needs a worker"),
    ],
)
def test_a_fault_in_the_manifest_is_found(old, new, says):
    assert old in RAYJOB
    assert any(says in fault for fault in faults(RAYJOB.replace(old, new, 1)))


@pytest.mark.parametrize("variant", [str, on_gpus])
def test_the_entrypoint_is_a_sweep(variant, tmp_path, monkeypatch, capsys):
    words = entrypoint(yaml.safe_load(variant(RAYJOB)))
    assert words[:4] == ["python", "-u", "-m", "runners.sweep"]
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    overrides = [word.replace("=/results", f"={tmp_path}") for word in words[4:]]
    assert command.main([*overrides, "--dry-run"]) == 0
    assert "1000 trials" in capsys.readouterr().out


def test_the_page_shows_lines_of_the_manifest():
    (shown,) = (b.text for b in pages.blocks("docs/guides/cluster.md") if "kind: RayJob" in b.text)
    lines = iter(RAYJOB.splitlines())
    assert [line for line in shown.splitlines() if line not in lines] == []  # in this order


def test_the_dockerfile_keeps_the_rules():
    assert list(dockerfile.faults(DOCKERFILE, ROOT)) == []
    assert {"torch-cpu", "torch-cuda"} <= set(re.findall(r"^FROM .* AS (.+)$", DOCKERFILE, re.MULTILINE))


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("python:3.11.14-slim-bookworm AS base", "python AS base", "no version"),
        ("python:3.11.14-slim-bookworm AS base", "python:latest AS base", "no version"),
        ("FROM torch-${VARIANT}", "FROM torches-${VARIANT}", "no version"),
        ("USER 1000:1000", "USER root", "the user of the image is root"),
        ("USER 1000:1000\n", "", "the user of the image is root"),
        ("WORKDIR /app", "WORKDIR app", "not absolute"),
        ("COPY conf conf", "COPY config conf", "config does not exist"),
        ("COPY conf conf", "COPY tests tests", ".dockerignore keeps tests"),
        ("COPY conf conf", "ADD https://example.org/conf.tar conf", "ADD https://example.org"),
        ("install --no-cache-dir --constraint", "install --constraint", "pip keeps its cache"),
        ("    && rm -rf /var/lib/apt/lists/*", "    && true", "apt-get leaves"),
        ("ENV OMP", "ENV WANDB_API_KEY=x OMP", "a secret"),
        ("RUN groupadd", "RUN curl -O https://example.org/x && groupadd", "not reproducible"),
    ],
)
def test_a_fault_in_the_dockerfile_is_found(old, new, says):
    assert old in DOCKERFILE
    assert any(says in fault for fault in dockerfile.faults(DOCKERFILE.replace(old, new, 1), ROOT))


def test_nothing_but_sources_reaches_the_builder():
    first, *others = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line[0] != "#"]
    assert first == "*"
    copied = {s for word, rest in dockerfile.instructions(DOCKERFILE) if word == "COPY" for s in rest.split()[:-1]}
    assert {line[1:] for line in others if line[0] == "!"} == {s for s in copied if not s.startswith(("--", "/"))}


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """A stand-in for sbatch, which keeps the script; returns what it got, after a call of a script of deploy/slurm."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in {"sbatch": f"cat > {tmp_path}/script; echo 7", "squeue": "exit 0"}.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]]))

    def submit(name, *overrides):
        done = subprocess.run([DEPLOY / "slurm" / name, *overrides], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return (tmp_path / "script").read_text()

    return submit


@pytest.mark.parametrize(
    ("name", "given", "runs"),
    [
        ("sweep.sh", ["experiment=fig2c", "launcher.partition=long"], "experiment=fig2c"),
        ("run.sh", ["problem=branin", "launcher.partition=long"], "executor=ray executor.placement=SPREAD seeds=0"),
    ],
)
def test_the_slurm_scripts_submit_a_job(name, given, runs, slurm, tmp_path, monkeypatch):
    refused = subprocess.run([DEPLOY / "slurm" / name, *given], capture_output=True, text=True)
    assert refused.returncode != 0 and "RESULTS: is the folder for results" in refused.stderr
    monkeypatch.setenv("RESULTS", f"{tmp_path}/results")
    text = slurm(name, *given)
    assert {"--nodes=4", "--cpus-per-task=16", "--time=04:00:00", "--partition=long", "--requeue"} <= {
        line.removeprefix("#SBATCH ") for line in text.splitlines()
    }
    last = text.splitlines()[-1]
    assert f"results_dir={tmp_path}/results" in last and runs in last and "launcher" not in last
