"""Names in words, and epsilon and delta as sentences and pictures have them."""

import pytest

from dpfbo.formats.words import (
    METHODS,
    REPLACE_ONE,
    ZERO_OUT,
    delta_in_symbols,
    delta_in_words,
    epsilon_in_words,
    large_delta,
    metric_in_words,
    neighbours,
)
from dpfbo.privacy.accounting import ACCOUNTANTS


def test_every_accountant_has_its_words():
    assert METHODS.keys() == {*ACCOUNTANTS, "analytic_gaussian"}


def test_metrics():
    assert [metric_in_words(name) for name in ("one_minus_auc", "nmse", "simple_regret")] == [
        "1 − AUC", "normalised MSE", "simple regret",
    ]  # fmt: skip


def test_the_largest_delta_is_warned_of():
    assert large_delta([]) == large_delta([0.01, 0.001]) == ""
    assert large_delta([0.001, 0.2]) == " (large: it allows a chance of 20% that ε protects nobody; 0.001 is usual)"


def test_a_large_delta_is_said_in_words():
    assert delta_in_words(4**-1.1) == (
        "delta 0.218 (large: it allows a chance of 22% that epsilon protects nobody; 0.001 is usual)"
    )  # fmt: skip
    assert delta_in_words(0.00294) == "delta 0.00294"
    assert delta_in_words(0.01) == "delta 0.01"
    assert delta_in_words(0.0100001).startswith("delta 0.01 (large: it allows a chance of 1% ")


def test_delta_in_pictures():
    assert delta_in_symbols(0.00294) == "δ = 0.00294"
    assert delta_in_symbols(0.2) == "δ = 0.2 (large: it allows a chance of 20% that ε protects nobody; 0.001 is usual)"


def test_relations_in_words():
    assert neighbours(ZERO_OUT) == "relation zero-out, user level"
    assert neighbours(REPLACE_ONE) == "relation replace-one, user level"
    assert neighbours("one row") == "neighbours: one row"


@pytest.mark.parametrize(
    ("epsilon", "words"),
    [
        (0.0, "0"),
        (1e-4, "0.0001"),
        (0.0031, "0.0031"),
        (0.1, "0.10"),
        (0.0999, "0.1"),
        (0.0123, "0.012"),
        (9.909, "9.91"),
        (None, "none"),
        (float("inf"), "none"),
    ],
)
def test_a_real_cost_is_never_written_as_0(epsilon, words):
    assert epsilon_in_words(epsilon) == words


def test_epsilon_with_other_decimals():
    assert [epsilon_in_words(value, 3) for value in (0.5, 0.00012, 1e-9, 0.0)] == ["0.500", "0.00012", "1e-09", "0"]
