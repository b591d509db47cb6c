"""Check and resolve a composed configuration, and convert it to the dataclasses of `settings`."""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from dpfbo import checks
from dpfbo.checks import SettingError
from dpfbo.federated.distributed import DistributedGaussian
from dpfbo.federated.mechanism import SubsampledGaussian
from dpfbo.federated.theory import regularization
from dpfbo.formats.bounded import check_yaml
from dpfbo.outsourced.curator import Curator
from runners.compose import resolvers
from runners.compose.instantiate import check_targets, class_named, instantiate
from runners.compose.keys import WORDS, about_key
from runners.compose.settings import (
    FederatedSettings,
    LocalExecutor,
    MechanismPrivacy,
    OutsourcedSettings,
    ProblemSettings,
    RayExecutor,
    Settings,
)

resolvers.register()

T = TypeVar("T")
_NOISES = ("algorithm.message_noise", "algorithm.own_gp.noise")  # keys that may have the value `theory`
Make = Callable[[Any], Any]

# groups whose files name a class; for each group, the keys of those arguments of the class that are set elsewhere
_OBJECTS = {
    "weights": {"hold": "weights.decay.hold", "steps": "weights.decay.steps"},
    "transform": {"epsilon": "privacy.epsilon", "delta": "privacy.delta", "bits": "privacy.noise.bits"},
    "privacy.noise": {},
    "privacy.schedule": {},
}


def checked_settings(cfg: DictConfig) -> tuple[DictConfig, Settings]:
    """Check a configuration; return a completed configuration and its settings.

    Completion replaces a file name in `problem.space` by the file's content. If a noise variance is given as `theory`,
    completion sets it to 1 + 2/T, for T rounds.
    """
    for name in ("problem", "algorithm", "privacy"):
        if name in cfg and not OmegaConf.is_dict(cfg.get(name)):
            raise ValueError(f"{name} is a group of files: choose one with {name}=NAME, got {cfg.get(name)!r}")
    _check_fits(cfg)
    missing = OmegaConf.missing_keys(cfg) if "'???'" in repr(OmegaConf.to_container(cfg)) else ()  # it resolves values
    if missing:
        raise ValueError(f"{min(missing)} must be given")
    given = _with_theory(_with_space(cfg))
    return given, typed(plain_tree(given))


def plain_tree(cfg: DictConfig) -> dict[str, Any]:
    """Return a configuration as plain dicts and lists, with its interpolations resolved."""
    try:
        return OmegaConf.to_container(cfg, resolve=True)  # type: ignore[return-value]
    except OmegaConfBaseException as error:
        raise ValueError(f"{error.full_key} does not follow from the settings: {str(error).splitlines()[0]}") from error


def _with_space(cfg: DictConfig) -> DictConfig:
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


def _with_theory(cfg: DictConfig) -> DictConfig:
    """Set each noise variance that is the text `theory` to the number lambda = 1 + 2 / T, for T rounds."""
    found = {key: OmegaConf.select(cfg, key, throw_on_resolution_failure=False) for key in _NOISES}
    keys = [key for key, value in found.items() if value == "theory"]
    if "algorithm.own_gp.noise" in keys and cfg.algorithm.own_gp.fit != "given":
        fit = cfg.algorithm.own_gp.fit
        raise ValueError(f"algorithm.own_gp.noise=theory needs algorithm.own_gp.fit=given, which keeps it, got {fit!r}")
    if keys:
        cfg = cfg.copy()
    for key in keys:
        OmegaConf.update(cfg, key, regularization(cfg.rounds))
    return cfg


def _check_fits(cfg: DictConfig) -> None:
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


def typed(resolved: dict[str, Any]) -> Settings:
    """Return the settings that a resolved configuration describes; import only allowed classes.

    Raises ValueError, which names the key, for a bad setting.
    """
    check_targets(resolved, resolved.get("allow") or ())
    outsourced = is_outsourced(resolved)
    cls: type[Settings] = OutsourcedSettings if outsourced else FederatedSettings
    names = {f.name for f in fields(cls)}  # an experiment's YAML may have other nodes, for interpolation
    nodes = {key: value for key, value in resolved.items() if key in names}
    algorithm = nodes["algorithm"]
    if isinstance(algorithm, dict):  # its preset is only for interpolations
        nodes["algorithm"] = {key: value for key, value in algorithm.items() if key != "preset"}
    made: dict[str, Make] = {"problem": _problem, "executor": _executor, "experiment_name": str}
    made["algorithm.server"] = lambda node: class_named(node, "measure")
    if not outsourced:
        made["algorithm.server"] = lambda node: None if node is None else class_named(node, "for_run")
        made["privacy"] = lambda node: _mechanism_privacy(node, algorithm)
    return section(cls, nodes, "", made)


def is_outsourced(config: Mapping[str, Any]) -> bool:
    """Return True for the configuration of a run with a curator and a modeler."""
    server = config["algorithm"].get("server")
    return isinstance(server, Mapping) and server.get("_target_") == f"{Curator.__module__}.{Curator.__name__}"


def section(cls: type[T], node: Any, key: str, made: Mapping[str, Make]) -> T:
    """Create the dataclass `cls`, and its fields that are dataclasses, from the node at `key`.

    made: for some keys, a function that creates the key's value from its node.
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
                values[name] = instantiate(node[name], inner, **_OBJECTS[inner])
            else:
                if get_origin(kind) is tuple and not isinstance(node[name], list):
                    raise ValueError(f"{inner} must be a list, such as [1, 2], got {node[name]!r}")
                none = node[name] is None and NoneType in get_args(kind)
                values[name] = section(parts[0], node[name], inner, made) if parts and not none else node[name]
    try:
        for name, value in values.items():
            for rule in getattr(kinds[name], "__metadata__", ()):
                rule(name, value)
        return cls(**values)
    except SettingError as error:
        raise about_key(error, key) from error


def _check_names(node: Any, key: str, required: dict[str, bool]) -> None:
    """Raise ValueError for a missing or unknown name. required: for each known name, True if it must be given."""
    if not isinstance(node, dict):
        *names, last = required
        raise ValueError(f"{key} must have {', '.join(names)} and {last}, got {node!r}")
    for unknown in [name for name in node if name not in required]:
        checks.one_of(f"a key of {key or 'the configuration'}", unknown, required)
    for name in required:
        if required[name] and name not in node:
            raise ValueError(f"setting {name!r} is missing; --cfg job shows all settings")


def _problem(node: dict[str, Any]) -> ProblemSettings:
    return ProblemSettings({k: v for k, v in node.items() if k != "preset"})


def _executor(node: Any) -> LocalExecutor:
    name = node.get("name") if isinstance(node, dict) else node
    checks.one_of("executor.name", name, ("local", "ray"))
    return section(RayExecutor if name == "ray" else LocalExecutor, node, "executor", {})


def _mechanism_privacy(node: Any, algorithm: Mapping[str, Any]) -> MechanismPrivacy:
    key_of = {word: key.removeprefix("privacy.") for key, word in WORDS.items()}
    inner = {f.name: key_of.get(f.name, f.name) for f in fields(SubsampledGaussian) if f.name != "normalize"}
    outer = [f.name for f in fields(MechanismPrivacy) if f.name != "mechanism"]
    shares = [f.name for f in fields(DistributedGaussian) if f.name not in ("normalize", *inner)]
    _check_names(node, "privacy", dict.fromkeys([*inner.values(), *outer, "trust", *shares], True))
    checks.one_of("privacy.trust", node["trust"], ("server", "nobody"))
    values = {
        "normalize": algorithm.get("message_normalize", False),
        **{name: node[key] for name, key in inner.items()},
    }
    if node["trust"] == "nobody" and algorithm.get("private"):
        mechanism: SubsampledGaussian = section(
            DistributedGaussian, {**values, **{k: node[k] for k in shares}}, "privacy", {}
        )
    else:
        for name in shares:
            if node[name] != 0 and node["trust"] == "server":
                raise ValueError(f"privacy.{name} must be 0 with privacy.trust=server, got {node[name]!r}")
        mechanism = section(SubsampledGaussian, values, "privacy", {})
    rest = {name: node[name] for name in outer}
    return section(MechanismPrivacy, {**rest, "mechanism": mechanism}, "privacy", {"privacy.mechanism": lambda m: m})
