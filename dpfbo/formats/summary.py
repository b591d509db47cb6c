"""The entries that summary.json and config.yaml of a finished run must have, for programs that read many runs."""

import sys
from typing import Any

NUMBER, INTEGER, TEXT, TEXT_OR_NULL, BOOLEAN = "number", "integer", "text", "text or null", "true or false"
SUMMARY: dict[str, Any] = {
    **dict.fromkeys(("experiment", "setting", "problem", "algorithm", "metric"), TEXT),
    **dict.fromkeys(("relation", "accountant", "rng", "epsilon_covers"), TEXT),
    **dict.fromkeys(("seed", "n_agents", "rounds", "n_charges"), INTEGER),
    **dict.fromkeys(("lower_is_better", "private"), BOOLEAN),
    **{"epsilon": {}, "curve": {}, "seconds": {"objective": NUMBER, "total": NUMBER}},
    "delta": NUMBER,
}  # the kind of each entry, or the entries of a table
CONFIG = {"algorithm": {"name": TEXT, "private": BOOLEAN}, "privacy": {}, "problem": {}}
NOISE = ("z", "q", "S")
PERCENT = (5, 25, 50, 75, 95)  # quantiles over the agents, in the summary of a run with many agents
_LARGEST = sys.float_info.max


def is_outsourced(config: dict[str, Any]) -> bool:
    """Return True if the parties of the run are a curator and a modeler, instead of a server and agents."""
    return config["algorithm"].get("server") == "Curator"


def lacking(summary: Any, config: Any) -> str | None:
    """Describe the first entry that is missing or wrong; None if all entries are right.

    config: the content of config.yaml, in which the caller has replaced the entry `algorithm.server` by the name of
    the server's class.
    """
    wrong = _lacking(summary, SUMMARY, "summary.json") or _lacking(config, CONFIG, "config.yaml")
    if wrong:
        return wrong
    of_summary, of_config = _needs_of_family(summary, config)
    wrong = _lacking(summary, of_summary, "summary.json") or _lacking(config, of_config, "config.yaml")
    if wrong:
        return wrong
    if summary["accountant"] not in summary["epsilon"]:
        return f"summary.json: epsilon has no {summary['accountant']}"
    if not all(value is None or _is(value, NUMBER) for value in summary["epsilon"].values()):
        return "summary.json: epsilon has values that are no numbers"
    if summary["private"] and summary["rng"] == "seeded" and "clip_fraction" not in summary:
        return "summary.json has no 'clip_fraction'"
    curve, n = summary["curve"].get("mean"), summary["rounds"] + 1
    if not isinstance(curve, list) or len(curve) != n or not all(_is(y, NUMBER) for y in curve):
        return f"summary.json: curve.mean must be {n} finite numbers"
    return None


def _needs_of_family(summary: dict[str, Any], config: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the required entries of summary.json and of config.yaml that depend on the run's family.

    The family, federated or outsourced, follows from `config`.
    """
    private = summary["private"] or config["algorithm"]["private"]
    if not is_outsourced(config):
        return {}, {"algorithm": {"P": INTEGER}, "privacy": dict.fromkeys(NOISE, NUMBER) if private else {}}
    claimed = summary.get("published_claim") is not None
    return {"published_claim": TEXT_OR_NULL}, {
        "transform": {"_target_": TEXT, **({"r": INTEGER, "epsilon": NUMBER, "delta": NUMBER} if claimed else {})},
        "algorithm": {"modeler": {"noise_aware": BOOLEAN}},
        "privacy": {"epsilon": NUMBER} if private else {},
    }


def _lacking(found: Any, needed: dict[str, Any], where: str) -> str | None:
    if not isinstance(found, dict):
        return f"{where} has no settings"
    for key, need in needed.items():
        kind = "table" if isinstance(need, dict) else need
        if key not in found:
            return f"{where} has no {key!r}"
        if not _is(found[key], kind):
            return f"{where}: {key} must be of kind {kind}, got {found[key]!r}"
        inside = f"{where}.{key}" if ": " in where else f"{where}: {key}"
        if kind == "table" and (wrong := _lacking(found[key], need, inside)):
            return wrong
    return None


def _is(value: object, kind: str) -> bool:
    if kind in (NUMBER, INTEGER):
        kinds = (int,) if kind == INTEGER else (int, float)
        return isinstance(value, kinds) and not isinstance(value, bool) and -_LARGEST <= value <= _LARGEST
    return isinstance(value, {TEXT: str, TEXT_OR_NULL: str | None, BOOLEAN: bool, "table": dict}[kind])
