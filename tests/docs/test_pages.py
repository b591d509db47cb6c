"""Every program and every command in the documentation runs; every public name is in the reference."""

import ast
import os
import re
import sys

import pytest

import dpfbo
from dpfbo import lazy
from tests.docs import pages

ALL = sorted(p.relative_to(pages.ROOT).as_posix() for p in (pages.ROOT / "docs").rglob("*.md"))
OVER_FLOWER = "docs/tutorials/five-sites.md"  # `make flower-test` runs it, in another environment
TUTORIALS = ["docs/start.md", *(page for page in ALL if page.startswith("docs/tutorials/") and page != OVER_FLOWER)]
PROGRAMS = [
    "docs/concepts/secure-sum.md",
    "docs/guides/python.md",
    "docs/guides/spaces.md",
    "docs/index.md",
    "docs/reference/files.md",
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty working directory, from which modules are imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(tmp_path / "site"), *sys.path])
    monkeypatch.setenv("MPLBACKEND", "agg")
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.mark.tutorial
@pytest.mark.parametrize("page", TUTORIALS)
def test_a_tutorial_runs(folder, page):
    names, said = pages.run(page, folder)
    results = folder / "results"
    match page.rpartition("/")[2]:
        case "paper-figure.md":
            assert len(list(results.glob("fig2c/*/*/summary.json"))) == 25
            assert list(folder.glob("figures/fig2c*.png")) and "Printed privacy losses: 3 hold" in said
            assert set(names["table"]["algorithm"]) == {"ts", "random_server", "dp_fts_de"}
        case "eight-sites.md":
            assert len(names["together"].best()) == 8 and names["together"].epsilon <= 1
            assert '"finished": true' in said and said.count('"charges": 1') == 2
            assert (folder / "server" / "ledger.jsonl").read_text().count('"digest"') == 1
        case "extending.md":
            assert len(list(results.glob("single/sphere-dp_ranks-*/0/summary.json"))) == 2
            assert re.search(r"epsilon: pld [\d.]+, unsampled [\d.]+", said) and "nothing found" in said
            assert len(list(results.glob("mine/*/*/summary.json"))) == 6 and (folder / "best.csv").exists()
            assert names["result"].epsilon <= 2
        case "cluster-sweep.md":
            assert "4 settings x 2 seeds = 8 trials" in said and "mine: 8 of 8 done" in said
            assert list(folder.glob("figures/mine*.png")) and len(list(results.glob("mine/wandb/offline-run-*"))) == 9
        case "start.md":
            assert (folder / "best.csv").exists() and "going on after round 4 of 8" in said
            (run,) = results.glob("single/*/0")
            assert "rounds: 8" in (run / "config.yaml").read_text()
            assert set(names["result"].best()[0].configuration) == {"x", "level"}
        case other:
            pytest.fail(f"say what {other} should show")


def test_every_block_that_looks_like_a_program_is_run():
    runnable = [page for page in ALL if any(b.kind in ("python", "sh") and not b.title for b in pages.blocks(page))]
    assert sorted(runnable) == sorted([*TUTORIALS, *PROGRAMS])


def test_the_program_of_the_readme_shows_what_sharing_gains(folder, capsys):
    assert len((pages.ROOT / "README.md").read_text()) <= 9000
    names, _ = pages.run("README.md", folder)
    text, result = capsys.readouterr().out, names["result"]
    assert 0.85 < result.curve[-1] <= 1 and result.epsilon <= 1
    assert "epsilon 1.00 at delta 0.001, relation zero-out, user level, by pld" in text
    _, alone, _, together, best = text.splitlines()  # two runs with their curves, and a configuration
    alone, together = ([float(value) for value in line.split()] for line in (alone, together))
    assert alone[0] == together[0] and sum(together[1:]) > sum(alone[1:]) + 0.05
    assert set(ast.literal_eval(best)) == {"C", "gamma"}


def test_the_programs_of_the_page_of_spaces(folder, capsys):
    names, _ = pages.run("docs/guides/spaces.md", folder)
    assert ast.literal_eval(capsys.readouterr().out) == {"kernel": "rbf", "gamma": 0.1}
    assert [list(names[name].parameters) for name in ("rates", "depths")] == [["rate"], ["depth"]]


def test_the_program_of_the_home_page(folder, capsys):
    names, _ = pages.run("docs/index.md", folder)
    assert names["result"].epsilon <= 1 and "epsilon 1.00 at delta 0.001" in capsys.readouterr().out


def test_the_program_of_the_page_without_a_trusted_server(folder, capsys):
    names, _ = pages.run("docs/concepts/secure-sum.md", folder)
    assert "epsilon 1.00 at delta 0.001" in capsys.readouterr().out
    assert names["study"].views["server"] <= 1 < names["study"].views["site"] < 1.1


def test_the_programs_of_the_python_page(folder):
    names, _ = pages.run("docs/guides/python.md", folder)
    assert len(names["result"].ledger.charges) == 5 and names["result"].epsilon <= 4
    assert [agent.round for agent in names["agents"]] == [3, 3]
    assert names["server"].finished and names["server"].epsilon <= 1
    assert names["ax"].get_ylabel()


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "deploy/README.md", *ALL])
def test_links_to_files_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", (pages.ROOT / page).read_text()):
        if "://" not in link:
            assert ((pages.ROOT / page).parent / link).exists(), link


def test_the_version_is_the_same_everywhere():
    version = re.search(r'^version = "(.+)"$', (pages.ROOT / "pyproject.toml").read_text(), re.MULTILINE)[1]
    assert f"version: {version}\n" in (pages.ROOT / "CITATION.cff").read_text()
    assert f"What {version}, the first version, will bring" in (pages.ROOT / "CHANGELOG.md").read_text()


def test_the_page_of_files_names_every_column(folder, capsys):
    pages.run("docs/reference/files.md", folder)
    said = capsys.readouterr().out
    assert "regret double simulation-only" in said and "epsilon double released" in said


def test_the_tests_that_the_threat_model_names_exist():
    text = (pages.ROOT / "docs/concepts/threat-model.md").read_text()
    rows = [
        line for line in text.splitlines() if line.startswith("| ") and not line.endswith((" shown by |", " test |"))
    ]
    for row in rows:
        named = re.search(r"\| `(tests/[\w/]+\.py)::(test_\w+)` \|$", row)
        assert named, f"a line without a test: {row}"
        assert f"def {named[2]}(" in (pages.ROOT / named[1]).read_text(), named[0]
    assert len(rows) >= 25


def test_the_tests_that_the_table_of_faults_names_exist():
    text = (pages.ROOT / "docs/concepts/audit.md").read_text()
    rows = re.findall(r"^\| .*`(tests/[\w/]+\.py)::(test_\w+)` \|$", text, re.MULTILINE)
    for file, name in rows:
        assert f"def {name}(" in (pages.ROOT / file).read_text(), name
    assert len(rows) >= 4


def test_every_public_name_is_in_the_reference():
    text = "".join((pages.ROOT / page).read_text() for page in ALL if "/reference/" in page)
    listed = re.findall(r"^::: (dpfbo[\w.]+)$", text, re.MULTILINE)
    packages = [dpfbo, *(getattr(dpfbo, room) for room in set(lazy.places("dpfbo")) - set(dpfbo.__all__))]
    objects = [getattr(package, name) for package in packages for name in package.__all__]
    known = {f"{o.__module__}.{o.__qualname__}" for o in objects}
    assert known <= set(listed)


def test_a_command_that_fails_fails_its_page(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```sh\npython -c 'raise SystemExit(3)'\necho not reached\n```\n")
    with pytest.raises(AssertionError):
        pages.run(os.path.relpath(page, pages.ROOT), tmp_path)
