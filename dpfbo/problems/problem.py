"""The objectives of the agents: what a problem must have, and what problems share."""

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
        n_agents: N.
        domain: The search space, on the CPU.
        noise_variance: The variance of an observation; None if unknown.
        reference: N values on the CPU; the metric is reference - best value so far (the optimum gives simple regret, 1
            gives 1 - AUC). None to report the best value itself.

    A problem that turns the sign of its objective, because small values of it are better, has an attribute `maximize`
    that is False: tables then show the objective's own values.
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
            x: n x k x D points in the problem's own units. Ids, points and result are on one device.
            streams: The run's random numbers.
            round: The round.

        Returns:
            n x k observations. NaN marks a failed evaluation; in the agent's GP its worst value so far replaces it.
        """

    def true_value(self, agents: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """The values that the metric uses, n x k: noiseless where they are known, else y itself."""


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
}  # of the problems' settings, by name


def check_settings(problem: Any) -> None:
    """Raise SettingError if a setting of a problem breaks the rule of its name; None follows every rule."""
    for setting in fields(problem):
        if setting.name in RULES and getattr(problem, setting.name) is not None:
            RULES[setting.name](setting.name, getattr(problem, setting.name))


def power_of_ten(x: Tensor) -> Tensor:
    """10^x. torch.pow would round by a number's position in its tensor, and so by the agents that share a call."""
    return torch.exp(math.log(10) * x)


class GeneratedProblem(ABC):
    """A problem whose functions are drawn from its settings and observed with normal noise of known variance."""

    data_files: ClassVar[tuple[Path, ...]] = ()
    n_agents: int
    noise_variance: float
    function_seed: int

    def evaluate(self, agents: Tensor, x: Tensor, streams: Streams, round: int) -> Tensor:
        """Observe the objectives with noise, see `Problem`."""
        noise = self.noise_variance**0.5 * streams.normal("observation", agents, round, x.shape[1])
        return self.true_value(agents, x, noise) + noise

    @abstractmethod
    def true_value(self, agents: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """The noiseless values, `n x k`."""


class ScoreProblem(ABC):
    """A problem whose observations are scores of models on data, at most 1; the metric is 1 - best score so far."""

    n_agents: int

    @property
    @abstractmethod
    def _path(self) -> Path | None:
        """The data file; None for data without one."""

    @property
    def data_files(self) -> tuple[Path, ...]:
        """The file that the data come from, or none."""
        return () if self._path is None else (self._path,)

    @property
    def noise_variance(self) -> float | None:
        """0 for a deterministic score."""
        return 0.0

    @property
    def reference(self) -> Tensor:
        """N ones."""
        return torch.ones(self.n_agents, dtype=torch.float64, device="cpu")

    def true_value(self, agents: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """The observations y themselves."""
        return y

    def _check_agents(self, found: int, which: str) -> None:
        """Raise SettingError for more agents than there are data sets. which: the data sets, in words."""
        if self.n_agents > found:
            raise SettingError("n_agents", f"must be at most {found}, {which}, got {self.n_agents}")


def data_fingerprint(problem: object) -> str | None:
    """The content of the data from which a problem's objectives are made.

    Args:
        problem: A problem; its attribute `data_files` holds the paths of its data files.

    Returns:
        `sha256:<64 digits>` of the files' contents, whatever their names; `generated` where there are no files, because
        settings and seed determine the objectives; None for a problem without that attribute, such as `Custom` or one
        of another package, about whose data nothing is known.

    Raises:
        OSError: A file cannot be read.
        ValueError: A path is not a plain file.
    """
    from dpfbo.problems.readers.data_files import digest_of_files  # processes of agents load no reader

    files = getattr(problem, "data_files", None)
    return None if files is None else digest_of_files(tuple(files))
