"""Medians and quartiles, ratios to floors, and the JSON of a suite."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from runners.bench.measurement import Findings, Spread
from runners.bench.tables import plain_ratios
from tests.helpers.bench import FINDINGS, FLOOR, ONE


@pytest.mark.parametrize(
    ("values", "spread"),
    [
        ([3.0], Spread(3.0, 3.0, 3.0, 1)),
        ([3.0, 1.0, 2.0], Spread(2.0, 1.0, 3.0, 3)),
        ([5.0, 1.0, 2.0, 4.0, 3.0], Spread(3.0, 2.0, 4.0, 5)),
    ],
)
def test_spread_has_median_and_quartiles(values: list[float], spread: Spread) -> None:
    assert Spread.of(values) == spread


def test_no_repeat_has_no_median() -> None:
    with pytest.raises(ValueError, match="at least one repeat"):
        Spread.of([])


def test_ratios_are_to_the_sum_of_the_floors_without_the_objective() -> None:
    assert ONE.floor == 1.0 and ONE.ratio == 3.0
    assert ONE.phase_ratio("message") == 4.0
    assert ONE.phase_ratio("fit") is None  # nothing was fitted
    assert ONE.phase_ratio("server") is None
    assert replace(ONE, floors={**ONE.floors, "objective": FLOOR}).floor == 1.0
    assert replace(ONE, floors={}).ratio is None


def test_json_round_trip() -> None:
    text = FINDINGS.to_json()
    assert Findings.from_json(text) == FINDINGS
    first = json.loads(text)["measurements"][0]
    assert first["ratio_to_floor"] == {"all": 3.0, "message": 4.0}
    assert first["floors"]["message"]["formula"] == "2 n flops"


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"measurements": [{"a": 1}], "panels": []}'])
def test_other_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no JSON of a benchmark suite"):
        Findings.from_json(text)


def test_the_plain_loop_is_compared_by_phase() -> None:
    plain = replace(ONE, what="plain loop", time=Spread(6.0, 6.0, 6.0, 1), phases={"message": Spread(8.0, 8.0, 8.0, 1)})
    ratios = plain_ratios(ONE, plain)
    assert ratios == {"message": 4.0, "time": 2.0, "objective": None, "fit": None}
