"""The executor of a run, by its name in `conf/executor/`."""

from collections.abc import Iterator
from contextlib import contextmanager

from dpfbo.federated.federation import Result
from runners.compose.composition import Experiment
from runners.compose.outsourced import OutsourcedExperiment
from runners.executor.deployment import Deployment, ExecutorError
from runners.executor.local import LocalDeployment, LocalParties
from runners.record.run_folder import RunFolder


@contextmanager
def deployed(experiment: Experiment, folder: RunFolder, done: Result) -> Iterator[Deployment]:
    """Place the agents and the server of an experiment whose rounds `done` are over; taken down at the end."""
    executor = experiment.settings.executor
    if executor.name == "ray":
        try:
            if isinstance(experiment, OutsourcedExperiment):
                from runners.executor.ray.outsourced import ray_deployment
            else:
                from runners.executor.ray.federated import ray_deployment  # type: ignore[assignment]
        except ModuleNotFoundError as error:
            raise ExecutorError(f"executor=ray needs Ray ({error}): pip install 'ray[tune]'") from error
        with ray_deployment(experiment, folder, done) as deployment:  # type: ignore[arg-type]
            yield deployment
    else:
        with folder.hold_ledger():
            if isinstance(experiment, OutsourcedExperiment):
                yield LocalParties.of(experiment, folder, done)
            else:
                yield LocalDeployment.of(experiment, folder, done)
