"""Ledgers that were touched are refused in one sentence, and what stands in a ledger's place never hangs a run."""

import json
import os
import time

import pytest

from dpfbo.privacy.ledger import Ledger, LedgerError
from dpfbo.privacy.ledger_file import LARGEST
from dpfbo.privacy.ledger_lines import chained
from tests.helpers.charges import charge


def charged(path, n=5):
    ledger = Ledger(path)
    for t in range(n):
        ledger.charge(charge(t))
    return path


def refused(path):
    """The sentence of a refused ledger, which stays as it is; a charge after it is refused likewise."""
    before = path.read_bytes()
    with pytest.raises(LedgerError) as error:
        Ledger(path)
    said = str(error.value)
    assert "\n" not in said and said.startswith(f"ledger {path} ")
    assert f"see `python -m runners.privacy ledger {path} --verify`, or --repair" in said
    assert path.read_bytes() == before
    return said


def entry(k, **values):
    """Change entries of line k, and keep its chain."""

    def change(lines):
        lines[k] = json.dumps({**json.loads(lines[k]), **values}).encode() + b"\n"
        return lines

    return change


def moved(k, j):
    def change(lines):
        lines[k], lines[j] = lines[j], lines[k]
        return lines

    return change


FOLLOWS = "does not follow from what is before it (a line was edited, moved, repeated or removed)"
TOUCHED = {
    "less cost": (entry(2, z=100.0), f"line 3 {FOLLOWS}"),
    "less cost in the last line": (entry(4, z=1.0000000000000002), f"line 5 {FOLLOWS}"),
    "less cost in the first line": (entry(0, q=0.1), f"line 1 {FOLLOWS}"),
    "another digest": (entry(1, digest="0" * 64), f"line 2 {FOLLOWS}"),
    "another chain": (entry(1, chain="0" * 64), f"line 2 {FOLLOWS}"),
    "no text as chain": (entry(1, chain=3), f"line 2 {FOLLOWS}"),
    "an empty chain": (entry(1, chain=""), f"line 2 {FOLLOWS}"),
    "null as chain": (entry(1, chain=None), "line 2 has no chain: somebody added or edited it"),
    "format of tomorrow": (entry(1, format=2), "line 2 is of format 2, and this version reads 1"),
    "another format": (entry(1, format=0), "line 2 is not as it was written"),
    "reversed": (lambda lines: lines[::-1], f"line 1 {FOLLOWS}"),
    "two lines changed places": (moved(2, 3), f"line 3 {FOLLOWS}"),
    "repeated": (lambda lines: [*lines[:3], lines[2], *lines[3:]], f"line 4 {FOLLOWS}"),
    "last repeated": (lambda lines: [*lines, lines[-1]], f"line 6 {FOLLOWS}"),
    "all repeated": (lambda lines: lines * 2, f"line 6 {FOLLOWS}"),
    "first removed": (lambda lines: lines[1:], f"line 1 {FOLLOWS}"),
    "inner removed": (lambda lines: lines[:2] + lines[3:], f"line 3 {FOLLOWS}"),
    "line put in": (lambda lines: [*lines[:2], chained(charge(9), "0" * 64)[0] + b"\n", *lines[2:]], "line 3 does not"),
    "line without a chain": (
        lambda lines: [*lines, json.dumps(vars(charge(9))).encode() + b"\n"],
        "line 6 has no chain: somebody added or edited it",
    ),
    "spaces": (lambda lines: [lines[0].replace(b", ", b",", 1), *lines[1:]], "line 1 is not as it was written"),
    "line ends": (lambda lines: [line[:-1] + b"\r\n" for line in lines], "line 1 is not as it was written"),
    "line ends of old": (lambda lines: [line[:-1] + b"\r" for line in lines], "line 1 cannot be read"),
    "byte order mark": (lambda lines: [b"\xef\xbb\xbf", *lines], "line 1 begins with a byte order mark"),
    "two bytes a letter": (lambda lines: [b"".join(lines).decode().encode("utf-16")], "line 1 cannot be read"),
    "NULs": (lambda lines: [lines[0], bytes(300) + b"\n", *lines[1:]], "line 2 cannot be read"),
    "a blank line": (lambda lines: [lines[0], b"\n", *lines[1:]], "line 2 cannot be read"),
    "a huge line": (lambda lines: [lines[0], b"[" * 10**7 + b"\n", *lines[1:]], "line 2 cannot be read"),
    "a huge end": (lambda lines: [*lines, b"[" * 10**7], "line 6 cannot be read"),
    "deep": (lambda lines: [b"[" * 60_000 + b"\n", *lines], "line 1 cannot be read"),
    "two lines in one": (lambda lines: [lines[0], lines[1][:-1] + lines[2][:-1]], "line 2 cannot be read"),
    "a line and more": (lambda lines: [*lines[:-1], lines[-1][:-1] + b"\0\0"], "line 5 cannot be read"),
    "a list": (lambda lines: [b"[1, 2]\n", *lines], "line 1 cannot be read"),
    "a name too many": (entry(1, epsilon=0.1), "line 2 cannot be read"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "says"), TOUCHED.values(), ids=TOUCHED)
def test_a_ledger_that_was_touched_is_refused(tmp_path, change, says):
    path = charged(tmp_path / "ledger.jsonl")
    begun = Ledger(path)
    path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))
    assert says in refused(path)
    for act in (lambda: begun.charge(charge(7)), begun.events, lambda: begun.charges):
        with pytest.raises(LedgerError):
            act()


def named(value):
    """A name without backslashes, so that pytest finds the test by it."""
    return repr(value).replace("\\n", "newline")


NO_CHARGE = {
    "round": [-1, 1.0, True, None, "1", [1]],
    "q": [0, -0.1, 1.1, True, None, "1", float("nan"), float("inf"), [0.5], 10**400],
    "z": [0, -1, True, "1", float("nan"), float("inf"), [1], 10**400],
    "sigma": [-1, None, False, "1", float("nan"), float("inf"), {}, 10**400],
    "sensitivity": [-1, True, "1", float("nan"), float("inf"), []],
    "digest": ["a", "A" * 64, "a" * 65, "a" * 63 + "\n", None, 3, ["a" * 64]],
    "subset": [[3], [0, 5], [6, 5], [1.0, 5], [True, 5], [1, 2, 3], "15", 3, {"k": 1}, [[1], 5]],
    "relation": [3, "", "a\nb", "a" * 201, ["row"], True, {}],
}


@pytest.mark.parametrize(("field", "value"), [(f, v) for f, values in NO_CHARGE.items() for v in values], ids=named)
@pytest.mark.parametrize("chain", [False, True])
def test_a_field_that_no_charge_has_is_refused(tmp_path, field, value, chain):
    path = charged(tmp_path / "ledger.jsonl", 3)
    lines = entry(1, **{field: value})(path.read_bytes().splitlines(keepends=True))
    if not chain:
        lines[1] = json.dumps({k: v for k, v in json.loads(lines[1]).items() if k not in ("format", "chain")}).encode()
        lines[1] += b"\n"
    path.write_bytes(b"".join(lines))
    said = refused(path)
    assert "line 2 is no charge (" in said
    assert field in said and len(said) < 700


@pytest.mark.parametrize(("field", "value"), [(f, v) for f, values in NO_CHARGE.items() for v in values], ids=named)
def test_such_a_charge_is_not_made(tmp_path, field, value):
    with pytest.raises(ValueError, match=f"{field}|subset"):
        charge(0, **{field: tuple(value) if isinstance(value, list) else value})


@pytest.mark.parametrize("missing", ["round", "q", "z", "sigma", "sensitivity", "digest", "subset"])
def test_a_line_without_a_field_cannot_be_read(tmp_path, missing):
    path = charged(tmp_path / "ledger.jsonl", 3)
    lines = path.read_bytes().splitlines(keepends=True)
    entries = json.loads(lines[1])
    del entries[missing]
    path.write_bytes(b"".join([lines[0], json.dumps(entries).encode() + b"\n", lines[2]]))
    assert "line 2 cannot be read, refusing to release anything more" in refused(path)


def test_a_torn_end_is_repaired_by_the_next_charge_and_the_chain_goes_on(tmp_path):
    path = charged(tmp_path / "ledger.jsonl")
    whole = path.read_bytes()
    charged(tmp_path / "other.jsonl", 6)
    line = (tmp_path / "other.jsonl").read_bytes()[len(whole) :]
    for cut in range(len(line) - 1):
        path.write_bytes(whole + line[:cut])
        assert Ledger(path).charge(charge(5)) and path.read_bytes() == whole + line
    path.write_bytes(whole + line[:-1])  # a whole line without its newline counts
    assert not Ledger(path).charge(charge(5))
    assert len(Ledger(path).charges) == 6


def test_two_processes_write_one_chain(tmp_path):
    path = tmp_path / "ledger.jsonl"
    one, other = Ledger(path), Ledger(path)
    for t in range(10):
        (one if t % 3 else other).charge(charge(t))
    assert [c.round for c in Ledger(path).charges] == list(range(10))


def test_a_ledger_that_was_replaced_by_another_whole_one_has_lost_charges(tmp_path):
    path, other = charged(tmp_path / "ledger.jsonl"), Ledger(tmp_path / "other.jsonl")
    begun = Ledger(path)
    for t in range(10, 20):
        other.charge(charge(t))
    other.path.replace(path)
    with pytest.raises(LedgerError, match="has lost charges"):
        begun.charge(charge(7))


def test_the_same_charges_make_the_same_bytes(tmp_path):
    first = charged(tmp_path / "a").read_bytes()
    path = charged(tmp_path / "b", 2)
    for t in range(2, 5):
        Ledger(path).charge(charge(t))
    assert path.read_bytes() == first


@pytest.mark.parametrize("what", ["pipe", "folder", "device", "link to a pipe"])
def test_what_is_no_file_is_refused_at_once(tmp_path, what):
    path = tmp_path / "ledger.jsonl"
    begun = Ledger(path)
    if what == "folder":
        path.mkdir()
    elif what == "device":
        path.symlink_to("/dev/zero")
    else:
        os.mkfifo(tmp_path / "fifo")
        path.symlink_to(tmp_path / "fifo")
    begin = time.monotonic()
    for act in (lambda: Ledger(path), lambda: begun.charge(charge(0))):
        with pytest.raises(LedgerError, match=f"ledger .*ledger.jsonl must be a plain file, got a {what.split()[-1]}"):
            act()
    assert time.monotonic() < begin + 5


def test_an_enormous_file_is_refused_unread(tmp_path):
    path = charged(tmp_path / "ledger.jsonl")
    os.truncate(path, LARGEST + 1)  # sparse
    with pytest.raises(LedgerError, match=f"is too large: it has {LARGEST + 1} bytes"):
        Ledger(path)


def test_ten_thousand_charges_are_linear(tmp_path, monkeypatch):
    """Without the disk's own time: the second half costs about as much as the first."""
    monkeypatch.setattr("os.fsync", lambda descriptor: None)
    ledger, seconds = Ledger(tmp_path / "ledger.jsonl"), []
    for first in (0, 5000):
        begin = time.process_time()
        for t in range(first, first + 5000):
            ledger.charge(charge(t))
        seconds.append(time.process_time() - begin)
    assert sum(seconds) < 10 and seconds[1] < 3 * seconds[0]
    assert len(Ledger(ledger.path).charges) == 10_000
