"""The curator of an outsourced run as a Ray actor: it alone loads the problem and writes the ledger."""

from collections.abc import Sequence
from pathlib import Path

import ray
from torch import Tensor

from dpfbo.checkpoint import Checkpoint
from dpfbo.outsourced.curator import CuratorOutput, Measured
from dpfbo.privacy.ledger import Ledger
from runners.compose.composition import experiment_of
from runners.compose.outsourced import OutsourcedExperiment
from runners.compose.settings import OutsourcedSettings
from runners.executor.deployment import Spent
from runners.executor.ray.process import Placement, enter, this_process
from runners.record.run_folder import RunFolder


@ray.remote
class CuratorActor:
    """The curator in its own process. A repeated call changes nothing and returns the same answer."""

    def __init__(self, settings: OutsourcedSettings, folder: str, working_directory: str) -> None:
        self._settings, self._folder, self._working_directory = settings, folder, working_directory

    def start(self) -> Placement:
        """Open the ledger and build the curator on it."""
        enter(self._working_directory, self._settings.executor.threads)
        files = RunFolder(Path(self._folder))
        held = files.hold_ledger()
        experiment = experiment_of(self._settings)
        if not isinstance(experiment, OutsourcedExperiment):
            raise ValueError(f"algorithm={self._settings.algorithm.name} has no curator")
        self._experiment, self._ledger = experiment, Ledger(files.ledger_path, held)
        self._curator = experiment.curator(self._ledger, experiment.kept_release(Checkpoint(files.checkpoint_path)))
        return self.placement()

    def placement(self) -> Placement:
        return this_process("cpu")

    @ray.method(num_returns=3)
    def release(self) -> CuratorOutput:
        """The release, its public record and its private numbers, as separate objects (see `ServerActor`)."""
        return self._curator.release()

    def resume(self, values: Tensor) -> None:
        self._curator.resume(values)

    def measure(self, t: int, indices: Sequence[int]) -> Measured:
        return self._curator.measure(t, indices)

    def spent(self) -> Spent:
        return Spent(self._experiment.plan.epsilons(self._ledger.events()), len(self._ledger.charges))
