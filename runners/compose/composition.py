"""Build and check the experiment of a composed configuration."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from omegaconf import DictConfig, OmegaConf

from dpfbo.problems.problem import Problem
from runners.compose.federated import FederatedExperiment
from runners.compose.instantiate import instantiate
from runners.compose.outsourced import OutsourcedExperiment
from runners.compose.settings import FederatedSettings, ProblemSettings, Settings
from runners.compose.typed import checked_settings, plain_tree

Experiment = FederatedExperiment | OutsourcedExperiment


@dataclass(frozen=True)
class Composition:
    """A checked configuration with its settings and its experiment.

    given: the configuration that Hydra composed, with derived values filled in, such as the noise multiplier that meets
    a target epsilon. settings: the same values as a typed tree. experiment: all parts of the run.
    """

    given: DictConfig
    settings: Settings
    experiment: Experiment

    @staticmethod
    def of(cfg: DictConfig) -> "Composition":
        """Check a composed configuration and build its experiment. Raises the errors of `complete`."""
        return Composition.complete(*checked_settings(cfg))

    @staticmethod
    def complete(given: DictConfig, settings: Settings) -> "Composition":
        """Build the experiment from the results of `checked_settings`, and fill in derived values.

        Raises ValueError (one sentence with the key) for a bad setting, MissingData if a data file is missing, and
        UnsupportedEvent for a mechanism that an accountant cannot analyse.
        """
        problem, node = problem_of(settings.problem), settings.problem.node
        found = {key: problem.found for key in node if node[key] == "auto" and hasattr(problem, "found")}
        settings = replace(settings, problem=replace(settings.problem, node={**node, **found}))
        filled = {f"problem.{key}": value for key, value in found.items()}
        experiment = experiment_of(settings, problem)
        if (epsilon := target_epsilon(settings)) is not None:
            experiment = federated(experiment).calibrated(epsilon)
            z = experiment.study.mechanism.noise_multiplier
            own = None if OmegaConf.is_interpolation(given.privacy, "z") else given.privacy.z
            if own not in (None, z):  # the command line gave it; an earlier calibration would equal z
                raise ValueError(
                    f"privacy.z must be left out where privacy.epsilon={epsilon!r} determines it, got {own!r}"
                )
            filled["privacy.z"] = z
        experiment.plan  # noqa: B018
        if filled:
            given = given.copy()
            for key, value in filled.items():
                OmegaConf.update(given, key, value)
        return Composition(given, experiment.settings, experiment)

    @cached_property
    def recorded(self) -> dict[str, Any]:
        """The configuration as a plain tree, without `allow`. Whoever repeats the run decides what to allow."""
        return {key: value for key, value in plain_tree(self.given).items() if key != "allow"}


def build(cfg: DictConfig) -> Experiment:
    """Build the experiment of a composed configuration; see `Composition.of`."""
    return Composition.of(cfg).experiment


def target_epsilon(settings: Settings) -> float | None:
    """Return the target epsilon to which the noise multiplier is calibrated; None without a target."""
    calibrates = isinstance(settings, FederatedSettings) and settings.algorithm.private
    return settings.privacy.epsilon if calibrates else None


def is_complete(settings: Settings) -> bool:
    """Return True if no setting remains to be computed from a target epsilon or the problem's data."""
    return target_epsilon(settings) is None and "auto" not in settings.problem.node.values()


def problem_of(settings: ProblemSettings) -> Problem:
    """Build the problem of a run. This may read files."""
    return instantiate(settings.node, "problem")  # type: ignore[no-any-return]


def experiment_of(settings: Settings, problem: Problem | None = None) -> Experiment:
    """Build an experiment, without its privacy plan. problem: None to build the problem as well."""
    problem = problem_of(settings.problem) if problem is None else problem
    if isinstance(settings, FederatedSettings):
        return FederatedExperiment.of(settings, problem)
    return OutsourcedExperiment.of(settings, problem)  # type: ignore[arg-type]


def federated(experiment: Experiment) -> FederatedExperiment:
    """Return the experiment. Raises ValueError if it is outsourced."""
    if isinstance(experiment, OutsourcedExperiment):
        name = experiment.settings.algorithm.name
        raise ValueError(f"algorithm={name} has no agents and no server that adds up their messages")
    return experiment
