"""The ledger in detail: its bytes and chains by their formula, lines without a chain, replaced files, new noise."""

import dataclasses
import hashlib
import json
import os
import re

import pytest
import torch

from dpfbo.privacy.charge import Charge, digest
from dpfbo.privacy.entropy import SeededEntropy, SystemEntropy
from dpfbo.privacy.ledger import Ledger, LedgerError, check_noise_is_new
from dpfbo.privacy.ledger_lines import START, LineFault, chained, read_lines
from dpfbo.privacy.ledger_repair import repaired
from dpfbo.privacy.release import Release
from dpfbo.rng import Streams

VALUES = torch.ones(2, 3, dtype=torch.float64)


def charge(t, **changes):
    return dataclasses.replace(Charge(t, 0.35, 1.0, 0.5, 0.5, hashlib.sha256(b"%d" % t).hexdigest()), **changes)


def unchained(entry):
    """A line that somebody put in by hand."""
    return json.dumps(vars(entry)).encode() + b"\n"


def hashed(text):
    return hashlib.sha256(text).hexdigest()


def test_chains_by_their_formula(tmp_path):
    ledger, before = Ledger(tmp_path / "ledger.jsonl"), hashed(b"dpfbo ledger\n")
    assert before == START
    for k in range(3):
        ledger.charge(charge(k))
        line = ledger.path.read_bytes().splitlines()[-1]
        text = line[: line.index(b', "chain"')] + b"}"
        before = hashed(before.encode() + text)
        assert json.loads(line)["chain"] == before
        found = read_lines(ledger.path.read_bytes())
        assert (found.count, found.tip, found.torn, found.covers) == (k + 1, before, b"", None)


@pytest.mark.parametrize("end", [b"\n", b""])
def test_a_file_whose_lines_have_no_chain_is_refused(tmp_path, end):
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(b"".join(map(unchained, map(charge, range(2)))).rstrip(b"\n") + end)
    with pytest.raises(LedgerError, match="line 1 has no chain: somebody added or edited it, refusing to release any"):
        Ledger(path)
    with pytest.raises(LineFault, match="no intact line"):
        repaired(path.read_bytes())


@pytest.mark.parametrize("lost", ["chain", "format"])
def test_a_line_without_chain_or_format_is_refused(lost):
    entries = json.loads(chained(charge(0), START)[0])
    del entries[lost]
    with pytest.raises(LineFault, match="^line 1 "):
        read_lines(json.dumps(entries).encode() + b"\n")


def test_a_last_line_of_tomorrow_without_its_newline_has_its_number():
    line, chain = chained(charge(0), START)
    second = json.loads(chained(charge(1), chain)[0])
    tail = json.dumps({**second, "format": 2}).encode()
    with pytest.raises(LineFault, match="^line 2 is of format 2"):
        read_lines(line + b"\n" + tail)


def test_a_file_put_in_the_ledgers_place_is_read_whole_even_of_the_same_size_and_time(tmp_path):
    """Its first line has another cost; its last one is where it was."""
    path, new = tmp_path / "ledger.jsonl", tmp_path / "new"
    ledger = Ledger(path)
    for t in range(3):
        ledger.charge(charge(t))
    time = path.stat().st_mtime_ns
    new.write_bytes(path.read_bytes().replace(b'"z": 1.0', b'"z": 9.0', 1))
    os.utime(new, ns=(time, time))
    new.replace(path)
    assert path.stat().st_mtime_ns == time
    with pytest.raises(LedgerError, match=f"^ledger {re.escape(str(path))} line 1 does not follow"):
        ledger.charge(charge(3))


def test_a_bad_line_between_charges_has_its_number(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path)
    for t in range(3):
        ledger.charge(charge(t))
    with open(path, "ab") as file:
        file.write(unchained(charge(9)))
    with pytest.raises(LedgerError, match="line 4 has no chain"):
        ledger.charge(charge(3))


def holding(t, values):
    ledger = Ledger()
    ledger.charge(charge(t, digest=digest(values)))
    return ledger


@pytest.mark.parametrize("t", [0, 4])
def test_seeded_noise_is_not_added_to_other_numbers_of_the_same_round(t):
    seeded, ledger = SeededEntropy(Streams(0)), holding(t, VALUES)
    with pytest.raises(LedgerError, match=f"holds another broadcast of round {t} with the same seeded noise"):
        check_noise_is_new(ledger, t, Release(2 * VALUES, 1.0, 1.0), seeded, True)
    allowed = [
        (VALUES, t, seeded, True),
        (2 * VALUES, t + 1, seeded, True),
        (2 * VALUES, t, SystemEntropy(), True),
        (2 * VALUES, t, seeded, False),
    ]
    for values, round, entropy, random in allowed:
        check_noise_is_new(ledger, round, Release(values, 1.0, 1.0), entropy, random)
