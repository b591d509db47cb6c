"""Every program takes results_dir=FOLDER and data_dir=FOLDER."""

from pathlib import Path

import pytest

from analysis import claims, figures, report, tables
from runners import status
from runners.audit import command as audit
from runners.fetch import command as fetch
from runners.theory import command as theory

TAKES = {
    "results_dir": [
        (status, []), (audit, ["privacy.q=1"]), (theory, ["fig2c"]),
    ],
    "data_dir": [(fetch, ["landmine"]), (theory, ["fig2c"])],
}  # fmt: skip
CASES = [pytest.param(key, *case, id=f"{case[0].__name__}-{key}") for key, cases in TAKES.items() for case in cases]


@pytest.mark.parametrize(("key", "program", "others"), CASES)
def test_folders_are_spelled_as_in_hydra(key, program, others, capsys):
    for argv in ([f"{key}=else/where", *others], [*others, f"{key}=else/where"]):
        assert getattr(program._parse(argv), key) == Path("else/where")
    with pytest.raises(SystemExit):
        program._parse(["--help"])
    out = capsys.readouterr().out
    assert f"{key}=FOLDER:\n" in out


@pytest.mark.parametrize(("program", "others"), TAKES["results_dir"], ids=lambda value: getattr(value, "__name__", ""))
def test_the_default_is_results(program, others):
    assert program._parse(others).results_dir == Path("results")


def test_the_audits_files_go_to_the_results_folder():
    assert audit._parse([]).out == Path("results/audit")
    assert audit._parse(["results_dir=there"]).out == Path("there/audit")
    assert audit._parse(["results_dir=there", "--out", "mine"]).out == Path("mine")


def test_a_folder_may_stand_between_other_words():
    assert status._parse(["fig2c", "results_dir=x", "fig4"]).experiments == ["fig2c", "fig4"]


@pytest.mark.parametrize(
    ("program", "others"), [(tables, ["fig2c"]), (figures, ["fig2c", "fig4"]), (claims, ["fig2c"]), (report, [])],
    ids=lambda value: getattr(value, "__name__", ""),
)  # fmt: skip
def test_programs_of_analysis_take_the_results_folder(program, others, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    given = "results_dir=else/where"
    for argv in ([given, *others], [*others, given], [*others[:1], given, *others[1:]], others):
        assert program.main(argv) == 1
        assert f" in {'else/where' if given in argv else 'results'}: run " in capsys.readouterr().err
    with pytest.raises(SystemExit):
        program.main(["--help"])
    assert "results_dir=FOLDER:\n" in capsys.readouterr().out


def test_the_audit_takes_other_settings_beside_it():
    args = audit._parse(["data_dir=data", "results_dir=x=y", "rounds=2"])
    assert (args.results_dir, args.overrides) == (Path("x=y"), ["data_dir=data", "rounds=2"])
