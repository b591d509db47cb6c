"""The names of a round's metrics."""

from dpfbo.formats.record_tables import SERVER_SCHEMA
from runners.wandb.layout import QUANTILES, regret_metrics, server_metrics


def test_regret_has_its_mean_and_quantiles():
    assert regret_metrics(0.5, [0.1, 0.4, 0.9]) == {
        "regret/mean": 0.5, "regret/q10": 0.1, "regret/median": 0.4, "regret/q90": 0.9,
    }  # fmt: skip
    assert regret_metrics(None, []) == {"regret/mean": None}
    assert list(QUANTILES.values()) == [0.1, 0.5, 0.9]


def test_columns_of_the_server_are_metrics_of_the_server_but_epsilon():
    found = server_metrics(dict.fromkeys(SERVER_SCHEMA.names, 1.0))
    others = {f"server/{name}" for name in SERVER_SCHEMA.names if name not in ("round", "epsilon")}
    assert found.keys() == {"epsilon", *others}
    assert server_metrics({}) == {}
