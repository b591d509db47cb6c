"""A few hundred random cases of each kind; `make soak` runs ten thousand."""

import pytest

from tests.hostile import fuzz

COUNTS = {"files": 150, "messages": 150, "ledgers": 150, "invalid settings": 60}


@pytest.mark.parametrize("kind", fuzz.ALL)
def test_random_damage_is_one_sentence_or_nothing(kind):
    fuzz.ALL[kind](COUNTS[kind])


def test_settings_within_their_rules_run():
    fuzz.valid_settings(4)
