"""Regret at equal privacy: the figure and its numbers, on small made-up result folders."""

import json
import math

import matplotlib as mpl
import pandas as pd
import pytest
import yaml
from PIL import Image

from analysis import figures, load
from analysis.drawing import equal_epsilon
from analysis.drawing.page import words
from analysis.drawing.page_style import PAPER, SCREEN, TALK
from analysis.load import LoadError
from tests.helpers.pictures import overlapping
from tests.helpers.result_folders import server_node

TARGETS = (0.5, 1.0, 4.0)


def write_run(
    results, setting, seed, curve, algorithm, target=None, P=1, server="Server", lengthscale=0.03, spent=None
):
    """Write the folder of a finished run. spent: epsilon of a private run, by default a little below its target."""
    private = algorithm.startswith("dp_")
    folder = results / "frontier" / setting / str(seed)
    folder.mkdir(parents=True)
    config = {
        "algorithm": {
            "name": algorithm,
            "private": private,
            "P": P,
            "server": server_node(server),
            "lengthscale": lengthscale,
        },
        "privacy": {"epsilon": target, "z": 2.0, "q": 0.25, "S": 8},
        "problem": {"n_agents": 7, "function_seed": seed},
        "seed": seed,
    }
    epsilon = (0.995 * target if spent is None else spent) if target else (None if server == "Server" else 0.0)
    summary = {
        "experiment": "frontier", "setting": setting, "problem": "synthetic", "algorithm": algorithm, "seed": seed,
        "n_agents": 7, "rounds": len(curve) - 1, "metric": "simple_regret", "lower_is_better": True,
        "private": private, "curve": {"mean": curve}, "delta": 0.01, "relation": "zero-out", "accountant": "pld",
        "epsilon": {"pld": epsilon}, "rng": "seeded", "n_charges": 2, "epsilon_covers": "the broadcasts",
        "clip_fraction": 0.0, "seconds": {"objective": 0.0, "total": 1.0},
    }  # fmt: skip
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def write_all(results, lengthscales=(0.03,)):
    """Two private algorithms at three targets, the control and FTS-DE; three seeds each."""
    for seed in range(3):
        write_run(results, "rrr", seed, [0.9, 0.5, 0.3], "random_server", P=2, server="RandomServer")
        for l in lengthscales:
            write_run(results, f"fff{l}", seed, [0.9, 0.2, 0.1], "fts_de", P=2, lengthscale=l)
            for i, target in enumerate(TARGETS):
                for name, better in (("dp_fts_de", 1.0), ("dp_fts_de_plus", 0.5)):
                    curve = [0.9, better * (0.6 - 0.1 * i) + 0.01 * seed, better * (0.4 - 0.1 * i)]
                    write_run(results, f"{name}{target}{l}", seed, curve, name, target, P=2, lengthscale=l)


def runs_of(results):
    return load.load(results, "frontier")


def rows(found, algorithm):
    return found[found["algorithm"] == algorithm].reset_index(drop=True)


def test_points_are_means_over_the_rounds_and_the_seeds(tmp_path):
    write_all(tmp_path)
    found = equal_epsilon.table(runs_of(tmp_path))
    assert found.loc[found["target_epsilon"].isna(), "algorithm"].tolist() == ["fts_de", "random_server"]
    de, plus = (rows(found, name) for name in ("dp_fts_de", "dp_fts_de_plus"))
    assert de["target_epsilon"].tolist() == list(TARGETS) == plus["target_epsilon"].tolist()
    # seeds 0, 1, 2: (0.6 + 0.01 seed + 0.4) / 2
    assert (de["average"][0], de["average_se"][0]) == (pytest.approx(0.505), pytest.approx(0.005 / math.sqrt(3)))
    assert (de["last"][0], de["last_se"][0]) == (pytest.approx(0.4), pytest.approx(0.0))
    assert plus["last"][2] == pytest.approx(0.1)
    assert de["epsilon"][1] == pytest.approx(0.995)


def test_epsilon_is_the_largest_that_any_seed_spent(tmp_path):
    write_all(tmp_path)
    write_run(tmp_path, f"dp_fts_de{TARGETS[1]}0.03", 7, [0.9, 0.5, 0.3], "dp_fts_de", 1.0, P=2, spent=1.7)
    found = rows(equal_epsilon.table(runs_of(tmp_path)), "dp_fts_de")
    assert (found["epsilon"][1], found["seeds"][1]) == (1.7, 4)


def test_agents_that_share_nothing_belong_to_every_lengthscale(tmp_path):
    write_all(tmp_path, lengthscales=(0.01, 0.3))
    found = equal_epsilon.table(runs_of(tmp_path))
    assert found["panel"].unique().tolist() == ["synthetic, length-scale 0.01", "synthetic, length-scale 0.3"]
    for _, panel in found.groupby("panel"):
        references = panel[panel["target_epsilon"].isna()]
        assert dict(zip(references["algorithm"], references["seeds"], strict=True)) == {"fts_de": 3, "random_server": 3}
        assert len(panel) == 6 + 2


def test_two_settings_of_one_point_are_refused(tmp_path):
    write_all(tmp_path)
    write_run(tmp_path, "other", 0, [0.9, 0.1, 0.1], "dp_fts_de", 1.0, P=2)
    with pytest.raises(LoadError, match=r"DP-FTS-DE at epsilon 1 was run with 2 settings .*other\): keep the folder"):
        equal_epsilon.table(runs_of(tmp_path))


@pytest.mark.parametrize("seeds", [1, 3])
def test_command_draws_picture_and_table(tmp_path, capsys, seeds):
    write_all(tmp_path)
    for folder in (tmp_path / "frontier").glob("*/*"):
        if int(folder.name) >= seeds:
            (folder / "summary.json").unlink()
    assert figures.main(["frontier", f"results_dir={tmp_path}", "--out", str(tmp_path / "out")]) == 0
    files = [tmp_path / "out" / f"frontier.{kind}" for kind in ("png", "pdf", "csv", "md")]
    assert capsys.readouterr().out.split() == [str(file) for file in files]
    with Image.open(files[0]) as image:
        assert image.size[0] == round(SCREEN.wide * SCREEN.dpi)
        assert len(set(image.convert("RGB").resize((90, 60)).getdata())) > 20  # something was drawn
    frame = pd.read_csv(files[2])
    assert list(frame.columns) == [
        "panel", "metric", "rounds", "algorithm", "P", "trust", "target_epsilon", "epsilon", "z", "seeds", "average",
        "average_se", "last", "last_se", "privacy", "sharing",
    ]  # fmt: skip
    assert len(frame) == 2 * len(TARGETS) + 2
    row = frame[(frame["algorithm"] == "dp_fts_de_plus") & (frame["target_epsilon"] == 4)].iloc[0]
    assert row["last"] == pytest.approx(0.1)
    assert row["seeds"] == seeds
    assert math.isnan(row["average_se"]) == (seeds == 1)
    assert row["privacy"] == "PLD accountant, δ = 0.01, zero-out, user level, N = 7"
    assert frame[frame["algorithm"] == "random_server"]["target_epsilon"].isna().all()


def test_labels_say_what_epsilon_is(tmp_path):
    write_all(tmp_path)
    found = equal_epsilon.table(runs_of(tmp_path))
    picture = equal_epsilon.figure(found)
    average, last = picture.axes
    assert average.get_xlabel() == "privacy loss ε of the whole run"
    assert average.get_ylabel() == "simple regret"
    means = ["synthetic: mean over rounds 1 to 2", "synthetic: after round 2"]
    assert [text.get_text() for text in picture.texts[1:3]] == means
    assert [tick.get_text() for tick in average.get_xticklabels()] == ["0.5", "1", "4"]
    _, caption = words(picture)
    assert "one standard error over 3 seeds" in caption and caption.startswith("q = 0.25, S = 8. ε: PLD accountant")
    assert "side by side" not in caption
    for axes in (average, last):
        drawn = [c.lines[0].get_xdata().tolist()[0] for c in axes.containers]
        assert drawn == found.loc[found["target_epsilon"].notna(), "epsilon"].tolist()  # each at its own
    assert "PLD accountant, δ = 0.01, zero-out, user level, N = 7" in caption


@pytest.mark.parametrize(
    "style", [SCREEN, PAPER, PAPER.of_width(3.25), TALK], ids=["screen", "paper", "column", "talk"]
)
def test_nothing_is_cut_off_in_any_style(style, tmp_path):
    write_all(tmp_path, lengthscales=(0.01, 0.3))
    with mpl.rc_context(style.rc):
        picture = equal_epsilon.figure(equal_epsilon.table(runs_of(tmp_path)), style=style)
        assert len(picture.axes) == 4 and overlapping(picture) == []


def test_a_large_delta_is_in_words(tmp_path):
    write_all(tmp_path)
    for file in tmp_path.rglob("summary.json"):
        file.write_text(json.dumps(json.loads(file.read_text()) | {"delta": 0.139}))
    caption = " ".join(equal_epsilon.figure(equal_epsilon.table(runs_of(tmp_path))).texts[-1].get_text().split())
    assert "δ = 0.139 (large: it allows a chance of 14% that ε protects nobody; 0.001 is usual), zero-out" in caption


def test_incomplete_results_are_refused_in_one_sentence(tmp_path, capsys):
    write_all(tmp_path, lengthscales=(0.01, 0.3))
    for folder in (tmp_path / "frontier").glob("dp_*0.3/*"):
        (folder / "summary.json").unlink()
    assert figures.main(["frontier", f"results_dir={tmp_path}", "--out", str(tmp_path / "out")]) == 1
    assert capsys.readouterr().err == (
        "error: synthetic, length-scale 0.3 has no private run at a target epsilon: run python -m runners.sweep "
        "experiment=frontier\n"
    )
    assert not (tmp_path / "out").exists()


def test_runs_without_targets_are_drawn_as_ever(tmp_path):
    write_all(tmp_path)
    for folder in (tmp_path / "frontier").glob("dp_*/*"):
        (folder / "summary.json").unlink()
    assert not equal_epsilon.has_targets(runs_of(tmp_path))
