"""A damaged ledger is repaired to one that costs no less, line by line, or it is refused."""

import hashlib
import json
import random

import pytest

from dpfbo.privacy import ledger_repair
from dpfbo.privacy.accounting.rdp import Rdp
from dpfbo.privacy.coverage import LedgerCoverage
from dpfbo.privacy.ledger import Ledger
from dpfbo.privacy.ledger_lines import LineFault
from dpfbo.privacy.ledger_repair import repaired, worst
from tests.helpers.charges import charge, charged, lines_of, rewrite


def epsilon(charges):
    return Rdp().epsilon([c.event() for c in charges], 1e-3)


def test_an_edited_line_that_says_a_higher_cost_keeps_it(tmp_path):
    path = charged(tmp_path / "ledger.jsonl")
    rewrite(path, 0, z=0.5)
    assert repaired(path.read_bytes()).charges[0] == charge(0, 0.5)


def test_an_unreadable_line_costs_as_the_most_expensive_and_keeps_its_name_if_it_can_be_seen(tmp_path):
    path = charged(tmp_path / "ledger.jsonl")
    lines = lines_of(path)
    for damage, named in ((lines[3].replace(b'"z"', b'"\0'), True), (b"\0" * 200 + b"\n", False), (b"\n", False)):
        whole = repaired(b"".join([*lines[:3], damage, lines[4]]))
        assert whole.unreadable == [4] and whole.missing == []
        assert [c.round for c in whole.charges] == [0, 1, 2, 3, 4]
        assert (whole.charges[3].q, whole.charges[3].z) == (0.35, 1.0)
        assert (whole.charges[3].digest == charge(3).digest) == named


def test_missing_rounds_are_counted(tmp_path):
    path = charged(tmp_path / "ledger.jsonl")
    lines = lines_of(path)
    whole = repaired(b"".join([lines[0], lines[1], lines[4]]))
    assert whole.missing == [2, 3] and whole.raised == [3]
    assert sorted((c.round, c.z) for c in whole.charges) == [(0, 2.0), (1, 1.0), (2, 1.0), (3, 1.0), (4, 1.0)]
    assert len({c.digest for c in whole.charges}) == 5


@pytest.mark.parametrize("end", [b"\r\n", b"\r"])
def test_changed_line_ends_are_restored_at_no_cost(tmp_path, end):
    path = charged(tmp_path / "ledger.jsonl")
    before = path.read_bytes()
    for content in (before.replace(b"\n", end), b"\xef\xbb\xbf" + before.replace(b"\n", end)):
        whole = repaired(content)
        assert whole.content == before and (whole.raised, whole.unreadable, whole.missing) == ([], [], [])


def test_charges_of_several_kinds_have_no_order(tmp_path):
    ledger = Ledger(path := tmp_path / "ledger.jsonl")
    for t in range(3):
        ledger.charge(charge(t, subset=(10, 29) if t == 1 else None))
    rewrite(path, 2, z=100.0)
    with pytest.raises(LineFault, match="holds charges of several kinds"):
        repaired(path.read_bytes())


def test_an_absurd_round_is_refused(tmp_path):
    path = charged(tmp_path / "ledger.jsonl")
    rewrite(path, 2, round=10**12)
    with pytest.raises(LineFault, match="lacks 999999999996 rounds before its charge of round 1000000000000"):
        repaired(path.read_bytes())


def test_a_newer_format_is_refused(tmp_path):
    path = charged(tmp_path / "ledger.jsonl")
    rewrite(path, 2, format=7)
    with pytest.raises(LineFault, match="line 3 is of format 7"):
        repaired(path.read_bytes())


def test_a_line_without_noise_makes_damaged_ones_cost_everything(tmp_path):
    path = charged(tmp_path / "ledger.jsonl", [1.0, None, 1.0])
    rewrite(path, 2, z=100.0)
    assert repaired(path.read_bytes()).charges[2] == charge(2, None, q=1.0)


def test_no_damage_is_repaired_to_a_lower_epsilon(tmp_path):
    """Random damage: the repaired ledger costs at least what the true one did, or it is refused."""
    path, dice, made = charged(tmp_path / "ledger.jsonl"), random.Random(0), 0
    lines, true = lines_of(path), epsilon(Ledger(path).charges)
    for _ in range(300):
        damaged = list(lines)
        for _ in range(dice.randint(1, 3)):
            k, kind = dice.randrange(len(damaged)), dice.randrange(5)
            if kind == 0 and k != 1:  # the most expensive line stays
                entries = {**json.loads(lines[k]), dice.choice(["z", "sigma"]): dice.uniform(1, 100)}
                damaged[k] = json.dumps(entries).encode() + b"\n"
            elif kind == 1 and k != 1:
                damaged[k] = dice.randbytes(50).replace(b"\n", b"").replace(b"\r", b"") + b"\n"
            elif kind == 2 and 1 < k < len(damaged) - 1:
                damaged[k] = b""
            elif kind == 3:
                damaged[k] = damaged[k].replace(b", ", b",", 1)
            elif k > 1:
                damaged[k] = damaged[k][: dice.randrange(len(damaged[k]) + 1)] + b"\n"
        try:
            whole = repaired(b"".join(damaged))
        except LineFault:
            continue
        if whole is not None:
            made += 1
            assert epsilon(whole.charges) >= true - 1e-12, damaged
            path.write_bytes(whole.content)
            assert Ledger(path).charges == whole.charges
    assert made > 100


def test_a_whole_ledger_needs_no_repair(tmp_path):
    content = charged(tmp_path / "ledger.jsonl").read_bytes()
    assert repaired(content) is None and repaired(content + b'{"round": 5') is None and repaired(b"") is None


@pytest.mark.parametrize("torn", [True, False])
def test_everything_that_was_done_is_said(tmp_path, torn):
    """One line touched, one unreadable, one missing; the rest, and a last line that is whole, as they were."""
    path = charged(tmp_path / "ledger.jsonl", [2.0, 1.0, 1.5, 3.0, 2.5, 2.0])
    rewrite(path, 0, sigma=0.7)
    lines = lines_of(path)
    content = b"".join([*lines[:2], b"rubbish\n", lines[4], lines[5]]) + (b'{"round": 6, "q": 0.3' if torn else b"")
    whole = repaired(content)
    assert (whole.raised, whole.unreadable, whole.missing) == ([1, 4], [3], [3])
    assert (whole.torn, whole.unbound) == (torn, False)
    assert [c.round for c in whole.charges] == [0, 1, 2, 4, 5, 3]
    assert [c.z for c in whole.charges] == [1.0, 1.0, 1.0, 1.0, 2.0, 1.0]
    assert [whole.charges[k] for k in (0, 1, 3, 4)] == [
        charge(0, sigma=0.7), charge(1), charge(4), charge(5, 2.0)
    ]  # fmt: skip
    path.write_bytes(whole.content)
    assert Ledger(path).charges == whole.charges


def test_the_largest_probability_and_the_smallest_multiplier_may_be_of_two_lines():
    worse = worst(charge(9, 2.0, q=0.1), [charge(0, 1.5, q=0.2), charge(1, 3.0, q=0.4)])
    assert worse == charge(9, 1.5, q=0.4)
    assert worst(charge(9, 1.0, q=0.9), [charge(0)]) == charge(9, 1.0, q=0.9)
    for z, others in ((None, [charge(0)]), (1.0, [charge(0), charge(1, None)])):
        assert worst(charge(9, z), others) == charge(9, None, q=1.0)


def test_subsets_of_one_population_are_ordered_by_their_size():
    three = [charge(t, z, q=k / 20, subset=(k, 20)) for t, (k, z) in enumerate([(5, 2.0), (8, 3.0), (2, 1.0)])]
    assert worst(three[0], three[1:]) == charge(0, 1.0, q=0.4, subset=(8, 20))
    assert worst(charge(0, None, subset=(5, 20)), three[1:]) == charge(0, None, q=1.0)
    for other in (charge(3), charge(3, subset=(5, 21)), charge(3, q=1.0, relation="rows")):
        with pytest.raises(LineFault, match="holds charges of several kinds, whose costs have no order"):
            worst(three[0], [other])


def test_charges_of_one_relation_have_an_order():
    assert worst(charge(0, q=1.0, relation="rows"), [charge(1, 0.5, q=1.0, relation="rows")]).z == 0.5
    with pytest.raises(LineFault, match="several kinds"):
        worst(charge(0, q=1.0, relation="rows"), [charge(1, q=1.0, relation="columns")])


def test_a_line_that_cannot_be_read_has_the_name_that_is_seen_in_it_unless_another_has_it(tmp_path):
    path = charged(tmp_path / "ledger.jsonl")
    lines, broken = lines_of(path), lines_of(path)[3].replace(b'"q"', b'"\0"')
    moved = broken.replace(b'"round": 3', b'"round":7')
    whole = repaired(b"".join([*lines[:3], moved]))
    assert whole.charges[3].round == 7 and whole.charges[3].digest == charge(3).digest and whole.missing == [3, 4, 5, 6]
    twice = repaired(b"".join([*lines[:4], broken, broken]))
    assert [c.round for c in twice.charges] == [0, 1, 2, 3, 3, 3] and twice.unreadable == [5, 6]
    assert len({c.digest for c in twice.charges}) == 6 and twice.charges[3] == charge(3, 3.0)
    nameless = repaired(b"".join([lines[0], b"rubbish\n", b"other rubbish\n"]))
    assert [c.round for c in nameless.charges] == [0, 1, 2]
    assert nameless.charges[2].digest == hashlib.sha256(b"other rubbish").hexdigest()


def test_so_many_rounds_may_be_missing_and_no_more(tmp_path, monkeypatch):
    ledger = Ledger(tmp_path / "ledger.jsonl")
    for t in (0, 5):
        ledger.charge(charge(t))
    lines = lines_of(ledger.path)
    monkeypatch.setattr(ledger_repair, "MOST_MISSING", 4)
    assert repaired(b"".join([lines[0], b"\0\n", lines[1]])).missing == [2, 3, 4]
    monkeypatch.setattr(ledger_repair, "MOST_MISSING", 3)
    assert repaired(b"".join([lines[0], b"\0\n", lines[1]])).missing == [2, 3, 4]
    monkeypatch.setattr(ledger_repair, "MOST_MISSING", 2)
    with pytest.raises(LineFault, match="lacks 3 rounds before its charge of round 5: restore it"):
        repaired(b"".join([lines[0], b"\0\n", lines[1]]))


def test_an_expensive_line_that_lost_its_chain_keeps_its_cost(tmp_path):
    path = charged(tmp_path / "ledger.jsonl", [2.0, 0.5, 1.5])
    lines = lines_of(path)
    entries = {name: value for name, value in json.loads(lines[1]).items() if name not in ("format", "chain")}
    whole = repaired(b"".join([lines[0], json.dumps(entries).encode() + b"\n", lines[2]]))
    assert (whole.raised, whole.unreadable) == ([2, 3], [])
    assert whole.charges == [charge(0, 2.0), charge(1, 0.5), charge(2, 0.5)]


def test_readable_lines_none_of_which_is_intact_say_nothing(tmp_path):
    path = charged(tmp_path / "ledger.jsonl", [1.0])
    rewrite(path, 0, z=100.0)
    with pytest.raises(LineFault, match="has no intact line that bounds what its damaged ones may have cost"):
        repaired(path.read_bytes())


def test_a_first_line_that_cannot_be_read_is_of_round_0(tmp_path):
    lines = lines_of(charged(tmp_path / "ledger.jsonl"))
    whole = repaired(b"".join([b"rubbish\n", *lines[1:]]))
    assert [c.round for c in whole.charges] == [0, 1, 2, 3, 4] and whole.missing == []
    assert (whole.raised, whole.unreadable) == ([2], [1])


def test_the_same_damage_gets_the_same_digests(tmp_path):
    lines = lines_of(charged(tmp_path / "ledger.jsonl"))
    broken = lines[3].replace(b'"q"', b'"\0"')
    content = b"".join([*lines[:2], broken, broken])
    whole = repaired(content)
    assert [c.round for c in whole.charges] == [0, 1, 3, 3, 2] and whole.charges[2].digest == charge(3).digest
    assert whole.charges[3].digest == hashlib.sha256(b"4 " + broken.rstrip(b"\n")).hexdigest()
    assert whole.charges[4].digest == hashlib.sha256(b"missing round 2 of " + content).hexdigest()


def test_a_last_line_without_its_newline_counts(tmp_path):
    lines = lines_of(charged(tmp_path / "ledger.jsonl"))
    whole = repaired(b"".join([*lines[:2], b"rubbish\n", lines[3], lines[4].rstrip(b"\n")]))
    assert whole.charges[3:] == [charge(3, 1.0), charge(4, 2.5)] and not whole.torn
    whole = repaired(b"".join([*lines[:2], b"rubbish\n", lines[4].rstrip(b"\n")]))
    assert whole.raised == [4] and whole.torn is False and [c.round for c in whole.charges] == [0, 1, 2, 4, 3]


def test_an_unreadable_last_line_without_its_newline_counts(tmp_path):
    lines = lines_of(charged(tmp_path / "ledger.jsonl"))
    whole = repaired(b"".join([*lines[:4], lines[4].replace(b'"q"', b'"\0"').rstrip(b"\n")]))
    assert (whole.unreadable, whole.torn) == ([5], False) and whole.charges[4] == charge(4)


def test_a_single_line_says_what_all_others_cost(tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.charge(charge(2, 0.5))
    whole = repaired(ledger.path.read_bytes() + b"rubbish\n")
    assert [(c.round, c.z) for c in whole.charges] == [(2, 0.5), (3, 0.5), (0, 0.5), (1, 0.5)]


def test_lines_after_one_that_is_no_charge_are_as_they_were(tmp_path):
    path = charged(tmp_path / "ledger.jsonl")
    rewrite(path, 2, z=-1.0)
    whole = repaired(path.read_bytes())
    assert (whole.raised, whole.unreadable) == ([], [3])
    assert [c.z for c in whole.charges] == [2.0, 1.0, 1.0, 3.0, 2.5]


class TestRunOfALedger:
    RUN = LedgerCoverage("0a1b2c3d4e5f", 3, "sha256:" + "0" * 64, "zero_out")

    @pytest.fixture
    def lines(self, tmp_path):
        Ledger(tmp_path / "ledger.jsonl").bind(self.RUN)
        return lines_of(charged(tmp_path / "ledger.jsonl", [1.0, 2.0]))

    def test_it_stays_if_it_was_not_touched(self, lines):
        whole = repaired(b"".join([*lines[:2], b"rubbish\n"]))
        assert whole.content.splitlines(keepends=True)[:2] == lines[:2]
        assert (whole.unbound, whole.raised, whole.unreadable) == (False, [], [3])

    @pytest.mark.parametrize(
        "damage", [(b'"seed"', b'"\0"'), (b'"seed": 3', b'"seed": 4'), (b'"chain": "', b'"chain": "0')]
    )
    def test_it_is_left_out_if_it_was_and_is_no_charge(self, lines, damage):
        whole = repaired(b"".join([lines[0].replace(*damage), *lines[1:]]))
        assert whole.unbound and whole.unreadable == [] and [c.round for c in whole.charges] == [0, 1]

    def test_a_chain_that_is_no_text_is_that_of_nothing(self, lines):
        first = json.dumps({**json.loads(lines[0]), "chain": 5}).encode() + b"\n"
        with pytest.raises(LineFault, match="has no intact line"):
            repaired(b"".join([first, *lines[1:2]]))

    def test_it_alone_is_a_ledger_without_charges(self, lines):
        whole = repaired(lines[0].replace(b'"seed": 3', b'"seed": 4'))
        assert (whole.content, whole.charges, whole.missing, whole.unbound) == (b"", [], [], True)

    def test_a_charge_that_speaks_of_a_setting_is_none(self, lines):
        """The rest of the line of a run is no JSON and has a setting, and no digest, which each charge has."""
        whole = repaired(b"".join([*lines[:2], lines[2].replace(b'"q"', b'"setting": "\0"')]))
        assert (whole.unbound, whole.unreadable) == (False, [3])
        whole = repaired(b"".join([*lines[:2], b'{"setting": "0a\n', lines[2]]))
        assert (whole.unbound, whole.unreadable, [c.round for c in whole.charges]) == (True, [], [0, 1])
        whole = repaired(b"".join([*lines[:2], b'{"seed": 3, "rel\n', lines[2]]))
        assert (whole.unbound, whole.unreadable) == (False, [3])

    def test_it_is_known_by_its_entries_however_they_are_written(self, lines):
        written = lines[0].replace(b'"setting"', rb'"\u0073etting"')
        whole = repaired(b"".join([written, lines[1], b"garbled\n"]))
        assert (whole.unbound, whole.unreadable, whole.raised) == (False, [3], [])
        assert whole.content.startswith(lines[0])
