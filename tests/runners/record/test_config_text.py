"""config.yaml: the text that OmegaConf writes, and values that come back as they were."""

from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf

from runners.compose.configuration import composed
from runners.record.config_text import config_text

ODD = {
    "numbers": ["1e-3", "1_000", "0x1f", "nan", "-.inf", "1.0"],
    "words": ["y", "N", "yes", "null", "~", "on", "", " x "],
    "signs": ["a: b", "# c", "- d", "é σ", "two\nlines", "${x}", "'", '"', "0..4"],
    "values": [None, True, 1, 1e-3, 1e300, []],
    "nested": {"a": {"b": [{"c": {}}]}},
    "long": "a word " * 40,
}


@pytest.mark.parametrize("overrides", [[], ["algorithm=dp_prior"], ["problem=landmine", "algorithm=dp_fts_de"]])
def test_the_text_is_that_of_omegaconf(overrides):
    settings = OmegaConf.to_container(composed(overrides))
    assert config_text(settings) == OmegaConf.to_yaml(OmegaConf.create(settings))


def test_odd_values_come_back_with_their_types():
    text = config_text(ODD)
    assert text == OmegaConf.to_yaml(OmegaConf.create(ODD))
    assert yaml.safe_load(text) == ODD
    same = OmegaConf.to_container(OmegaConf.create(text))
    assert same == ODD and config_text(same) == text


def test_a_list_that_stands_twice_is_written_twice():
    shared = [1, 2]
    assert "&" not in config_text({"a": shared, "b": shared})


def test_other_values_are_written_as_text():
    assert yaml.safe_load(config_text({"folder": Path("a/b")})) == {"folder": "a/b"}
