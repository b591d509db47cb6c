"""Run the modeler of an outsourced run in a Ray actor.

The actor's process receives the brief (`dpfbo.outsourced.loop.Brief`) and the released values. In each round, the
process also receives the measurements and the indices of the measured candidates. The process does not receive the
run's settings, seed or problem.
"""

from collections.abc import Sequence

import ray
from torch import Tensor

from dpfbo.outsourced.loop import Brief, LocalModeler
from runners.executor.ray.process import Placement, enter, this_process


@ray.remote
class ModelerActor:
    """The modeler in its own process. Repeating the last call changes nothing and returns the same answer."""

    def __repr__(self) -> str:
        """Return the name in Ray's lists, logs and dashboard."""
        return "dpfbo modeler"

    def begin(self, brief: Brief, working_directory: str, threads: int) -> Placement:
        """Build the modeler."""
        enter(working_directory, threads)
        self._modeler = LocalModeler(brief)
        return self.placement()

    def placement(self) -> Placement:
        return this_process("cpu")

    def start(self, values: Tensor) -> int:
        """Begin with the released values and no measurements; return the number of candidates."""
        self._proposed: tuple[int, int] | None = None
        self._observed = -1
        return self._modeler.start(values)

    def propose(self, t: int, uniform: float) -> int:
        if self._proposed is None or self._proposed[0] != t:
            self._proposed = t, self._modeler.propose(t, uniform)
        return self._proposed[1]

    def observe(self, t: int, indices: Sequence[int], y: Sequence[float]) -> None:
        if t > self._observed:
            self._modeler.observe(t, indices, y)
            self._observed = t
