"""The modeler of an outsourced run as a Ray actor.

Its process gets the brief and what was released, and no settings, seed, or problem: nothing that this module imports
can build one.
"""

from collections.abc import Sequence

import ray
from torch import Tensor

from dpfbo.outsourced.loop import Brief, LocalModeler
from runners.executor.ray.process import Placement, enter, where


@ray.remote
class ModelerActor:
    """A modeler in a process of its own. A call that is repeated changes nothing and has the same answer."""

    def start(self, brief: Brief, working_directory: str, threads: int) -> Placement:
        """Not in a constructor, whose errors reach nobody as they are."""
        enter(working_directory, threads)
        self._modeler = LocalModeler(brief)
        return self.where()

    def where(self) -> Placement:
        return where("cpu")

    def receive(self, values: Tensor) -> int:
        """Know what was released, and nothing else yet; returns how many candidates that makes."""
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
