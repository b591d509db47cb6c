"""The contents that files of a finished run must have for tables, pictures, claims and the report."""

import sys
from typing import Any

from analysis.labels import is_outsourced

SUMMARY = {
    **dict.fromkeys(("experiment", "setting", "problem", "algorithm", "metric"), "text"),
    **dict.fromkeys(("relation", "accountant", "rng", "epsilon_covers"), "text"),
    **dict.fromkeys(("seed", "n_agents", "rounds", "n_charges"), "integer"),
    **dict.fromkeys(("lower_is_better", "private"), "true or false"),
    **dict.fromkeys(("epsilon", "seconds", "curve"), "table"),
    "delta": "number",
}  # what summary.json must have
CONFIG = dict.fromkeys(("algorithm", "privacy", "problem"), "table")
NOISE = ("z", "q", "S")
_LARGEST = sys.float_info.max


def lacking(summary: Any, config: Any) -> str | None:
    """A need that the files do not meet, in words; None if all is there."""
    wrong = _lacking(summary, SUMMARY, "summary.json") or _lacking(config, CONFIG, "config.yaml")
    if wrong:
        return wrong
    s = summary
    wrong = (
        _lacking(s["seconds"], {"objective": "number", "total": "number"}, "summary.json: seconds")
        or _lacking(config["algorithm"], {"name": "text", "private": "true or false"}, "algorithm")
        or (_outsourced if is_outsourced(config) else _federated)(s, config)
    )
    if wrong:
        return wrong
    if s["accountant"] not in s["epsilon"]:
        return f"summary.json: epsilon has no {s['accountant']}"
    if not all(value is None or _is(value, "number") for value in s["epsilon"].values()):
        return "summary.json: epsilon has values that are no numbers"
    if s["private"] and s["rng"] == "seeded" and "clip_fraction" not in s:
        return "summary.json has no 'clip_fraction'"
    curve = s["curve"].get("mean")
    if not isinstance(curve, list) or len(curve) != s["rounds"] + 1 or not all(_is(y, "number") for y in curve):
        return f"summary.json: curve.mean must be {s['rounds'] + 1} finite numbers"
    return None


def _federated(s: dict[str, Any], config: dict[str, Any]) -> str | None:
    private = s["private"] or config["algorithm"]["private"]
    return _lacking(config["algorithm"], {"P": "integer"}, "algorithm") or _lacking(
        config["privacy"], dict.fromkeys(NOISE, "number") if private else {}, "privacy"
    )


def _outsourced(s: dict[str, Any], config: dict[str, Any]) -> str | None:
    """The release: what it claims, or what it guarantees."""
    if "published_claim" not in s:
        return "summary.json has no 'published_claim'"
    claimed, private = s["published_claim"] is not None, s["private"] or config["algorithm"]["private"]
    claim = {"r": "integer", "epsilon": "number", "delta": "number"} if claimed else {}
    return (
        _lacking(s, {"published_claim": "text"} if claimed else {}, "summary.json")
        or _lacking(config, {"transform": "table"}, "config.yaml")
        or _lacking(config["transform"], {"_target_": "text"}, "transform")
        or _lacking(config["transform"], claim, "transform")
        or _lacking(config["algorithm"], {"modeler": "table"}, "algorithm")
        or _lacking(config["algorithm"]["modeler"], {"noise_aware": "true or false"}, "algorithm.modeler")
        or _lacking(config["privacy"], {"epsilon": "number"} if private else {}, "privacy")
    )


def _lacking(found: Any, needed: dict[str, str], where: str) -> str | None:
    if not isinstance(found, dict):
        return f"{where} has no settings"
    for key, kind in needed.items():
        if key not in found:
            return f"{where} has no {key!r}"
        if not _is(found[key], kind):
            return f"{where}: {key} must be of kind {kind}, got {found[key]!r}"
    return None


def _is(value: object, kind: str) -> bool:
    if kind in ("number", "integer"):
        kinds = (int,) if kind == "integer" else (int, float)
        return isinstance(value, kinds) and not isinstance(value, bool) and -_LARGEST <= value <= _LARGEST
    return isinstance(value, {"text": str, "true or false": bool, "table": dict}[kind])
