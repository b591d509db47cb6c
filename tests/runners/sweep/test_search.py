"""Searches: what they suggest, that a killed one goes on as if nothing had happened, and what is refused."""

import json
import math
from contextlib import nullcontext
from itertools import islice

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from dpfbo.formats.run_folder import RunFolder
from runners.compose.sweep_line import Interval
from runners.sweep import command
from runners.sweep.plan import plan
from runners.sweep.trials import TrialState, read_plan
from runners.sweep.tuning.search import SearchOptions, SettingOutcome, suggestions
from tests.helpers.compose import with_seed

TINY = [
    "problem=branin", "problem.n_agents=4", "rounds=2", "algorithm.M=10", "acquisition.n_candidates=20",
    "acquisition.n_starts=1", "tracker.wandb.mode=disabled", "privacy.accountants=[moments,rdp,fixed_size,gdp]",
    "privacy.accountant=rdp", "experiment_name=mine",
]  # fmt: skip
SPACE = ["privacy.q=interval(0.1,1)", "privacy.z=tag(log,interval(0.5,4))", "algorithm.P=choice(1,2)"]
SEARCH = [*TINY, *SPACE, "sweep.search=random", "sweep.num_samples=5", "sweep.search_batch=2", "seeds=0,1"]


def interval(text):
    return Interval.of("x", OverridesParser.create().parse_override(f"x={text}").value())


def first(n, search, space, found=(), seed=0):
    options = SearchOptions(search, 10, "final", 4, seed)
    return list(islice(suggestions(options, space, found, True), n))


@pytest.mark.parametrize("search", ["random", "optuna"])
def test_suggestions_lie_in_the_space_and_follow_from_the_seed(search):
    pytest.importorskip("optuna")
    space = {
        "q": interval("interval(0.123456, 0.9)"), "z": interval("tag(log, interval(0.01, 100))"),
        "n": interval("int(interval(1, 3))"), "m": interval("tag(log, int(interval(1, 1000)))"), "a": ("ts", "fts"),
    }  # fmt: skip
    drawn = first(200, search, space)
    assert drawn == first(200, search, space) != first(200, search, space, seed=1)
    assert all(words[key] in values for words in drawn for key, values in space.items())
    assert {words["n"] for words in drawn} == {"1", "2", "3"} and {words["a"] for words in drawn} == {"ts", "fts"}
    assert max(len(words["q"]) for words in drawn) <= len("0.123456")  # rounded, unless it is an end
    if search == "random":  # half below the geometric mean; 200 draws have a standard error of 7
        for key, middle in (("q", 0.512), ("z", 1.0), ("m", math.sqrt(1000))):
            assert abs(sum(float(words[key]) < middle for words in drawn) - 100) < 28


def test_optuna_prefers_what_was_good():
    pytest.importorskip("optuna")
    space = {"x": interval("interval(0, 1)"), "a": ("good", "bad")}
    draws = first(40, "random", space)
    found = [(w, SettingOutcome(abs(float(w["x"]) - 0.3) + (w["a"] == "bad"))) for w in draws]
    found += [
        ({"x": "0.9", "a": "bad"}, SettingOutcome(None)),
        ({"x": "0.8", "a": "bad"}, SettingOutcome(2.0, stopped=3)),
    ]
    near = [w for w in first(10, "optuna", space, found) if w["a"] == "good" and abs(float(w["x"]) - 0.3) < 0.2]
    assert len(near) >= 6  # of draws at random a fifth
    assert first(5, "optuna", space, found) == first(5, "optuna", space, found)


def test_outcome_of_a_setting(tmp_path):
    folders = [RunFolder(tmp_path / str(seed)) for seed in range(2)]
    folders[0].path.mkdir()
    (folders[0].path / "summary.json").write_text(json.dumps({"curve": {"mean": [3.0, 1.0]}}))
    done, failed = TrialState("done", 1, 1.0), TrialState("failed", error="x")
    early = TrialState("interrupted", 1, 4.0, stopped_by="asha")
    assert SettingOutcome.of("final", [(folders[0], done), (folders[1], early)]) == SettingOutcome(2.5, stopped=1)
    assert SettingOutcome.of("curve", [(folders[0], done)]) == SettingOutcome(2.0)
    assert SettingOutcome.of("curve", [(folders[1], done)]) == SettingOutcome(None)
    assert SettingOutcome.of("final", [(folders[0], done), (folders[1], failed)]) == SettingOutcome(None)


@pytest.mark.parametrize("text", ["interval(2, 1)", "interval(1, 1)", "tag(log, interval(0, 1))", "interval(0, inf)"])
def test_bad_intervals(text):
    with pytest.raises(ValueError, match=r"x must be an interval\(low, high\) with"):
        interval(text)


@pytest.fixture
def here(monkeypatch):
    """Run trials in this process, one after another; the values list them, and their numbers at which to end."""
    from runners.sweep import attempt, tune

    ran, kill = [], []

    def run_trials(todo, options, table):
        for setting, trial in todo:
            if len(ran) in kill:
                kill.remove(len(ran))
                raise KeyboardInterrupt
            ran.append(trial.key)
            table.update(trial, attempt.attempt(with_seed(setting, trial.seed), lambda *_: None))
        return []

    monkeypatch.setattr(tune, "run_trials", run_trials)
    monkeypatch.setattr(tune, "cluster", lambda options: nullcontext())
    return ran, kill


def suggested(folder):
    """The keys of the space in the settings of sweep.json, in order."""
    overrides = {trial.setting: trial.overrides for trial in read_plan(folder / "mine")}
    return [
        tuple(o for o in each if o.startswith(("privacy.q", "privacy.z", "algorithm.P"))) for each in overrides.values()
    ]


@pytest.mark.parametrize("search", [pytest.param("random", marks=pytest.mark.slow), "optuna"])
def test_a_killed_search_goes_on_as_if_it_had_not_been(search, here, tmp_path, capsys):
    pytest.importorskip("optuna")
    ran, kill = here
    line = [*SEARCH, f"sweep.search={search}"]
    assert command.main([*line, f"results_dir={tmp_path / 'a'}"]) == 0
    assert len(ran) == len(set(ran)) == 10
    out = capsys.readouterr().out
    assert "best of 5 settings: q=" in out and ", final simple_regret 0." in out and "10 of 10 done" in out
    kill += [13, 16]  # within the first and within the second two settings
    other = [*line, f"results_dir={tmp_path / 'b'}"]
    assert [command.main(other), command.main(other), command.main(other)] == [130, 130, 0]
    assert len(ran) == 20
    assert suggested(tmp_path / "a") == suggested(tmp_path / "b") and len(suggested(tmp_path / "b")) == 5
    assert command.main([*other, "sweep.max_concurrent=1"]) == 0  # no part of a setting
    assert len(ran) == 20
    assert command.main([*other, "sweep.num_samples=6"]) == 0
    assert len(ran) == 22 and suggested(tmp_path / "b")[:5] == suggested(tmp_path / "a")


def test_a_small_space_is_searched_once(here, tmp_path, capsys):
    ran, _ = here
    line = [*TINY, "algorithm=choice(ts,dp_fts)", "privacy.z=1,2", "sweep.search=random", f"results_dir={tmp_path}"]
    assert command.main([*line, "sweep.objective=curve"]) == 0
    assert len(ran) == 3  # ts has no z
    assert "best of 3 settings: " in (out := capsys.readouterr().out) and "mean of the curve of simple_regret" in out


REFUSED = [
    (["sweep.search=null"], 2, "privacy.q must be a list of values, a choice(), range() or glob(), got privacy.q="),
    (["privacy.rng=os"], 2, "sweep.search is for simulations, with privacy.rng=seeded, got 'os': epsilon does not"),
    (["problem=branin,synthetic", "sweep.num_samples=9", "sweep.search_batch=9"], 2, "of one problem and metric, got"),
    (["sweep.settings=['algorithm=ts']"], 2, "sweep.search chooses the settings itself: leave out"),
    (["privacy.q=1", "privacy.z=1", "algorithm.P=1"], 2, "sweep.search needs keys with an interval(), a choice()"),
    (["privacy.z=interval(2,1)"], 1, "privacy.z must be an interval(low, high) with low < high, got interval(2.0"),
    (["privacy.z=interval(-2,-1)"], 1, "privacy.z (noise_multiplier) must be"),
    (["sweep.search=bayes"], 1, "sweep.search must be one of None, 'optuna', 'random', got 'bayes'"),
    (["sweep.objective=best"], 1, "sweep.objective must be one of 'final', 'curve', got 'best'"),
    (["sweep.num_samples=0"], 1, "sweep.num_samples must be an integer of at least 1, got 0"),
    (["sweep.search_batch=0"], 1, "sweep.search_batch must be an integer of at least 1, got 0"),
    (["sweep.search_seed=-1"], 1, "sweep.search_seed must be an integer of at least 0, got -1"),
    (["sweep.tensorboard=maybe"], 1, "sweep.tensorboard must be one of True, False, got 'maybe'"),
    (["sweep.scheduler=pbt"], 1, "sweep.scheduler must be one of None, 'asha', 'median', got 'pbt'"),
    (["sweep.scheduler=asha"], 2, "sweep.scheduler_options.grace_period must be less than rounds=2, got 5"),
    (["+sweep.scheduler_options.max_t=3"], 1, "a key of sweep.scheduler_options must be one of 'grace_period'"),
    (["sweep.scheduler=asha", "sweep.scheduler_options.reduction_factor=1"], 1, "must be greater than 1, got 1"),
]  # fmt: skip


@pytest.mark.parametrize(("more", "code", "says"), REFUSED, ids=[" ".join(more) for more, _, _ in REFUSED])
def test_refused_in_one_sentence(more, code, says, here, tmp_path, capsys):
    assert command.main([*SEARCH, *more, f"results_dir={tmp_path / 'r'}"]) == code
    error = capsys.readouterr().err
    assert error.startswith("error: ") and says in error and error.count("\n") == 1
    assert not (tmp_path / "r").exists()


def test_schedulers_are_for_simulations_of_one_problem(tmp_path, capsys):
    line = [*TINY, "sweep.scheduler=median", "sweep.scheduler_options.grace_period=1", f"results_dir={tmp_path}"]
    assert command.main([*line, "privacy.rng=seeded,os"]) == 2
    assert "sweep.scheduler is for simulations, with privacy.rng=seeded, got 'os'" in capsys.readouterr().err
    assert command.main([*line, "problem=branin,synthetic"]) == 2
    assert "sweep.scheduler compares trials of one problem and metric" in capsys.readouterr().err
    assert plan(line).options.early_stopping.scheduler == "median"


def test_one_experiment_at_a_time(tmp_path, capsys):
    line = ["experiment=fig2c,fig2d", "privacy.z=interval(1,2)", "sweep.search=random", f"results_dir={tmp_path}"]
    assert command.main(line) == 2
    assert "sweep.search chooses the settings itself" in capsys.readouterr().err


def test_without_optuna(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    assert command.main([*SEARCH, "sweep.search=optuna", f"results_dir={tmp_path}"]) == 1
    assert "sweep.search=optuna needs optuna: pip install 'dpfbo[optuna]'" in capsys.readouterr().err
