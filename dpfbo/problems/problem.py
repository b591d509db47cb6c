"""The objectives of the agents: what a problem must have, and what problems share."""

from typing import Protocol

from torch import Tensor

from dpfbo.rng import Streams
from dpfbo.space.domain import Domain


class Problem(Protocol):
    """The objectives of N agents over one domain. Larger values are better.

    Attributes:
        name: The problem's name in records.
        metric: The name of the reported number.
        lower_is_better: The direction of the metric.
        n_agents: N.
        domain: The search space, on the CPU.
        noise_variance: The variance of an observation; None if unknown.
        reference: N values on the CPU from which `best so far` is subtracted to give the metric (the optimum for simple
            regret, 1 for 1 - AUC); None to report the best value itself.
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
        """Observe the objectives.

        Args:
            agents: n ids.
            x: n x k x D points in the problem's own units, on the device of the ids, as is what is returned.
            streams: The run's random numbers.
            round: The round.

        Returns:
            n x k observations. NaN stands for an evaluation that failed and that the agent is to go on without.
        """

    def true_value(self, agents: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """The values that the metric uses, n x k: noiseless where they are known, else y itself."""


def data_fingerprint(problem: object) -> str | None:
    """The content of the data that a problem's objectives are made of: `sha256:<64 digits>`, or `generated`.

    It is that of the files in the problem's attribute `data_files` (paths), whatever their names; `generated` where
    there are none, because settings and seed say everything. None for a problem without that attribute, such as one of
    another package or `Custom`: nothing is known of its data. Raises OSError or ValueError for a file that cannot be
    read.
    """
    from dpfbo.problems.readers.data_files import digest_of_files  # processes of agents load no reader

    files = getattr(problem, "data_files", None)
    return None if files is None else digest_of_files(tuple(files))


def observation_noise(variance: float, agents: Tensor, k: int, streams: Streams, round: int) -> Tensor:
    """N(0, variance) numbers for k observations of each of n agents in one round, n x k."""
    return variance**0.5 * streams.normal("observation", agents, round, k)
