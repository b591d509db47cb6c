"""The private prior in claims, labels and the figure of few evaluations."""

import copy
import itertools
from functools import cache
from pathlib import Path

import hydra
import numpy as np
import pandas as pd
import pytest
from omegaconf import OmegaConf

from analysis import claims, load, pictures
from analysis.drawing import equal_epsilon
from analysis.drawing.looks import of_algorithm
from analysis.evidence import verdict_table
from analysis.evidence.selection import NotRun, SettingFilter
from analysis.evidence.verdicts import CONTRARY, HOLDS, NOT_RUN, OPEN, SAME
from analysis.labels import label, labels
from analysis.load import Run, normalised
from runners.compose.configuration import Composer, composing
from runners.compose.sweep_line import expanded
from tests.helpers.result_folders import alone

CASES = {claim.experiment: claim.case for claim in claims.claims() if claim.experiment.startswith("few_")}
# regret of each algorithm in the made-up runs: the prior beats all but where a test says otherwise
LEVEL = {"dp_prior": 0.1, "shared_prior": 0.05, "ts": 0.3, "local": 0.3, "noise": 0.3}
SPREAD = np.random.default_rng(0).normal(0, 0.2, 12)  # by seed: objectives differ, alike for all algorithms


@cache
def configs(experiment, scale, words=""):
    """The resolved configuration of each setting of an experiment whose entry holds these words.

    Of synthetic ones they are those of two of the mixtures.
    """
    with composing():
        sweep = hydra.compose("config", [f"experiment={experiment}"]).sweep
        entries = [*sweep.settings, *sweep.scales[scale].get("also", [])]
        entries = [entry.replace("alpha=0,0.3,0.7,1", "alpha=0.3,1") for entry in entries]
        combinations = [one for entry in entries if words in entry for one in expanded(entry.split())]
        composer = Composer()
        composed = [composer.compose([f"experiment={experiment}", *one]) for one in combinations]
        return [OmegaConf.to_container(cfg, resolve=True) for cfg in composed]


def runs_of(experiment, seeds=(0,), level=LEVEL, scale="paper", words=""):
    """A run for each seed of every setting of an experiment, with a made-up curve that falls to 0 after round 10."""
    return [
        run_of(experiment, f"setting{k}", copy.deepcopy(config), seed, k, level)
        for k, config in enumerate(configs(experiment, scale, words))
        for seed in seeds
    ]


def run_of(experiment, setting, config, seed, k, level):
    name, T, case = config["algorithm"]["name"], config["rounds"], CASES.get(experiment)
    of_noise = name == "dp_prior" and config["privacy"]["z"] == 10000
    noise = 0.01 * np.random.default_rng(1000 * k + seed).normal()
    value = 5 + level.get("noise" if of_noise else name, 0.4) + SPREAD[seed] + noise
    if "function_seed" in config["problem"]:
        config["problem"]["function_seed"] = seed
    private = config["algorithm"]["private"]
    target = config["privacy"]["epsilon"]
    summary = {
        "experiment": experiment, "setting": setting, "problem": case.problem if case else "synthetic", "seed": seed,
        "metric": case.metric if case else "simple_regret", "lower_is_better": True, "rounds": T, "algorithm": name,
        "n_agents": config["problem"]["n_agents"], "private": private, "delta": 0.01, "relation": "zero-out",
        "accountant": "pld", "epsilon": {"pld": target if private else 0.0}, "curve": {"mean": [9.0] + [value] * T},
        "n_charges": (1 if "prior" in name else T) if private else 0,
    }  # fmt: skip
    return Run(setting, seed, normalised(config), summary, Path())


@pytest.mark.parametrize("experiment", ["few_school", "frontier"])  # the other parts differ in their problem
def test_claims_find_one_setting_each_among_those_of_the_experiment(experiment):
    runs = runs_of(experiment)
    stated = claims.claims([experiment])
    assert len(stated) >= (5 if experiment == "frontier" else 8)
    for claim in stated:
        if ("alpha", 0.0) not in claim.case.variant and ("alpha", 0.7) not in claim.case.variant:
            assert alone(claim.outcome(runs)) == OPEN  # one seed


def test_quick_runs_have_all_settings_of_the_claims():
    runs = runs_of("few_school", scale="quick")
    for claim in claims.claims(["few_school"]):
        assert alone(claim.outcome(runs)) == OPEN


@pytest.mark.parametrize(
    ("prior", "beats", "harmless"), [(0.1, HOLDS, HOLDS), (0.3, SAME, HOLDS), (0.7, CONTRARY, CONTRARY)]
)
def test_what_holds_and_what_does_not(prior, beats, harmless):
    runs = runs_of("few_synthetic", range(8), LEVEL | {"dp_prior": prior})
    found = {f.id: f for f in claims.judge({"few_synthetic": runs})}
    for T in (10, 20):
        for other in ("local", "noise", "ts"):
            assert found[f"few_synthetic.0.3_t{T}_{other}"].verdict == beats
        assert found[f"few_synthetic.1_t{T}_no_harm"].verdict == harmless
        assert found[f"few_synthetic.0.3_t{T}_control"].verdict == (HOLDS if prior < 0.5 else CONTRARY)
        assert f"few_synthetic.1_t{T}_local" not in found
    one = found["few_synthetic.0.3_t10_dp_fts_de"]
    assert (one.source, one.form, one.units) == ("own", "superiority", "8 functions")
    assert one.claim.endswith("mean regret over rounds 1 to 10")
    kinds = dict(verdict_table.kinds(list(found.values())))
    control = "controls: sharing against servers that send random points"
    assert set(kinds) == {control, "own findings on the private prior"}


def test_private_methods_of_other_lengths_do_not_stand_for_one_another():
    """Without the runs of T = 10 there is nothing to compare the prior's first ten rounds with."""
    runs = [run for run in runs_of("few_school", range(4)) if run.summary["rounds"] == 20]
    found = {f.id: f for f in claims.judge({"few_school": runs})}
    assert found["few_school.t10_dp_fts_de"].verdict == NOT_RUN
    assert "no finished run of DP-FTS-DE, P = 4, ε = 1" in found["few_school.t10_dp_fts_de"].ours
    assert found["few_school.t10_local"].verdict == found["few_school.t20_dp_fts_de"].verdict == HOLDS


def test_no_prior_stands_for_another():
    runs = [run for run in runs_of("frontier") if run.config["algorithm"]["name"] == "dp_prior"]
    assert len(SettingFilter.of("prior epsilon=1").among(runs)) == 1
    assert len(SettingFilter.of("prior_of_noise").among(runs)) == 1
    with pytest.raises(NotRun):
        SettingFilter.of("prior epsilon=3").among(runs)


@pytest.mark.parametrize(
    ("key", "value"), [("averaged_gp", {"warp": False}), ("design", "uniform"), ("message", "statistics"), ("M", 200)]
)
def test_another_prior_does_not_count(key, value):
    """Neither one with other settings, nor the prior of an earlier version, whose messages were statistics."""
    (run,) = SettingFilter.of("prior epsilon=1").among(runs_of("frontier"))
    given = run.config["algorithm"]
    given[key] = given[key] | value if isinstance(value, dict) else value
    assert not SettingFilter.of("prior epsilon=1").matches(run)


def test_agents_alone_are_told_apart():
    runs = runs_of("frontier")
    for kind, name in (("ts", "ts"), ("local", "local")):
        (run,) = SettingFilter.of(kind).among(runs)
        assert run.config["algorithm"]["name"] == name


def test_the_first_rounds_of_a_longer_run_are_measured():
    run = runs_of("few_school")[0]
    run.summary["curve"]["mean"] = [9.0] + [1.0] * 10 + [0.0] * 10
    cases = [next(c for c in claims.claims(["few_school"]) if c.case.T == T) for T in (10, 20)]
    assert [claim.test.measure.of(*claim.case.among([run])) for claim in cases] == [1.0, 0.5]


def test_labels():
    named = {run.setting: run for run in runs_of("few_school")}
    texts = [label(run.config) for run in named.values()]
    assert {"private prior, ε = 0.25", "private prior, z = 10000", "shared prior", "local EI"} < set(texts)
    firsts = list(named.values())
    told = labels([run.config for run in firsts], [run.flat for run in firsts], list(named))
    assert {"DP-FTS-DE, P = 4, ε = 1, T = 10", "DP-FTS-DE, P = 4, ε = 1, T = 20"} < set(told)
    assert len(set(told)) == len(told) == 32


def test_problems_of_one_experiment_share_no_table():
    runs = runs_of("few_botorch", words="algorithm=ts")
    groups = load.by_metric(runs)
    assert [group[0].config["problem"]["function"] for group in groups] == ["Hartmann", "Branin"]
    names = {pictures.slug(load.settings(group)) for group in groups}
    assert names == {"botorch_20_simple_regret_Hartmann", "botorch_20_simple_regret_Branin"}


def test_runs_are_cut_off_only_where_nothing_is_released_later():
    runs = runs_of("few_school")
    assert equal_epsilon.lengths(runs) == [10, 20]
    short, long = equal_epsilon.of_length(runs, 10), equal_epsilon.of_length(runs, 20)
    by_name = {T: {r.config["algorithm"]["name"]: r.summary["rounds"] for r in found} for T, found in
               ((10, short), (20, long))}  # fmt: skip
    assert set(by_name[20].values()) == {20}
    assert {name: T for name, T in by_name[10].items() if T == 10} == {"dp_fts_de": 10, "dp_fts_de_plus": 10}
    assert len(short) == len(long) == 22
    rest = [run for run in runs if run.summary["rounds"] == 20]
    assert not [run for run in equal_epsilon.of_length(rest, 10) if "fts_de" in run.config["algorithm"]["name"]
                and run.summary["private"]]  # fmt: skip


@pytest.fixture
def few():
    return runs_of("few_synthetic", range(2))


def test_the_figure_has_a_row_for_each_problem_and_a_panel_for_each_length(few):
    drawn = pictures.draw_experiment("few_synthetic", few)
    (one,) = drawn
    titles = [text.get_text().replace("\n", " ") for text in one.figure.texts[1:-1]]
    assert titles == [
        f"synthetic heterogeneous, α = {alpha}: mean over rounds 1 to T = {T}"
        for alpha, T in itertools.product(("0.3", "1"), (10, 20))
    ]
    (legend,) = one.figure.legends
    entries = [text.get_text() for text in legend.get_texts()]
    assert entries[-1] == "private prior" and "shared prior (not private)" not in entries[:2]
    assert set(entries) >= {
        "TS (ε = 0)",
        "local EI (ε = 0)",
        "random server, P = 2 (ε = 0)",
        "Sobol server, P = 2 (ε = 0)",
    }
    assert "were run for T = 10 or 20, each with its own noise" in " ".join(one.figure.texts[-1].get_text().split())
    assert {axes.get_xlabel() for axes in one.figure.axes} == {"privacy loss ε of the whole run"}
    rows = one.table[(one.table["algorithm"] == "dp_prior") & (one.table["target_epsilon"] == 1)]
    assert sorted(rows["rounds"]) == [10] * 2 + [20] * 2
    assert not pd.isna(rows["average_se"]).any()


def test_the_legend_lies_above_all_panels(few):
    (one,) = pictures.draw_experiment("few_synthetic", few)
    one.figure.draw_without_rendering()
    lower = one.figure.legends[0].get_window_extent().y0
    titles = one.figure.texts[1:-1]
    tops = [title.get_window_extent() for title in titles]
    assert max(title.y1 for title in tops) <= lower
    assert all(title.x0 >= 0 and title.x1 <= one.figure.bbox.width for title in tops)
    left, right = tops[:2]
    assert left.x1 < right.x0
    for above, below in itertools.pairwise(range(0, len(titles), 2)):
        label = one.figure.axes[above].xaxis.label
        assert titles[below].get_window_extent().y1 <= label.get_window_extent().y0


def test_the_prior_has_one_look(few):
    (one,) = pictures.draw_experiment("few_synthetic", few)
    look = of_algorithm("dp_prior")
    for axes in one.figure.axes:
        (line,) = [line for line in axes.lines if line.get_label() == "private prior"]
        assert line.get_color() == look.colour
        assert look.marker in {
            c.lines[0].get_marker() for c in axes.containers if c.lines[0].get_color() == look.colour
        }


def test_a_prior_without_the_family_beside_it_is_drawn():
    runs = [r for r in runs_of("frontier", range(2)) if r.config["algorithm"]["name"] in ("local", "dp_prior")]
    found = equal_epsilon.table(runs)
    assert found["target_epsilon"].dropna().tolist() == [0.1, 0.25, 0.5, 1, 2, 4, 8]
    assert found.loc[found["target_epsilon"].isna(), "algorithm"].tolist() == ["local"]
