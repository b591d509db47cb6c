"""Deployment of an experiment by its executor."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from dpfbo.extras import needing
from dpfbo.run_result import Result
from runners.compose.composition import Experiment
from runners.executor.deployment import Deployment
from runners.executor.local import LocalFederation, LocalOutsourced
from runners.record.run_folder import RunFolder

_LOCAL: dict[str, Callable[..., Deployment]] = {"federated": LocalFederation.of, "outsourced": LocalOutsourced.of}


@contextmanager
def deployed(experiment: Experiment, folder: RunFolder, done: Result) -> Iterator[Deployment]:
    """Place all parts of an experiment, and remove them at the end. done: finished rounds; `run` adds the others."""
    if experiment.settings.executor.name == "ray":
        with _ray()[experiment.family](experiment, folder, done) as deployment:
            yield deployment
    else:
        with folder.hold_ledger() as held:
            yield _LOCAL[experiment.family](experiment, folder, done, held)


def _ray() -> dict[str, Callable[..., AbstractContextManager[Any]]]:
    with needing("ray", "executor=ray"):
        from runners.executor.ray import federated, outsourced
    return {"federated": federated.ray_deployment, "outsourced": outsourced.ray_deployment}
