"""The nodes of a resolved configuration become `settings`."""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from typing import Any, TypeVar

from dpfbo import checks
from dpfbo.federated.mechanism import SubsampledGaussian
from dpfbo.federated.prior.model import PriorModel
from dpfbo.gp.acquisition import Acquisition
from dpfbo.gp.draws import OwnDraw
from dpfbo.gp.own_gp import OwnGP
from dpfbo.outsourced.curator import Curator
from dpfbo.outsourced.modeler import Policy
from dpfbo.study.algorithm import Algorithm
from runners.compose.instantiate import check_targets, class_named, instantiate
from runners.compose.keys import WORDS, in_words, keys
from runners.compose.settings import (
    BudgetSettings,
    DropoutSettings,
    FederatedSettings,
    LocalExecutor,
    MechanismPrivacy,
    OutsourcedAlgorithm,
    OutsourcedSettings,
    ProblemSettings,
    RayExecutor,
    ReleasePrivacy,
    Settings,
    TrackerSettings,
    WandbSettings,
)

T = TypeVar("T")
Make = Callable[[Any], Any]


def typed(resolved: dict[str, Any]) -> Settings:
    """The settings that a resolved configuration describes.

    No class is imported unless it is allowed. Raises ValueError, one sentence with the key, for a bad setting.
    """
    check_targets(resolved, resolved.get("allow") or ())
    shared: dict[str, Make] = {
        "problem": _problem, "dropout": _nested(DropoutSettings, "dropout"), "executor": _executor,
        "experiment_name": str,
        "tracker": _nested(TrackerSettings, "tracker", wandb=_nested(WandbSettings, "tracker.wandb")),
    }  # fmt: skip
    if is_outsourced(resolved):
        return section(
            OutsourcedSettings, _known(OutsourcedSettings, resolved), "",
            **shared, algorithm=_outsourced_algorithm, transform=_transform,
            privacy=_nested(ReleasePrivacy, "privacy", budget=_budget, noise=_object("privacy.noise")),
        )  # fmt: skip
    return section(
        FederatedSettings, _known(FederatedSettings, resolved), "",
        **shared, algorithm=_federated_algorithm,
        privacy=_mechanism_privacy(resolved["algorithm"].get("message_normalize", False)),
        weights=_object("weights", hold="weights.decay.hold", steps="weights.decay.steps"),
        acquisition=_nested(Acquisition, "acquisition"),
    )  # fmt: skip


def _known(cls: type[Any], resolved: dict[str, Any]) -> dict[str, Any]:
    """The nodes at the top that `cls` has; others serve the interpolations of an experiment's own YAML."""
    names = {f.name for f in fields(cls)}
    return {key: value for key, value in resolved.items() if key in names}


def is_outsourced(config: Mapping[str, Any]) -> bool:
    """True if a configuration has a curator and a modeler."""
    server = config["algorithm"].get("server")
    return isinstance(server, Mapping) and server.get("_target_") == f"{Curator.__module__}.{Curator.__name__}"


def section(cls: type[T], node: Any, key: str, **made: Make) -> T:
    """`cls` from the node at `key`. made: by field, the function that makes its value from its node."""
    required = {f.name: f.default is MISSING and f.default_factory is MISSING for f in fields(cls)}  # type: ignore[arg-type]
    _check_names(node, key, required)
    given = {name: node[name] for name in required if name in node}
    values = {name: made[name](value) if name in made else value for name, value in given.items()}
    with keys(key):
        return cls(**values)


def _check_names(node: Any, key: str, required: dict[str, bool]) -> None:
    """Raise ValueError unless the node at `key` has all required names, and no others than these."""
    if not isinstance(node, dict):
        *names, last = required
        raise ValueError(f"{key} must have {', '.join(names)} and {last}, got {node!r}")
    for name in node:
        checks.one_of(f"a key of {key or 'the configuration'}", name, required)
    for name in required:
        if required[name] and name not in node:
            raise ValueError(f"setting {name!r} is missing; --cfg job shows all settings")


def _nested(cls: type[Any], key: str, **made: Make) -> Make:
    return lambda node: section(cls, node, key, **made)


def _object(key: str, **others: str) -> Make:
    def make(node: Any) -> Any:
        if not isinstance(node, dict):
            group = key.replace(".", "/")
            raise ValueError(f"{key} is a group of files: choose with {group}={node}")
        with keys(key, **others):
            return instantiate(node)

    return make


def _problem(node: dict[str, Any]) -> ProblemSettings:
    return ProblemSettings({k: v for k, v in node.items() if k != "preset"}, node.get("preset") or {})


def _executor(node: Any) -> LocalExecutor:
    name = node.get("name") if isinstance(node, dict) else node
    checks.one_of("executor.name", name, ("local", "ray"))
    return section(RayExecutor if name == "ray" else LocalExecutor, node, "executor")


def _budget(node: Any) -> BudgetSettings:
    return section(BudgetSettings, node, "privacy.budget")


def _mechanism_privacy(normalize: Any) -> Make:
    """Make the settings of `privacy`, among whose keys are those of the mechanism. normalize: of its messages."""
    inner = {f.name for f in fields(SubsampledGaussian)} - {"normalize"}
    outer = [f.name for f in fields(MechanismPrivacy) if f.name != "mechanism"]
    key_of = {word: key.removeprefix("privacy.") for key, word in WORDS.items()}
    names = dict.fromkeys([*(key_of.get(name, name) for name in inner), *outer], True)

    def make(node: Any) -> MechanismPrivacy:
        _check_names(node, "privacy", names)
        values = in_words(node, "privacy")
        for name in ("noise", "schedule"):
            values[name] = _object(f"privacy.{name}")(values[name])
        with keys("privacy"):
            mechanism = SubsampledGaussian(normalize=normalize, **{name: values[name] for name in inner})
        rest = {name: values[name] for name in outer}
        return section(MechanismPrivacy, {**rest, "mechanism": mechanism}, "privacy", budget=_budget)

    return make


def _federated_algorithm(node: Any) -> Algorithm:
    def server(node: Any) -> type[Any] | None:
        return None if node is None else class_named(node, "for_run")

    if isinstance(node, dict):  # its preset serves interpolations
        node = {key: value for key, value in node.items() if key != "preset"}
    return section(
        Algorithm, node, "algorithm", server=server,
        own_gp=_nested(OwnGP, "algorithm.own_gp"), own_draw=_nested(OwnDraw, "algorithm.own_draw"),
        prior=_nested(PriorModel, "algorithm.prior"),
    )  # fmt: skip


def _outsourced_algorithm(node: Any) -> OutsourcedAlgorithm:
    def server(node: Any) -> type[Any]:
        return class_named(node, "measure")

    return section(OutsourcedAlgorithm, node, "algorithm", server=server, modeler=_nested(Policy, "algorithm.modeler"))


def _transform(node: Any) -> Any:
    if not isinstance(node, dict):
        raise ValueError(f"transform must be one of the group transform, got {node!r}")
    with keys("transform", epsilon="privacy.epsilon", delta="privacy.delta", bits="privacy.noise.bits"):
        return instantiate(node)
