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
        ({"depht": 3}, "the configuration's parameter must be one of 'rate', 'depth', .*, got 'depht'"),
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
        ({"a": {"lower": 0, "upper": 1}}, "space.a.type must be one of 'float', .*, 'fixed', got None"),
        ({"a": {"type": "float", "lower": 0}}, "space.a.upper must be given"),
        ({"a": {"type": "float", "low": 0}}, "a key of space.a must be one of 'lower', 'upper', 'log', 'step', 'when'"),
        ({"a": {"type": "float", "lower": 1, "upper": 0}}, "space.a.upper must be above lower=1, got 0"),
        ({"a": {"type": "integer", "lower": 1, "upper": 2.5}}, "space.a.upper must be a whole number"),
        ({"a": {"type": "categorical", "choices": ["x"]}}, "space.a.choices must hold at least two values"),
        ({"a": {"type": "categorical", "choices": "xy"}}, "space.a.choices must be a list of values, got 'xy'"),
        ({"a": {"type": "float", "lower": 0, "upper": 1, "when": "b"}}, "space.a.when must map a parameter's name"),
        ({"a": {"type": "float", "lower": 0, "upper": 1, "parent": "b"}}, "space.a.parent is unknown: a condition"),
        ({"a": {"type": "float", "lower": 0, "upper": 1, "step": 3}}, "space.a.step must be at most upper - lower = 1"),
        ({"a": Categorical([(1, 2), {"b": [None]}]), "c": {"type": "fixed"}}, "space.c.constant must be given"),
    ],
)  # fmt: skip
def test_bad_spaces_are_refused(parameters, sentence):
    with pytest.raises(SettingError, match=sentence):
        Space(parameters)


def test_equal_spaces_are_one_key_of_a_dict_and_another_order_is_another_space():
    one, same = (Space({"a": Float(0, 1), "k": Categorical(["x", "y"])}) for _ in range(2))
    other = Space({"k": Categorical(["x", "y"]), "a": Float(0, 1)})
    assert one == same and hash(one) == hash(same) and other != one


LAYERS = Space(
    {
        "layers": Categorical([(64, 64), (32,), [], {"units": [8, 8], "act": None}]),
        "same": Categorical([1, True, 1.0, "1", [1], [True], [1.0], None]),
        "level": Ordinal([[1, 2], [3]]),
        "betas": Fixed((0.9, 0.999)),
    }
)


def test_choices_are_json_values_and_tuples_stay_tuples():
    assert LAYERS.configuration([0, 0, 1]) == {"layers": (64, 64), "same": 1, "level": [3], "betas": (0.9, 0.999)}
    for k in range(4):
        for m in range(8):
            configuration = LAYERS.configuration([k, m, 0])
            assert LAYERS.natural(configuration).tolist() == [k, m, 0]
            assert LAYERS.natural(json.loads(json.dumps(configuration))).tolist() == [k, m, 0]
    assert Space(LAYERS.to_dict()) == LAYERS and hash(LAYERS) == hash(Space(LAYERS.to_dict()))


def test_an_objective_cannot_change_the_choices():
    given = [8, 8]
    space = Space({"layers": Categorical([given, [4]]), "fixed": Fixed({"a": [1]})})
    given.append(8)
    configuration = space.configuration([0])
    configuration["layers"].append(1)
    configuration["fixed"]["a"].append(1)
    assert space.configuration([0]) == {"layers": [8, 8], "fixed": {"a": [1]}}


LOOP: list = []
LOOP.append(LOOP)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Categorical([(1, 2), [1, 2]]), "choices must hold at least two values, all different"),
        (lambda: Categorical([{"a": 1, "b": 2}, {"b": 2, "a": 1}]), "choices must hold at least two values, all diff"),
        (lambda: Categorical(["a", {1, 2}]), r"choices must hold numbers, .* or lists and dicts of them, got \{1, 2\}"),
        (lambda: Categorical(["a", {1: 2}]), "choices must hold numbers, .*, got {1: 2}"),
        (lambda: Categorical(["a", [float("nan")]]), r"choices must hold numbers, .*, got \[nan\]"),
        (lambda: Ordinal([np.ones(2), "a"]), "values must hold numbers, .*, got array"),
        (lambda: Categorical(["a", LOOP]), "choices must hold numbers, "),
        (lambda: Fixed(object()), "constant must be one of numbers, .*, got <object"),
        (lambda: LAYERS.natural({"layers": [64], "same": 1, "level": [3]}), r"layers must be one of \(64, 64\), "),
        (lambda: LAYERS.natural({"layers": {1}, "same": 1, "level": [3]}), r"layers must be one of .*, got \{1\}"),
        (lambda: LAYERS.natural({"layers": [], "same": 1, "level": [3], "betas": [0.9]}), "betas is fixed at"),
    ],
)
def test_what_json_cannot_write_and_equal_values_are_refused(make, sentence):
    with pytest.raises(SettingError, match=sentence):
        make()
