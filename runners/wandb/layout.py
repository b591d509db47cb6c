"""The names of all metrics on the W&B dashboard, and the choice of those that an outsider may see."""

import math
import numbers
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeGuard

from dpfbo.formats.record_tables import SERVER_SCHEMA

# A workspace groups charts by prefix: "server/" is a section, metrics without a prefix are in the section "Charts", and
# charts of tables without a prefix in "Custom Charts". Only regret against epsilon, by round and at the end, has no
# prefix, so that these two sections come first.
TRADE_OFF, END_POINT = "regret_vs_epsilon", "final_regret_vs_epsilon"
REGRET = "regret/mean"  # mean over the agents
QUANTILES = {"regret/q10": 0.1, "regret/median": 0.5, "regret/q90": 0.9}  # levels of the quantiles over the agents
SERVER, SECONDS = "server/", "seconds/"  # prefixes of a column of server.parquet, and of a phase of a round
SERVER_METRICS = [SERVER + name for name in SERVER_SCHEMA.names if name not in ("round", "epsilon")]
SECONDS_LEFT = "progress/seconds_left"
PHASES = [SECONDS + phase for phase in ("objective", "message", "server", "acquisition", "own_draw")]  # have panels
EPSILON, BEST = "privacy/epsilon", "best_configurations"
FINAL_REGRET, FINAL_EPSILON = "final_regret", "final_epsilon"  # without a slash, as the table of runs needs for sorting
SETTINGS, CLAIMS = "settings", "claims"  # tables in the summary of an experiment
BUDGET = "A privacy budget is spent"  # title of the alert

# (metric, horizontal axis, value in the table of runs). No metric may match two lines, since W&B uses only one of them.
# The regret is that of the best query so far, so its last value is its best.
METRICS = (
    (EPSILON, "round", "last"),
    (TRADE_OFF, EPSILON, "last"),
    ("regret/*", "round", "last"),
    (f"{SERVER}*", "round", "mean"),
    (SECONDS_LEFT, "round", "last"),
    (f"{SECONDS}*", "round", "none"),  # their sums over the rounds are in the summary
)

PATHS = ("results_dir", "data_dir", "file")  # settings that are paths on a machine
# settings of the algorithm that have no effect if agents work alone
_OF_SHARING = (
    "M", "lengthscale", "paired", "message", "message_noise", "message_center", "message_normalize", "momentum",
    "broadcasts", "follow",
)  # fmt: skip

# keys of summary.json that depend on public settings and the ledger only
RELEASED_SUMMARY = (
    "experiment", "setting", "label", "problem", "algorithm", "seed", "n_agents", "rounds", "metric", "private",
    "delta", "relation", "accountant", "approximations", "epsilon", "epsilon_before", "rng", "n_charges", "commit",
)  # fmt: skip

Metrics = dict[str, float | None]


def regret_metrics(mean: float | None, quantiles: Sequence[float]) -> Metrics:
    """Return the `mean` and the `quantiles` of a run's metric after a round, under their names on the dashboard.

    Mean and quantiles are taken over the agents. quantiles: at the levels of `QUANTILES`; empty if no agent has a
    value.
    """
    return {REGRET: mean, **(dict(zip(QUANTILES, quantiles, strict=True)) if len(quantiles) else {})}


def server_metrics(row: Mapping[str, float | int | None]) -> Metrics:
    """Return the values of a row of server.parquet under their names in W&B.

    The column `epsilon` keeps its name, and `round` is left out. All other columns get the prefix `server/`.
    """
    return {name if name == "epsilon" else SERVER + name: row[name] for name in row if name != "round"}


def visibility() -> dict[str, list[str]]:
    """Return the names of all metrics, in two lists under the keys `released` and `simulation-only`.

    An outsider of a real deployment sees only the released metrics.
    """
    names: dict[str, list[str]] = {"released": [], "simulation-only": []}
    for column in SERVER_SCHEMA:
        name = {"round": "round", "epsilon": EPSILON}.get(column.name, SERVER + column.name)
        names[column.metadata[b"visibility"].decode()].append(name)
    names["released"] += [FINAL_EPSILON]
    names["simulation-only"] += ["regret/*", FINAL_REGRET, TRADE_OFF, END_POINT, BEST, f"{SECONDS}*", SECONDS_LEFT]
    return names


def is_real(config: Mapping[str, Any]) -> bool:
    """Return True for a run on real data (privacy.rng=os), whatever its algorithm."""
    privacy = config.get("privacy")
    return isinstance(privacy, Mapping) and privacy.get("rng") == "os"


def released_only(show: str, real: bool) -> bool:
    """Return True if only released metrics may be shown. show: `tracker.wandb.show`; real: True for real data."""
    return show == "released" or (show == "auto" and real)


def config_of(config: Mapping[str, Any], setting: str, label: str, released_only: bool) -> dict[str, Any]:
    """Return `config` with `setting`, `method` and `label` added.

    Settings of privacy, sharing and weights that the method does not use are null. released_only: True to leave out
    paths of folders and files.
    """
    algorithm = config.get("algorithm", {})
    alone = algorithm.get("server", "") is None
    found = {**config, "setting": setting, "method": algorithm.get("name"), "label": unique_label(label, setting)}
    if released_only:
        problem = config.get("problem", {})
        found = {**found, "problem": {key: problem[key] for key in problem if key not in PATHS}}
        found = {key: value for key, value in found.items() if key not in PATHS}
    if algorithm.get("private") is False:
        found["privacy"] = _nulls(config.get("privacy"))
    if alone:
        found["algorithm"] = {**algorithm, **{key: None for key in _OF_SHARING if key in algorithm}}
    if alone or algorithm.get("P") == 1:
        found["weights"] = _nulls(config.get("weights"))
    return found


def unique_label(label: str, setting: str) -> str:
    """Return a label with the first digits of its setting's hash."""
    return f"{label} ({setting[:6]})" if setting else label


def _nulls(node: Any) -> Any:
    return {key: _nulls(value) for key, value in node.items()} if isinstance(node, Mapping) else None


def row_of(metrics: Mapping[str, float | None], spent: float | None) -> dict[str, float]:
    """Return the finite metrics of a round as a row, with `spent` as the row's epsilon.

    spent: the epsilon before the round; None if it is not finite, in which case the row has no epsilon.
    """
    row = _finite({key: value for key, value in metrics.items() if key != "epsilon"})
    if spent is not None:
        row[EPSILON] = spent
        if REGRET in row:
            row[TRADE_OFF] = row[REGRET]
    return row


def summary_of(summary: Mapping[str, Any], released_only: bool) -> dict[str, float | str | bool]:
    """Return the scalars of summary.json for the summary of the W&B run.

    Final regret and final epsilon are returned a second time under separate keys, if they are finite.

    released_only: True to return only what an outsider may see, which excludes final regret.
    """
    point = end_point(summary)
    if released_only:
        point.pop(FINAL_REGRET, None)
        summary = {key: summary[key] for key in RELEASED_SUMMARY if key in summary}
    return {**dict(_scalars(summary)), **point}


def end_point(summary: Mapping[str, Any]) -> dict[str, float]:
    """Return final regret and epsilon (by the run's accountant) of a summary, each if it is finite."""
    epsilon = summary.get("epsilon", {}).get(summary.get("accountant"))
    return _finite({FINAL_REGRET: summary.get("final", {}).get("mean"), FINAL_EPSILON: epsilon})


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
