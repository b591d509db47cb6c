"""Axes with a step: evenly spaced decimal numbers, each with an equal part of the axis."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfbo import Box, Float, Integer, SettingError, Space
from dpfbo.space.mixed import MixedBox
from dpfbo.space.regions import Regions

EXAMPLES = settings(max_examples=200, deadline=None)
DECIMALS = st.integers(0, 4)


def all_values(axis):
    """The values of an axis, from the middles of their parts."""
    u = (torch.arange(axis.size, dtype=torch.float64) + 0.5) / axis.size
    return [axis.value(x) for x in axis.natural(u).tolist()]


def test_values_look_as_they_are_written():
    assert all_values(Float(0.1, 0.5, step=0.1)) == [0.1, 0.2, 0.3, 0.4, 0.5]
    assert all_values(Float(0, 1, step=0.25)) == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert all_values(Float(-0.3, 0.3, step=0.2)) == [-0.3, -0.1, 0.1, 0.3]
    assert all_values(Float(1e-3, 5e-3, step=2e-3)) == [0.001, 0.003, 0.005]
    assert all_values(Integer(2, 64, step=2)) == list(range(2, 65, 2))


def test_the_last_value_is_the_largest_up_to_the_upper_bound():
    assert all_values(Float(0, 1, step=0.3)) == [0.0, 0.3, 0.6, 0.9]
    assert all_values(Integer(1, 10, step=4)) == [1, 5, 9]
    assert (Float(0, 1, step=0.3).largest, Integer(1, 10, step=4).largest, Float(0, 1).largest) == (0.9, 9, 1)


@given(st.integers(-1000, 1000), st.integers(1, 300), st.integers(1, 200), DECIMALS, st.integers(0, 299))
@EXAMPLES
def test_decimal_values_have_no_rounding_error(lower, steps, step, decimals, k):
    """The k-th value is the float nearest to the decimal number."""
    written = [f"{n}e-{decimals}" for n in (lower, lower + steps * step, step, lower + k % (steps + 1) * step)]
    low, high, distance, value = map(float, written)
    axis = Float(low, high, step=distance)
    assert axis.size == steps + 1
    assert float(axis.nth(torch.tensor(float(k % (steps + 1)), dtype=torch.float64))) == value
    assert axis.number(value) == axis.number(low + k % (steps + 1) * distance) == value


@given(st.lists(st.floats(0, 1), min_size=3, max_size=3))
@EXAMPLES
def test_configurations_go_to_points_and_back(u):
    space = Space({"a": Float(-1, 1, step=0.1), "b": Integer(0, 100, step=7), "c": Float(0, 5, step=1 / 3)})
    u = torch.tensor(u, dtype=torch.float64)
    x = space.domain.to_natural(u)
    configuration = space.configuration(x)
    assert type(configuration["a"]) is float and type(configuration["b"]) is int
    assert torch.equal(space.natural(configuration), x)
    assert torch.equal(space.domain.to_natural(space.domain.to_unit(x)), x)
    snapped = space.domain.snap(u)
    assert torch.equal(space.domain.snap(snapped), snapped)
    assert torch.equal(space.domain.to_unit(x), snapped)


def test_each_value_owns_an_equal_part_of_the_axis():
    u = torch.linspace(0, 1, 12_001, dtype=torch.float64)[:-1]
    for axis in (Float(0, 1, step=0.3), Integer(2, 9, step=2), Float(0.5, 1.7, step=0.1)):
        counts = axis.natural(u).unique(return_counts=True)[1]
        assert len(counts) == axis.size
        assert (counts - 12_000 / axis.size).abs().max() <= 1


def test_a_step_of_one_is_no_step_and_without_a_step_nothing_changes():
    assert Integer(1, 12, step=1) == Integer(1, 12) and Integer(1, 12, log=True, step=1).step is None
    assert repr(Float(0, 1)) == "Float(lower=0, upper=1, log=False)"
    assert repr(Integer(1, 4, True)) == "Integer(lower=1, upper=4, log=True)"
    assert repr(Float(0, 1, step=0.25)) == "Float(lower=0, upper=1, log=False, step=0.25)"
    assert isinstance(Space({"a": Float(0, 1)}).domain, Box)
    assert isinstance(Space({"a": Float(0, 1, step=0.5)}).domain, MixedBox)
    assert Space({"a": Float(0, 1)}).to_dict() == {"a": {"type": "float", "lower": 0, "upper": 1, "log": False}}


def test_plain_data_make_the_same_space():
    space = Space({"a": {"type": "float", "lower": 0, "upper": 1, "step": 0.25}, "b": Integer(2, 64, step=2)})
    assert Space(space.to_dict()) == space
    assert space.to_dict()["b"] == {"type": "integer", "lower": 2, "upper": 64, "log": False, "step": 2}


@pytest.mark.parametrize("P", [2, 4])
def test_points_of_a_region_have_values_that_stand_in_it(P):
    box, regions = MixedBox((Float(0, 1, step=0.1), Integer(0, 30, step=3))), Regions(P, 2)
    regions.check_against(box, P)
    region = torch.arange(P).repeat_interleave(50)
    u = torch.from_numpy(np.random.default_rng(0).uniform(size=(50 * P, 1, 2)))
    points = regions.uniform_points(region, u, box)[:, 0]
    assert torch.equal(regions.region_of(points), region)
    assert torch.equal(box.snap(points), points)


def test_neighbours_are_all_values_or_some_near_and_far():
    u = torch.full((1, 1), 0.5, dtype=torch.float64)
    few, many = MixedBox((Float(0, 1, step=0.25),)), MixedBox((Float(0, 1000, step=0.1),))
    assert few.to_natural(few.neighbours(u, 0)).flatten().tolist() == [0.0, 0.25, 0.5, 0.75, 1.0]
    found = set(many.to_natural(many.neighbours(many.snap(u), 0)).flatten().tolist())
    assert {500.0, 500.1, 499.9, 551.2} <= found


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Float(0, 1, step=0), "step must be a finite number above 0, got 0"),
        (lambda: Float(0, 1, step=float("nan")), "step must be a finite number above 0, got nan"),
        (lambda: Float(0, 1, step=True), "step must be a finite number above 0, got True"),
        (lambda: Float(0, 1, step=2), "step must be at most upper - lower = 1, got 2"),
        (lambda: Float(1e-4, 1, log=True, step=0.1), "step must be left out on a log scale, got 0.1"),
        (lambda: Float(0, 1, step=1e-17), r"step must leave at most 2\^53 values, got 1e-17"),
        (lambda: Integer(1, 9, step=0.5), "step must be an integer of at least 1, got 0.5"),
        (lambda: Integer(1, 9, log=True, step=2), "step must be left out on a log scale, got 2"),
        (lambda: Float(0, 1, step=0.25).number(0.3), r"must be a number in \[0, 1\] that is 0 plus a multiple of 0.25"),
        (lambda: Integer(1, 9, step=2).number(4), "must be a whole number from 1 to 9 that is 1 plus a multiple of 2"),
        (lambda: Integer(0, 10**9, step=10**7).number(1), "must be a whole number from 0 to 1000000000 that is 0 plus"),
        (lambda: Float(0, 1, step=0.3).number(1.0), "must be a number in .* that is 0 plus a multiple of 0.3, got 1.0"),
    ],
)
def test_wrong_steps_and_values_between_are_refused(make, sentence):
    with pytest.raises(SettingError, match=sentence):
        make()
