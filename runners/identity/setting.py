"""Name the setting of a run by a digest.

The setting is everything that determines the run's numbers, except the seed.
"""

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from runners.compose.settings import ProblemSettings, Settings, outside_setting
from runners.compose.typed import is_outsourced, plain_tree


@dataclass(frozen=True)
class SettingNames:
    """Digests of a setting, which do not depend on seed, results folder, executor or tracker.

    setting: digest of the whole setting. family: digest without the number of rounds. any_noise: digest without the
    number of rounds and the noise multiplier.
    """

    setting: str
    family: str
    any_noise: str


@dataclass(frozen=True)
class RunIdentity:
    """The identity of a run: a setting, with a readable label, and a seed."""

    names: SettingNames
    label: str
    settings: Settings

    @staticmethod
    def of(given: DictConfig, settings: Settings) -> "RunIdentity":
        """Identify the run of `settings`, which were made from the configuration `given`."""
        return RunIdentity(names_of(given), label(plain_tree(given)), settings)

    @property
    def experiment(self) -> Path:
        """The experiment's results folder."""
        return Path(self.settings.results_dir).absolute() / self.settings.experiment_name

    @property
    def labelled_path(self) -> Path:
        """The folder of a new run outside a sweep, such as `synthetic-dp_fts_de-P2-eps2-0123456789ab/0`."""
        words = re.sub(r"[^A-Za-z0-9_.]+", "-", self.label.replace("=", "")).strip("-.")[:80]
        return self.experiment / f"{words}-{self.names.setting}" / str(self.settings.seed)


def names_of(cfg: DictConfig) -> SettingNames:
    """Compute the digests of a run's setting."""
    settings = _identity(cfg)
    setting = _digest(settings)
    settings.pop("rounds", None)  # may be missing; validation reports it
    family = _digest(settings)
    settings.get("privacy", {}).pop("z", None)
    return SettingNames(setting, family, _digest(settings))


def label(resolved: dict[str, Any]) -> str:
    """Describe a resolved setting, as `synthetic, dp_fts_de, P=2, eps=2`. Different settings may share a label."""
    problem, algorithm, privacy = resolved["problem"], resolved["algorithm"], resolved["privacy"]
    *package, module, kind = problem["_target_"].split(".")
    alone = package == ["dpfbo", "problems"]  # other modules may define several problems
    words = [str(problem.get("function") or (module if alone else kind.lower())), algorithm["name"]]
    if algorithm.get("P", 1) > 1:
        words.append(f"P={algorithm['P']}")
    if (r := (resolved.get("transform") or {}).get("r")) is not None:
        words.append(f"r={r}")
    if algorithm["private"]:
        target = privacy.get("epsilon")
        shown = {"eps": target} if target is not None else {key: privacy[key] for key in ("q", "z")}
        if privacy.get("trust") == "nobody":
            shown |= {"trust": "nobody", "dropouts": privacy["max_dropouts"], "colluders": privacy["colluders"]}
        words += [f"{key}={v:g}" if isinstance(v, (int, float)) else f"{key}={v}" for key, v in shown.items()]
    return ", ".join(words)


def _identity(cfg: DictConfig) -> dict[str, Any]:
    """Return the resolved settings that the digest covers."""
    neutral = OmegaConf.create(OmegaConf.to_container(cfg))
    neutral.seed = "<seed>"  # not a number, so that function_seed=${seed} and an equal number differ
    resolved: dict[str, Any] = OmegaConf.to_container(neutral, resolve=True)  # type: ignore[assignment]
    outsourced = is_outsourced(resolved)
    resolved = {key: value for key, value in resolved.items() if key not in outside_setting()}
    for key in ProblemSettings.OUTSIDE:
        resolved["problem"].pop(key, None)
    if not resolved["algorithm"]["private"]:
        privacy = resolved.pop("privacy")
        if outsourced and privacy["rng"] == "os":  # the release is random even if it is not private
            resolved["privacy"] = {"rng": "os"}
    a = resolved["algorithm"]
    if not outsourced and a["own_draw"].get("scale") is None:  # runs older than the key keep their names
        a["own_draw"].pop("scale", None)
    if not outsourced and resolved.get("privacy", {}).get("trust") == "server":  # likewise
        for key in ("trust", "max_dropouts", "colluders"):
            del resolved["privacy"][key]
    if outsourced:
        del a["transform"]  # the key `transform` of the configuration is in the digest
        unused = ["every"] if a["modeler"]["fit"] == "given" else []
        if a["modeler"]["policy"] == "random":
            unused = ["every", "fit", "delta_ucb", "noise_aware"]
        for key in unused:
            a["modeler"].pop(key, None)
    if resolved.get("transform") is None:
        resolved.pop("transform", None)
    return resolved


def _digest(settings: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(_as_floats(settings), sort_keys=True).encode()).hexdigest()[:12]


def _as_floats(node: Any) -> Any:
    """Return the tree with every number as a float, so that z=1 and z=1.0 are one setting."""
    if isinstance(node, dict):
        return {key: _as_floats(value) for key, value in node.items()}
    if isinstance(node, list):
        return [_as_floats(value) for value in node]
    try:
        return float(node) if isinstance(node, int) and not isinstance(node, bool) else node
    except OverflowError as error:
        raise ValueError(f"a setting must be a number below 1.8e308, got one of {len(str(node))} digits") from error
