"""python -m runners.privacy: its numbers, its pictures, and one sentence for every wrong input."""

import json
import re
import shlex
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from dpfbo.outsourced.transforms.gaussian import GaussianNoise
from dpfbo.outsourced.transforms.histogram import Histogram
from dpfbo.privacy.accounting.analytic_gaussian import noise_multiplier
from dpfbo.privacy.accounting.events import round_event
from dpfbo.privacy.accounting.fixed_size import FixedSize
from dpfbo.privacy.accounting.pld import Pld
from dpfbo.privacy.ledger import Charge, Ledger
from runners.privacy import command, curves
from runners.privacy.planner import PlannedRun

LANDMINE = ["--agents", "29", "--rounds", "60", "--q", "0.35", "--z", "1"]
SMALL = ["--agents", "20", "--rounds", "3", "--q", "0.5", "--z", "2"]
GIVEN = {"epsilon": "2", "q": "0.35", "z": "1", "rounds": "60"}


def answer(capsys, *argv):
    assert command.main([*argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def refusal(capsys, *argv):
    """The error message of a wrong input, one sentence."""
    assert command.main([str(part) for part in argv]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("error: ") and shown.err.count("\n") == 1
    return shown.err.removeprefix("error: ").strip()


def ledger(path, rounds, z=1.0, q=0.35, seed=0, subset=None, relation=None):
    book = Ledger(path)
    for t in range(rounds):
        values = torch.full((1, 2), seed + t / 100, dtype=torch.float64)
        book.charge(Charge.of(t, round_event(q, z, subset), 1.0, 1.0, values, relation))
    return path


class TestEpsilon:
    def test_landmine_by_every_accountant(self, capsys):
        got = answer(capsys, "epsilon", *LANDMINE)
        assert {name: round(value, 2) for name, value in got["epsilon"].items()} == {
            "moments": 15.17, "rdp": 13.50, "pld": 10.38, "gdp": 12.51,
        }  # fmt: skip
        assert (got["delta"], got["relation"], got["approximations"]) == (29**-1.1, "zero-out", ["gdp"])
        assert "broadcasts of one run; not settings chosen by comparing runs" in got["covers"]

    def test_fixed_size(self, capsys):
        got = answer(capsys, "epsilon", *SMALL, "--sampling", "fixed_size", "--delta", "0.001")
        assert got["epsilon"] == {"fixed_size": FixedSize().epsilon([round_event(0.5, 2.0, (10, 20))] * 3, 0.001)}
        assert (got["subset"], got["delta"], got["relation"]) == ([10, 20], 0.001, "replace-one")

    def test_one_agent_has_a_delta_too(self, capsys):
        assert answer(capsys, "epsilon", "--agents", "1", *SMALL[2:])["delta"] == 0.1

    def test_table_says_what_the_numbers_are(self, capsys):
        assert command.main(["epsilon", *SMALL]) == 0
        out = capsys.readouterr().out
        for words in ("20 agents, 3 rounds, q = 0.5, z = 2", "at delta 0.0371", "relation zero-out", "it covers"):
            assert words in out
        assert "approximation, not a guarantee" in next(line for line in out.splitlines() if "gdp" in line)


class TestCalibrate:
    def argv(self, *names, **changed):
        return ["calibrate", "--agents", "29", *(p for n in names for p in (f"--{n}", {**GIVEN, **changed}[n]))]

    @pytest.mark.parametrize("unknown", ["z", "q", "rounds"])
    def test_the_fourth_costs_the_target(self, capsys, unknown):
        got = answer(capsys, *self.argv(*(name for name in GIVEN if name != unknown)))
        value, by = got["found"][unknown], Pld()
        assert 0.9 * 2 < got["epsilon"]["pld"] <= 2
        assert (got["target"], got["by"]) == (2, "pld")
        values = {"q": 0.35, "z": 1.0, "rounds": 60, unknown: value}
        cost = lambda q, z, rounds: by.epsilon([round_event(q, z)] * rounds, 29**-1.1)
        assert cost(**values) == pytest.approx(got["epsilon"]["pld"], rel=1e-9)
        nearly = {"z": 0.999 * values["z"], "q": 1.001 * values["q"], "rounds": values["rounds"] + 1}[unknown]
        assert cost(**{**values, unknown: nearly}) > 2

    def test_epsilon_as_the_fourth(self, capsys):
        assert round(answer(capsys, *self.argv("q", "z", "rounds"))["found"]["epsilon"], 2) == 10.38

    def test_another_accountant(self, capsys):
        got = answer(capsys, *self.argv("epsilon", "q", "rounds"), "--accountant", "moments")
        assert 0.99 * 2 <= got["epsilon"]["moments"] <= 2

    def test_fixed_size_plans_by_its_accountant(self, capsys):
        got = answer(capsys, *self.argv("epsilon", "z", "rounds", z="3", rounds="5"), "--sampling", "fixed_size")
        assert got["by"] == "fixed_size"
        k = got["subset"][0]
        cost = lambda k: FixedSize().epsilon([round_event(k / 29, 3.0, (k, 29))] * 5, 29**-1.1)
        assert 1 <= k < 29
        assert cost(k) <= 2 < cost(k + 1)

    def test_answer_in_words(self, capsys):
        assert command.main([*self.argv("epsilon", "q", "rounds"), "--accountant", "gdp"]) == 0
        out = capsys.readouterr().out
        assert "the smallest noise multiplier with epsilon at most 2 by gdp" in out


def test_table_has_a_row_for_every_combination(capsys):
    got = answer(capsys, "table", "--agents", "200", "--rounds", "40", "--q", "0.15,0.25", "--z", "1.0,1.2")
    rows = {(row["q"], row["z"]): round(row["epsilon"]["moments"], 2) for row in got}
    assert len(got) == 4
    assert (rows[0.15, 1.0], rows[0.25, 1.0], rows[0.25, 1.2]) == (5.93, 9.91, 7.39)
    assert command.main(["table", "--agents", "20", "--rounds", "2,3", "--q", "0.5", "--z", "2"]) == 0
    out = capsys.readouterr().out
    assert "gdp: an approximation, not a guarantee" in " ".join(out.split())
    assert "relation zero-out" in out


class TestPlot:
    def test_both_files_and_the_numbers_in_them(self, capsys, tmp_path, monkeypatch):
        monkeypatch.setattr(curves, "POINTS", 2)
        got = answer(capsys, "plot", *SMALL, "--out", str(tmp_path / "new" / "mine.png"))
        assert got["files"] == [str(tmp_path / "new" / f"mine{suffix}") for suffix in (".png", ".pdf")]
        assert (tmp_path / "new" / "mine.png").read_bytes()[:4] == b"\x89PNG"
        assert (tmp_path / "new" / "mine.pdf").read_bytes()[:4] == b"%PDF"
        assert len(list((tmp_path / "new").iterdir())) == 2
        assert list(got["panels"]) == ["z", "q", "rounds"]
        for name, panel in got["panels"].items():
            assert panel["columns"] == ["moments", "rdp", "pld"]
            assert panel["index"] == sorted(panel["index"])
            at = panel["index"].index({"z": 2, "q": 0.5, "rounds": 3}[name])
            for accountant, values in zip(panel["columns"], zip(*panel["data"], strict=True), strict=True):
                assert values[at] == pytest.approx(got["epsilon"][accountant])
                assert list(values) == sorted(values, reverse=name == "z")

    def test_picture_says_what_it_shows(self, monkeypatch, tmp_path):
        plan = PlannedRun(20, 3, 0.5, 2.0)
        text = curves.caption(plan, "zero-out")
        for words in ("δ = 0.0371", "relation zero-out", "N = 20", "q = 0.5", "not the choice of q, z or T"):
            assert words in text

    def test_no_part_of_the_picture_praises_an_epsilon(self, monkeypatch, tmp_path):
        """Nothing but the lines of the accountants has a colour, none of these is green, and no area is shaded."""
        drawn = []
        monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: drawn.append(figure))
        monkeypatch.setattr(curves, "POINTS", 2)
        plan = PlannedRun(20, 3, 0.5, 2.0)
        curves.draw(curves.panels(plan), plan, "zero-out", tmp_path / "x.png")
        figure = drawn[0]
        for axes in figure.axes:
            assert not axes.patches and not axes.collections and not axes.texts
            for line in axes.lines:
                red, green, blue = to_rgb(line.get_color())
                assert green <= max(red, blue)
        assert "single digit" not in " ".join(text.get_text() for text in figure.texts)

    @pytest.mark.parametrize("changes", [{"q": 1.0}, {"z": 0.01}, {"z": 1e4}, {"rounds": 1}, {"rounds": 100_000}])
    @pytest.mark.parametrize("sampling", ["poisson", "fixed_size"])
    def test_every_grid_can_be_accounted_for(self, changes, sampling):
        plan = PlannedRun(**{"agents": 9, "rounds": 4, "q": 0.5, "z": 0.3, "sampling": sampling, **changes})
        for setting, values in curves.grids(plan).items():
            assert getattr(plan, setting) in values and values == sorted(set(values))
            for value in values:
                replace(plan, **{setting: value})


class TestLedger:
    def test_one(self, capsys, tmp_path):
        got = answer(capsys, "ledger", str(ledger(tmp_path / "a.jsonl", 60)), "--agents", "29")
        assert round(got["epsilon"]["pld"], 2) == 10.38
        assert (got["charges"], got["delta"], got["relation"], got["note"]) == (60, 29**-1.1, "zero-out", None)
        assert "not settings chosen by comparing runs" in got["covers"]

    def test_several_add_up(self, capsys, tmp_path):
        files = [str(ledger(tmp_path / f"{i}.jsonl", 5, z=z, seed=i)) for i, z in enumerate((1.0, 2.0))]
        got = answer(capsys, "ledger", *files, "--delta", "0.01")
        events = [round_event(0.35, 1.0)] * 5 + [round_event(0.35, 2.0)] * 5
        assert got["epsilon"]["pld"] == pytest.approx(Pld().epsilon(events, 0.01))
        assert [file["charges"] for file in got["files"]] == [5, 5]
        assert "runs with one seed and privacy.rng=seeded share their noise" in got["note"]
        assert command.main(["ledger", *files, "--delta", "0.01"]) == 0
        assert "share their noise" in capsys.readouterr().out

    def test_the_same_release_counts_once(self, capsys, tmp_path):
        one = ledger(tmp_path / "a.jsonl", 4)
        (tmp_path / "copy.jsonl").write_bytes(one.read_bytes())
        got = answer(capsys, "ledger", str(one), str(tmp_path / "copy.jsonl"), str(one), "--delta", "0.01")
        assert (got["charges"], got["repeated"], len(got["files"])) == (4, 4, 2)
        assert got["epsilon"]["pld"] == pytest.approx(Pld().epsilon([round_event(0.35, 1.0)] * 4, 0.01))

    def test_one_release_that_was_charged_twice_counts_at_its_least_noise_in_any_order(self, capsys, tmp_path):
        files = [str(ledger(tmp_path / f"{z}.jsonl", 4, z=z)) for z in (1.0, 2.0)]  # nominal and effective, one seed
        answers = [answer(capsys, "ledger", *f, "--delta", "0.01")["epsilon"] for f in (files, files[::-1])]
        assert answers[0] == answers[1] == answer(capsys, "ledger", files[0], "--delta", "0.01")["epsilon"]

    def test_fixed_size_and_no_noise_and_nothing(self, capsys, tmp_path):
        subset = ledger(tmp_path / "s.jsonl", 3, z=4.0, subset=(10, 29))
        expected = FixedSize().epsilon([round_event(0.35, 4.0, (10, 29))] * 3, 0.01)
        got = answer(capsys, "ledger", str(subset), "--delta", "0.01")
        assert got["epsilon"] == {"fixed_size": pytest.approx(expected)}
        bare = ledger(tmp_path / "b.jsonl", 2, z=None)
        assert set(answer(capsys, "ledger", str(bare), "--delta", "0.01")["epsilon"].values()) == {None}
        assert command.main(["ledger", str(bare), "--delta", "0.01"]) == 0
        shown = capsys.readouterr().out  # both relations are possible: messages, or a table released without a claim
        assert "at delta 0.01, no epsilon is finite, whatever the relation" in shown and "zero-out" not in shown
        (tmp_path / "empty.jsonl").touch()
        empty = answer(capsys, "ledger", str(tmp_path / "empty.jsonl"), "--delta", "0.01")
        assert set(empty["epsilon"].values()) == {0.0}

    def test_a_torn_last_line_was_never_sent(self, capsys, tmp_path):
        path = ledger(tmp_path / "a.jsonl", 3)
        path.write_bytes(path.read_bytes()[:-20])
        assert answer(capsys, "ledger", str(path), "--delta", "0.01")["charges"] == 2

    @pytest.mark.parametrize(
        ("content", "says"),
        [
            ('{"round": 0}\n{"round": 1}\n', "line 1 cannot be read"),
            ('{"pld": 3.0}', "holds no whole charge"),
            ("not a ledger", "holds no whole charge"),
        ],
    )
    def test_an_unreadable_one_is_refused(self, capsys, tmp_path, content, says):
        (tmp_path / "bad.jsonl").write_text(content)
        good = ledger(tmp_path / "a.jsonl", 3)
        assert says in refusal(capsys, "ledger", good, tmp_path / "bad.jsonl", "--delta", "0.01")

    @pytest.mark.parametrize(
        ("field", "value", "says"),
        [
            ("q", 1.4, "q must lie in (0, 1], got 1.4"),
            ("z", -1, "z must be a finite number above 0, got -1"),
            ("z", "1", "z must be a finite number above 0, got '1'"),
            ("subset", [3], "subset must be [k, N], got [3]"),
            ("subset", [30, 29], "N of subset must be an integer of at least 30, got 29"),
            ("digest", 5, "digest must be 64 hexadecimal digits, got 5"),
            ("relation", ["row"], "relation must be a text of 1 to 200 characters, got ['row']"),
            ("relation", "row", "q must be 1 and subset null where there is a relation, got 0.35"),
        ],
    )
    def test_a_charge_that_is_none_is_refused(self, capsys, tmp_path, field, value, says):
        path = ledger(tmp_path / "a.jsonl", 2)
        lines = path.read_text().splitlines()
        path.write_text("\n".join([lines[0], json.dumps({**json.loads(lines[1]), field: value})]) + "\n")
        said = refusal(capsys, "ledger", path, "--delta", "0.01")
        assert said.startswith(
            f"ledger {path} line 2 is no charge ({says}), refusing to release anything more: restore"
        )

    def test_a_charge_without_enough_noise_for_the_accountants_is_refused(self, capsys, tmp_path):
        path = ledger(tmp_path / "a.jsonl", 2, z=0.005)
        said = refusal(capsys, "ledger", path, "--delta", "0.01")
        assert said == f"ledger {path} charge 1: z must be null or at least 0.01, got 0.005"

    def test_two_relations_have_no_sum(self, capsys, tmp_path):
        files = ledger(tmp_path / "a.jsonl", 2), ledger(tmp_path / "s.jsonl", 2, subset=(10, 29), seed=1)
        assert "no accountant covers both under one relation" in refusal(capsys, "ledger", *files, "--delta", "0.01")

    def test_releases_of_tables_have_their_own_relation_and_epsilon(self, capsys, tmp_path):
        files = [
            str(ledger(tmp_path / f"{i}.jsonl", 1, noise_multiplier(e, 1e-5), 1.0, i, relation=GaussianNoise.relation))
            for i, e in enumerate((1.0, 2.0))
        ]
        got = answer(capsys, "ledger", files[0], "--delta", "1e-5")
        assert got["epsilon"] == {"analytic_gaussian": pytest.approx(1.0, rel=1e-6)}
        assert got["relation"] == GaussianNoise.relation and "not measurements" in got["covers"]
        both = answer(capsys, "ledger", *files, "--delta", "1e-5")["epsilon"]["analytic_gaussian"]
        assert 2.0 < both < 3.0  # tight composition: below the sum
        assert command.main(["ledger", *files, "--delta", "1e-5"]) == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert f"at delta 1e-05, neighbours: {GaussianNoise.relation}" in shown
        assert "zero-out" not in shown and "user level" not in shown

    def test_tables_and_counts_and_agents_have_no_sum(self, capsys, tmp_path):
        moved = ledger(tmp_path / "g.jsonl", 1, q=1.0, relation=GaussianNoise.relation)
        replaced = ledger(tmp_path / "h.jsonl", 1, q=1.0, seed=1, relation=Histogram.relation)
        for other in (replaced, ledger(tmp_path / "a.jsonl", 1, q=1.0, seed=2)):
            said = refusal(capsys, "ledger", moved, other, "--delta", "0.01")
            assert said.startswith("ledgers must have one relation to be added up, got ")
            assert f"{moved}: neighbours: {GaussianNoise.relation}" in said and str(other) in said

    def test_missing_file_or_delta(self, capsys, tmp_path):
        assert "does not exist" in refusal(capsys, "ledger", tmp_path / "none.jsonl", "--delta", "0.01")
        assert "does not exist, or is not a file" in refusal(capsys, "ledger", tmp_path, "--delta", "0.01")
        path = ledger(tmp_path / "a.jsonl", 2)
        for delta in ([], ["--delta", "0.1", "--agents", "3"]):
            assert "one of --delta and --agents must be given" in refusal(capsys, "ledger", path, *delta)
        assert "--agents must be an integer of at least 1" in refusal(capsys, "ledger", path, "--agents", "0")
        assert refusal(capsys, "ledger", path, "--delta", "1") == "--delta must lie in (0, 1), got 1"


def instead(option, value):
    """The small run with one option changed; None leaves it out."""
    given = {**dict(zip(SMALL[::2], SMALL[1::2], strict=True)), option: value}
    return [part for name, v in given.items() if v is not None for part in (name, v)]


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("--agents", "0", "--agents must be an integer of at least 1, got 0"),
        ("--agents", "2.5", "--agents must be an integer of at least 1, got 2.5"),
        ("--agents", None, "--agents must be given"),
        ("--rounds", "0", "--rounds must be an integer of at least 1, got 0"),
        ("--rounds", "many", "--rounds must be an integer of at least 1, got 'many'"),
        ("--rounds", "2000000", "--rounds must be at most 100000, got 2000000"),
        ("--rounds", str(2**70), f"--rounds must be at most 100000, got {2**70}"),
        ("--agents", str(2**70), f"--agents must be at most 10000000, got {2**70}"),
        ("--rounds", None, "--rounds must be given"),
        ("--q", "0", "--q must lie in (0, 1], got 0"),
        ("--q", "1.4", "--q must lie in (0, 1], got 1.4"),
        ("--q", "nan", "--q must lie in (0, 1], got nan"),
        ("--q", None, "--q must be given"),
        ("--z", "0.005", "--z must lie in [0.01, 10000], got 0.005"),
        ("--z", "-1", "--z must lie in [0.01, 10000], got -1"),
        ("--z", "nan", "--z must be a finite number, got nan"),
        ("--z", "inf", "--z must be a finite number, got inf"),
        ("--z", "two", "--z must be a finite number, got 'two'"),
        ("--z", None, "--z must be given"),
        ("--delta", "0", "--delta must lie in (0, 1), got 0"),
        ("--delta", "1.5", "--delta must lie in (0, 1), got 1.5"),
        ("--delta", "small", "--delta must lie in (0, 1), got 'small'"),
        ("--sampling", "sorted", "--sampling must be one of 'poisson', 'fixed_size', got 'sorted'"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_one_sentence(capsys, option, value, says):
    assert refusal(capsys, "epsilon", *instead(option, value)).startswith(says)


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["calibrate", *LANDMINE, "--epsilon", "2"], "three of --epsilon, --q, --z and --rounds must be given, got --"),
        (["calibrate", "--agents", "29", "--q", "0.3", "--z", "1"], "three of --epsilon, --q, --z and --rounds must"),
        (["calibrate", "--agents", "29"], "three of --epsilon, --q, --z and --rounds must be given, got none"),
        (["calibrate", *LANDMINE[:6], "--epsilon", "0"], "--epsilon must be a finite number above 0, got 0"),
        (["calibrate", *LANDMINE[:6], "--epsilon", "nan"], "--epsilon must be a finite number above 0, got nan"),
        (["calibrate", *LANDMINE[:6], "--epsilon", "x"], "--epsilon must be a finite number above 0, got 'x'"),
        (["calibrate", *LANDMINE[:6], "--epsilon", "2", "--accountant", "best"],
         "--accountant must be one of 'moments', 'rdp', 'pld', 'gdp', 'fixed_size', got 'best'"),
        (["calibrate", *LANDMINE[:6], "--epsilon", "2", "--sampling", "fixed_size", "--accountant", "moments"],
         "--accountant must be one that can analyse --sampling fixed_size (fixed_size), got 'moments'"),
        (["calibrate", *LANDMINE[:6], "--epsilon", "2", "--accountant", "fixed_size"],
         "--accountant must be one that can analyse --sampling poisson (moments, rdp, pld, gdp), got 'fixed_size'"),
        (["calibrate", *LANDMINE[:6], "--epsilon", "0.01", "--accountant", "moments"],
         "epsilon 0.01 cannot be met: noise multiplier 10000 still costs 0.1158"),
        (["calibrate", *LANDMINE[:4], "--z", "0.1", "--epsilon", "0.01", "--accountant", "moments"],
         "epsilon 0.01 cannot be met: sampling probability 1e-06 still costs"),
        (["calibrate", "--agents", "29", "--q", "0.35", "--z", "1", "--epsilon", "0.1"],
         "epsilon 0.1 does not pay for one round, which costs"),
        (["calibrate", "--agents", "29", "--q", "0.0001", "--z", "10", "--epsilon", "5"],
         "epsilon 5 pays for more than 100000 rounds"),
        (["table", *LANDMINE[:4], "--q", "0.3,1.3", "--z", "1"], "--q must lie in (0, 1], got 1.3"),
        (["table", *LANDMINE[:4], "--q", "0.3,", "--z", "1"], "--q must lie in (0, 1], got ''"),
        (["table", *LANDMINE[:4], "--q", "0.3"], "--z must be given"),
        (["table", *LANDMINE[:4], "--z", "1"], "--q must be given"),
    ],
)  # fmt: skip
def test_a_wrong_command_is_one_sentence(capsys, argv, says):
    assert refusal(capsys, *argv).startswith(says)


def test_out_that_cannot_be_written_is_refused_before_anything_is_computed(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(curves, "panels", lambda *_: pytest.fail("computed"))
    (tmp_path / "file").touch()
    said = refusal(capsys, "plot", *SMALL, "--out", tmp_path / "file" / "x.png")
    assert said.startswith(f"--out must be where a file can be written, got '{tmp_path}/file/x.png': ")
    assert "--out must name a file" in refusal(capsys, "plot", *SMALL, "--out", tmp_path)


def test_help_has_examples_and_unknown_options_are_usage_errors(capsys):
    for argv, code in (
        (["--help"], 0),
        (["plot", "--help"], 0),
        (["ledger", "--help"], 0),
        (["epsilon", "--zz", "1"], 2),
        ([], 2),
    ):
        with pytest.raises(SystemExit) as stop:
            command.main(argv)
        assert stop.value.code == code
        shown = capsys.readouterr()
        assert "python -m runners.privacy" in (shown.err if code else shown.out)


def test_every_example_of_the_help_can_be_parsed():
    lines = command.HELP.splitlines()
    examples = [re.split(r"\s{2,}", line.strip())[0] for line in lines if "-m runners.privacy " in line]
    assert len(examples) >= 10
    commands = set()
    for example in examples:
        argv = shlex.split(example)[3:]
        commands.add(command._parser().parse_args(argv).command.__name__)
    assert commands == {"epsilon", "calibrate", "table", "plot", "ledger", "projection", "certificate", "prior"}


def test_as_a_program(tmp_path):
    """The module itself, in a process: exit code 1 and one line on standard error."""
    run = subprocess.run(
        [sys.executable, "-m", "runners.privacy", "epsilon", *instead("--q", "1.4")],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert (run.returncode, run.stdout) == (1, "")
    assert run.stderr == "error: --q must lie in (0, 1], got 1.4\n"


def test_prior_says_what_a_release_is_expected_to_carry(capsys):
    given = ["prior", "--agents", "8", "--epsilon", "1", "--delta", "1e-3", "--n-init", "3", "--dim", "3"]
    found = answer(capsys, *given)
    assert 0.3 < found["signal"] < 0.6 and found["enough_epsilon"] == 2
    assert command.main(given) == 0
    assert "is expected to keep" in capsys.readouterr().out
    assert "--dim must be given" in refusal(capsys, *given[:-2])
    assert "--agents must be" in refusal(capsys, "prior", "--agents", "0", *given[3:])
