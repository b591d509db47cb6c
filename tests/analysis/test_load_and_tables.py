"""Reading results, the table and the figures, on small made-up result folders."""

import csv
import json
import math
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest
import yaml

from analysis import figures, load, report, tables
from analysis.drawing import by_iteration
from analysis.labels import label
from dpfbo.formats import bounded
from tests.helpers.result_folders import TWO_ROUNDS, read, write_all, write_run

PUBLISHED = Path(load.__file__).parent / "published"


@pytest.fixture
def results(tmp_path):
    return write_all(tmp_path)


def test_means_and_errors_are_over_seeds(results):
    ts = read(results)[0]
    mean, se = ts.at(2)
    assert mean == pytest.approx(0.3)
    assert se == pytest.approx(math.sqrt((0.01 + 0.04 + 0.09) / 2 / 3))
    curve = ts.curve()
    assert curve["mean"].tolist() == pytest.approx([0.8, 0.5, 0.3])
    assert curve["se"].tolist() == pytest.approx([0.1 / math.sqrt(3), 0.1 / math.sqrt(3), se])


def test_unfinished_runs_are_ignored(results):
    (results / "made_up" / "aaa" / "2" / "summary.json").unlink()
    unfinished = results / "made_up" / "ddd" / "0"
    unfinished.mkdir(parents=True)
    (unfinished / "ledger.jsonl").write_text("")
    groups = read(results)
    assert [g.label for g in groups] == ["TS", "FTS-DE, P = 2", "DP-FTS-DE, P = 2, z = 1"]
    assert [len(g.runs) for g in groups] == [2, 3, 3]


def test_settings_of_one_label_are_told_apart(tmp_path):
    for i, (q, S) in enumerate([(0.5, 3), (0.25, 3), (0.25, 11)]):
        write_run(tmp_path, f"{i}aaaaaaaa", 0, [1.0, 0.5], "dp_fts", True, q=q, S=S, epsilon=TWO_ROUNDS)
        write_run(tmp_path, f"{i}bbbbbbbb", 0, [1.0, 0.5], "fts", q=q, S=S)
    write_run(tmp_path, "c", 0, [1.0, 0.5, 0.4], "ts")
    write_run(tmp_path, "d", 3, [1.0, 0.5], "ts")
    assert [g.label for g in read(tmp_path)] == [
        "TS, T = 1", "TS, T = 2",
        "FTS, 0bbbbb", "FTS, 1bbbbb", "FTS, 2bbbbb",
        "DP-FTS, z = 1, q = 0.25, S = 3", "DP-FTS, z = 1, q = 0.25, S = 11", "DP-FTS, z = 1, q = 0.5, S = 3",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("algorithm", "private", "P", "z", "words"),
    [
        ("ts", False, 1, 1.0, "TS"),
        ("fts", False, 1, 1.0, "FTS"),
        ("dp_fts", True, 1, 1.6, "DP-FTS, z = 1.6"),
        ("dp_fts_de", True, 2, 1, "DP-FTS-DE, P = 2, z = 1"),
        ("random_server", False, 1, 1.0, "random server"),
        ("mine", True, 3, 2.0, "mine, P = 3, z = 2"),
    ],
)
def test_label(algorithm, private, P, z, words):
    config = {"algorithm": {"name": algorithm, "private": private, "P": P}, "privacy": {"z": z}}
    assert label(config) == words


def test_seeds_phrase(tmp_path):
    write_run(tmp_path, "a", 0, [1.0, 0.5])
    assert load.seeds_phrase(read(tmp_path)) == "1 seed"
    write_run(tmp_path, "a", 1, [1.0, 0.5])
    assert load.seeds_phrase(read(tmp_path)) == "2 seeds, each with its own function"
    write_run(tmp_path, "a", 2, [1.0, 0.5], function_seed=0)
    write_run(tmp_path, "b", 0, [1.0, 0.5], "fts")
    assert load.seeds_phrase(read(tmp_path)) == "1 to 3 seeds"


def test_table_numbers(results, capfd):
    assert tables.main(["made_up", f"results_dir={results}", "--rounds", "1,2", "--json"]) == 0
    ts, fts_de, private = json.loads(capfd.readouterr().out)
    assert ts["regret"]["1"] == pytest.approx({"mean": 0.5, "se": 0.1 / math.sqrt(3)})
    assert private["regret"]["2"] == pytest.approx({"mean": 0.6, "se": 2 * math.sqrt(0.07 / 3)})
    assert ts["seeds"] == [0, 1, 2]
    assert ts["epsilon"] == {"moments": 0.0, "rdp": 0.0, "pld": 0.0}
    assert fts_de["epsilon"] == {"moments": None, "rdp": None, "pld": None}
    assert private["epsilon"] == TWO_ROUNDS


def test_table_as_printed(results, capfd):
    assert tables.main(["made_up", f"results_dir={results}", "--rounds", "2"]) == 0
    out = capfd.readouterr().out
    rows = {line.split("  ")[0].strip(): line for line in out.splitlines()}
    assert "0.3000 ± 0.1528" in rows["TS"] and "0 (nothing shared)" in rows["TS"]
    assert "none (not private)" in rows["FTS-DE, P = 2"]
    assert (
        "0.6000 ± 0.3055" in rows["DP-FTS-DE, P = 2, z = 1"] and "3.00 / 2.50 / 2.00" in rows["DP-FTS-DE, P = 2, z = 1"]
    )
    assert "mean ± standard error over 3 seeds, each with its own function" in out
    text = " ".join(out.split())
    assert "ε at δ = 0.01, relation zero-out, user level; it covers the ledger's broadcasts; simulation" in text


def test_one_seed_has_no_error(tmp_path, capfd):
    write_run(tmp_path, "a", 0, [0.5, 0.25])
    assert tables.main(["made_up", f"results_dir={tmp_path}"]) == 0
    out = capfd.readouterr().out
    assert "0.2500" in out and "±" not in out and "mean of 1 seed" in out
    assert read(tmp_path)[0].at(1) == (0.25, None)


def test_rounds_of_the_table(tmp_path):
    write_run(tmp_path, "a", 0, [1.0] * 61)
    assert tables.default_rounds(read(tmp_path)) == [5, 20, 40, 60]
    write_run(tmp_path, "b", 0, [1.0] * 17, "fts")
    groups = read(tmp_path)
    assert tables.default_rounds(groups) == [7, 30, 60]
    assert tables.rows(groups, [16, 30])[1]["regret"] == {"16": {"mean": 1.0, "se": None}, "30": None}


def test_no_noise_and_used_ledger_in_words(tmp_path):
    write_run(tmp_path, "a", 0, [1.0, 0.5], "dp_fts", True, z=0.0, epsilon=dict.fromkeys(TWO_ROUNDS))
    write_run(tmp_path, "b", 0, [1.0, 0.5], "dp_fts", True, epsilon=TWO_ROUNDS)
    write_run(tmp_path, "b", 1, [1.0, 0.5], "dp_fts", True, epsilon={"moments": 6.0, "rdp": 5.0, "pld": 4.0})
    write_run(tmp_path, "c", 0, [1.0, 0.5], "dp_fts", True, z=2.0, epsilon={"fixed_size": 7.0}, accountant="fixed_size")
    groups = read(tmp_path)
    names = tables.accountants(groups)
    assert list(names.values()) == ["moments", "rdp", "pld", "fixed_size"]
    assert [tables.epsilons_in_words(g, names) for g in groups] == [
        "6.00 / 5.00 / 4.00 / –", "– / – / – / 7.00", "none (no noise)",
    ]  # fmt: skip


def test_broadcasts_that_stop_keep_their_epsilon(tmp_path):
    write_run(tmp_path, "a", 0, [1.0, 0.5, 0.4, 0.3], "dp_fts", True, epsilon=TWO_ROUNDS, spent=(2.0, 4.0))
    assert read(tmp_path)[0].first.epsilon_spent == [0.0, 2.0, 4.0, 4.0]


@pytest.mark.parametrize("module", [tables, figures])
@pytest.mark.parametrize(
    ("name", "more", "words"),
    [
        ("demo", [], "(there are results of made_up): run python -m runners.sweep experiment=demo"),
        ("other", [], "run python -m runners.run experiment_name=other"),
        ("../made_up", [], "must be the name of a folder"),
    ],
)
def test_nothing_to_show(module, name, more, words, results, monkeypatch, capfd):
    monkeypatch.chdir(results)
    assert module.main([name, f"results_dir={results}", *more]) == 1
    out, err = capfd.readouterr()
    assert words in err and err.startswith("error: ") and err.count("\n") == 1 and out == ""
    assert not (results / "figures").exists()


@pytest.mark.parametrize(("file", "content"), [("summary.json", "{"), ("summary.json", "{}"), ("config.yaml", "a: [")])
def test_damaged_file(file, content, results, capfd):
    path = results / "made_up" / "aaa" / "1" / file
    path.write_text(content)
    assert tables.main(["made_up", f"results_dir={results}"]) == 1
    err = capfd.readouterr().err
    assert str(path.parent) in err and "run it again" in err and err.startswith("error: ") and err.count("\n") == 1


@pytest.mark.parametrize(
    ("file", "changes", "words"),
    [
        ("summary.json", {"relation": None}, "summary.json: relation must be of kind text, got None"),
        ("summary.json", {"seed": "0"}, "summary.json: seed must be of kind integer, got '0'"),
        ("summary.json", {"seconds": {"total": 1.0}}, "summary.json: seconds has no 'objective'"),
        ("summary.json", {"curve": {"mean": [0.8, 0.4]}}, "curve.mean must be 3 finite numbers"),
        ("summary.json", {"curve": {"mean": [0.8, math.nan, 0.4]}}, "curve.mean must be 3 finite numbers"),
        ("summary.json", {"accountant": "gdp"}, "summary.json: epsilon has no gdp"),
        ("config.yaml", {"problem": "synthetic"}, "config.yaml: problem must be of kind table, got 'synthetic'"),
        ("config.yaml", {"algorithm": {"name": "ts", "private": False}}, "algorithm has no 'P'"),
    ],
)
def test_files_are_checked_when_they_are_read(file, changes, words, results):
    path = results / "made_up" / "ccc" / "1" / file
    path.write_text(json.dumps({**yaml.safe_load(path.read_text()), **changes}))
    with pytest.raises(load.LoadError) as refused:
        load.load(results, "made_up")
    said = str(refused.value)
    assert said.startswith(f"{path.parent} was not written by this version (") and f"{words}): delete it" in said


def test_settings_that_some_runs_lack(tmp_path):
    for setting, more in (("a", {}), ("b", {"local_initialisation": False}), ("c", {"local_initialisation": True})):
        file = write_run(tmp_path, setting, 0, [1.0, 0.5], "dp_fts", True, epsilon=TWO_ROUNDS) / "config.yaml"
        config = yaml.safe_load(file.read_text())
        config["algorithm"] |= more
        file.write_text(yaml.safe_dump(config))
    groups = read(tmp_path)
    labels = ["DP-FTS, z = 1", "DP-FTS, z = 1, initial points anywhere", "DP-FTS, z = 1, local initial points"]
    assert [g.label for g in groups] == labels
    assert by_iteration.regret_by_iteration(groups).axes


def test_a_configuration_names_classes_without_their_modules():
    weights = {
        "_target_": "dpfbo.federated.weights.uniform.Uniform",
        "each": [{"_target_": "dpfbo.federated.weights.power.Power"}],
    }
    found = load.normalised({"algorithm": {"server": None}, "weights": weights, "n_init": 3})
    assert found == {
        "algorithm": {"server": None}, "weights": {"_target_": "Uniform", "each": [{"_target_": "Power"}]}, "n_init": 3
    }  # fmt: skip
    assert load.normalised(found) == found
    server = {"_target_": "dpfbo.federated.peer_exchange.PeerExchange"}
    assert load.normalised({"algorithm": {"server": server}})["algorithm"]["server"] == "PeerExchange"


def test_a_server_of_ones_own_is_named_by_its_class():
    assert load.normalised({"algorithm": {"server": {"_target_": "mine.Gossip"}}})["algorithm"]["server"] == "Gossip"


def test_a_program_reads_each_run_once(results, tmp_path, monkeypatch, capfd):
    """A program reads each of the three files once, and no epsilon of runs that share nothing."""
    read_files, real_open, real_parquet = Counter(), bounded.open_file, pd.read_parquet

    def opened(path, mode):
        read_files[path] += path.is_relative_to(results)
        return real_open(path, mode)

    def parquet(path, **options):
        read_files[path] += 1
        return real_parquet(path, **options)

    monkeypatch.setattr(bounded, "open_file", opened)
    monkeypatch.setattr(pd, "read_parquet", parquet)
    given = [f"results_dir={results}"]
    for program in (
        lambda: tables.main(["made_up", *given]),
        lambda: figures.main(["made_up", *given, "--out", str(tmp_path / "f")]),
        lambda: report.main(["made_up", *given, "--out", str(tmp_path / "r.html")]),
    ):
        read_files.clear()
        assert program() == 0
        assert max(read_files.values()) == 1
        assert sum(read_files.values()) >= 2 * 9


def test_server_file_that_is_not_there(results):
    (results / "made_up" / "ccc" / "0" / "server.parquet").unlink()
    with pytest.raises(load.LoadError) as refused:
        _ = read(results)[2].first.epsilon_spent
    assert str(refused.value).count("server.parquet") == 1 and "run it again" in str(refused.value)


def test_labels_are_no_markup_and_long_ones_leave_room(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("COLUMNS", "80")
    write_run(tmp_path, "a", 0, [0.5, 0.25], "[/red]" + "long" * 40)
    assert tables.main(["made_up", f"results_dir={tmp_path}"]) == 0
    out = capfd.readouterr().out
    assert "[/red]long" in out and "0.2500" in out and "0 (nothing shared)" in out
    assert "".join(line.split()[0] for line in out.splitlines() if "long" in line) == "[/red]" + "long" * 40


def test_refused_rounds(results, capfd):
    arguments = ["made_up", f"results_dir={results}"]
    assert tables.main([*arguments, "--rounds", "1,3"]) == 1
    assert "round 3 is not in the results of made_up: 0 to 2 are" in capfd.readouterr().err
    with pytest.raises(SystemExit) as stop:
        tables.main([*arguments, "--rounds", "5,a"])
    assert stop.value.code == 2


@pytest.mark.parametrize("path", sorted(PUBLISHED.glob("*.csv")), ids=lambda p: p.name)
def test_published_numbers(path):
    header, *rows = list(csv.reader(path.open()))
    assert rows and all(len(row) == len(header) for row in rows)
    assert path.name in (PUBLISHED / "README.md").read_text()
