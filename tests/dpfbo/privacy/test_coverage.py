"""A ledger says which run it is of, and the code of the mechanism has a fingerprint."""

import hashlib
import json

import pytest

from dpfbo.checks import SettingError
from dpfbo.privacy import mechanism_code
from dpfbo.privacy.coverage import LedgerCoverage
from dpfbo.privacy.ledger import Charge, Ledger, LedgerError
from dpfbo.privacy.ledger_repair import repaired
from dpfbo.privacy.mechanism_code import SOURCES, changed, code_digests

RUN = LedgerCoverage("0a1b2c3d4e5f", 3, "sha256:" + "0" * 64, "zero_out")


def charge(t):
    return Charge(t, 0.35, 1.0, 0.5, 0.5, hashlib.sha256(b"%d" % t).hexdigest())


def charged(path, run=RUN, n=3):
    ledger = Ledger(path)
    if run is not None:
        ledger.bind(run)
    for t in range(n):
        ledger.charge(charge(t))
    return path


def test_the_first_line_says_it_and_is_no_charge(tmp_path):
    path = charged(tmp_path / "ledger.jsonl")
    ledger = Ledger(path)
    assert ledger.covers == RUN and ledger.charges == [charge(t) for t in range(3)] and len(ledger.events()) == 3
    before = path.read_bytes()
    assert before.count(b"\n") == 4 and json.loads(before.splitlines()[0])["format"] == 2
    ledger.bind(RUN)
    assert not ledger.charge(charge(1)) and path.read_bytes() == before
    assert ledger.charge(charge(3)) and Ledger(path).charges[-1] == charge(3)


def test_a_ledger_knows_its_run_at_once(tmp_path):
    for ledger in (Ledger(), Ledger(tmp_path / "ledger.jsonl")):
        ledger.bind(RUN)
        assert ledger.covers == RUN


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("seed", -1), ("seed", True), ("setting", ""), ("setting", None), ("setting", "x" * 201), ("data", ""),
        ("data", "a\nb"), ("data", 3), ("relation", ""), ("relation", "x" * 201),
    ],
)  # fmt: skip
def test_a_value_that_no_run_has_is_refused_by_its_name(field, value):
    with pytest.raises(SettingError, match=f"^{field} must be "):
        LedgerCoverage(**{"setting": "s", field: value})


def test_the_shortest_and_the_longest_names():
    run = LedgerCoverage("s", 0, "d" * 200, "r")
    assert (run.setting, run.seed, run.data, run.relation) == ("s", 0, "d" * 200, "r")
    assert LedgerCoverage("s" * 40).words.startswith(f"setting {'s' * 40}, noise of the system")
    assert LedgerCoverage("s" * 41).words.startswith(f"setting {'s' * 19}.., ")


def test_a_ledger_that_loses_its_first_line_meanwhile_has_lost_a_line(tmp_path):
    """Its charges are all there, but those of the other lines may be of any run."""
    ledger = Ledger(charged(tmp_path / "ledger.jsonl", n=2))
    ledger.charge(charge(2))
    charged(tmp_path / "unbound.jsonl", run=None).replace(ledger.path)
    with pytest.raises(LedgerError, match="has lost charges"):
        ledger.charge(charge(3))


def test_a_ledger_that_becomes_that_of_another_run_meanwhile_is_refused(tmp_path):
    ledger = Ledger(charged(tmp_path / "ledger.jsonl", n=2))
    ledger.charge(charge(2))
    other = LedgerCoverage("f" * 12, 3, RUN.data, RUN.relation)
    charged(tmp_path / "other.jsonl", run=other).replace(ledger.path)
    with pytest.raises(LedgerError, match="was written by another process meanwhile"):
        ledger.charge(charge(3))


@pytest.mark.parametrize("setting", ["x" * 5_000, ["a\n"] * 5_000, "\0" * 5_000])
def test_a_line_that_holds_anything_is_refused_in_one_short_sentence(tmp_path, setting):
    path = charged(tmp_path / "ledger.jsonl")
    path.write_bytes(b"".join(touched(path.read_bytes().splitlines(keepends=True), setting=setting)))
    with pytest.raises(LedgerError, match="line 1 names no run") as error:
        Ledger(path)
    assert len(str(error.value)) < 1500 and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (
            LedgerCoverage("f" * 12, 3, RUN.data, RUN.relation),
            "another setting (0a1b2c3d4e5f, and this is ffffffffffff)",
        ),
        (LedgerCoverage(RUN.setting, 4, RUN.data, RUN.relation), "another seed (3, and this is 4)"),
        (LedgerCoverage(RUN.setting, None, RUN.data, RUN.relation), "another seed (3, and this is none)"),
        (LedgerCoverage(RUN.setting, 3, "generated", RUN.relation), "other data"),
        (LedgerCoverage(RUN.setting, 3, RUN.data, "replace_one"), "another relation"),
    ],
)
def test_the_ledger_of_another_run_is_refused(tmp_path, other, says):
    path = charged(tmp_path / "ledger.jsonl")
    before = path.read_bytes()
    with pytest.raises(LedgerError, match="is of another run") as error:
        Ledger(path).bind(other)
    assert says in str(error.value) and "\n" not in str(error.value) and path.read_bytes() == before


def test_unknown_data_fit_any(tmp_path):
    path = charged(tmp_path / "ledger.jsonl")
    Ledger(path).bind(LedgerCoverage(RUN.setting, 3, None, RUN.relation))


def test_a_ledger_that_several_studies_share_stays_unbound(tmp_path):
    path = charged(tmp_path / "ledger.jsonl", run=None)
    before = path.read_bytes()
    Ledger(path).bind(RUN)
    assert path.read_bytes() == before and Ledger(path).covers is None


def test_a_torn_first_line_is_written_again(tmp_path):
    path = charged(tmp_path / "ledger.jsonl", n=0)
    line = path.read_bytes()
    for cut in range(len(line) - 1):
        path.write_bytes(line[:cut])
        ledger = Ledger(path)
        assert ledger.covers is None
        ledger.bind(RUN)
        assert path.read_bytes() == line
    path.write_bytes(line[:-1])
    assert Ledger(path).covers == RUN


def touched(lines, **values):
    return [json.dumps({**json.loads(lines[0]), **values}).encode() + b"\n", *lines[1:]]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda lines: touched(lines, seed=4), "line 1 does not follow"),
        (lambda lines: touched(lines, data="generated"), "line 1 does not follow"),
        (lambda lines: touched(lines, seed=-1), "line 1 names no run"),
        (lambda lines: touched(lines, setting=["a"]), "line 1 names no run"),
        (lambda lines: touched(lines, format=3), "line 1 is of format 3, and this version reads 2"),
        (lambda lines: lines[1:], "line 1 does not follow"),
        (lambda lines: lines * 2, "line 5 names the ledger's run, which only line 1 may do"),
    ],
)
def test_a_first_line_that_was_touched_is_refused_and_repaired(tmp_path, change, says):
    path = charged(tmp_path / "ledger.jsonl")
    path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))
    with pytest.raises(LedgerError, match="refusing to release anything more") as error:
        Ledger(path)
    assert says in str(error.value)
    if "format" in says:
        return
    damaged = path.read_bytes()
    whole = repaired(damaged)
    path.write_bytes(whole.content)
    ledger = Ledger(path)
    assert {c.round for c in ledger.charges} == {0, 1, 2} and all(c.z == 1.0 for c in ledger.charges)
    assert ledger.covers == (RUN if "line 5" in says else None)
    assert whole.unbound == (b"setting" in damaged and ledger.covers is None)


def test_a_damaged_charge_leaves_the_first_line(tmp_path):
    path = charged(tmp_path / "ledger.jsonl")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[1] + b"rubbish\n" + lines[3])
    whole = repaired(path.read_bytes())
    path.write_bytes(whole.content)
    assert Ledger(path).covers == RUN and not whole.unbound and len(whole.charges) == 3


def test_the_code_of_the_mechanism_is_named_whatever_its_line_ends(monkeypatch, tmp_path):
    digests = code_digests()
    assert digests.keys() == {*SOURCES, "version"}
    for name in SOURCES:
        path = tmp_path / "dpfbo" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = (mechanism_code.resources.files("dpfbo") / name).read_bytes()
        path.write_bytes(text.replace(b"\n", b"\r\n"))
    monkeypatch.setattr(mechanism_code.resources, "files", lambda package: tmp_path / package)
    assert code_digests.__wrapped__() == digests
    edited = tmp_path / "dpfbo" / "federated" / "mechanism.py"
    edited.write_bytes(edited.read_bytes() + b"# edited\n")
    assert changed(digests, code_digests.__wrapped__()) == "federated/mechanism.py"
    edited.unlink()
    assert code_digests.__wrapped__() is None


def test_unknown_code_is_not_compared():
    assert changed(None, {"a": "1"}) == changed({"a": "1"}, None) == changed({"a": "1"}, {"a": "1"}) == ""
    assert changed({}, dict.fromkeys("abcdef", "1")) == "a, b, c, d and 2 more"


def test_every_module_that_draws_or_charges_is_in_the_fingerprint():
    """All but those that only put the parts together, or read what was charged."""
    root = mechanism_code.resources.files("dpfbo")
    needs = ("privacy.entropy", "privacy.noise", "privacy.charge", "privacy.ledger import", "accounting.events")
    others = {"checkpoint.py", "protocol/coordinator.py"}
    others |= {
        f"study/{name}.py"
        for name in ("study", "create", "optimize", "optimization", "plots", "study_folder", "stored_result")
    }
    found = set()
    for path in root.rglob("*.py"):
        name = path.relative_to(root).as_posix()
        if not name.startswith(("audit/", "privacy/")) and any(f"dpfbo.{need}" in path.read_text() for need in needs):
            found.add(name)
    assert found - {"__init__.py", *others} <= set(SOURCES)
