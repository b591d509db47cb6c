"""Named parameters: configurations in natural units, and one sentence for what is no space."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfbo import Box, Categorical, Fixed, Float, Integer, Ordinal, Space
from dpfbo.checks import SettingError
from dpfbo.space.mixed import MixedBox

SPACE = Space(
    {
        "rate": Float(1e-4, 1.0, log=True),
        "depth": Integer(1, 12),
        "kernel": Categorical(["linear", "rbf", None]),
        "size": Ordinal([32, 64, 128]),
        "jobs": Fixed(4),
        "shrink": True,
    }
)


@given(st.lists(st.floats(0, 1), min_size=4, max_size=4))
@settings(max_examples=200, deadline=None)
def test_configurations_go_to_points_and_back(u):
    x = SPACE.domain.to_natural(torch.tensor(u, dtype=torch.float64))
    configuration = SPACE.configuration(x)
    assert list(configuration) == ["rate", "depth", "kernel", "size", "jobs", "shrink"]
    assert type(configuration["depth"]) is int and type(configuration["rate"]) is float
    assert (configuration["jobs"], configuration["shrink"]) == (4, True)
    assert torch.equal(SPACE.natural(configuration), x)


def test_a_space_of_linear_numbers_is_a_plain_box():
    space = Space({"a": Float(-5, 10), "b": Float(0, 15), "c": 3})
    assert space.domain == Box((-5.0, 0.0), (10.0, 15.0))
    assert space.configuration([1.5, 2]) == {"a": 1.5, "b": 2.0, "c": 3}


def test_plain_data_make_the_same_space():
    plain = json.loads(json.dumps(SPACE.to_dict()))
    again = Space(plain)
    assert again == SPACE and list(again.parameters) == list(SPACE.parameters)
    assert isinstance(again.domain, MixedBox)


def test_fixed_parameters_may_be_left_out():
    assert SPACE.natural({"rate": 0.1, "depth": np.int64(3), "kernel": None, "size": 64}).tolist() == [0.1, 3, 2, 1]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"rate": 2}, r"rate must be a number in \[0.0001, 1.0\], got 2"),
        ({"rate": float("nan")}, "rate must be a number in .*, got nan"),
        ({"rate": True}, "rate must be a number in .*, got True"),
        ({"depth": 2.5}, "depth must be a whole number from 1 to 12, got 2.5"),
        ({"kernel": "poly"}, "kernel must be one of 'linear', 'rbf', None, got 'poly'"),
        ({"size": 64.0}, "size must be one of 32, 64, 128, got 64.0"),
        ({"jobs": 8}, "jobs is fixed at 4, got 8"),
        ({"depht": 3}, "the configuration's parameter must be one of rate, depth, .*, got 'depht'"),
    ],
)
def test_a_configuration_outside_the_space_is_refused(change, sentence):
    good = {"rate": 0.1, "depth": 3, "kernel": "rbf", "size": 64}
    with pytest.raises(SettingError, match=sentence):
        SPACE.natural({**good, **change})


def test_a_missing_value_is_refused():
    with pytest.raises(SettingError, match="depth must be in the configuration"):
        SPACE.natural({"rate": 0.1})


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ({}, "space must have a parameter that is not fixed"),
        ({"a": 1}, "space must have a parameter that is not fixed"),
        ([1, 2], "space must map names to parameters"),
        ({"": Float(0, 1)}, "space must have names that are not empty"),
        ({"a": [1, 2]}, "space.a must be a parameter, such as .*, got \\[1, 2\\]"),
        ({"a": {"lower": 0, "upper": 1}}, "space.a.type must be one of float, .*, fixed, got None"),
        ({"a": {"type": "float", "lower": 0}}, "space.a.upper must be given"),
        ({"a": {"type": "float", "low": 0}}, "a key of space.a must be one of lower, upper, log, got 'low'"),
        ({"a": {"type": "float", "lower": 1, "upper": 0}}, "space.a.upper must be above lower=1, got 0"),
        ({"a": {"type": "integer", "lower": 1, "upper": 2.5}}, "space.a.upper must be a whole number"),
        ({"a": {"type": "categorical", "choices": ["x"]}}, "space.a.choices must hold at least two values"),
        ({"a": {"type": "categorical", "choices": "xy"}}, "space.a.choices must be a list of values, got 'xy'"),
        ({"a": {"type": "float", "lower": 0, "upper": 1, "when": "b"}}, "space.a.when is not supported: every"),
    ],
)  # fmt: skip
def test_bad_spaces_are_refused(parameters, sentence):
    with pytest.raises(SettingError, match=sentence):
        Space(parameters)


def test_equal_spaces_are_one_key_of_a_dict_and_another_order_is_another_space():
    one, same = (Space({"a": Float(0, 1), "k": Categorical(["x", "y"])}) for _ in range(2))
    other = Space({"k": Categorical(["x", "y"]), "a": Float(0, 1)})
    assert one == same and hash(one) == hash(same) and other != one
