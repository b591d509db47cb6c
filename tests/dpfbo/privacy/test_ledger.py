"""The ledger: durable before release, never under-counting."""

import hashlib
import json
import os
import re
from dataclasses import replace

import dp_accounting
import pytest
import torch

from dpfbo.privacy.accounting.events import round_event
from dpfbo.privacy.ledger import Charge, Ledger, LedgerError, digest
from dpfbo.privacy.ledger_lines import chained


def name(content):
    """A digest for a text."""
    return hashlib.sha256(content.encode()).hexdigest()


def charge(round=0, content="a", z=1.0):
    return Charge(round, 0.35, z, 0.5, 0.5, name(content))


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
    assert len(synced) == 2  # the file, and its folder


def test_a_ledger_in_a_missing_folder_is_refused(tmp_path):
    with pytest.raises(LedgerError, match=r"folder of ledger .* is missing: create .*/absent first$"):
        Ledger(tmp_path / "absent" / "ledger.jsonl")
    (tmp_path / "absent").mkdir()
    ledger = Ledger(tmp_path / "absent" / "ledger.jsonl")
    (tmp_path / "absent").rmdir()
    with pytest.raises(LedgerError, match="cannot be written: No such file"):
        ledger.charge(charge())


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
    Ledger(path).charge(charge(1))
    line = path.read_bytes()[len(whole) :]
    for cut in range(1, len(line)):
        path.write_bytes(whole + line[:cut])
        ledger = Ledger(path)
        assert len(ledger.charges) == (2 if cut == len(line) - 1 else 1)  # 2: only the newline is missing
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


def test_the_whole_line_is_in_the_file_when_it_is_synced(tmp_path, monkeypatch):
    path, seen = tmp_path / "ledger.jsonl", []
    monkeypatch.setattr("os.fsync", lambda descriptor: seen.append(path.read_bytes()))
    ledger = Ledger(path)
    ledger.charge(charge(0))
    ledger.charge(charge(1, "b"))
    assert seen[0].endswith(b"\n") and json.loads(seen[0])["round"] == 0
    assert seen[-1].endswith(b"\n") and len(seen[-1].splitlines()) == 2


def test_a_charge_that_is_not_durable_is_not_made(tmp_path, monkeypatch):
    """The disk fails once: nothing counts as charged, and the next attempt writes it."""

    def fail(descriptor):
        raise OSError("disk full")

    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path)
    with monkeypatch.context() as broken:
        broken.setattr("os.fsync", fail)
        with pytest.raises(OSError, match="disk full"):
            ledger.charge(charge(0))
    assert ledger.charges == [] and ledger.events() == []
    assert ledger.charge(charge(0))
    assert charge(0) in Ledger(path).charges


def test_a_whole_line_without_its_newline_counts(tmp_path):
    """An editor or a copy may have dropped the newline: a broadcast that may have left counts, and stays on disk."""
    path = tmp_path / "ledger.jsonl"
    Ledger(path).charge(charge(0, "a"))
    Ledger(path).charge(charge(1, "b"))
    path.write_bytes(path.read_bytes()[:-1])
    resumed = Ledger(path)
    assert len(resumed.charges) == 2
    assert not resumed.charge(charge(1, "b"))
    resumed.charge(charge(2, "c"))
    assert [c.round for c in Ledger(path).charges] == [0, 1, 2]


@pytest.mark.parametrize("damage", [b"\x00\x00\x00", b"\xff\xfe{", b"[1, 2", b'"text"', b"3", b"null", b"[]", b"{}"])
def test_damage_before_the_end_refuses_and_at_the_torn_end_does_not(tmp_path, damage):
    path = tmp_path / "ledger.jsonl"
    Ledger(path).charge(charge(0, "a"))
    line = path.read_bytes()
    for content in (damage + b"\n" + line, line + damage + b"\n" + line, line + damage + b"\n"):
        path.write_bytes(content)
        with pytest.raises(LedgerError, match="cannot be read, refusing"):
            Ledger(path)
        assert path.read_bytes() == content, "a refused ledger is evidence"
    path.write_bytes(line + damage)
    ledger = Ledger(path)
    assert ledger.charges == [charge(0, "a")]
    ledger.charge(charge(1, "b"))
    assert [c.round for c in Ledger(path).charges] == [0, 1]


def test_reading_alone_changes_nothing_on_disk(tmp_path):
    path = tmp_path / "ledger.jsonl"
    Ledger(path).charge(charge(0))
    path.write_bytes(path.read_bytes() + b'{"rou')
    content = path.read_bytes()
    Ledger(path)
    assert path.read_bytes() == content
    Ledger(tmp_path / "new.jsonl")
    assert not (tmp_path / "new.jsonl").exists()


def test_what_earlier_runs_charged_stays_in_the_events(tmp_path):
    path = tmp_path / "ledger.jsonl"
    first = Ledger(path)
    first.charge(charge(0, "a", 1.0))
    first.charge(charge(1, "b", 2.0))
    second = Ledger(path)
    second.charge(charge(0, "fresh", 3.0))
    assert first.carried_over == 0 and second.carried_over == 2
    multipliers = [event.event.noise_multiplier for event in second.events()]
    assert multipliers == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("z", [None, 1.0, 0.1 + 0.2])
@pytest.mark.parametrize("sensitivity", [None, 1 / 3, 1e-300])
def test_numbers_come_back_to_the_last_bit(tmp_path, z, sensitivity):
    entry = Charge(2**40, 0.1 + 0.2, z, 1 / 7, sensitivity, name("f"))
    Ledger(tmp_path / "ledger.jsonl").charge(entry)
    assert Ledger(tmp_path / "ledger.jsonl").charges == [entry]


def test_digest_is_that_of_the_float64_bytes_in_order():
    values = torch.arange(6, dtype=torch.float64).view(2, 3)
    assert digest(values) == hashlib.sha256(values.numpy().tobytes()).hexdigest()
    assert digest(values.T.contiguous().T) == digest(values)
    assert digest(values.T) != digest(values)
    assert digest(torch.tensor([0.0])) != digest(torch.tensor([-0.0]))


def test_a_deeply_nested_line_is_no_charge(tmp_path):
    path = tmp_path / "ledger.jsonl"
    path.write_text("[" * 100_000 + "\n" + "{}")
    with pytest.raises(LedgerError, match="line 1 cannot be read"):
        Ledger(path)


def test_a_relation_is_written_where_there_is_one_and_read_back(tmp_path):
    path = tmp_path / "ledger.jsonl"
    released = Charge.of(0, round_event(1.0, 2.5), 2.5, 1.0, torch.ones(3, 2, dtype=torch.float64), "one row moved")
    Ledger(path).charge(released)
    assert json.loads(path.read_text())["relation"] == released.relation == "one row moved"
    assert Ledger(path).charges == [released] and Ledger(path).events() == [round_event(1.0, 2.5)]


def test_a_federated_line_is_the_same_to_the_byte_as_before_but_for_its_chain(tmp_path):
    path = tmp_path / "ledger.jsonl"
    line = (
        f'{{"round": 3, "q": 0.35, "z": 1.0, "sigma": 0.5, "sensitivity": 0.5, "digest": "{name("a")}", "subset": null'
    )
    Ledger(path).charge(charge(3))
    assert re.fullmatch(re.escape(line) + ', "format": 1, "chain": "[0-9a-f]{64}"}\n', path.read_text())
    assert Ledger(path).charges == [charge(3)] and charge(3).relation is None


class ReadBytes:
    """Counts the bytes that are read of files opened in `dpfbo.privacy.ledger`."""

    def __init__(self, monkeypatch):
        self.read, self._builtin = 0, open
        monkeypatch.setattr("builtins.open", self._open)

    def _open(self, *args, **kwargs):
        file = self._builtin(*args, **kwargs)
        return self._counting(file) if "b" in str(args[1:2]) else file

    def _counting(self, file):
        counter = self

        class Counting:
            def __enter__(self):
                return self

            def __exit__(self, *error):
                file.close()

            def __getattr__(self, name):
                return getattr(file, name)

            def read(self, *size):
                content = file.read(*size)
                counter.read += len(content)
                return content

        return Counting()


def reads(monkeypatch, act):
    """The bytes that are read while `act` runs."""
    with monkeypatch.context() as patched:
        counter = ReadBytes(patched)
        act()
    return counter.read


def test_a_charge_does_not_read_the_charges_before_it(tmp_path, monkeypatch):
    path = tmp_path / "ledger.jsonl"
    Ledger(path).charge(charge(0))
    ledger = Ledger(path)
    assert reads(monkeypatch, lambda: [ledger.charge(charge(t)) for t in range(1, 30)]) == 0
    assert [c.round for c in Ledger(path).charges] == list(range(30))


def test_lines_of_another_process_are_read_once_and_kept(tmp_path, monkeypatch):
    path = tmp_path / "ledger.jsonl"
    ledger, other = Ledger(path), Ledger(path)
    for t in range(5):
        ledger.charge(charge(t))
    other.charge(charge(70, "other"))
    content = path.read_bytes()
    assert reads(monkeypatch, lambda: ledger.charge(charge(5))) == len(content)
    assert [c.round for c in Ledger(path).charges] == [0, 1, 2, 3, 4, 70, 5]
    assert reads(monkeypatch, lambda: ledger.charge(charge(6))) == 0


@pytest.mark.parametrize("torn", [b'{"round": 9', b"\xff", b'{"round": 9, "q": 0.35}'])
def test_a_torn_line_of_another_process_is_removed_between_charges(tmp_path, torn):
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path)
    ledger.charge(charge(0))
    with open(path, "ab") as file:
        file.write(torn)
    ledger.charge(charge(1))
    assert [c.round for c in Ledger(path).charges] == [0, 1]


def test_a_whole_line_of_another_process_without_its_newline_counts_between_charges(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path)
    ledger.charge(charge(0))
    with open(path, "ab") as file:
        file.write(chained(charge(8, "other"), json.loads(path.read_text())["chain"])[0])
    ledger.charge(charge(1))
    ledger.charge(charge(2))
    assert [c.round for c in Ledger(path).charges] == [0, 8, 1, 2]


def test_a_file_that_lost_charges_refuses_more(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path)
    for t in range(4):
        ledger.charge(charge(t))
    lines = path.read_bytes().splitlines(keepends=True)
    whole = b"".join(lines)
    shorter_but_longer_in_bytes = lines[0][:-2] + b" " * len(whole) + b"}\n"
    for content in (b"", lines[0], b"".join(lines[:3]), shorter_but_longer_in_bytes):
        path.write_bytes(content)
        with pytest.raises(LedgerError, match="lost charges"):
            ledger.charge(charge(4))
    path.write_bytes(whole)
    assert ledger.charge(charge(4))
    assert [c.round for c in Ledger(path).charges] == [0, 1, 2, 3, 4]


def test_a_file_that_was_replaced_is_read_whole(tmp_path, monkeypatch):
    path, new = tmp_path / "ledger.jsonl", tmp_path / "new"
    ledger = Ledger(path)
    for t in range(4):
        ledger.charge(charge(t))
    content = path.read_bytes()
    new.write_bytes(content)
    new.replace(path)
    assert reads(monkeypatch, lambda: ledger.charge(charge(4))) == len(content)
    new.write_bytes(content.splitlines(keepends=True)[0])
    new.replace(path)
    with pytest.raises(LedgerError, match="lost charges"):
        ledger.charge(charge(5))
    path.unlink()
    with pytest.raises(LedgerError, match="lost charges"):
        ledger.charge(charge(5))


def test_a_file_that_changed_in_place_is_read_whole(tmp_path):
    """The file keeps its size, has another time of change, and one of its two lines was lost to a longer one."""
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path)
    ledger.charge(charge(0))
    ledger.charge(charge(1))
    content = path.read_bytes()
    path.write_bytes(b" " * (len(content) - 1) + b"\n")
    os.utime(path, ns=(0, 12345))
    with pytest.raises(LedgerError, match="lost charges"):
        ledger.charge(charge(2))


def test_events_are_those_of_the_charges_at_any_time(tmp_path):
    ledger, seen = Ledger(), []
    for t, content in ((0, "a"), (1, "b"), (3, "c"), (2, "d"), (3, "e")):
        ledger.charge(charge(t, content, 1.0 + t))
        seen.append(ledger.events())
        for up_to in (None, 0, 1, 2, 3):
            expected = [c.event() for c in ledger.charges if up_to is None or c.round <= up_to]
            assert list(ledger.events(up_to)) == expected and ledger.events(up_to) == expected
    assert [len(events) for events in seen] == [1, 2, 3, 4, 5]  # what was handed out before does not grow
    assert seen[2][-1] == ledger.charges[2].event() and seen[2][1:] == seen[4][1:3]
    assert seen[3][::-1] == list(reversed(seen[3])) and seen[2] != seen[3]
    with pytest.raises(IndexError):
        seen[0][1]


def test_other_numbers_of_a_round_are_found():
    ledger, values = Ledger(), torch.ones(2, 3, dtype=torch.float64)
    assert not ledger.holds_others(4, values) and not ledger.holds(4, values)
    ledger.charge(replace(charge(4), digest=digest(values)))
    assert not ledger.holds_others(4, values) and ledger.holds(4, values)
    assert ledger.holds_others(4, 2 * values) and not ledger.holds_others(3, 2 * values)
    ledger.charge(replace(charge(4), digest=digest(2 * values)))
    assert ledger.holds_others(4, values)
