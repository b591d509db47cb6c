"""The board's content is checked number by number, and holds nothing private of real releases."""

import json
import math
import os
import shutil

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpfbo.formats.curve_points import MOST_POINTS, epsilon_before, shown_rounds
from dpfbo.formats.run_folder import Progress, RunFolder
from runners.board import experiment_folder
from runners.board.board_data import BoardData
from runners.board.content import experiment_content
from runners.board.experiment_folder import ExperimentFolder
from runners.sweep.trials import record_failure
from tests.helpers.board_folders import BEST, begin, change, finish, plan, write


def content(results, private=False, drawn=None, **more):
    return experiment_content(ExperimentFolder(results / "mine"), private, drawn, **more)


def by_name(found):
    return {setting["name"]: setting for setting in found["settings"]}


@pytest.fixture
def sweep(tmp_path):
    """Setting aaa: two finished seeds, one interrupted, one failed, one waiting; bbb waits."""
    plan(tmp_path, {"aaa": "dp epsilon=4", "bbb": "other"}, range(5))
    finish(tmp_path, "aaa", 0, [0.8, 0.4, 0.2])
    finish(tmp_path, "aaa", 1, [0.6, 0.5, 0.3])
    begin(tmp_path, "aaa", 2, [0.1, 0.3])
    record_failure(begin(tmp_path, "aaa", 3, [9.0]), "sensor <b>off</b>", "Traceback")
    return tmp_path


def test_counts_and_progress(sweep):
    found = content(sweep)
    assert found["name"] == "mine"
    assert found["counts"] == {"done": 2, "interrupted": 1, "failed": 1, "waiting": 6}
    assert found["trials"] == 10
    assert found["rounds"] == {"ended": 2 + 2 + 1 + 2, "all": 20}
    newest = max(path.stat().st_mtime for path in sweep.rglob("*.json") if path.name != "sweep.json")
    assert found["changed"] == pytest.approx(newest)
    assert [(f["label"], f["seed"], f["words"]) for f in found["failed"]] == [("dp epsilon=4", 3, "sensor <b>off</b>")]


def test_quantiles_over_many_agents(sweep):
    """They are the means of the finished seeds, and private like every metric."""
    assert by_name(content(sweep))["aaa"]["spread"] == {}
    for seed, median in ((0, 0.25), (1, 0.5)):
        change(sweep / "mine" / "aaa" / str(seed), final={"mean": 0.2, "quantiles": {"5": 0.125, "50": median}})
    assert by_name(content(sweep))["aaa"]["spread"] == {"5": 0.125, "50": 0.375}
    for seed in (0, 1):
        change(sweep / "mine" / "aaa" / str(seed), rng="os")
    assert by_name(content(sweep))["aaa"]["spread"] == {}
    assert by_name(content(sweep, private=True))["aaa"]["spread"] == {"5": 0.125, "50": 0.375}


@pytest.mark.parametrize("given", [[1], {"5": "<b>"}, {"5": float("nan")}, {"5": None}, "x", {}])
def test_quantiles_that_are_no_numbers_are_none(sweep, given):
    change(sweep / "mine" / "aaa" / "0", final={"mean": 0.2, "quantiles": given})
    assert by_name(content(sweep))["aaa"]["spread"] == {}


def test_a_curve_is_the_mean_over_the_seeds_that_reached_a_round(sweep):
    curve = by_name(content(sweep))["aaa"]["curve"]
    assert curve["round"] == [0, 1, 2]
    assert curve["n"] == [3, 3, 2], "the failed trial does not count"
    assert curve["mean"] == pytest.approx([0.5, 0.4, 0.25])
    assert curve["se"] == pytest.approx([math.sqrt(0.13 / 3), math.sqrt(0.01 / 3), 0.05], rel=1e-5)
    assert curve["epsilon"] == [0.0, 1.5, 2.0], "before the round"


def test_final_values_are_of_finished_seeds_alone(sweep):
    found = by_name(content(sweep))
    assert found["aaa"]["final"] == pytest.approx({"mean": 0.25, "se": 0.05, "n": 2})
    assert found["aaa"]["so_far"]["mean"] == pytest.approx((0.2 + 0.3 + 0.3) / 3, rel=1e-5)
    assert found["aaa"]["at"] == [1, 1]
    assert (found["bbb"]["final"], found["bbb"]["curve"], found["bbb"]["counts"]) == (None, None, {"waiting": 5})


def test_epsilon_with_its_words_and_limits(sweep):
    config = sweep / "mine" / "aaa" / "0" / "config.yaml"
    config.write_text(
        config.read_text() + "\n".join(["privacy:", "  epsilon: 4", "  budget: {epsilon: 6, delta: 0.2}"])
    )
    change(sweep / "mine" / "aaa" / "0", delta=0.05)
    found = content(sweep)
    epsilon = by_name(found)["aaa"]["epsilon"]
    assert (epsilon["spent"], epsilon["so_far"], epsilon["target"], epsilon["budget"]) == (2.0, False, 4, 6)
    assert "0.2 (large: it allows a chance of 20%" in epsilon["budget_delta"]
    note = found["notes"][epsilon["note"]]
    assert note.startswith("ε by privacy-loss distributions at delta 0.05 (large: it allows a chance of 5% that")
    assert note.endswith("relation zero-out, user level")


def test_epsilon_of_unfinished_trials_is_one_so_far(tmp_path):
    begin(tmp_path, "aaa", 0, [0.5, 0.4])
    epsilon = by_name(content(tmp_path))["aaa"]["epsilon"]
    assert (epsilon["spent"], epsilon["so_far"], epsilon["target"]) == (1.5, True, 4.0)


def test_of_seeds_that_spent_differently_the_largest_epsilon_is_shown(tmp_path):
    finish(tmp_path, "aaa", 0, [0.8, 0.4, 0.2])
    finish(tmp_path, "aaa", 1, [0.8, 0.4, 0.2], epsilon={"pld": 3.5}, spent=[1.0, 3.5])
    begin(tmp_path, "aaa", 2, [0.8, 0.4])
    found = by_name(content(tmp_path))["aaa"]
    assert found["epsilon"]["spent"] == 3.5
    assert found["curve"]["epsilon"] == [0.0, 1.5, 3.5]
    write(tmp_path, "aaa", 3, [0.8, 0.4, 0.2], epsilon={"pld": None}, spent=[math.nan])
    assert by_name(content(tmp_path))["aaa"]["epsilon"]["none"], "no finite one is larger than all"


def test_no_finite_epsilon_is_none_and_not_0(tmp_path):
    no_epsilon = {"pld": None}
    write(tmp_path, "aaa", 0, [1.0, 0.5], "fts_de", epsilon=no_epsilon, spent=[math.nan])
    found = by_name(content(tmp_path))["aaa"]
    assert (found["epsilon"]["spent"], found["epsilon"]["none"]) == (None, True)
    assert found["curve"]["epsilon"] == [None, None]


def test_epsilon_before_the_first_round_is_unknown_where_earlier_releases_are_in_the_ledger(tmp_path):
    change(finish(tmp_path, "aaa", 0, [0.8, 0.4, 0.2]), n_charges=5)
    assert by_name(content(tmp_path))["aaa"]["curve"]["epsilon"] == [None, 1.5, 2.0]


def test_problems_and_metrics_are_panels_of_their_own(tmp_path):
    write(tmp_path, "aaa", 0, [0.5], problem="branin")
    write(tmp_path, "bbb", 0, [0.5], problem="landmine", metric="one_minus_auc")
    write(tmp_path, "ccc", 0, [0.5], problem="branin")
    write(tmp_path, "ddd", 0, [0.5], problem="branin", lower_is_better=False)
    panels = content(tmp_path)["panels"]
    assert [(p["problem"], p["metric"], p["lower_is_better"], p["settings"]) for p in panels] == [
        ("branin", "simple regret", True, ["aaa", "ccc"]),
        ("landmine", "1 − AUC", True, ["bbb"]),
        ("branin", "simple regret", False, ["ddd"]),
    ]


def test_runs_of_other_lengths_are_not_averaged(tmp_path):
    finish(tmp_path, "aaa", 0, [0.8, 0.4, 0.2])
    write(tmp_path, "aaa", 1, [9.0, 9.0], "dp_fts_de", True)
    assert by_name(content(tmp_path))["aaa, T=2"]["curve"]["mean"] == [0.8, 0.4, 0.2]


@pytest.mark.parametrize("kind", ["os", None, "unheard of"])
def test_private_records_of_real_releases_are_not_shown(tmp_path, kind):
    folder = finish(tmp_path, "aaa", 0, [0.8125, 0.4375, 0.28125])
    change(folder, rng=kind, best=BEST)
    record_failure(begin(tmp_path, "aaa", 1, [0.65625, 0.5625], rng=kind), "patient 17 is missing", "")
    data = BoardData([tmp_path / "mine"])
    found = data.for_file()
    text = json.dumps(found)
    for secret in ("8125", "4375", "65625", "5625", "patient", "kernel"):
        assert secret not in text
    setting = found["experiments"][0]["settings"][0]
    assert setting["curve"] == {"round": [0, 1, 2], "epsilon": [0.0, 1.5, 2.0]}, "the ledger's epsilon is public"
    assert setting["hidden"]
    assert "--private shows" in found["experiments"][0]["private"][0]


def test_a_setting_with_one_real_seed_is_hidden_whole(tmp_path):
    finish(tmp_path, "aaa", 0, [0.8, 0.4, 0.2])
    finish(tmp_path, "aaa", 1, [0.8, 0.4, 0.2], real=True)
    begin(tmp_path, "bbb", 0, [0.5])
    found = by_name(content(tmp_path))
    assert "mean" not in found["aaa"]["curve"]
    assert found["bbb"]["hidden"] is None


def test_private_records_are_shown_when_asked_for(tmp_path):
    finish(tmp_path, "aaa", 0, [0.8, 0.4, 0.2], real=True)
    found = content(tmp_path, private=True)
    assert by_name(found)["aaa"]["final"]["mean"] == pytest.approx(0.2)
    assert "keep it to yourself" in found["private"][0]


def test_a_failure_before_the_first_round_is_told_if_the_plan_says_simulation(tmp_path):
    for rng, words in (("seeded", "no data"), ("os", "the error may be private"), (None, "the error may be private")):
        shutil.rmtree(tmp_path / "mine", ignore_errors=True)
        plan(tmp_path, {"aaa": "x"}, [0], rng=rng)
        record_failure(RunFolder(tmp_path / "mine" / "aaa" / "0"), "no data", "")
        assert [f["words"] for f in content(tmp_path)["failed"]] == [words]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rounds": "2"}, "lacks rounds"),
        ({"final": []}, "lacks rounds, final"),
        ({"epsilon": {"pld": "much"}}, "as its epsilon"),
        ({"accountant": {}}, "lacks rounds"),
        ({"rounds": 10**30}, "lacks rounds"),
    ],
)
def test_a_damaged_summary_is_listed_as_unreadable(sweep, changes, words):
    change(sweep / "mine" / "aaa" / "1", **changes)
    found = content(sweep)
    assert found["counts"]["unreadable"] == 1
    assert words in found["faults"][0]["words"]
    assert by_name(found)["aaa"]["final"]["n"] == 1


@pytest.mark.parametrize("text", ["", "{", "[1]", "[" * 100_000, '{"a": NaN}', "\xff"])
def test_a_summary_that_is_no_json_object(sweep, text):
    (sweep / "mine" / "aaa" / "1" / "summary.json").write_bytes(text.encode("latin-1"))
    assert content(sweep)["counts"]["unreadable"] == 1


@pytest.mark.parametrize(
    "curve",
    [None, [], {"round": [0, 1]}, {"round": "012", "mean": [1]}, {"round": [[], {}, 0], "mean": ["x", None, 1e400]}],
)
def test_a_damaged_curve_is_no_curve(tmp_path, curve):
    change(finish(tmp_path, "aaa", 0, [0.8, 0.4, 0.2]), curve=curve)
    found = json.loads(json.dumps(content(tmp_path), allow_nan=False))
    assert found["counts"] == {"done": 1}
    assert not any((by_name(found)["aaa"]["curve"] or {}).get("mean", []))


def test_damaged_files_beside_the_summary(tmp_path):
    folder = finish(tmp_path, "aaa", 0, [0.8, 0.4, 0.2])
    (folder / "server.parquet").write_bytes(b"PAR1")
    (folder / "config.yaml").write_text("privacy: [")
    found = content(tmp_path)
    assert "server.parquet cannot be read" in found["faults"][0]["words"]
    assert by_name(found)["aaa"]["curve"]["mean"] == [0.8, 0.4, 0.2]
    progress = RunFolder(tmp_path / "mine" / "bbb" / "0").path
    progress.mkdir(parents=True)
    for text in (
        '{"round": "x", "rounds": 2, "mean": 1, "epsilon": 0, "facts": {}, "curve": {}}',
        '{"round": 7, "rounds": 2, "mean": 1, "epsilon": 0, "facts": {}, "curve": {}}',
    ):
        (progress / "progress.json").write_text(text)
        assert content(tmp_path)["faults"][-1]["words"] == "progress.json has no valid rounds"


def test_a_progress_without_facts_is_read_and_hidden(tmp_path):
    """It does not say that it is a simulation, and hides the simulations that would be averaged with it."""
    folder = begin(tmp_path, "aaa", 0, [0.5, 0.4])
    folder.note_progress(Progress(1, 2, 0.4, 1.5, {}, {}))
    found = by_name(content(tmp_path))["aaa"]
    assert (found["at"], found["so_far"], found["epsilon"]["spent"]) == ([1, 1], None, 1.5)
    finish(tmp_path, "aaa", 1, [0.8, 0.4, 0.2])
    found = by_name(content(tmp_path))["aaa"]
    assert (found["so_far"], found["final"]) == (None, None) and found["hidden"]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["round", "mean", "pld"]), inner),
    max_leaves=6,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(["summary.json", "progress.json", "failure.json"]), st.data())
def test_any_value_in_any_place_is_read_or_refused(sweep, name, data):
    path = sweep / "mine" / "aaa" / {"summary.json": "0", "progress.json": "2", "failure.json": "3"}[name] / name
    before = path.read_text()
    known = json.loads(before)
    keys = data.draw(st.lists(st.sampled_from([*known, "rng", "facts", "curve", "best"]), min_size=1, max_size=3))
    try:
        path.write_text(json.dumps({**known, **{key: data.draw(VALUES) for key in keys}}))
        found = BoardData([sweep / "mine"]).for_file()["experiments"][0]
        assert json.dumps(found, allow_nan=False)
        assert sum(found["counts"].values()) == 10
    finally:
        path.write_text(before)


def test_a_plan_cannot_lead_out_of_its_folder(tmp_path):
    finish(tmp_path, "aaa", 0, [0.8, 0.4, 0.2])
    outside = write(tmp_path, "secret", 0, [1.0], experiment="other").parent
    entries = [
        {"label": "x", "overrides": [], "setting": setting, "seed": seed, "rounds": 2, "metric": None}
        for setting, seed in ((f"../other/{outside.name}", 0), ("..", 0), (["a"], 0), ("aaa", "0"), (str(outside), 0))
    ]
    for entry in entries:
        (tmp_path / "mine" / "sweep.json").write_text(json.dumps({"trials": [entry]}))
        found = content(tmp_path)
        assert "sweep.json" in found["faults"][0]["words"]
        assert "secret" not in json.dumps(found["settings"])
    os.remove(tmp_path / "mine" / "sweep.json")
    assert content(tmp_path)["counts"] == {"done": 1}


def test_what_changes_is_read_again_and_what_does_not_is_not(sweep, monkeypatch):
    folder = ExperimentFolder(sweep / "mine")
    assert by_name(experiment_content(folder, False, None))["aaa"]["final"]["n"] == 2
    opened = []
    read = experiment_folder.read_trial

    def counted(trial, run):
        opened.extend([trial.seed] * (run.path / "summary.json").exists())
        return read(trial, run)

    monkeypatch.setattr(experiment_folder, "read_trial", counted)
    finish(sweep, "bbb", 0, [0.9, 0.9, 0.7])
    shutil.rmtree(sweep / "mine" / "aaa" / "2")
    finish(sweep, "aaa", 2, [0.1, 0.3, 0.1])
    found = by_name(experiment_content(folder, False, None))
    assert found["aaa"]["final"]["mean"] == pytest.approx(0.2)
    assert found["bbb"]["final"]["n"] == 1
    assert sorted(opened) == [0, 2], "two new ones; finished trials that are as before are not read"
    shutil.rmtree(sweep / "mine")
    gone = experiment_content(folder, False, None)
    assert (gone["exists"], gone["trials"], gone["settings"]) == (False, 0, [])


def test_folders_that_appear_later_and_a_folder_of_experiments(tmp_path):
    data = BoardData([tmp_path])
    assert [e["exists"] for e in data.content()["experiments"]] == [True]
    data = BoardData([tmp_path])
    finish(tmp_path, "aaa", 0, [0.8, 0.4, 0.2])
    write(tmp_path, "bbb", 0, [0.5], experiment="other")
    assert [e["name"] for e in data.content()["experiments"]] == ["mine", "other"]


def test_long_curves_are_thinned_and_their_last_round_stays(tmp_path):
    finish(tmp_path, "aaa", 0, [1 / (1 + t) for t in range(3001)])
    curve = by_name(content(tmp_path))["aaa"]["curve"]
    assert len(curve["round"]) <= MOST_POINTS + 1
    assert (curve["round"][-1], curve["mean"][-1]) == (3000, pytest.approx(1 / 3001, rel=1e-5))
    assert shown_rounds(7) == list(range(8))
    assert epsilon_before([0, 2, 3, 9], [1, 2], [0.5, None], 0.0) == [0.0, 0.5, None, None]


def test_only_some_of_many_settings_are_listed_and_drawn(tmp_path):
    plan(tmp_path, {f"s{k:03d}": f"setting {k}" for k in range(250)}, [0])
    for k in range(30):
        finish(tmp_path, f"s{k + 200:03d}", 0, [1.0, 1.0, 1.0 - k / 100])
    found = content(tmp_path)
    assert (found["n_settings"], len(found["settings"])) == (250, 200)
    drawn = [s["name"] for s in found["settings"] if s["curve"]]
    assert drawn == [f"s{k:03d}" for k in range(210, 230)], "the best, in the order of the plan"
    assert drawn == [s["name"] for s in found["settings"] if s["drawn_first"]]
    assert [s["name"] for s in content(tmp_path, drawn=["s201"])["settings"] if s["curve"]] == ["s201"]
    assert {s["label"] for s in content(tmp_path, find="TING 24")["settings"] if not s["curve"]} >= {
        f"setting 24{k}" for k in range(10)
    }


def test_runs_of_other_lengths_are_settings_of_their_own(tmp_path):
    finish(tmp_path, "aaa", 0, [0.5, 0.4, 0.3])
    finish(tmp_path, "aaa", 1, [0.5, 0.4, 0.3, 0.1])
    found = by_name(content(tmp_path))
    assert {name: (s["final"]["mean"], s["final"]["n"]) for name, s in found.items()} == {
        "aaa, T=2": (0.3, 1), "aaa, T=3": (0.1, 1)
    }  # fmt: skip
