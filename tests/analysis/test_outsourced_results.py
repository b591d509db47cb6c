"""Analysis of outsourced experiments on made-up results: claimed and guaranteed epsilons are kept apart."""

import itertools
import json
import math
from pathlib import Path

import hydra
import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
import yaml
from omegaconf import OmegaConf
from scipy import stats

from analysis import claims, figures, load, report, tables
from analysis.drawing import by_iteration, equal_epsilon, page, releases
from analysis.drawing.families import families
from analysis.drawing.page_style import STYLES
from analysis.evidence import verdict_table, verdicts
from analysis.evidence.claim import published_values
from analysis.evidence.claim_tests import band
from analysis.evidence.selection import MEASURES, SettingFilter, units_in_words
from analysis.evidence.verdicts import CONTRARY, HOLDS, NOT_RUN, OPEN, PublishedMean, mean_of
from analysis.html import sections
from runners.compose.conf_folder import CONF
from tests.helpers.pictures import overlapping
from tests.helpers.result_folders import alone, judged
from tests.helpers.result_folders import drawn as drawn_from

TRANSFORMS = {
    "gp_ucb": "plain.Plain", "random_rows": "indices.Indices", "cover_gp_ucb": "cover.Cover",
    "po_gp_ucb": "random_projection.RandomProjection", "gaussian_gp_ucb": "gaussian.GaussianNoise",
    "histogram_gp_ucb": "histogram.Histogram",
}  # fmt: skip
RELATIONS = {"gaussian_gp_ucb": "one row moved", "histogram_gp_ucb": "one row replaced"}
REASON = "not a guarantee when n > d + 1: the column space tells"
MEANS = {3: 0.09, 6: 0.04, 8: 0.02, 10: 0.012, 15: 0.12, 20: 0.13}
PROBLEMS = {
    "po_synthetic": "grid_gp", "po_loans": "loans", "po_property": "property_king_county", "po_branin": "branin_grid",
}  # fmt: skip
PRESET = {"n_init": 1, "delta": 1e-5, "repeat": True}
GRID = {"side_points": 100, "side": 8.0, "lengthscale": 1.25, "noise_variance": 1e-5}
names = (f"{k:06x}" for k in itertools.count())


def write(results, algorithm, values, epsilon=None, r=None, aware=True, sigma_min=None, experiment="po_synthetic",
          problem="grid_gp", T=50, change=None):  # fmt: skip
    """Write finished runs of a setting. values: last ones of falling curves, by seed; change: of the configuration."""
    name, private = next(names), algorithm in RELATIONS
    transform = {"_target_": f"dpfbo.outsourced.{TRANSFORMS[algorithm]}"}
    transform |= {} if epsilon is None else {"epsilon": epsilon, "delta": 1e-5}
    transform |= {} if r is None else {"r": r, "inflation": "paper"}
    repeat = not (algorithm == "random_rows" or (algorithm == "gaussian_gp_ucb" and aware))
    policy = "random" if algorithm == "random_rows" else "gp_ucb"
    for seed, value in values.items():
        folder = results / experiment / name / str(seed)
        folder.mkdir(parents=True)
        config = {
            "problem": {"_target_": "x.GridGP", "function_seed": seed, "preset": PRESET, **GRID},
            "transform": transform,
            "algorithm": {
                "name": algorithm, "server": {"_target_": "dpfbo.outsourced.curator.Curator"}, "private": private,
                "modeler": {"policy": policy, "noise_aware": aware, "repeat": repeat, "fit": "given"},
            },
            "privacy": {"epsilon": epsilon or 3.0042, "delta": 1e-5}, "n_init": 1, "rounds": T,
        }  # fmt: skip
        for section, values_of in (change or {}).items():
            config[section] = merged(config[section], values_of)
        summary = {
            "experiment": experiment, "setting": name, "problem": problem, "algorithm": algorithm, "seed": seed,
            "n_agents": 1, "rounds": T, "metric": "simple_regret", "lower_is_better": True, "private": private,
            "curve": {"mean": [2.0 - (2.0 - value) * t / T for t in range(T + 1)]},
            "delta": 1e-5, "relation": RELATIONS.get(algorithm, "nothing is guaranteed"), "rng": "seeded",
            "accountant": "analytic_gaussian", "epsilon_covers": "the release", "clip_fraction": 0.0,
            "epsilon": {"analytic_gaussian": epsilon if private else 0.0 if "cover" in algorithm else None},
            "n_charges": 0 if "cover" in algorithm else 1, "seconds": {"objective": 0.0, "total": 1.0},
            "published_claim": None if r is None else f"published claim (eps {epsilon}, delta 1e-05); {REASON}",
            **({} if sigma_min is None else {"release": {"sigma_min": sigma_min}}),
        }  # fmt: skip
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
        (folder / "summary.json").write_text(json.dumps(summary))
    return results / experiment / name


def merged(config, change):
    return config | {k: merged(config[k], v) if isinstance(v, dict) else v for k, v in change.items()}


def around(mean, n=8, sd=0.1, seed=0):
    """Numbers around a mean with a relative error, by seed."""
    return dict(enumerate(mean * (1 + sd * np.random.default_rng(seed).normal(size=n))))


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """The experiment with two settings of each sweep; at r = 10 the runs of all claimed epsilons are equal."""
    folder = tmp_path_factory.mktemp("results")
    for algorithm, mean in (("gp_ucb", 0.004), ("random_rows", 0.4), ("cover_gp_ucb", 0.06)):
        write(folder, algorithm, around(mean))
    for r, mean in MEANS.items():
        write(folder, "po_gp_ucb", around(mean), 3.0042, r, sigma_min=1030.9)
    write(folder, "po_gp_ucb", around(MEANS[10]), 4.4817, 10, sigma_min=1030.9)
    for epsilon, scale in ((1.0, 1.0), (3.0042, 0.3)):
        write(folder, "gaussian_gp_ucb", around(0.17 * scale, seed=1), epsilon)
        write(folder, "gaussian_gp_ucb", around(0.25 * scale, seed=2), epsilon, aware=False)
        write(folder, "histogram_gp_ucb", around(0.08 * scale, seed=3), epsilon)
    return folder


@pytest.fixture(scope="module")
def groups(results):
    return load.settings(load.load(results, "po_synthetic"))


def test_labels_say_what_is_claimed_and_what_is_guaranteed(groups):
    assert [g.label for g in groups] == [
        "GP-UCB",
        *(f"PO-GP-UCB, r = {r}, claimed ε = 3.00" for r in MEANS), "PO-GP-UCB, r = 10, claimed ε = 4.48",
        "GP-UCB on Gaussian rows (noise-aware), ε = 1.00", "GP-UCB on Gaussian rows (noise-aware), ε = 3.00",
        "GP-UCB on Gaussian rows (unaware), ε = 1.00", "GP-UCB on Gaussian rows (unaware), ε = 3.00",
        "GP-UCB on histogram, ε = 1.00", "GP-UCB on histogram, ε = 3.00",
        "cover (nothing released)", "random rows",
    ]  # fmt: skip
    assert {g.first.claimed_epsilon for g in groups if not g.label.startswith("PO")} == {None}


@pytest.mark.parametrize(
    ("algorithm", "file", "change", "words"),
    [
        ("po_gp_ucb", "summary.json", {"published_claim": 3}, "published_claim must be of kind text or null, got 3"),
        ("po_gp_ucb", "config.yaml", {"transform": {"_target_": "x"}}, "transform has no 'r'"),
        ("gp_ucb", "config.yaml", {"transform": None}, "transform must be of kind table, got None"),
        ("gaussian_gp_ucb", "config.yaml", {"privacy": {"delta": 1e-5}}, "privacy has no 'epsilon'"),
        ("gp_ucb", "config.yaml", {"algorithm": {"name": "gp_ucb", "private": False}}, "algorithm has no 'P'"),
    ],
)
def test_files_are_checked_when_they_are_read(algorithm, file, change, words, tmp_path):
    epsilon, r = {"po_gp_ucb": (3.0, 10), "gaussian_gp_ucb": (3.0, None)}.get(algorithm, (None, None))
    path = write(tmp_path, algorithm, {0: 0.1}, epsilon, r) / "0" / file
    read, dump = (json.loads, json.dumps) if path.suffix == ".json" else (yaml.safe_load, yaml.safe_dump)
    path.write_text(dump({**read(path.read_text()), **change}))
    with pytest.raises(load.LoadError, match="was not written by this version") as refused:
        load.load(tmp_path, "po_synthetic")
    assert words in str(refused.value)


def test_an_outsourced_run_says_what_was_published(tmp_path):
    file = write(tmp_path, "gp_ucb", {0: 0.1}) / "0" / "summary.json"
    summary = json.loads(file.read_text())
    del summary["published_claim"]
    file.write_text(json.dumps(summary))
    with pytest.raises(load.LoadError, match="has no 'published_claim'"):
        load.load(tmp_path, "po_synthetic")


def caption_of(figure):
    return page.apart(figure)[0]


def points_of(axes):
    """The points with error bars, in the order of drawing."""
    return [c.lines[0].get_xydata().tolist()[0] for c in axes.containers]


def entries(figure):
    return [text.get_text() for found in figure.legends for text in found.get_texts()]


def test_pages_by_iteration(groups):
    pages = by_iteration.releases_by_iteration(groups)
    assert [page.name for page in pages] == ["regret_by_iteration", "guaranteed_regret_by_iteration"]
    claimed, guaranteed = (page.figure for page in pages)
    heads = [[text.get_text() for text in figure.texts] for figure in (claimed, guaranteed)]
    assert heads[0][1:3] == [
        "PO-GP-UCB, r = 10: claimed ε, no guarantee",
        "PO-GP-UCB, claimed ε = 3.00 (no guarantee): r",
    ]
    assert heads[1][1:3] == ["GP-UCB on Gaussian rows: guaranteed ε", "GP-UCB on histogram: guaranteed ε"]
    assert {e for e in entries(claimed) if "ε" in e} == {"claimed ε = 3.00", "claimed ε = 4.48"}
    assert "ε = 1.00, unaware" in entries(guaranteed) and not [e for e in entries(guaranteed) if "claimed" in e]
    words = " ".join(heads[0][-1].split())
    assert "Identical runs, seed by seed: PO-GP-UCB, r = 10, claimed ε = 3.00 / 4.48." in words
    assert "claimed ε as published (δ = 1e-05), no guarantee" in words.replace("\u00a0", " ")
    assert "one row moved (GP-UCB on Gaussian rows)" in " ".join(heads[1][-1].split())
    left, right = claimed.axes
    shown = {line.get_label(): line for line in right.lines}
    np.testing.assert_allclose(shown["r = 15"].get_ydata()[-1], groups[5].at(50)[0])
    assert left.get_yscale() == "log" and left.get_ylim() == right.get_ylim()
    found = families(groups)
    assert all(c.style.line[1] for family in (*found.claimed, *found.columns) for c in family.curves)  # dashed
    aware, unaware, counts = found.guaranteed
    assert not any(c.style.line[1] for family in (aware, counts) for c in family.curves)  # solid
    assert not {c.style.colour for c in aware.curves} & {c.style.colour for c in unaware.curves}


@pytest.mark.parametrize("style", list(STYLES.values()), ids=list(STYLES))
def test_nothing_is_cut_off_in_any_style(style, groups):
    with mpl.rc_context(style.rc):
        pages = [*by_iteration.releases_by_iteration(groups, style), releases.releases_by_epsilon(groups, 50, style)]
        pages.append(releases.releases_by_columns(groups, 50, style))
        assert {page.name: overlapping(page.figure) for page in pages} == {page.name: [] for page in pages}


def test_claimed_and_guaranteed_epsilons_share_no_axes(groups):
    figure = releases.releases_by_epsilon(groups, 50).figure
    left, right = figure.axes
    assert "seed by seed: PO-GP-UCB, r = 10, claimed ε = 3.00 / 4.48." in caption_of(figure)
    assert left.get_xlabel() == "claimed ε, no guarantee"
    assert right.get_xlabel() == "ε (guaranteed, δ = 1e-05)"
    np.testing.assert_allclose(points_of(left), [[3.0042, groups[4].at(50)[0]], [4.4817, groups[7].at(50)[0]]])
    colours = [{c.lines[0].get_color() for c in axes.containers} for axes in (left, right)]
    assert len(colours[0]) == 1 and len(colours[1]) == 3 and not colours[0] & colours[1]
    assert [x for x, _ in points_of(right)] == [1.0, 3.0042] * 3  # each at its own epsilon
    assert [y for _, y in points_of(right)[4:]] == pytest.approx([groups[k].at(50)[0] for k in (12, 13)])
    horizontal = [line.get_ydata()[0] for line in right.lines if list(line.get_xdata()) == [0, 1]]
    assert horizontal == pytest.approx([groups[k].at(50)[0] for k in (0, 14, 15)])
    hollow = [line.get_xydata().tolist() for line in left.lines if line.get_markerfacecolor() == "white"]
    assert hollow == [[[0.985, 0.003]], [[3.0042, 0.014], [4.4817, 0.021]]]
    published_line = [line for line in left.lines if list(line.get_ydata()) == [0.003, 0.003]]
    assert [line.get_linewidth() < 1.0 for line in published_line] == [True]
    assert not any(0.003 in line.get_ydata() for line in right.lines)
    assert [e for e in entries(figure) if "published" in e] == ["published"]
    assert left.xaxis.get_major_formatter()(3.0042) == "3.00"
    assert len(releases.releases_by_epsilon(groups[8:], 50).figure.axes) == 1  # nothing is claimed there


def test_regret_against_r_marks_where_singular_values_are_raised(groups):
    figure = releases.releases_by_columns(groups, 50).figure
    (axes,) = figure.axes
    assert [x for x, _ in points_of(axes)] == list(MEANS)
    (*_, line) = [line for line in axes.lines if line.get_markerfacecolor() == "white"]
    assert line.get_xydata().tolist() == [[3, 0.073], [6, 0.038], [8, 0.018], [10, 0.014], [15, 0.118], [20, 0.137]]
    marks = [text.get_text() for text in axes.texts]
    assert marks == ["w = 496", "w = 733", "w = 861", "w = 976", "w = 1225", "w = 1438"]
    assert axes.patches[-1].get_x() == 12.5 and "raised before the release (grey)" in caption_of(figure)
    assert "claimed ε = 3.00, no guarantee" in axes.get_xlabel()
    r, epsilon, delta = 10, 3.0042, 1e-5
    w = 16 * math.sqrt(r * math.log(2 / delta)) * math.log(16 * r / delta) / epsilon
    assert releases.threshold(r, epsilon, delta) == pytest.approx(w)


def test_regret_against_r_has_a_panel_for_each_claimed_epsilon(tmp_path):
    """An epsilon of fewer than three r is left out, and the fit is named where it differs anywhere."""
    for epsilon, columns in ((3.0042, (3, 6, 8, 10)), (4.4817, (5, 10, 15)), (9.0, (10, 15))):
        for r in columns:
            write(tmp_path, "po_gp_ucb", around(0.1), epsilon, r, sigma_min=1030.9)
    write(tmp_path, "po_gp_ucb", around(0.2), 3.0042, 10, change={"algorithm": {"modeler": {"fit": "ml"}}})
    groups = load.settings(load.load(tmp_path, "po_synthetic"))
    figure = releases.releases_by_columns(groups, 50).figure
    assert [sorted({x for x, _ in points_of(axes)}) for axes in figure.axes] == [[3, 6, 8, 10], [5, 10, 15]]
    assert [text.get_text() for text in figure.axes[1].texts] == ["w = 443", "w = 654", "w = 821"]
    words = [text.get_text() for text in figure.texts]
    assert {"claimed ε = 3.00, no guarantee", "claimed ε = 4.48, no guarantee"} <= {*words}
    names = [family.name for family in families(groups).columns]
    fits = [("3.00", "given"), ("3.00", "ml"), ("4.48", "given")]
    assert sorted(names) == [f"PO-GP-UCB, claimed ε = {e} (no guarantee, fit = {fit})" for e, fit in fits]


def test_labels_name_a_modeler_that_fits(tmp_path):
    write(tmp_path, "po_gp_ucb", {0: 0.1}, 3.0042, 10, change={"algorithm": {"modeler": {"fit": "ml"}}})
    (group,) = load.settings(load.load(tmp_path, "po_synthetic"))
    assert group.label == "PO-GP-UCB (fit = ml), r = 10, claimed ε = 3.00"


def test_without_singular_values_nothing_is_marked(tmp_path):
    for r in (10, 15):
        write(tmp_path, "po_gp_ucb", around(0.1), 3.0042, r)
    figure = releases.releases_by_columns(load.settings(load.load(tmp_path, "po_synthetic")), 50).figure
    assert [text.get_text() for text in figure.axes[0].texts] == ["w = 976", "w = 1225"]
    assert "the smallest of all runs is not in these runs." in caption_of(figure)


def test_numbers_behind_the_pictures(groups):
    frame = releases.table(groups, 50).set_index(["setting", "source"])
    row = frame.loc[("PO-GP-UCB, r = 15, claimed ε = 3.00", "run")]
    assert (row["kind_of_epsilon"], row["epsilon"], row["r"], row["seeds"]) == ("claimed", 3.0042, 15, 8)
    assert row["mean"] == pytest.approx(groups[5].at(50)[0]) and row["se"] == pytest.approx(groups[5].at(50)[1])
    assert frame.loc[("PO-GP-UCB, r = 15, claimed ε = 3.00", "published"), "mean"] == 0.118
    assert frame.loc[("GP-UCB on histogram, ε = 3.00", "run"), "kind_of_epsilon"] == "guaranteed"
    assert frame.loc[("random rows", "run"), "kind_of_epsilon"] == "none"
    assert pd.isna(frame.loc[("random rows", "run"), "epsilon"])


def test_published_values_are_those_of_the_same_problem(tmp_path):
    write(tmp_path, "po_gp_ucb", around(0.1), 3.0042, 10)
    write(tmp_path, "po_gp_ucb", around(0.1), 3.1, 15)
    write(tmp_path, "po_gp_ucb", around(0.1), 3.0042, 20, problem="loans", experiment="po_loans")
    found = load.settings(load.load(tmp_path, "po_synthetic"))
    assert list(published_values(found)) == ["PO-GP-UCB, r = 10, claimed ε = 3.00"]
    assert published_values(load.settings(load.load(tmp_path, "po_loans"))) == {}
    assert families(found).left_out == ("PO-GP-UCB, r = 15, claimed ε = 3.10",)


@pytest.mark.parametrize(
    ("change", "is_published"),
    [
        ({}, True), ({"transform": {"inflation": "authors"}}, False), ({"problem": {"side": 12.0}}, False),
        ({"problem": {"noise_variance": 1e-4}}, False), ({"algorithm": {"modeler": {"fit": "ml"}}}, False),
    ],
)  # fmt: skip
def test_pictures_and_claims_agree_on_what_was_published(change, is_published, tmp_path):
    write(tmp_path, "po_gp_ucb", around(0.02), 3.0042, 10, change=change)
    assert bool(published_values(load.settings(load.load(tmp_path, "po_synthetic")))) is is_published
    (finding,) = [f for f in judged(tmp_path, "po_synthetic") if f.id.endswith(".band_r10_3.00_given")]
    assert (finding.verdict != NOT_RUN) is is_published


def test_settings_that_differ_in_something_else_are_lines_of_their_own(tmp_path):
    for epsilon in (1.0, 3.0042):
        write(tmp_path, "gaussian_gp_ucb", around(0.1), epsilon)
        write(tmp_path, "gaussian_gp_ucb", around(0.2), epsilon, change={"algorithm": {"modeler": {"fit": "ml"}}})
        write(tmp_path, "po_gp_ucb", around(0.3, seed=1), epsilon, 10)
        write(tmp_path, "po_gp_ucb", around(0.4), epsilon, 10, change={"transform": {"inflation": "authors"}})
    write(tmp_path, "gp_ucb", around(0.1))
    write(tmp_path, "gp_ucb", around(0.1), change={"algorithm": {"modeler": {"fit": "ml"}}})
    found = families(load.settings(load.load(tmp_path, "po_synthetic")))
    assert sorted(f.name for f in found.guaranteed) == [
        f"GP-UCB on Gaussian rows (noise-aware, fit = {fit})" for fit in ("given", "ml")
    ]
    assert {f.name for f in found.claimed} == {
        "PO-GP-UCB, r = 10 (σ raised to √(σ² + w²))", "PO-GP-UCB, r = 10 (σ raised to σ + w)"
    }  # fmt: skip
    for several in (found.guaranteed, found.claimed, found.references):
        assert len({one.style for one in several}) == 2
    assert all(f.x == (1.0, 3.0042) for f in (*found.guaranteed, *found.claimed))
    assert len({c.style for f in found.guaranteed for c in f.curves}) == 4


def test_errors_are_whole_on_linear_axes(tmp_path):
    write(tmp_path, "histogram_gp_ucb", {0: 0.3, 1: 0.5}, 1.0)
    (axes,) = releases.releases_by_epsilon(load.settings(load.load(tmp_path, "po_synthetic")), 50).figure.axes
    assert axes.get_yscale() == "linear" and axes.get_ylim()[0] < 0.3 and axes.get_ylim()[1] > 0.5


def test_what_a_logarithmic_axis_cannot_show_is_said(tmp_path):
    write(tmp_path, "histogram_gp_ucb", {0: 0.0, 1: 0.0}, 1.0)
    write(tmp_path, "histogram_gp_ucb", {0: 0.02, 1: 0.03}, 3.0042)
    write(tmp_path, "random_rows", {0: 0.5, 1: 0.6})
    groups = load.settings(load.load(tmp_path, "po_synthetic"))
    (by_round,) = by_iteration.releases_by_iteration(groups)
    said = "Not on this axis: GP-UCB on histogram, ε = 1.00{} (regret 0)."
    assert said.format(" from t = 50") in caption_of(by_round.figure)
    assert said.format("") in caption_of(releases.releases_by_epsilon(groups, 50).figure)


def test_each_page_tells_what_is_drawn_on_it(results):
    drawn = {one.name.removeprefix("po_synthetic_"): one for one in drawn_from(results, "po_synthetic")}
    claimed, guaranteed = (drawn[name].claims for name in ("regret_by_iteration", "guaranteed_regret_by_iteration"))
    assert "PO-GP-UCB" in " ".join(claimed) and "Gaussian" not in " ".join(claimed)
    assert "Gaussian" in " ".join(guaranteed) and "PO-GP-UCB" not in " ".join(guaranteed)
    assert "r = 15" in " ".join(drawn["regret_by_r"].claims) and "r = 15" not in " ".join(
        drawn["regret_by_epsilon"].claims
    )
    assert drawn["regret_by_r"].claims[0] not in caption_of(drawn["regret_by_r"].figure)


def test_an_accountant_that_no_run_has_is_refused(results, tmp_path, capsys):
    argv = ["po_synthetic", f"results_dir={results}", "--out", str(tmp_path / "figures")]
    assert figures.main([*argv, "--accountant", "foo"]) == 1
    assert "accountant must be one that the runs have (analytic_gaussian), got 'foo'" in capsys.readouterr().err
    assert not (tmp_path / "figures").exists()


def test_outsourced_runs_beside_targets_are_counted(results, monkeypatch):
    """Runs at target epsilons make one picture, without the outsourced runs."""
    passed = {}
    monkeypatch.setattr(equal_epsilon, "has_targets", lambda runs: True)
    monkeypatch.setattr(equal_epsilon, "table", lambda runs: passed.setdefault("runs", runs))
    monkeypatch.setattr(equal_epsilon, "figure", lambda found, aside, style: passed.setdefault("aside", aside))
    drawn_from(results, "po_synthetic")
    assert passed["runs"] == []
    assert passed["aside"] == "Not in the picture: 16 outsourced settings."


@pytest.mark.parametrize(
    ("settings", "pictures"),
    [
        ([("gp_ucb", None, None)], ["regret_by_iteration"]),
        ([("po_gp_ucb", 3.0042, 10)], ["regret_by_iteration", "regret_by_epsilon"]),
        ([("histogram_gp_ucb", 1.0, None)], ["guaranteed_regret_by_iteration", "regret_by_epsilon"]),
        (
            [("po_gp_ucb", 12.1825, 3), ("po_gp_ucb", 12.1825, 15)],
            ["regret_by_iteration", "regret_by_epsilon", "regret_by_r"],
        ),
    ],
)
def test_missing_settings_leave_pictures_out(settings, pictures, tmp_path):
    for algorithm, epsilon, r in settings:
        write(tmp_path, algorithm, {0: 0.1}, epsilon, r, experiment="po_loans", problem="loans")
    drawn = drawn_from(tmp_path, "po_loans")
    assert [one.name for one in drawn] == [f"po_loans_{name}" for name in pictures]
    for one in drawn:
        one.figure.draw_without_rendering()


def test_tables_and_report_give_the_claim_in_place_of_an_epsilon(results, tmp_path, monkeypatch, capsys):
    assert tables.main(["po_synthetic", f"results_dir={results}", "--json"]) == 0
    rows = {row["label"]: row for row in json.loads(capsys.readouterr().out)}
    assert REASON in rows["PO-GP-UCB, r = 10, claimed ε = 3.00"]["published_claim"]
    assert rows["GP-UCB"]["published_claim"] is None
    assert tables.main(["po_synthetic", f"results_dir={results}"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "claimed 3.00, no guarantee" in printed and "one curator and one modeler" in printed
    assert printed.count(f"claimed ε: published, {REASON}") == 1
    assert "relation one row moved or one row replaced; it covers" in printed
    monkeypatch.setattr(sections.pictures, "draw_experiment", lambda *_: [])
    assert report.main(["po_synthetic", f"results_dir={results}", "--out", str(tmp_path / "r.html")]) == 0
    page = (tmp_path / "r.html").read_text()
    assert page.count("<td>claimed 3.00, no guarantee</td>") == len(MEANS)
    assert f"Claimed ε: published, {REASON.replace('>', '&gt;')}." in page
    private = page[page.index('id="privacy"') :]
    assert "GP-UCB on histogram, ε" in private and "PO-GP-UCB" not in private.split("<h2")[0].replace(
        "published claim", ""
    )


@pytest.mark.parametrize(
    ("low", "high", "mean", "expected"),
    [
        (None, 0.04, 0.02, HOLDS), (None, 0.04, 0.06, CONTRARY), (None, 0.04, 0.0401, OPEN),
        (0.06, 0.16, 0.1, HOLDS), (0.06, 0.16, 0.03, CONTRARY), (0.06, 0.16, 0.3, CONTRARY), (0.06, 0.16, 0.158, OPEN),
    ],
)  # fmt: skip
def test_a_band_is_judged_by_its_error(low, high, mean, expected, tmp_path):
    values = around(mean)
    write(tmp_path, "gp_ucb", values)
    runs = load.load(tmp_path, "po_synthetic")
    outcome = band([SettingFilter.of("gp_ucb")], MEASURES["last"], low, high).outcome(runs)
    assert alone(outcome) == expected and outcome.units == "8 functions"
    ours = mean_of(list(values.values()))
    nearest = min(([] if low is None else [ours.value - low]) + [high - ours.value])
    assert outcome.standard_errors == pytest.approx(nearest / ours.se)
    few = band([SettingFilter.of("gp_ucb")], MEASURES["last"], low, high).outcome(runs[:2])
    assert alone(few) == OPEN


def test_a_band_is_wrong_at_most_at_the_level(tmp_path):
    """With the true mean at the upper end, both verdicts are wrong."""
    rng, found = np.random.default_rng(0), []
    for _ in range(2000):
        d = mean_of(list(rng.normal(0.16, 0.05, 10)))
        ends = [verdicts.Estimate(x, d.se, d.df, d.n) for x in (d.value - 0.06, 0.16 - d.value)]
        found.append(verdicts.family_verdicts([verdicts.Evidence(tuple(ends))])[0][0])
    se = math.sqrt(0.05 * 0.95 / 2000)
    assert (found.count(HOLDS) + found.count(CONTRARY)) / 2000 < 0.05 + 4 * se


def test_a_difference_beyond_a_margin_is_paired(tmp_path):
    """Functions differ much more than the settings: only paired seeds show the difference."""
    base = np.random.default_rng(0).normal(1.0, 0.5, 10)
    write(tmp_path, "po_gp_ucb", dict(enumerate(base)), 3.0042, 10)
    noise = 0.01 * np.random.default_rng(1).normal(size=10)
    write(tmp_path, "po_gp_ucb", dict(enumerate(base + 0.1 + noise)), 3.0042, 15)
    runs = load.load(tmp_path, "po_synthetic")
    good, bad = (SettingFilter.of(f"po r={r} epsilon=3.0042") for r in (10, 15))
    for by, expected in ((0.05, HOLDS), (0.15, CONTRARY), (0.1, OPEN)):
        outcome = band([bad, good], MEASURES["last"], by).outcome(runs)
        assert alone(outcome) == expected
        difference = [runs[10 + k].curve[-1] - runs[k].curve[-1] - by for k in range(10)]
        assert outcome.standard_errors == pytest.approx(stats.ttest_1samp(difference, 0).statistic)


@pytest.mark.parametrize("ends", [{}, {"above": 0.2, "below": 0.1}])
def test_bands_without_ends_are_refused(ends):
    with pytest.raises(ValueError, match="band must have an end|above must be less than below"):
        band([SettingFilter.of("cover")], MEASURES["last"], **ends)


def test_claims_on_made_up_results(results):
    found = {f.id.partition(".")[2]: f for f in judged(results, "po_synthetic")}
    expected = {
        "band_non_private_given": HOLDS, "band_r10_3.00_given": HOLDS, "band_r15_3.00_given": HOLDS,
        "band_r20_3.00_given": HOLDS, "jump1_given": HOLDS, "few_columns1_given": HOLDS, "jump1_ml": NOT_RUN,
        "jump2_given": NOT_RUN, "larger_claim_given": NOT_RUN, "aware_1.00": HOLDS, "aware_4.48": NOT_RUN,
        "gaussian_epsilon": NOT_RUN, "po_r15_3.00_given_beats_random": HOLDS, "histogram_1.00_beats_gaussian": HOLDS,
        "histogram_3.00_beats_cover": HOLDS, "histogram_1.65_beats_cover": NOT_RUN,
    }  # fmt: skip
    assert {name: found[name].verdict for name in expected} == expected
    jump = found["jump1_given"]
    assert (jump.kind, jump.form, jump.source) == ("agreement", "band", "paper")
    assert {f.kind for f in found.values()} == {"effect", "agreement", "own"}
    for f in found.values():
        assert ("PO-GP-UCB" in f.claim) <= ("claimed ε" in f.claim)
    pairs = judged(results, "po_synthetic")
    assert sum(sum(n.values()) for _, n in verdict_table.kinds(pairs)) == len(found)


def test_equal_runs_decide_nothing_and_count_once(tmp_path):
    """Rounding errors in sums of equal numbers decide nothing either."""
    values = around(0.0212, n=20)
    for k in (1.1, 1.5, 2.0, 2.5):
        write(
            tmp_path,
            "po_gp_ucb",
            values,
            round(math.exp(k), 4),
            10,
            experiment="po_branin",
            problem="branin_grid",
            T=20,
        )
    write(tmp_path, "random_rows", around(0.4, n=20, seed=1), experiment="po_branin", problem="branin_grid", T=20)
    pairs = judged(tmp_path, "po_branin")
    found = {f.id.partition(".")[2]: f for f in pairs}
    trend = found["larger_claim"]
    assert (trend.verdict, trend.standard_errors) == (OPEN, None)
    assert trend.ours.startswith("0, all values equal (0.0")
    names = [f"po_r10_{epsilon}_given_beats_random" for epsilon in ("3.00", "4.48", "7.39", "12.18")]
    assert [found[name].verdict for name in names] == [HOLDS] * 4
    assert [found[name].repeats for name in names] == ["", *[f"po_branin.{names[0]}"] * 3]
    assert verdict_table.counts(pairs)[HOLDS] == 1
    assert verdict_table.notes(pairs)[0].startswith("3 own findings repeat another one on identical runs")


def test_tables_of_what_is_claimed_alone_guarantee_nothing(tmp_path, capsys):
    write(tmp_path, "po_gp_ucb", {0: 0.1, 1: 0.2}, 3.0042, 10)
    assert tables.main(["po_synthetic", f"results_dir={tmp_path}"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert f"claimed ε: published, {REASON}" in printed
    assert "it covers" not in printed and "ε at δ" not in printed


def test_captions_say_what_stands_in(tmp_path):
    folder = write(tmp_path, "gp_ucb", {0: 0.1}, experiment="po_property", problem="property_king_county")
    summary = json.loads((folder / "0" / "summary.json").read_text())
    (folder / "0" / "summary.json").write_text(json.dumps(summary | {"stand_in": "sales around Seattle stand in"}))
    (drawn,) = drawn_from(tmp_path, "po_property")
    assert "Data: sales around Seattle stand in." in caption_of(drawn.figure)
    assert drawn.figure.texts[0].get_text() == "Simple regret by iteration: property (King County)"
    assert "data: sales around Seattle stand in" in tables.caption(load.settings(load.load(tmp_path, "po_property")))


def test_a_number_of_one_function_is_compared_with_how_functions_differ():
    """The mean of fifty starts on one function is as uncertain as one function."""
    ours = mean_of(list(around(0.1, n=50, sd=1.0).values()))
    far = ours.value + 1.5 * ours.se * math.sqrt(50)
    z, df = verdicts.deviation(ours, PublishedMean(far, None, 1))
    assert z == pytest.approx(-1.5 / math.sqrt(1 + 1 / 50)) and df == 49
    many, one = (verdicts.exclusion([(ours, PublishedMean(far, None, runs))]) for runs in (50, 1))
    assert many < 1e-6 < 0.1 < one
    with pytest.raises(ValueError, match="at least 2 runs"):
        PublishedMean(0.1, 0.01, 1)


@pytest.mark.parametrize("experiment", PROBLEMS)
def test_claims_know_the_settings_of_the_experiments(experiment):
    """With the settings of conf/, every claim finds exactly one run for each of its settings."""
    configs = {}
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        for entry in hydra.compose("config", [f"experiment={experiment}"]).sweep.settings:
            parts = [[(part.split("=")[0], value) for value in part.split("=")[1].split(",")] for part in entry.split()]
            groups, values = ([p for p in parts if ("." in p[0][0]) is dotted] for dotted in (False, True))
            for chosen in itertools.product(*groups):
                names = [f"{key}={value}" for key, value in chosen]
                composed = hydra.compose("config", [f"experiment={experiment}", *names])
                for given in itertools.product(*values):
                    for key, value in given:
                        OmegaConf.update(composed, key, yaml.safe_load(value))
                    config = OmegaConf.to_container(composed, resolve=True)
                    configs[json.dumps(config, sort_keys=True)] = config
    runs = [
        load.Run(f"setting{k}", 0, load.normalised(config), summary_of(experiment, config), CONF)
        for k, config in enumerate(configs.values())
    ]
    for claim in claims.claims([experiment]):
        assert alone(claim.outcome(runs)) == OPEN


def summary_of(experiment, config):
    return {
        "problem": PROBLEMS[experiment], "n_agents": 1, "rounds": config["rounds"], "metric": "simple_regret",
        "lower_is_better": True, "curve": {"mean": [1.0] * (config["rounds"] + 1)},
    }  # fmt: skip


@pytest.mark.parametrize("algorithm", ["gp_ucb", "random_rows", "gaussian_gp_ucb", "histogram_gp_ucb"])
def test_runs_that_name_the_curator_by_its_class_are_the_same(algorithm, tmp_path):
    file = write(tmp_path, algorithm, {0: 0.1}, 1.0) / "0" / "config.yaml"
    (before,) = load.load(tmp_path, "po_synthetic")
    config = yaml.safe_load(file.read_text())
    config["algorithm"]["server"] = {"_target_": "dpfbo.outsourced.curator.Curator"}
    config["transform"]["_target_"] = f"dpfbo.outsourced.transforms.{TRANSFORMS[algorithm]}"
    file.write_text(yaml.safe_dump(config))
    (after,) = load.load(tmp_path, "po_synthetic")
    assert after == before and after.outsourced


def test_other_settings_are_not_meant(tmp_path):
    folder = write(tmp_path, "gaussian_gp_ucb", {0: 0.1}, 1.0)
    config = yaml.safe_load((folder / "0" / "config.yaml").read_text())
    (run,) = load.load(tmp_path, "po_synthetic")
    assert [SettingFilter.of(text).matches(run) for text in ("gaussian epsilon=1", "gaussian epsilon=1.01")] == [
        True,
        False,
    ]
    assert not SettingFilter.of("unaware epsilon=1").matches(run)
    config["algorithm"]["modeler"]["fit"] = "ml"
    assert not SettingFilter.of("gaussian epsilon=1").matches(
        load.Run("x", 0, load.normalised(config), run.summary, folder)
    )


@pytest.mark.parametrize(("fixed", "words"), [(False, "each with its own sample of one file"), (True, "")])
def test_samples_that_follow_the_seed_are_units_of_their_own(fixed, words):
    runs = [load.Run("a", k, {"problem": {"subset_seed": 0 if fixed else k}}, {}, Path()) for k in range(3)]
    assert units_in_words(3, runs) == ("3 seeds, same data" if fixed else "3 samples of one file")
    phrase = load.seeds_phrase([load.SettingRuns("a", tuple(runs))])
    assert phrase == "3 seeds" + (f", {words}" if words else "")
