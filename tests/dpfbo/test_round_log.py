"""The finished rounds of a run: few stay in memory, and nothing else changes."""

import pytest
import torch

from dpfbo import round_log
from dpfbo.records import RoundRecord
from dpfbo.round_log import RoundLog


def record(t, n=4):
    values = torch.randn(n, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(t))
    whole = torch.zeros(n, 1, dtype=torch.long)
    return RoundRecord(t, whole, whole, values[..., None], values[..., None], values, values, values)


ALL = [record(t) for t in range(6)]


def log_of(records, read_back=None):
    log = RoundLog()
    log.read_back = read_back
    for r in records:
        log.append(r)
    return log


@pytest.mark.parametrize(("rounds", "kept"), [(0, 1), (1, 1), (2.5, 2), (6, 6), (100, 6)])
def test_the_newest_stay_and_the_others_are_read_back(monkeypatch, rounds, kept):
    monkeypatch.setattr(round_log, "MOST_BYTES", int(rounds * ALL[0].bytes))
    asked = []
    log = log_of(ALL, lambda t: asked.append(t) or ALL[t])
    assert list(log) == ALL and asked == list(range(6 - kept))
    assert (len(log._newest) == 6) == (kept == 6) and len(log) == 6
    assert log.means == [r.mean for r in ALL]
    assert log.standard_errors == [r.standard_error for r in ALL]
    asked.clear()
    assert log[-1] is ALL[-1] and asked == []
    assert log[0] is ALL[0] and log[-6] is ALL[0] and log[1:3] == ALL[1:3]
    for outside in (6, -7):
        with pytest.raises(IndexError):
            log[outside]


def test_without_a_place_to_read_from_all_stay(monkeypatch):
    monkeypatch.setattr(round_log, "MOST_BYTES", 0)
    log = log_of(ALL)
    assert len(log._newest) == len(log) and log[:] == ALL


def test_the_memory_of_old_rounds_is_free(monkeypatch):
    monkeypatch.setattr(round_log, "MOST_BYTES", 3 * ALL[0].bytes)
    log = log_of(map(record, range(200)), record)
    assert sum(r.bytes for r in log._newest) <= 3 * ALL[0].bytes
    assert all(torch.equal(r.y, record(t).y) for t, r in enumerate(log))
