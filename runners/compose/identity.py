"""The name of a setting: the folder of its runs."""

import hashlib
import json
from typing import Any

from omegaconf import DictConfig, OmegaConf

from runners.compose.old_names import as_first_written
from runners.compose.settings import ProblemSettings, outside_setting
from runners.compose.typed import is_outsourced


def setting_hash(cfg: DictConfig) -> str:
    """The name of a setting: the same for all seeds, results folders, executors and trackers, and in all versions.

    The privacy settings count only for a private algorithm.
    """
    neutral = OmegaConf.create(OmegaConf.to_container(cfg))
    neutral.seed = "<seed>"  # no seed that a user types: a function_seed equal to the seed is another setting
    resolved: dict[str, Any] = OmegaConf.to_container(neutral, resolve=True)  # type: ignore[assignment]
    outsourced = is_outsourced(resolved)
    resolved = as_first_written({k: v for k, v in resolved.items() if k not in outside_setting()})
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
    return hashlib.sha256(json.dumps(_numbers_alike(resolved), sort_keys=True).encode()).hexdigest()[:12]


def _numbers_alike(node: Any) -> Any:
    """The same tree with every number a float, so that z=1 and z=1.0 are one setting."""
    if isinstance(node, dict):
        return {key: _numbers_alike(value) for key, value in node.items()}
    if isinstance(node, list):
        return [_numbers_alike(value) for value in node]
    return float(node) if isinstance(node, int) and not isinstance(node, bool) else node
