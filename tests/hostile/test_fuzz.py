"""A few hundred random cases of each kind; `make soak` runs ten thousand in all."""

import time

import pytest

from tests.hostile import fuzz

COUNTS = {"files": 150, "messages": 150, "ledgers": 150, "checkpoints": 60, "invalid settings": 60}


@pytest.mark.parametrize("kind", fuzz.ALL)
def test_random_damage_is_one_sentence_or_nothing(kind):
    fuzz.ALL[kind](COUNTS[kind])


def test_settings_within_their_rules_run():
    fuzz.valid_settings(4)


def test_a_case_that_hangs_or_fails_is_told(monkeypatch):
    with monkeypatch.context() as hurried, pytest.raises(fuzz.Hang, match="no end within 0.05 s"):
        hurried.setattr(fuzz, "SECONDS", 0.05)
        fuzz.in_time(time.sleep, 5)
    assert fuzz.in_time(lambda: 3) == 3
    before = fuzz.DONE["messages"]
    monkeypatch.setattr(fuzz, "one_sentence", lambda error: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        fuzz.messages(50)
    assert fuzz.DONE["messages"] > before
