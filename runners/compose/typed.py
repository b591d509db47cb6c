"""The nodes of a resolved configuration become `settings`, by the types of the fields."""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, TypeVar, get_args, get_type_hints

from dpfbo import checks
from dpfbo.federated.mechanism import SubsampledGaussian
from dpfbo.outsourced.curator import Curator
from runners.compose.instantiate import check_targets, class_named, instantiate
from runners.compose.keys import WORDS, in_words, keys
from runners.compose.settings import (
    FederatedSettings,
    LocalExecutor,
    MechanismPrivacy,
    OutsourcedSettings,
    ProblemSettings,
    RayExecutor,
    Settings,
)

T = TypeVar("T")
Make = Callable[[Any], Any]

# Groups whose file names a class, each with the keys of the library's words that are in other groups.
_OBJECTS = {
    "weights": {"hold": "weights.decay.hold", "steps": "weights.decay.steps"},
    "transform": {"epsilon": "privacy.epsilon", "delta": "privacy.delta", "bits": "privacy.noise.bits"},
    "privacy.noise": {},
    "privacy.schedule": {},
}


def typed(resolved: dict[str, Any]) -> Settings:
    """The settings that a resolved configuration describes.

    No class is imported unless it is allowed. Raises ValueError, one sentence with the key, for a bad setting.
    """
    check_targets(resolved, resolved.get("allow") or ())
    outsourced = is_outsourced(resolved)
    cls: type[Settings] = OutsourcedSettings if outsourced else FederatedSettings
    names = {f.name for f in fields(cls)}  # other nodes serve the interpolations of an experiment's own YAML
    nodes = {key: value for key, value in resolved.items() if key in names}
    algorithm = nodes["algorithm"]
    if isinstance(algorithm, dict):  # its preset serves interpolations
        nodes["algorithm"] = {key: value for key, value in algorithm.items() if key != "preset"}
    made: dict[str, Make] = {"problem": _problem, "executor": _executor, "experiment_name": str}
    made["algorithm.server"] = lambda node: class_named(node, "measure")
    if not outsourced:
        made["algorithm.server"] = lambda node: None if node is None else class_named(node, "for_run")
        made["privacy"] = lambda node: _mechanism_privacy(node, algorithm.get("message_normalize", False))
    return section(cls, nodes, "", made)


def is_outsourced(config: Mapping[str, Any]) -> bool:
    """True if a configuration has a curator and a modeler."""
    server = config["algorithm"].get("server")
    return isinstance(server, Mapping) and server.get("_target_") == f"{Curator.__module__}.{Curator.__name__}"


def section(cls: type[T], node: Any, key: str, made: Mapping[str, Make]) -> T:
    """`cls` from the node at `key`; a field that is a class of settings is a section itself.

    made: by key, the function that makes a value from its node.
    """
    required = {f.name: f.default is MISSING and f.default_factory is MISSING for f in fields(cls)}  # type: ignore[arg-type]
    _check_names(node, key, required)
    kinds, values = get_type_hints(cls, include_extras=True), {}
    for name in required:
        if name in node:
            inner, kind = f"{key}.{name}".lstrip("."), kinds[name]
            parts: list[Any] = [part for part in (kind, *get_args(kind)) if is_dataclass(part)]
            if inner in made:
                values[name] = made[inner](node[name])
            elif inner in _OBJECTS:
                values[name] = _object(node[name], inner)
            else:
                values[name] = section(parts[0], node[name], inner, made) if parts else node[name]
    with keys(key):
        for name, value in values.items():
            for rule in getattr(kinds[name], "__metadata__", ()):
                rule(name, value)
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


def _object(node: Any, key: str) -> Any:
    if not isinstance(node, dict):
        raise ValueError(f"{key} is a group of files: choose with {key.replace('.', '/')}={node}")
    with keys(key, **_OBJECTS[key]):
        return instantiate(node)


def _problem(node: dict[str, Any]) -> ProblemSettings:
    return ProblemSettings({k: v for k, v in node.items() if k != "preset"}, node.get("preset") or {})


def _executor(node: Any) -> LocalExecutor:
    name = node.get("name") if isinstance(node, dict) else node
    checks.one_of("executor.name", name, ("local", "ray"))
    return section(RayExecutor if name == "ray" else LocalExecutor, node, "executor", {})


def _mechanism_privacy(node: Any, normalize: Any) -> MechanismPrivacy:
    """The settings of `privacy`, among whose keys are those of the mechanism. normalize: of its messages."""
    inner = {f.name for f in fields(SubsampledGaussian)} - {"normalize"}
    outer = [f.name for f in fields(MechanismPrivacy) if f.name != "mechanism"]
    key_of = {word: key.removeprefix("privacy.") for key, word in WORDS.items()}
    _check_names(node, "privacy", dict.fromkeys([*(key_of.get(name, name) for name in inner), *outer], True))
    values = in_words(node, "privacy")
    for name in ("noise", "schedule"):
        values[name] = _object(values[name], f"privacy.{name}")
    with keys("privacy"):
        mechanism = SubsampledGaussian(normalize=normalize, **{name: values[name] for name in inner})
    rest = {name: values[name] for name in outer}
    return section(MechanismPrivacy, {**rest, "mechanism": mechanism}, "privacy", {"privacy.mechanism": lambda m: m})
