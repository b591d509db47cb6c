"""A composed configuration becomes settings, the setting's name, and the experiment."""

from copy import deepcopy
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from dpfbo.bounded import check_yaml
from dpfbo.problems import Problem
from runners.compose.federated import FederatedExperiment, study_of
from runners.compose.identity import SettingNames, folder_name, label, names_of
from runners.compose.instantiate import instantiate
from runners.compose.keys import MECHANISM, keys
from runners.compose.outsourced import OutsourcedExperiment
from runners.compose.settings import FederatedSettings, ProblemSettings, Settings
from runners.compose.typed import is_outsourced, typed

Experiment = FederatedExperiment | OutsourcedExperiment


class Composition:
    """One configuration with its settings, name, problem and experiment, each made once.

    Raises ValueError (one sentence) for a bad setting, MissingData for a data file that is not there,
    UnsupportedEvent for a mechanism that an accountant cannot analyse.
    """

    def __init__(self, cfg: DictConfig, names: SettingNames | None = None) -> None:
        """names: those of the setting, if they are known. cfg is not changed, nor to be changed afterwards."""
        if names is not None:
            self.names = names
        for name in ("problem", "algorithm", "privacy"):
            if name in cfg and not OmegaConf.is_dict(cfg.get(name)):
                raise ValueError(f"{name} is a group of files: choose one with {name}=NAME, got {cfg.get(name)!r}")
        _check_fits(cfg)
        if _holds(OmegaConf.to_container(cfg), "???"):
            raise ValueError(f"{min(OmegaConf.missing_keys(cfg))} must be given")
        self._given = _with_space(cfg)

    @cached_property
    def settings(self) -> Settings:
        return typed(deepcopy(self.resolved)) if self._found else self._first

    @cached_property
    def cfg(self) -> DictConfig:
        """The configuration with the found data in place of `auto`, and the calibrated noise multiplier."""
        if not self._found:
            return self._given
        cfg = self._given.copy()
        for key, value in self._found.items():
            OmegaConf.update(cfg, key, value)
        return cfg

    @cached_property
    def resolved(self) -> dict[str, Any]:
        """The configuration as a plain tree without interpolations; it is not to be changed."""
        return self._resolved(self.cfg) if self._found else self._given_resolved

    @property
    def recorded(self) -> dict[str, Any]:
        """`resolved` as the run's folder keeps it: what a user allows is no property of a run."""
        return {key: value for key, value in self.resolved.items() if key != "allow"}

    @cached_property
    def names(self) -> SettingNames:
        """The names of the setting and of what it belongs to."""
        return names_of(self.cfg)

    @property
    def setting(self) -> str:
        """The setting's name, that of its folder in a sweep."""
        return self.names.setting

    @cached_property
    def label(self) -> str:
        """The setting in a few words."""
        return label(self.resolved)

    @property
    def folder_name(self) -> str:
        """The name of the setting's folder among plain runs."""
        return folder_name(self.label, self.setting)

    @cached_property
    def problem(self) -> Problem:
        return problem_of(self._first.problem)

    @cached_property
    def experiment(self) -> Experiment:
        """The experiment, whose plan is computed."""
        experiment = experiment_of(self.settings, self.problem)
        experiment.plan  # noqa: B018
        return experiment

    @cached_property
    def _first(self) -> Settings:
        """The settings before `_found`."""
        return typed(deepcopy(self._given_resolved))

    @cached_property
    def _given_resolved(self) -> dict[str, Any]:
        return self._resolved(self._given)

    @staticmethod
    def _resolved(cfg: DictConfig) -> dict[str, Any]:
        try:
            return OmegaConf.to_container(cfg, resolve=True)  # type: ignore[return-value]
        except OmegaConfBaseException as error:
            raise ValueError(
                f"{error.full_key} does not follow from the settings: {str(error).splitlines()[0]}"
            ) from error

    @cached_property
    def _found(self) -> dict[str, Any]:
        """The values, by key, that follow from other settings and from the files on this machine."""
        plain: dict[str, Any] = OmegaConf.to_container(self._given.problem)  # type: ignore[assignment]
        auto = [key for key, value in plain.items() if value == "auto"]
        found = {f"problem.{key}": self.problem.found for key in auto if hasattr(self.problem, "found")}
        s = self._first
        if not isinstance(s, FederatedSettings) or not s.algorithm.private or s.privacy.epsilon is None:
            return found
        given = None if OmegaConf.is_interpolation(self._given.privacy, "z") else s.privacy.z
        any_noise = replace(s, privacy=replace(s.privacy, z=1.0))
        study = study_of(any_noise, self.problem.domain, self.problem.n_agents)
        with keys("privacy", **MECHANISM):
            z = study.multiplier_for(s.privacy.epsilon, s.privacy.z)
        if given is not None and given != z:  # the command line may give it, or an earlier calibration
            raise ValueError(
                f"privacy.z must be left out where privacy.epsilon={s.privacy.epsilon!r} says what it is, got {given!r}"
            )
        return {**found, "privacy.z": z}


def build(cfg: DictConfig) -> Experiment:
    """The experiment of a composed configuration; see `Composition`."""
    return Composition(cfg).experiment


def problem_of(settings: ProblemSettings) -> Problem:
    """The problem of a run. Building it may read files."""
    with keys("problem"):
        problem: Problem = instantiate(settings.node)
    return problem


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


def _holds(node: Any, word: str) -> bool:
    """True if a plain tree has this word as a value."""
    if isinstance(node, dict):
        return any(_holds(value, word) for value in node.values())
    if isinstance(node, list):
        return any(_holds(value, word) for value in node)
    return bool(node == word)


def _with_space(cfg: DictConfig) -> DictConfig:
    """The configuration with the content of the file that `problem.space` names, if it names one."""
    given = OmegaConf.select(cfg, "problem.space")
    if not isinstance(given, str):
        return cfg
    try:
        check_yaml(Path(given))
        space = OmegaConf.load(given)
    except (OSError, ValueError, YAMLError) as error:
        raise ValueError(f"problem.space must be parameters, or a YAML file of them, got {given!r}: {error}") from error
    cfg = cfg.copy()
    OmegaConf.update(cfg, "problem.space", space)
    return cfg


def _check_fits(cfg: DictConfig) -> None:
    """Raise ValueError for an algorithm with a problem of the other kind, whose settings may not even resolve."""
    preset, a, outsourced = cfg.problem.get("preset") or {}, cfg.algorithm, is_outsourced(cfg)
    if outsourced:
        for name in ("weights", "acquisition"):
            if cfg.get(name) is not None:
                raise ValueError(f"{name} has no effect on algorithm={a.name}: leave it out")
    if outsourced != ("message" not in preset):
        kinds = ("a table of candidates", "agents")
        wanted, found = kinds if outsourced else kinds[::-1]
        name = str(cfg.problem.get("_target_")).rsplit(".", 1)[-1]
        raise ValueError(f"algorithm={a.name} needs a problem with {wanted}, and {name} has {found}")
    if outsourced != ("q" not in (cfg.get("privacy") or {"q": None})):
        raise ValueError(f"algorithm={a.name} needs privacy={'outsourced' if outsourced else 'default'}")
    if not outsourced and cfg.get("transform") is not None:
        raise ValueError(f"transform is for outsourced algorithms such as po_gp_ucb, got algorithm={a.name}")
