"""JSON schemas of the Kubernetes objects in deploy/, with the fields that they use and no others.

They are written by hand from the definitions of RayJob (KubeRay 1.7, ray.io/v1) and of Kubernetes' own objects. Look up
there a field that a manifest needs and that is missing here.
"""

from typing import Any

Schema = dict[str, Any]

NAME = {"type": "string", "pattern": r"^[a-z]([a-z0-9-]*[a-z0-9])?$", "maxLength": 47}  # KubeRay appends to it
TEXT = {"type": "string", "minLength": 1}
COUNT = {"type": "integer", "minimum": 0}
ID = {"type": "integer", "minimum": 1}  # 0 is root
PATH = {"type": "string", "pattern": "^/[a-z/]+$"}
AMOUNT = {"type": "string", "pattern": "^[1-9][0-9]*$"}
BYTES = {"type": "string", "pattern": "^[1-9][0-9]*(Mi|Gi)$"}


def record(properties: dict[str, Any]) -> Schema:
    """An object with these properties alone; a name with a question mark is optional."""
    return {
        "type": "object",
        "required": [name for name in properties if not name.endswith("?")],
        "properties": {name.removesuffix("?"): schema for name, schema in properties.items()},
        "additionalProperties": False,
    }


def some(items: Schema) -> Schema:
    return {"type": "array", "items": items, "minItems": 1}


def kind(version: str, name: str, spec: Schema) -> Schema:
    fixed = {"apiVersion": {"const": version}, "kind": {"const": name}}
    return record({**fixed, "metadata": record({"name": NAME}), "spec": spec})


AMOUNTS = record({"cpu": AMOUNT, "memory": BYTES, "nvidia.com/gpu?": AMOUNT})
SECRET_KEY = record({"name": NAME, "key": TEXT, "optional?": {"type": "boolean"}})
CONTAINER = record(
    {
        "name": NAME,
        "image": TEXT,
        "command?": some(TEXT),
        "env?": some(record({"name": TEXT, "valueFrom": record({"secretKeyRef": SECRET_KEY})})),
        "resources": record({"limits": AMOUNTS, "requests": AMOUNTS}),
        "volumeMounts": some(record({"name": NAME, "mountPath": PATH, "readOnly?": {"type": "boolean"}})),
    }
)
POD = record(
    {
        "securityContext": record({"runAsNonRoot": {"const": True}, "runAsUser": ID, "runAsGroup": ID, "fsGroup": ID}),
        "containers": some(CONTAINER),
        "volumes": some(record({"name": NAME, "persistentVolumeClaim": record({"claimName": NAME})})),
        "restartPolicy?": {"enum": ["Never", "OnFailure"]},
    }
)
GROUP = {
    "rayStartParams": {"type": "object", "additionalProperties": {"type": "string"}},
    "template": record({"spec": POD}),
}
WORKERS = record({"groupName": NAME, "replicas": COUNT, "minReplicas": COUNT, "maxReplicas": COUNT, **GROUP})
CLUSTER = record(
    {
        "rayVersion": {"type": "string", "pattern": r"^\d+\.\d+\.\d+$"},
        "authOptions": record({"mode": {"const": "token"}}),
        "headGroupSpec": record(GROUP),
        "workerGroupSpecs": some(WORKERS),
    }
)
RAY_JOB = record(
    {
        "entrypoint": TEXT,
        "backoffLimit": COUNT,
        "shutdownAfterJobFinishes": {"const": True},  # otherwise a time to live has no effect
        "ttlSecondsAfterFinished": COUNT,
        "rayClusterSpec": CLUSTER,
    }
)
CLAIM = record(
    {
        "accessModes": some({"enum": ["ReadWriteMany", "ReadWriteOnce"]}),
        "resources": record({"requests": record({"storage": BYTES})}),
    }
)
JOB = record({"backoffLimit": COUNT, "template": record({"spec": POD})})
KINDS = {
    "RayJob": kind("ray.io/v1", "RayJob", RAY_JOB),
    "PersistentVolumeClaim": kind("v1", "PersistentVolumeClaim", CLAIM),
    "Job": kind("batch/v1", "Job", JOB),
}
