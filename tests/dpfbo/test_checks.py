"""Refusals say in one sentence what was wrong."""

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from dpfbo import checks
from dpfbo.checks import SettingError

NO_NUMBERS = [None, "1", "a", True, False, [1], math.nan, 1j]


@pytest.mark.parametrize(
    ("check", "good"),
    [
        (checks.probability, [1, 1.0, 0.5, 1e-300, np.float64(0.25), np.float32(0.5), Fraction(1, 3)]),
        (checks.positive, [1, 1e-320, 1e308, np.float64(2), np.int64(3)]),
        (checks.non_negative, [0, 0.0, -0.0, 1, 1e308, np.float64(0)]),
    ],
)
def test_good_numbers_pass(check: Callable[[str, object], None], good: list[object]) -> None:
    for value in good:
        check("setting", value)


@pytest.mark.parametrize(
    ("check", "rule", "bad"),
    [
        (checks.probability, "lie in (0, 1]", [0, 0.0, -0.1, 1.4, 1 + 1e-15, math.inf, -math.inf]),
        (checks.positive, "be a finite number above 0", [0, 0.0, -1, math.inf, -math.inf]),
        (checks.non_negative, "be a finite number of at least 0", [-1, -1e-300, math.inf, -math.inf]),
    ],
)
def test_bad_numbers_are_refused_with_name_rule_and_value(
    check: Callable[[str, object], None], rule: str, bad: list[object]
) -> None:
    for value in [*bad, *NO_NUMBERS]:
        with pytest.raises(ValueError) as caught:
            check("setting", value)
        assert str(caught.value) == f"setting must {rule}, got {value!r}"


def test_integers() -> None:
    for value in (2, 3, 2**63 - 1, np.int64(2), np.int32(7)):
        checks.integer("setting", value, minimum=2)
    for value in (1, -5, 2.0, 2.5, np.float64(3), math.inf, *NO_NUMBERS):
        with pytest.raises(ValueError) as caught:
            checks.integer("setting", value, minimum=2)
        assert str(caught.value) == f"setting must be an integer of at least 2, got {value!r}"


def test_integers_have_a_limit_which_is_said_at_once() -> None:
    with pytest.raises(SettingError, match="^setting must be at most 9223372036854775807, got 1180591620717411303424$"):
        checks.integer("setting", 2**70, minimum=1)
    with pytest.raises(SettingError, match="^setting must be at most 10, got 11$"):
        checks.integer("setting", 11, minimum=1, maximum=10)
    with pytest.raises(SettingError, match="^setting must be at most .*, got a value of type int$"):
        checks.integer("setting", 10**5000, minimum=1)  # Python writes no integer of so many digits


def test_a_long_value_is_cut_in_a_sentence() -> None:
    assert checks.shown("x" * 500) == "'" + "x" * 99 + ".."
    assert checks.shown(1.5) == "1.5"


def test_names() -> None:
    checks.one_of("setting", "b", iter(["a", "b"]))
    for value in ("c", "", None, 1, ["a"]):
        with pytest.raises(ValueError) as caught:
            checks.one_of("setting", value, iter(["a", "b"]))
        assert str(caught.value) == f"setting must be one of 'a', 'b', got {value!r}"
