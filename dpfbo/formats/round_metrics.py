"""The metrics of one round by name, as trackers log them and dashboards draw them."""

from collections.abc import Mapping, Sequence

REGRET = "regret/mean"  # over the agents
QUANTILES = {"regret/q10": 0.1, "regret/median": 0.5, "regret/q90": 0.9}  # over the agents, the level by name

Metrics = dict[str, float | None]


def regret_metrics(mean: float | None, quantiles: Sequence[float]) -> Metrics:
    """The metric after a round. quantiles: at the levels of `QUANTILES`, or none where no agent has a value."""
    return {REGRET: mean, **(dict(zip(QUANTILES, quantiles, strict=True)) if len(quantiles) else {})}


def server_metrics(row: Mapping[str, float | int | None]) -> Metrics:
    """The columns of a row of server.parquet: `epsilon`, and the others as `server/<column>`."""
    return {name if name == "epsilon" else f"server/{name}": row[name] for name in row if name != "round"}
