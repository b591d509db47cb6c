"""The interface `Problem`, base classes of problems, and checks of their settings."""

import math
from abc import ABC, abstractmethod
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from dpfbo import checks
from dpfbo.checks import SettingError
from dpfbo.rng import Streams
from dpfbo.space.domain import Domain


class Problem(Protocol):
    """The objectives of N agents over one domain. Larger values are better.

    Attributes:
        name: The problem's name in records.
        metric: The name of the reported number.
        lower_is_better: True if smaller values of the metric are better; objectives are always maximised.
        n_agents: The number of agents N.
        domain: The search space, on the CPU.
        noise_variance: The variance of the observation noise; None if unknown.
        reference: One value per agent (N, on the CPU). The metric is the reference minus the agent's best value so far,
            which is simple regret if the reference is the optimum. None if the metric is the best value itself.

    A problem that negates its original objective has an attribute `maximize`, which is False. Tables show the original
    values of such a problem.
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
        """Observe the objectives of n agents at k points each.

        Args:
            agents: The agents' ids, n.
            x: The points in the problem's own units, n x k x D, on the device of `agents`.
            streams: The random streams of the run.
            round: The number of the round.

        Returns:
            Observations, n x k, on the same device. NaN marks a failed evaluation; the agent's GP uses the agent's
            worst value so far in its place.
        """

    def true_value(self, agents: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Return the values that the metric uses, n x k: the noiseless values if known, else the observations y."""


_SEED, _COUNT, _PAIR = (partial(checks.integer, minimum=least) for least in (0, 1, 2))
RULES: dict[str, Any] = {
    "n_agents": partial(checks.integer, minimum=1, maximum=checks.MOST_AGENTS),
    **dict.fromkeys(("function_seed", "network_seed", "split_seed", "subset_seed"), _SEED),
    **dict.fromkeys(("dim", "epochs", "steps"), _COUNT),
    **dict.fromkeys(("grid_size", "min_images", "side_points", "n_rows"), _PAIR),
    **dict.fromkeys(("noise_variance", "perturbation", "shift"), checks.non_negative),
    **dict.fromkeys(("lengthscale", "noise_sd", "side", "signal_sd"), checks.positive),
    "mean": checks.real,
    "train_fraction": checks.probability,
}  # the check of each setting, by the setting's name


def check_settings(problem: Any) -> None:
    """Check each setting that is not None and has a rule in `RULES`; raise SettingError for an invalid value."""
    for setting in fields(problem):
        if setting.name in RULES and getattr(problem, setting.name) is not None:
            RULES[setting.name](setting.name, getattr(problem, setting.name))


def power_of_ten(x: Tensor) -> Tensor:
    """Return 10^x, with rounding that does not depend on a number's position in the tensor."""
    return torch.exp(math.log(10) * x)


class GeneratedProblem(ABC):
    """A problem that computes its objectives from its settings; the observation noise is Gaussian of known variance."""

    data_files: ClassVar[tuple[Path, ...]] = ()
    n_agents: int
    noise_variance: float
    function_seed: int

    def evaluate(self, agents: Tensor, x: Tensor, streams: Streams, round: int) -> Tensor:
        """Observe the objectives with Gaussian noise, see `Problem.evaluate`."""
        noise = self.noise_variance**0.5 * streams.normal("observation", agents, round, x.shape[1])
        return self.true_value(agents, x, noise) + noise

    @abstractmethod
    def true_value(self, agents: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Return the noiseless values, n x k."""


class ScoreProblem(ABC):
    """A problem whose observations are scores of trained models.

    A score is at most 1. The metric is 1 - best score so far.
    """

    n_agents: int

    @property
    @abstractmethod
    def _path(self) -> Path | None:
        """The data file; None if the data need no file."""

    @property
    def data_files(self) -> tuple[Path, ...]:
        """The path of the data file; empty if the data need no file."""
        return () if self._path is None else (self._path,)

    @property
    def noise_variance(self) -> float | None:
        """The variance of the observation noise: 0. Subclasses with random scores return None."""
        return 0.0

    @property
    def reference(self) -> Tensor:
        """The largest possible score of each agent: N ones."""
        return torch.ones(self.n_agents, dtype=torch.float64, device="cpu")

    def true_value(self, agents: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Return the observations y themselves."""
        return y

    def _check_agents(self, found: int, which: str) -> None:
        if self.n_agents > found:
            raise SettingError("n_agents", f"must be at most {found}, {which}, got {self.n_agents}")


def data_fingerprint(problem: object) -> str | None:
    """Return a digest of the data files from which a problem computes its objectives.

    Args:
        problem: A problem; its attribute `data_files` holds the paths of its data files.

    Returns:
        `sha256:<64 digits>` of the files' contents, independent of their names; `generated` if there are no files; None
        if the problem has no attribute `data_files` (`Custom`, or a problem of another package).

    Raises:
        OSError: A file cannot be read.
        ValueError: A path is not a plain file.
    """
    from dpfbo.problems.readers.data_files import digest_of_files  # imported here: agents' processes need no reader

    files = getattr(problem, "data_files", None)
    return None if files is None else digest_of_files(tuple(files))
