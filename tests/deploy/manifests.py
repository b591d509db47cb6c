"""The manifests of deploy/: for GPUs, and what is wrong with them."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from tests.deploy.schema import KINDS

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
RAYJOB = (DEPLOY / "rayjob.yaml").read_text()
VOLUMES = (DEPLOY / "volumes.yaml").read_text()
GIB = 2**30
Object = dict[str, Any]


def on_gpus(text: str) -> str:
    """The RayJob with the lines "# GPU:" in the place of those above them, and what they add to the entrypoint."""
    (more,) = re.findall(r"^# GPU: add (.+)$", text, re.MULTILINE)
    text, replaced = re.subn(r"^( *)\w+: .*\n\1# GPU: (.*)$", r"\1\2", text, flags=re.MULTILINE)
    assert replaced == 3
    return text.replace("sweep.cpus_per_trial=1\n", f"sweep.cpus_per_trial=1 {more}\n")


def objects(rayjob: str) -> list[Object]:
    return [*yaml.safe_load_all(VOLUMES), yaml.safe_load(rayjob)]


def pods(obj: Object) -> list[Object]:
    match obj["kind"]:
        case "RayJob":
            cluster = obj["spec"]["rayClusterSpec"]
            return [group["template"]["spec"] for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])]
        case "Job":
            return [obj["spec"]["template"]["spec"]]
    return []


def entrypoint(obj: Object) -> list[str]:
    return obj["spec"]["entrypoint"].split()


def setting(job: Object, key: str, default: Any = None) -> Any:
    found = [word.partition("=")[2] for word in entrypoint(job) if word.startswith(f"{key}=")]
    return found[0] if found else default


def memory(text: str) -> int:
    return int(text[:-2]) * {"Mi": 2**20, "Gi": GIB}[text[-2:]]


def faults(rayjob: str) -> Iterator[str]:
    """Sentences about what is wrong with the manifests, in their fields and between them."""
    everything = objects(rayjob)
    for obj in everything:
        for error in jsonschema.Draft202012Validator(KINDS[obj["kind"]]).iter_errors(obj):
            yield f"{obj['kind']} {error.json_path}: {error.message}"
    names = [(obj["kind"], obj["metadata"]["name"]) for obj in everything]
    if len(set(names)) < len(names):
        yield "two objects have one name"
    claims = {name for kind, name in names if kind == "PersistentVolumeClaim"}
    all_pods = [pod for obj in everything for pod in pods(obj)]
    for pod in all_pods:
        yield from pod_faults(pod, claims)
    if len({re.sub("-cuda$", "", container["image"]) for pod in all_pods for container in pod["containers"]}) > 1:
        yield "the pods have different images"
    yield from job_faults(everything[-1])


def pod_faults(pod: Object, claims: set[str]) -> Iterator[str]:
    """Sentences about a pod whose user, volumes, mounts or resources do not fit."""
    user, group = re.search(r"^USER (\d+):(\d+)$", DOCKERFILE, re.MULTILINE).groups()
    ids = {"runAsUser": int(user), "runAsGroup": int(group), "fsGroup": int(group)}
    if not ids.items() <= pod["securityContext"].items():
        yield "a pod is not of the image's user, or cannot write its volumes"
    if {volume["persistentVolumeClaim"]["claimName"] for volume in pod["volumes"]} - claims:
        yield "a claim does not exist"
    volumes = [volume["name"] for volume in pod["volumes"]]
    if len(set(volumes)) < len(volumes):
        yield "two volumes have one name"
    for container in pod["containers"]:
        if container["image"].endswith(":latest") or ":" not in container["image"]:
            yield "an image has no version"
        if [mount["name"] for mount in container["volumeMounts"]] != volumes:
            yield "mounts and volumes differ"
        limits, requests = container["resources"]["limits"], container["resources"]["requests"]
        if requests != {name: amount for name, amount in limits.items() if "/" not in name}:
            yield "requests differ from limits"


def job_faults(job: Object) -> Iterator[str]:
    """Sentences about a RayJob whose sweep does not fit its cluster."""
    cluster = job["spec"]["rayClusterSpec"]
    pinned = re.search(r"^ray==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)[1]
    if cluster["rayVersion"] != pinned:
        yield f"rayVersion is not that of constraints.txt, {pinned}"
    if shlex.join(entrypoint(job)) != " ".join(entrypoint(job)):
        yield "the entrypoint needs quotes, which KubeRay's shell command removes"
    if setting(job, "sweep.address") != "auto":
        yield "without sweep.address=auto, the sweep may start a Ray of its own"
    if cluster["headGroupSpec"]["rayStartParams"].get("num-cpus") != "0":
        yield "trials may run beside the driver"
    places = {"results_dir": False, "data_dir": True}
    for pod in pods(job):
        mounts = {m["mountPath"]: m.get("readOnly", False) for c in pod["containers"] for m in c["volumeMounts"]}
        if mounts != {setting(job, key): read_only for key, read_only in places.items()}:
            yield "a pod cannot write results_dir, or has no data_dir"
    folders = re.search(r"install --directory .* (/app .*)$", DOCKERFILE, re.MULTILINE)[1].split()
    if not {setting(job, key) for key in places} <= set(folders):
        yield "the image's user does not own results_dir"
    cpus, gpus = float(setting(job, "sweep.cpus_per_trial", 1)), float(setting(job, "sweep.gpus_per_trial", 0))
    for group in cluster["workerGroupSpecs"]:
        limits = group["template"]["spec"]["containers"][0]["resources"]["limits"]
        trials = float(limits["cpu"]) / cpus
        if trials < 1 or trials % 1:
            yield "the CPUs of a worker are not a multiple of sweep.cpus_per_trial"
        if memory(limits["memory"]) < trials * GIB:
            yield "a trial has less than 1 GiB"
        if trials * gpus != float(limits.get("nvidia.com/gpu", 0)):
            yield "trials by CPUs and trials by GPUs differ"
        if not 1 <= group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]:
            yield "a sweep needs a worker when it begins"
