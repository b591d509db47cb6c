"""Problems: the objectives of the agents. One file each; its YAML in `conf/problem/` names the class.

A problem is a frozen dataclass with the attributes and methods of `Problem`.
"""

from typing import Protocol

from torch import Tensor

from dpfbo.rng import Streams
from dpfbo.space.domain import Domain


class Problem(Protocol):
    """The objectives of N agents over one domain. Larger values are better.

    n_agents: N. domain: the search space. noise_variance: variance of an observation, None if unknown. metric: name of
    the reported number; reference: N values from which `best so far` is subtracted to give the metric (the optimum
    for simple regret, 1 for 1 - AUC), or None to report the best value itself. lower_is_better: direction of the
    metric. Domain and reference are on the CPU.
    """

    @property
    def name(self) -> str: ...

    @property
    def metric(self) -> str: ...

    @property
    def lower_is_better(self) -> bool: ...

    @property
    def n_agents(self) -> int: ...

    @property
    def domain(self) -> Domain: ...

    @property
    def noise_variance(self) -> float | None: ...

    @property
    def reference(self) -> Tensor | None: ...

    def evaluate(self, agents: Tensor, x: Tensor, streams: Streams, round: int) -> Tensor:
        """Observations `y`, n x k, of agents (n ids) at x, n x k x D in the problem's own units; all on one device.

        NaN stands for an evaluation that failed and that the agent is to go on without.
        """

    def true_value(self, agents: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """The values that the metric uses, n x k: noiseless where they are known, else y itself."""


def observation_noise(variance: float, agents: Tensor, k: int, streams: Streams, round: int) -> Tensor:
    """N(0, variance) numbers for k observations of each of n agents in one round, n x k."""
    return variance**0.5 * streams.normal("observation", agents, round, k)
