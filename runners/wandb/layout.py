"""The layout of a run on the W&B dashboard: metric names, and which metrics an outsider may see."""

import math
import numbers
from collections.abc import Iterator, Mapping
from typing import Any, TypeGuard

from dpfbo.formats.record_tables import SERVER_SCHEMA
from dpfbo.formats.round_metrics import REGRET

# A workspace sorts charts by name: each prefix ("server/") is a section, metrics without a prefix are in the section
# "Charts", charts of tables without one in "Custom Charts". Only regret against epsilon, round by round and at the
# end, has no prefix, so that both sections come first, in either order of capitals ("figures" is the next), and the
# hidden `round`, which some versions show, comes after "regret_...". Epsilon also has its own chart.
TRADE_OFF, END_POINT = "regret_vs_epsilon", "final_regret_vs_epsilon"
EPSILON, BEST = "privacy/epsilon", "best_configurations"

# (metric, horizontal axis, value in the table of runs). No metric may match two lines: W&B takes one definition only.
# The regret belongs to the best query so far, so its last value is also its best one.
METRICS = (
    (EPSILON, "round", "last"),
    (TRADE_OFF, EPSILON, "last"),
    ("regret/*", "round", "last"),
    ("server/*", "round", "mean"),
    ("seconds/*", "round", "none"),  # the summary brings their sums over the rounds
)

PATHS = ("results_dir", "data_dir", "file")  # settings that name folders and files of a machine
# settings of the algorithm that agents who work alone do not use
_OF_SHARING = (
    "M", "lengthscale", "paired", "message", "message_noise", "message_center", "message_normalize", "momentum",
    "broadcasts", "follow",
)  # fmt: skip

# keys of summary.json that follow from public settings and the ledger alone
RELEASED_SUMMARY = (
    "experiment", "setting", "label", "problem", "algorithm", "seed", "n_agents", "rounds", "metric", "private",
    "delta", "relation", "accountant", "approximations", "epsilon", "epsilon_before", "rng", "n_charges", "commit",
)  # fmt: skip


def visibility() -> dict[str, list[str]]:
    """The metrics that an outsider of a real deployment would see (`released`), and the others (`simulation-only`)."""
    names: dict[str, list[str]] = {"released": [], "simulation-only": []}
    for column in SERVER_SCHEMA:
        name = {"round": "round", "epsilon": EPSILON}.get(column.name, f"server/{column.name}")
        names[column.metadata[b"visibility"].decode()].append(name)
    names["released"] += ["final_epsilon"]
    names["simulation-only"] += ["regret/*", "final_regret", TRADE_OFF, END_POINT, BEST, "figures/*", "seconds/*"]
    return names


def is_real(config: Mapping[str, Any]) -> bool:
    """True for a run about real data (privacy.rng=os), whether its algorithm is private or releases nothing."""
    privacy = config.get("privacy")
    return isinstance(privacy, Mapping) and privacy.get("rng") == "os"


def released_only(show: str, real: bool) -> bool:
    """True if only released metrics of a run may be shown. show: `tracker.wandb.show`; real: about real data."""
    return show == "released" or (show == "auto" and real)


def config_of(config: Mapping[str, Any], setting: str, label: str, released_only: bool) -> dict[str, Any]:
    """The settings with `setting`, `method` and `label`, and null for those that the method does not use.

    So grouping by `label`, or by any setting, makes one curve of runs that are alike: local Thompson sampling has no
    `privacy.q`, and is not averaged with the private runs of the default q. If only released metrics are shown, the
    settings that name folders and files are left out.
    """
    algorithm = config.get("algorithm", {})
    alone = algorithm.get("server", "") is None
    found = {**config, "setting": setting, "method": algorithm.get("name"), "label": unique_label(label, setting)}
    if released_only:
        found = _without_paths(found) | {"problem": _without_paths(config.get("problem", {}))}
    if algorithm.get("private") is False:
        found["privacy"] = _nulls(config.get("privacy"))
    if alone:
        found["algorithm"] = {**algorithm, **{key: None for key in _OF_SHARING if key in algorithm}}
    if alone or algorithm.get("P") == 1:
        found["weights"] = _nulls(config.get("weights"))
    return found


def unique_label(label: str, setting: str) -> str:
    """A label with the first digits of its setting's hash: settings that differ elsewhere have the same words."""
    return f"{label} ({setting[:6]})" if setting else label


def _without_paths(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key not in PATHS}


def _nulls(node: Any) -> Any:
    return {key: _nulls(value) for key, value in node.items()} if isinstance(node, Mapping) else None


def row_of(metrics: Mapping[str, float | None], spent: float | None) -> dict[str, float]:
    """The row of one round, its finite metrics; spent: epsilon before the round, None if there is no finite one."""
    row = _finite({key: value for key, value in metrics.items() if key != "epsilon"})
    if spent is not None:
        row[EPSILON] = spent
        if REGRET in row:
            row[TRADE_OFF] = row[REGRET]
    return row


def summary_of(summary: Mapping[str, Any], released_only: bool) -> dict[str, float | str | bool]:
    """The scalars of summary.json, or the released ones only, with the end point of the run."""
    point = end_point(summary)
    if released_only:
        point.pop("final_regret", None)
        summary = {key: summary[key] for key in RELEASED_SUMMARY if key in summary}
    return {**dict(_scalars(summary)), **point}


def end_point(summary: Mapping[str, Any]) -> dict[str, float]:
    """The finite ones of `final_regret` and `final_epsilon` (by the run's accountant) of a summary.

    The names have no slash, because the table of runs sorts and filters by such names only.
    """
    regret = summary.get("final", {}).get("mean")
    return _finite({"final_regret": regret, "final_epsilon": summary.get("epsilon", {}).get(summary.get("accountant"))})


def is_finite(value: object) -> TypeGuard[float]:
    return isinstance(value, numbers.Real) and math.isfinite(value)


def _finite(values: Mapping[str, object]) -> dict[str, float]:
    return {key: float(value) for key, value in values.items() if is_finite(value)}


def _scalars(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float | str | bool]]:
    """Yield the finite numbers, strings and booleans of a nested mapping, with keys joined by `/`."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _scalars(value, f"{prefix}{key}/")
        elif isinstance(value, str) or is_finite(value):
            yield f"{prefix}{key}", value
