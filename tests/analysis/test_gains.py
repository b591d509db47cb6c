"""The figure of gains over agents that work alone."""

import numpy as np
import pytest

from analysis import pictures
from analysis.drawing import gains
from analysis.load import Run

METHODS = {"local": None, "ts": None, "shared_prior": None, "dp_prior": 1.0, "blind": 0.001}
GAIN = {"local": 0.0, "ts": -0.02, "shared_prior": 0.1, "dp_prior": 0.06, "blind": 0.0}


def run(method, N, seed, problem="school", lower=True):
    name = "dp_prior" if method == "blind" else method
    rng = np.random.default_rng([seed, N])
    alone = 0.5 + 0.1 * rng.standard_normal()  # objectives differ by seed, alike for all methods
    sign = -1 if lower else 1
    value = alone + sign * (GAIN[method] + 0.001 * np.random.default_rng([seed, N, len(method)]).standard_normal())
    private = name == "dp_prior"
    summary = {
        "problem": problem, "metric": "nmse", "lower_is_better": lower, "n_agents": N, "rounds": 4, "private": private,
        "delta": 0.001, "algorithm": name, "curve": {"mean": [9.0, value, value, value, value]},
    }  # fmt: skip
    config = {"algorithm": {"name": name}, "problem": {"n_agents": N}, "privacy": {"epsilon": METHODS[method]}}
    return Run(f"{problem}{method}{N}", seed, config, summary, None)


def everything(**more):
    return [run(m, N, seed, **more) for m in METHODS for N in (8, 25) for seed in range(6)]


@pytest.mark.parametrize("lower", [True, False])
def test_gains_are_paired_and_positive_where_a_method_is_better(lower):
    table = gains.table(everything(lower=lower)).set_index(["n_agents", "algorithm", "target_epsilon"])
    assert len(table) == 8  # `local` itself has no row
    assert table.loc[(25, "dp_prior", 1.0), "gain"] == pytest.approx(0.06, abs=0.003)
    assert table.loc[(25, "dp_prior", 1.0), "kept"] == pytest.approx(0.6, abs=0.05)
    assert table.loc[(8, "dp_prior", 0.001), "gain"] == pytest.approx(0.0, abs=0.003)
    assert (table["se"] < 0.002).all()  # far below the spread of the objectives
    assert (table["seeds"] == 6).all()


def test_the_first_point_does_not_count():
    assert gains.table(everything())["alone"].max() < 1


def test_a_missing_seed_is_left_out_of_the_pair():
    runs = [r for r in everything() if not (r.summary["algorithm"] == "local" and r.seed == 0)]
    assert set(gains.table(runs)["seeds"]) == {5}


def test_what_is_kept_needs_a_clear_ceiling():
    runs = [r for r in everything() if r.summary["algorithm"] != "shared_prior"]
    assert gains.table(runs)["kept"].isna().all()


def test_only_several_sizes_with_local_make_this_figure():
    assert gains.has_gains(everything())
    assert not gains.has_gains([r for r in everything() if r.summary["n_agents"] == 8])
    assert not gains.has_gains([r for r in everything() if r.summary["algorithm"] != "local"])


def test_the_picture_has_a_panel_for_each_problem_and_a_line_for_each_method():
    (drawn,) = pictures.draw_experiment("federations", everything() + everything(problem="flats"))
    axes = [ax for ax in drawn.figure.axes if ax.lines]
    assert drawn.name == "federations_gains" and len(axes) >= 2
    labels = {text.get_text() for legend in drawn.figure.legends for text in legend.get_texts()}
    assert {"private prior, ε = 1", "private prior, noise alone"} <= labels
    assert len(drawn.table) == 16
