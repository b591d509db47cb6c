"""The list of explained survivors, and the verdict on mutants."""

import tomllib

import pytest

from tests.mutants.__main__ import EXPLAINED, main
from tests.mutants.modules import LEFT_OUT, MODULES
from tests.mutants.mutation import ROOT, Mutant, changed
from tests.mutants.verdict import Explained, score_line

ENTRIES = tomllib.loads(EXPLAINED.read_text())["survivors"]


def joined(path):
    return " ".join(line.strip() for line in path.read_text().splitlines())


def mutant(status, becomes="return b"):
    return Mutant("dpfbo/privacy/noise.py", "f", "return a", becomes, status)


def test_each_explained_change_is_of_a_line_that_is_there():
    for entry in ENTRIES:
        source = joined(ROOT / entry["module"])
        assert f"def {entry['function'].rpartition('.')[2]}(" in source
        for was, becomes in entry["changes"]:
            assert was in source and was != becomes, (entry["module"], was)


def test_what_is_mutated_and_run_is_there():
    for module in MODULES.values():
        assert all(list((ROOT / "dpfbo").glob(f"{name}.py")) for name in module.files)
        assert all((ROOT / "tests" / name).exists() for name in module.tests)
    for name in LEFT_OUT:
        path, *_, test = name.split("::")
        assert f"def {test}(" in (ROOT / "tests" / path).read_text()


def test_a_survivor_that_nobody_explained_counts():
    entry = {"module": "dpfbo/privacy/noise.py", "function": "f", "changes": [["return a", "return b"]]}
    explained = Explained.read({"survivors": [{**entry, "why": "the same"}]})
    found = [mutant("killed"), mutant("timeout"), mutant("survived"), mutant("no tests", "return c")]
    assert [m.survived for m in found] == [False, False, True, True]
    assert [m in explained for m in found[2:]] == [True, False]
    assert score_line("noise", found, explained).split() == ["noise", "4", "1", "1", "2", "1", "50.0%"]
    with pytest.raises(ValueError, match="has no reason"):
        Explained.read({"survivors": [{**entry, "why": " "}]})


def test_a_change_is_told_by_its_lines():
    before = "def f(x):\n    y = 1\n    if x > 0:\n        return y\n"
    assert changed([before, before.replace(">", ">=")]) == ("if x > 0:", "if x >= 0:")
    assert changed([before, before.replace("x > 0", "x").replace("= 1", "= 2")]) == ("y = 1 if x > 0:", "y = 2 if x:")


@pytest.mark.parametrize("argv", [["nose"], ["noise", "--processes", "0"]])
def test_a_wrong_argument_is_one_sentence(capsys, argv):
    with pytest.raises(SystemExit):
        main(argv)
    assert capsys.readouterr().err.splitlines()[-1].startswith("python -m tests.mutants: error: ")
