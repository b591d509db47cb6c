"""The soak's own arithmetic: kills are planned again until they landed, and every fault fails it."""

import json
import time

import pytest

from dpfbo.privacy.budget import EpsilonCurve
from dpfbo.privacy.ledger import Ledger
from tests.helpers.killed_runs import RUN, Moment
from tests.soak import fuzzing, kinds, report
from tests.soak.__main__ import main
from tests.soak.fuzzing import CASES, Fuzzed
from tests.soak.kinds import KINDS, Kind, Place, shares
from tests.soak.memory import Watched, flat
from tests.soak.outcome import Outcome
from tests.soak.report import Report

MB = 2**20


def good(kills=1, **changes):
    return Outcome("x", kills, records=True, ledger=True, memory=(100 * MB, 100 * MB), **changes)


def test_the_shares_are_a_thousand_kills_within_the_hour_and_ten_thousand_cases():
    assert sum(shares(1000).values()) == 1000 and min(shares(1).values()) == 1
    assert 1500 < sum(kind.kills * kind.seconds for kind in KINDS) < 3600
    assert sum(CASES.values()) == 10_000
    names = " ".join(kind.name for kind in KINDS)
    for words in ("local", "on Ray", "sweep", "outsourced", "private prior", "study", "server actor", "agent actor"):
        assert words in names


def test_kills_are_planned_again_until_they_landed(tmp_path):
    """Every run ends before its last kill."""
    planned = []

    def world(place, kills, seed):
        planned.append((kills, seed))
        return good(max(1, kills - 1))

    found = list(Kind("x", 0, 0.0, world, most=5).run(Place(tmp_path), 12, 7))
    assert sum(o.kills for o in found) == 12 and all(o.passed for o in found)
    assert [kills for kills, _ in planned] == [5, 5, 4, 1] and len({seed for _, seed in planned}) == 4


@pytest.mark.parametrize("error", [None, ValueError("lost")])
def test_a_kind_whose_kills_do_not_land_or_that_raises_fails(tmp_path, error):
    def world(place, kills, seed):
        if error:
            raise error
        return good(0)

    found = list(Kind("x", 0, 0.0, world).run(Place(tmp_path), 5, 0))
    assert len(found) == 5 and not found[-1].passed
    assert ("ValueError: lost" if error else "0 of 5 planned kills") in str(found[-1].notes)


def test_a_charge_that_never_comes_is_not_waited_for():
    assert kinds._possible(Moment("charge", 7), 3) == Moment("round", 7)
    assert kinds._possible(Moment("charge", 2), 3) == Moment("charge", 2)


@pytest.mark.parametrize(
    "change",
    [{"lost": 1}, {"double": 1}, {"under": 1}, {"tracebacks": 1}, {"records": False}, {"ledger": False},
     {"memory": (100 * MB, 200 * MB)}],
)  # fmt: skip
def test_every_fault_fails_the_soak_and_is_in_its_tables(tmp_path, change):
    row = good(3, notes=["said"])
    found = Report((3, 1), 0, [good(2), row], [Fuzzed("files", 1, 1, 0, 0, 0.1)])
    assert found.passed and found.verdict == "passed"
    for name, value in change.items():
        setattr(row, name, value)
    assert not found.passed and "FAILED" in report.summary(found)
    report.write(found, tmp_path / "out")
    kept = json.loads((tmp_path / "out" / "soak.json").read_text())
    assert kept["verdict"] == "FAILED" and [r["passed"] for r in kept["killed"]] == [True, False]
    assert "| in all " in (tmp_path / "out" / "soak.md").read_text()


@pytest.mark.parametrize("change", [(0, 0, 1), (1, 1, 0), (1, 0, 0)])
def test_hostile_input_that_hangs_raises_or_is_too_little_fails_the_soak(change):
    hangs, tracebacks, missing = change
    row = Fuzzed("files", 10, 10 - missing, tracebacks, hangs, 0.1, "said")
    assert not Report((1, 10), 0, [good()], [row]).passed
    assert "files: said" in report.summary(Report((1, 10), 0, [good()], [row]))


def test_what_an_interrupted_soak_found_is_told(capsys, monkeypatch, tmp_path):
    def interrupted(found, *_):
        found.rows.append(good(4))
        raise KeyboardInterrupt

    monkeypatch.setattr("tests.soak.__main__._soak", interrupted)
    assert main(["--out", str(tmp_path)]) == 130
    assert "interrupted" in (text := capsys.readouterr().out) and "| x " in text
    assert json.loads((tmp_path / "soak.json").read_text())["killed"][0]["kills"] == 4


def test_cases_are_counted_by_kind(monkeypatch):
    def check(count):
        fuzzing.fuzz.DONE["files"] += count
        raise ValueError("a traceback")

    monkeypatch.setattr(fuzzing, "CASES", {"files": 10_000})
    monkeypatch.setitem(fuzzing.fuzz.ALL, "files", check)
    (found,) = fuzzing.fuzzed(30)
    assert (found.planned, found.cases, found.tracebacks, found.passed) == (30, 30, 1, False)
    assert found.note == "ValueError: a traceback"


def test_memory_that_is_kept_is_seen():
    with Watched() as watched:
        time.sleep(0.1)
        kept = b"x" * (300 * MB)
        time.sleep(1.5)
    early, most = watched.memory
    assert most - early > 0.8 * len(kept) and flat((early, early))


def test_forked_runs_are_killed_and_go_on(tmp_path):
    kind = next(kind for kind in KINDS if kind.name == "forked driver")
    found = list(kind.run(Place(tmp_path), 2, 0))  # a run may end before its last kill
    assert sum(one.kills for one in found) >= 2 and all(one.passed for one in found), found


def charged_again(monkeypatch):
    """A ledger that forgets what it holds."""
    charge = Ledger.charge

    def forgetful(ledger, entry):
        known, ledger._digests, ledger._synced = ledger._digests, {}, False
        try:
            return charge(ledger, entry)
        finally:
            ledger._digests = known

    monkeypatch.setattr(Ledger, "charge", forgetful)


def charged_never(monkeypatch):
    """A ledger that leaves out a round."""
    charge = Ledger.charge
    monkeypatch.setattr(Ledger, "charge", lambda ledger, entry: entry.round != 7 and charge(ledger, entry))


def charged_too_little(monkeypatch):
    after = EpsilonCurve.after
    monkeypatch.setattr(EpsilonCurve, "after", lambda curve, events: 0.98 * after(curve, events))


@pytest.mark.parametrize(
    ("name", "fault", "counted"),
    [
        ("forked driver", charged_again, "double"), ("forked driver", charged_never, "lost tracebacks"),
        ("forked driver, rng=os", charged_too_little, "under"), ("forked prior, rng=os", charged_again, "double"),
    ],
)  # fmt: skip
def test_a_planted_fault_fails_its_kind(tmp_path, monkeypatch, name, fault, counted):
    place = Place(tmp_path)
    place.expected(*RUN)
    fault(monkeypatch)
    kind = next(kind for kind in KINDS if kind.name == name)
    # a run that no kill meets between a charge and the end of its round repeats nothing, and shows no fault
    outcomes = (kind.world(place, 4, seed) for seed in range(30))
    outcome = next((found for found in outcomes if not found.passed), None)
    assert outcome is not None and sum(getattr(outcome, number) for number in counted.split()) > 0, outcome


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--kills-in-all", "0"], "--kills-in-all: must be at least 1, got 0"),
        (["--only", "dice"], "no kind has 'dice'"),
    ],
)
def test_bad_arguments_are_one_sentence(capsys, arguments, says):
    with pytest.raises(SystemExit):
        main([*arguments])
    assert says in capsys.readouterr().err
