"""A charge: what it is made of, its event, its digest, and what it refuses."""

import dataclasses

import pytest
import torch

from dpfbo.checks import SettingError
from dpfbo.privacy.accounting.events import round_event
from dpfbo.privacy.charge import Charge, digest

VALUES = torch.arange(6, dtype=torch.float64).view(2, 3) / 7
PLAIN = Charge(0, 1.0, 2.0, 0.5, 0.25, digest(VALUES))


@pytest.mark.parametrize(
    "event", [round_event(0.3, 1.5), round_event(0.3, 1.5, (3, 9)), round_event(1.0, 2.0), round_event(1.0, None)]
)
def test_the_event_of_a_charge_is_that_it_was_made_of(event):
    made = Charge.of(4, event, 0.5, 0.25, VALUES)
    assert made.event() == event
    assert (made.round, made.sigma, made.sensitivity, made.digest, made.relation) == (
        4,
        0.5,
        0.25,
        digest(VALUES),
        None,
    )
    assert made.subset == ((3, 9) if hasattr(event, "sample_size") else None)
    assert Charge.of(4, round_event(1.0, 2.0), 0.5, 0.25, VALUES, "one row").relation == "one row"


def test_a_digest_is_that_of_the_numbers_in_double_precision():
    single = VALUES.float()
    assert digest(single) == digest(single.double()) != digest(VALUES)
    assert digest(VALUES.T.contiguous().T) == digest(VALUES)


@pytest.mark.parametrize("relation", ["r", "r" * 200])
def test_relations_of_1_to_200_letters(relation):
    assert dataclasses.replace(PLAIN, relation=relation).relation == relation


@pytest.mark.parametrize("relation", ["", "r" * 201, "a\x00b", "a\tb", 3])
def test_other_relations_are_refused(relation):
    with pytest.raises(SettingError) as refused:
        dataclasses.replace(PLAIN, relation=relation)
    assert refused.value.name == "relation"


@pytest.mark.parametrize("change", [{"q": 0.5}, {"subset": (3, 9)}, {"q": 0.5, "subset": (3, 9)}])
def test_a_relation_is_of_a_release_without_sampling(change):
    with pytest.raises(SettingError) as refused:
        dataclasses.replace(PLAIN, relation="one row", **change)
    assert refused.value.name == "q"


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("digest", "a" * 98, "'" + "a" * 98 + "'"),
        ("digest", "a" * 99, "'" + "a" * 99 + ".."),
        ("subset", (3,), "[3]"),
        ("subset", 3, "3"),
    ],
)
def test_a_refused_value_is_shown_and_a_long_one_begun(field, value, said):
    with pytest.raises(SettingError) as refused:
        dataclasses.replace(PLAIN, **{field: value})
    assert refused.value.name == field and refused.value.rule.endswith(f"got {said}")


@pytest.mark.parametrize(
    ("field", "value", "name"),
    [
        ("round", -1, "round"),
        ("q", 0.0, "q"),
        ("z", 0.0, "z"),
        ("sigma", -1.0, "sigma"),
        ("sensitivity", -1.0, "sensitivity"),
        ("subset", (0, 9), "k of subset"),
        ("subset", (3, 2), "N of subset"),
    ],
)
def test_a_refusal_names_its_field(field, value, name):
    with pytest.raises(SettingError) as refused:
        dataclasses.replace(PLAIN, **{field: value})
    assert refused.value.name == name


def test_the_smallest_values_that_a_charge_has():
    made = Charge(0, 1e-12, 1e-12, 0.0, 0.0, PLAIN.digest, (1, 1))
    assert made.event() == round_event(1e-12, 1e-12, (1, 1))
