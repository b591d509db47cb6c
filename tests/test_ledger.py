"""The ledger: durable before release, never under-counting."""

import json

import dp_accounting
import pytest
import torch

from dpfbo.ledger import Charge, Ledger, LedgerError, digest


def charge(round=0, content="a", z=1.0):
    return Charge(round, 0.35, z, 0.5, 0.5, content)


def test_on_disk_when_charge_returns(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path)
    for t in range(3):
        assert ledger.charge(charge(t))
        lines = path.read_text().splitlines()
        assert len(lines) == t + 1
        assert json.loads(lines[-1])["round"] == t
    assert Ledger(path).charges == ledger.charges


def test_synced_before_charge_returns(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr("os.fsync", lambda descriptor: synced.append(descriptor))
    Ledger(tmp_path / "ledger.jsonl").charge(charge())
    assert len(synced) == 2  # the file, and the folder that it was created in


def test_a_charge_that_cannot_be_written_raises(tmp_path):
    with pytest.raises(OSError, match="No such file"):
        Ledger(tmp_path / "absent" / "ledger.jsonl").charge(charge())


def test_same_bytes_are_charged_once_other_bytes_again(tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl")
    assert ledger.charge(charge(0, "a"))
    assert not ledger.charge(charge(0, "a"))
    assert ledger.charge(charge(0, "b"))
    assert ledger.charge(charge(1, "a"))
    assert len(Ledger(tmp_path / "ledger.jsonl").charges) == 3


def test_equal_bytes_of_an_earlier_process_are_known(tmp_path):
    path = tmp_path / "ledger.jsonl"
    Ledger(path).charge(charge(0, "a"))
    again = Ledger(path)
    assert again.carried_over == 1
    assert not again.charge(charge(0, "a"))
    assert again.charge(charge(0, "c"))


def test_torn_last_line_is_a_broadcast_that_never_left(tmp_path):
    path = tmp_path / "ledger.jsonl"
    Ledger(path).charge(charge(0))
    whole = path.read_bytes()
    for cut in range(1, len(whole)):
        path.write_bytes(whole + whole[:cut])
        ledger = Ledger(path)
        assert len(ledger.charges) == 1
        ledger.charge(charge(7, "new"))
        assert [c.round for c in Ledger(path).charges][-1] == 7
        assert len(Ledger(path).charges) == len(ledger.charges)


def test_unreadable_line_refuses_everything(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path)
    ledger.charge(charge(0))
    ledger.charge(charge(1))
    lines = path.read_text().splitlines()
    for damage in ("", "{}", lines[0][:20], '{"round": 0, "unknown": 1}'):
        path.write_text(f"{damage or 'x'}\n{lines[1]}\n")
        with pytest.raises(LedgerError, match="line 1 cannot be read"):
            Ledger(path)


def test_events():
    ledger = Ledger()
    ledger.charge(charge(0, "a", 1.5))
    ledger.charge(charge(1, "b", None))
    private, public = ledger.events()
    assert private == dp_accounting.PoissonSampledDpEvent(0.35, dp_accounting.GaussianDpEvent(1.5))
    assert public == dp_accounting.NonPrivateDpEvent()


def test_digest_depends_on_every_bit():
    values = torch.zeros(2, 3, dtype=torch.float64)
    other = values.clone()
    other[1, 2] = 5e-324
    assert digest(values) == digest(values.clone())
    assert digest(values) != digest(other)
