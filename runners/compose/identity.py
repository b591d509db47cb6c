"""The name of a setting: the folder of its runs."""

import hashlib
import json
from typing import Any

from omegaconf import DictConfig, OmegaConf

from runners.compose.outsourced import is_outsourced

_NOT_A_SETTING = (
    "seed",
    "results_dir",
    "data_dir",
    "experiment_name",
    "progress",
    "executor",
    "tracker",
    "resume",
    "seeds",
    "scale",
    "sweep",
)


def setting_hash(cfg: DictConfig) -> str:
    """Names a setting: the same for all seeds, results folders, executors and trackers.

    Where the algorithm is not private, the privacy settings do not count either.
    """
    neutral = OmegaConf.create(OmegaConf.to_container(cfg))
    neutral.seed = "<seed>"  # what nobody can type: a function_seed that equals the seed is another setting
    resolved: dict[str, Any] = OmegaConf.to_container(neutral, resolve=True)  # type: ignore[assignment]
    for key in _NOT_A_SETTING:
        resolved.pop(key, None)
    for key in ("preset", "data_dir", "n_jobs"):
        resolved["problem"].pop(key, None)
    if not resolved["algorithm"]["private"]:
        privacy = resolved.pop("privacy")
        if is_outsourced(resolved) and privacy["rng"] == "os":  # a random release, private or not
            resolved["privacy"] = {"rng": "os"}
    if is_outsourced(resolved):
        a = resolved["algorithm"]
        del a["transform"]  # says no more than the transform
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
