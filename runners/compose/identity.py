"""The name of a setting, by which the folder of its runs is found again; and a label for people."""

import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig, OmegaConf

from runners.compose.settings import ProblemSettings, outside_setting
from runners.compose.typed import is_outsourced


@dataclass(frozen=True)
class SettingNames:
    """Digests of a setting: the same for all seeds, results folders, executors and trackers.

    The privacy settings count only for a private algorithm.

    Attributes:
        setting: of the whole of it.
        family: without its rounds.
        any_noise: without its rounds and its noise multiplier.
    """

    setting: str
    family: str
    any_noise: str


def names_of(cfg: DictConfig) -> SettingNames:
    """The names of a composed configuration."""
    settings = _identity(cfg)
    setting = _digest(settings)
    settings.pop("rounds", None)  # a file may lack it, which whoever runs it is told
    family = _digest(settings)
    settings.get("privacy", {}).pop("z", None)
    return SettingNames(setting, family, _digest(settings))


def setting_hash(cfg: DictConfig) -> str:
    """The name of a setting, `SettingNames.setting`."""
    return names_of(cfg).setting


def label(resolved: dict[str, Any]) -> str:
    """A resolved setting in words: `synthetic, dp_fts_de, P=2, eps=2`. Different settings may have one label."""
    problem, algorithm, privacy = resolved["problem"], resolved["algorithm"], resolved["privacy"]
    *_, module, kind = problem["_target_"].split(".")
    own = problem["_target_"].startswith("dpfbo.problems.")
    words = [str(problem.get("function") or (module if own else kind.lower())), algorithm["name"]]
    if algorithm.get("P", 1) > 1:
        words.append(f"P={algorithm['P']}")
    if (r := (resolved.get("transform") or {}).get("r")) is not None:
        words.append(f"r={r}")
    if algorithm["private"]:
        if privacy.get("epsilon") is not None:
            words.append(f"eps={_short(privacy['epsilon'])}")
        else:
            words += [f"{key}={_short(privacy[key])}" for key in ("q", "z")]
    return ", ".join(words)


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, (int, float)) else str(value)  # a bad value is refused later


def folder_name(label: str, setting: str) -> str:
    """The folder of a setting's runs, its label before its hash: `synthetic-dp_fts_de-P2-eps2-0123456789ab`."""
    words = re.sub(r"[^A-Za-z0-9_.]+", "-", label.replace("=", "")).strip("-.")[:80]
    return f"{words}-{setting}"


def _identity(cfg: DictConfig) -> dict[str, Any]:
    """The resolved settings that tell one setting from another."""
    neutral = OmegaConf.create(OmegaConf.to_container(cfg))
    neutral.seed = "<seed>"  # no seed that a user types: a function_seed equal to the seed is another setting
    resolved: dict[str, Any] = OmegaConf.to_container(neutral, resolve=True)  # type: ignore[assignment]
    outsourced = is_outsourced(resolved)
    resolved = {key: value for key, value in resolved.items() if key not in outside_setting()}
    for key in ProblemSettings.OUTSIDE:
        resolved["problem"].pop(key, None)
    if not resolved["algorithm"]["private"]:
        privacy = resolved.pop("privacy")
        if outsourced and privacy["rng"] == "os":  # a random release, private or not
            resolved["privacy"] = {"rng": "os"}
    if outsourced:
        a = resolved["algorithm"]
        del a["transform"]  # the transform itself is in the hash
        unused = ["every"] if a["modeler"]["fit"] == "given" else []
        if a["modeler"]["policy"] == "random":
            unused = ["every", "fit", "delta_ucb", "noise_aware"]
        for key in unused:
            a["modeler"].pop(key, None)
    if resolved.get("transform") is None:
        resolved.pop("transform", None)
    return resolved


def _digest(settings: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(_numbers_alike(settings), sort_keys=True).encode()).hexdigest()[:12]


def _numbers_alike(node: Any) -> Any:
    """The same tree with every number a float, so that z=1 and z=1.0 are one setting."""
    if isinstance(node, dict):
        return {key: _numbers_alike(value) for key, value in node.items()}
    if isinstance(node, list):
        return [_numbers_alike(value) for value in node]
    try:
        return float(node) if isinstance(node, int) and not isinstance(node, bool) else node
    except OverflowError as error:
        raise ValueError(f"a setting must be a number below 1.8e308, got one of {len(str(node))} digits") from error
