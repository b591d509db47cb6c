"""The settings of a composed configuration become the experiment."""

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
    """One configuration, checked as a whole. It is made once and never changes.

    given: as Hydra composed it, with what the problem found in its files for `auto`, and the noise multiplier of a
    target epsilon. settings: the same as one typed tree. experiment: all parts of the run, made from the settings.
    """

    given: DictConfig
    settings: Settings
    experiment: Experiment

    @staticmethod
    def of(cfg: DictConfig) -> "Composition":
        """Check a composed configuration, which is not changed. Raises ValueError for a bad setting; see `complete`."""
        return Composition.complete(*checked_settings(cfg))

    @staticmethod
    def complete(given: DictConfig, settings: Settings) -> "Composition":
        """Build the problem and the experiment of `checked_settings`, and fill in what follows from them.

        Raises ValueError for a bad setting, one sentence with its key, MissingData without a data file, and
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
            if own not in (None, z):  # the command line may give it, or an earlier calibration
                raise ValueError(
                    f"privacy.z must be left out where privacy.epsilon={epsilon!r} says what it is, got {own!r}"
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
        """The configuration as a plain tree, as the run's folder keeps it: without `allow`, the user's own decision."""
        return {key: value for key, value in plain_tree(self.given).items() if key != "allow"}


def build(cfg: DictConfig) -> Experiment:
    """The experiment of a composed configuration; see `Composition.of`."""
    return Composition.of(cfg).experiment


def target_epsilon(settings: Settings) -> float | None:
    """The epsilon from which the noise multiplier follows; None if there is none."""
    calibrates = isinstance(settings, FederatedSettings) and settings.algorithm.private
    return settings.privacy.epsilon if calibrates else None


def is_complete(settings: Settings) -> bool:
    """True if nothing is left to fill in: the run can be named without its problem's data."""
    return target_epsilon(settings) is None and "auto" not in settings.problem.node.values()


def problem_of(settings: ProblemSettings) -> Problem:
    """The problem of a run. Building it may read files."""
    return instantiate(settings.node, "problem")  # type: ignore[no-any-return]


def experiment_of(settings: Settings, problem: Problem | None = None) -> Experiment:
    """The experiment of settings, as in a worker process, without its plan. problem: None to build it."""
    problem = problem_of(settings.problem) if problem is None else problem
    if isinstance(settings, FederatedSettings):
        return FederatedExperiment.of(settings, problem)
    return OutsourcedExperiment.of(settings, problem)  # type: ignore[arg-type]


def federated(experiment: Experiment) -> FederatedExperiment:
    """The experiment, if it has agents and a server. Raises ValueError for an outsourced one."""
    if isinstance(experiment, OutsourcedExperiment):
        name = experiment.settings.algorithm.name
        raise ValueError(f"algorithm={name} has no agents and no server that adds up their messages")
    return experiment
