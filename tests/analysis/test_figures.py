"""The figures: pictures, files and refusals, on small made-up result folders."""

import ast
import json
import shutil
from dataclasses import replace
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
import yaml
from matplotlib.colors import to_rgb
from PIL import Image

from analysis import figures, load, pictures
from analysis.claims import JudgedClaim
from analysis.drawing import by_epsilon, by_iteration, equal_epsilon, page, page_style, sweeps
from analysis.drawing.captions import settings_in_words, verdicts
from analysis.drawing.looks import ALGORITHMS, OUTSOURCED, of_algorithm, variants
from analysis.drawing.page_style import SCREEN, STYLES
from analysis.evidence.claim import published_values
from analysis.labels import in_words
from analysis.load import LoadError
from tests.helpers.pictures import overlapping
from tests.helpers.result_folders import CURVES, TWO_ROUNDS, drawn, read, server_node, write_all, write_run

FIG3 = [(0.35, z) for z in (1.0, 1.6, 2.0, 3.0, 4.0)] + [(q, 1.0) for q in (0.1, 0.15, 0.2, 0.25)]


@pytest.fixture
def results(tmp_path):
    return write_all(tmp_path)


@pytest.fixture
def small(monkeypatch):
    """Write small pictures, which is faster."""
    monkeypatch.setitem(STYLES, "screen", replace(SCREEN, dpi=20))
    monkeypatch.setattr(figures, "USUAL", ("png",))


def change(folder, config=(), summary=()):
    """Change values in a run's files. changes: by dotted name."""
    for name, values in (("config.yaml", dict(config)), ("summary.json", dict(summary))):
        content = yaml.safe_load((folder / name).read_text())
        for key, value in values.items():
            node = content
            *path, last = key.split(".")
            for part in path:
                node = node.setdefault(part, {})
            node[last] = value
        (folder / name).write_text(json.dumps(content))
    return folder


@pytest.fixture
def fig3(tmp_path):
    """The settings of Fig. 3: references, and DP-FTS-DE swept over z and q around (.35, 1); two seeds."""
    shape = {"problem.score": "platt", "problem.n_agents": 29}
    for seed in (0, 1):
        settings = [("ts", 1, 0.0, 1.0), ("fts", 1, 0.0, 1.0), ("fts_de", 4, 0.0, 1.0), ("random_server", 4, 0.0, 1.0)]
        for i, (name, P, q, z) in enumerate(settings + [("dp_fts_de", 4, q, z) for q, z in FIG3]):
            private = name.startswith("dp_")
            folder = write_run(
                tmp_path, f"{i:x}", seed, list(np.linspace(0.32, 0.23 + 0.001 * i + 0.002 * seed, 61)), name, private,
                P=P, q=q, z=z, S=22, epsilon={"pld": 10 * q / z, "moments": 15 * q / z} if private else None,
                spent=10 * q / z * np.linspace(0.1, 1, 60) if private else (), problem="landmine",
                metric="one_minus_auc",
            )  # fmt: skip
            server = {"ts": None, "random_server": server_node("RandomServer")}.get(name, server_node("Server"))
            follow = "never" if name == "ts" else "always"
            shape |= {"algorithm.server": server, "algorithm.follow": follow, "problem.preset": {"S": {"default": 22}}}
            change(folder, shape, {"n_agents": 29})
    return tmp_path


def test_different_metrics_share_no_axis(tmp_path, small):
    write_run(tmp_path, "a", 0, [1.0, 0.5])
    write_run(tmp_path, "b", 0, [1.0, 0.5], problem="branin")
    write_run(tmp_path, "c", 0, [1.0, 0.5], "fts")
    runs = load.by_metric(load.load(tmp_path, "made_up"))
    assert sorted([run.setting for run in group] for group in runs) == [["a", "c"], ["b"]]
    assert figures.main(["made_up", f"results_dir={tmp_path}", "--out", str(tmp_path / "out")]) == 0
    assert sorted(path.name for path in (tmp_path / "out").glob("*.png")) == [
        f"made_up_{problem}_7_simple_regret_regret_by_iteration.png" for problem in ("branin", "synthetic")
    ]  # nothing is private


def test_figure_files(results, tmp_path, capfd):
    out = tmp_path / "out" / "deep"
    assert figures.main(["made_up", f"results_dir={results}", "--out", str(out)]) == 0
    printed = [Path(line) for line in capfd.readouterr().out.splitlines()]
    assert sorted(printed) == sorted(out.iterdir())  # no temporary file is left
    assert {path.name for path in printed} == {
        f"made_up_regret_by_{x}.{kind}" for x in ("iteration", "epsilon") for kind in ("png", "pdf", "csv", "md")
    }
    for path in printed:
        if path.suffix == ".png":
            with Image.open(path) as image:
                assert image.width == 1800
                assert len(set(image.convert("RGB").resize((200, 150)).get_flattened_data())) > 50
        elif path.suffix == ".pdf":
            assert path.read_bytes().startswith(b"%PDF") and path.stat().st_size > 5000


def test_an_experiment_of_several_parts_is_drawn_by_its_name(tmp_path, small):
    for name in ("few_a", "few_b", "fewer"):
        write_run(tmp_path, "a", 0, [1.0, 0.5], experiment=name)
    assert figures.main(["few", "fewer", f"results_dir={tmp_path}", "--out", str(tmp_path / "out")]) == 0
    drawn = {path.name.partition("_regret")[0] for path in (tmp_path / "out").glob("*.png")}
    assert drawn == {"few_a", "few_b", "fewer"}
    assert figures.main(["few", "nothing", f"results_dir={tmp_path}", "--out", str(tmp_path / "out")]) == 1


def test_failed_picture_leaves_the_old_one(results, tmp_path, monkeypatch, capfd):
    old = tmp_path / "out" / "made_up_regret_by_iteration.png"
    old.parent.mkdir()
    old.write_text("old")

    def fail(self, file, **settings):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(page.Figure, "savefig", fail)
    assert figures.main(["made_up", f"results_dir={results}", "--out", str(old.parent)]) == 1
    assert "No space left" in capfd.readouterr().err
    assert [path.read_text() for path in old.parent.iterdir()] == ["old"]


def legend(figure):
    return [text.get_text() for found in figure.legends for text in found.get_texts()]


def test_lines_by_iteration(results):
    groups = read(results)
    (axes,) = by_iteration.regret_by_iteration(groups).axes
    assert axes.get_yscale() == "log"
    for line, group in zip(axes.lines, groups, strict=True):
        np.testing.assert_allclose(line.get_xdata(), [0, 1, 2])
        np.testing.assert_allclose(line.get_ydata(), group.curve()["mean"])
    assert len(axes.collections) == 3
    assert legend(axes.figure) == ["TS", "FTS-DE, P = 2", "DP-FTS-DE, P = 2, z = 1 (ε = 2.00)"]


@pytest.mark.parametrize(("t", "epsilon"), [(2, 2.0), (1, 1.5)])
def test_points_lie_at_the_epsilon_of_the_summary(results, t, epsilon):
    groups = read(results)
    (axes,) = by_epsilon.regret_by_epsilon(groups, t).axes
    (point,) = axes.containers
    np.testing.assert_allclose(point.lines[0].get_xydata(), [[epsilon, groups[2].at(t)[0]]])
    ((_, low), (_, high)) = point.lines[2][0].get_segments()[0]
    assert (high - low) / 2 == pytest.approx(groups[2].at(t)[1])
    horizontal = [line for line in axes.lines if list(line.get_xdata()) == [0, 1]]
    assert [line.get_ydata()[0] for line in horizontal] == pytest.approx([groups[0].at(t)[0], groups[1].at(t)[0]])
    assert legend(axes.figure)[:2] == ["TS (ε = 0, nothing shared)", "FTS-DE, P = 2 (not private)"]
    assert "PLD" in axes.get_xlabel() and "δ = 0.01" in axes.get_xlabel()


def test_points_at_one_epsilon_stand_there_and_are_told_apart(results):
    for seed, curve in CURVES.items():
        write_run(results, "ddd", seed, curve, "dp_fts", True, epsilon=TWO_ROUNDS, spent=[1.5, 2.0])
    figure = by_epsilon.regret_by_epsilon(read(results), 2)
    (axes,) = figure.axes
    drawn = [container.lines for container in axes.containers]
    lower, upper = (lines[0] for lines in drawn)
    for line in (lower, upper):
        assert line.get_transform().transform(line.get_xydata())[0, 0] == pytest.approx(
            axes.transData.transform((2.0, 1.0))[0]
        )
    assert upper.get_zorder() > lower.get_zorder() and upper.get_markersize() < lower.get_markersize()
    assert upper.get_markeredgecolor() == lower.get_markeredgecolor() == "white"
    assert upper.get_marker() != lower.get_marker()
    (below, above) = (lines[1][0].get_markersize() for lines in drawn)
    assert above < below  # the caps
    assert "side by side" not in page.words(figure)[1]


def test_epsilon_of_another_accountant_is_not_drawn(tmp_path, capfd):
    write_run(tmp_path, "a", 0, [1.0, 0.5, 0.4], "dp_fts", True, epsilon=TWO_ROUNDS, spent=[1.9, 2.5], accountant="rdp")
    (axes,) = by_epsilon.regret_by_epsilon(read(tmp_path), 2).axes
    assert [line.get_xdata().tolist() for line in axes.lines if len(line.get_xdata()) > 1] == []
    arguments = ["made_up", f"results_dir={tmp_path}", "--out", str(tmp_path / "out")]
    with pytest.raises(LoadError, match="has its pld epsilon after 2 rounds only, not after 1"):
        by_epsilon.regret_by_epsilon(read(tmp_path), 1)
    write_run(
        tmp_path, "b", 0, [1.0, 0.5, 0.4], "dp_fts_de", True, epsilon={"fixed_size": 1.0}, accountant="fixed_size"
    )
    figure = by_epsilon.regret_by_epsilon(read(tmp_path), 2)  # its only accountant, in the legend too
    named = "DP-FTS-DE, P = 1, z = 1 (ε = 1.00, fixed-size accountant, zero-out)"
    assert [entry.replace("\n", " ") for entry in legend(figure)] == ["DP-FTS, z = 1 (ε = 2.00)", named]
    assert "ε: PLD or fixed-size accountant, δ = 0.01, zero-out" in page.words(figure)[1]
    assert [c.lines[0].get_xdata().tolist() for c in figure.axes[0].containers] == [[2.0], [1.0]]
    assert figures.main([*arguments, "--accountant", "gdp"]) == 1
    assert (
        "accountant must be one that the runs have (fixed_size, moments, pld, rdp), got 'gdp'" in capfd.readouterr().err
    )


@pytest.mark.parametrize(
    ("curve", "lower_is_better", "scale"),
    [
        ([0.5, 0.1, 0.0], True, "log"),
        ([0.32, 0.24, 0.23], True, "linear"),
        ([0.0, 0.0, 0.0], True, "linear"),
        ([-1.0, 0.5, 0.7], False, "linear"),
    ],
)
def test_scale_fits_the_metric(curve, lower_is_better, scale, tmp_path):
    write_run(tmp_path, "a", 0, curve, lower_is_better=lower_is_better, metric="best_value")
    groups = read(tmp_path)
    lines, at_round = by_iteration.regret_by_iteration(groups), by_epsilon.regret_by_epsilon(groups, 1)
    assert lines.axes[0].get_yscale() == scale
    assert at_round.axes[0].get_yscale() == "linear"  # one value
    for figure in (lines, at_round):
        figure.draw_without_rendering()


@pytest.mark.parametrize("n", [1, 9])
@pytest.mark.parametrize("z", [1.0, 1.23456])
def test_nothing_overlaps(n, z, tmp_path):
    for i in range(n):
        long = i % 2 and z != 1.0
        write_run(
            tmp_path, f"{i}", 0, [1.0, 0.5, 0.4], "dp_fts_de", True, P=2 + i, z=z, epsilon=TWO_ROUNDS, spent=[1, 2],
            S=100 + i if long else 8,
        )  # fmt: skip
    groups = read(tmp_path)
    with mpl.rc_context(SCREEN.rc):
        for figure in (by_iteration.regret_by_iteration(groups), by_epsilon.regret_by_epsilon(groups, 2)):
            figure.draw_without_rendering()
            (axes,) = figure.axes
            title, _, caption = (text.get_window_extent() for text in figure.texts)
            entries, label = figure.legends[0].get_window_extent(), axes.xaxis.label.get_window_extent()
            height, width = figure.bbox.height, figure.bbox.width
            tops = [0, caption.y0, caption.y1, label.y0, label.y1, axes.bbox.y0, axes.bbox.y1, entries.y0, entries.y1]
            assert tops == sorted(tops)
            assert entries.y1 < title.y0 + 1 and title.y1 <= height
            assert max(box.x1 for box in (title, caption, entries, label)) < width
            assert axes.get_tightbbox().x0 >= 0


def test_settings_look_different_without_colour():
    assert len({(look.line, look.marker) for look in ALGORITHMS.values()}) == len(ALGORITHMS)
    assert len({look.colour for look in ALGORITHMS.values()}) == len(ALGORITHMS)
    assert len({(look.line, look.marker) for look in OUTSOURCED.values()}) == len(OUTSOURCED)
    for name in (*ALGORITHMS, *OUTSOURCED, "of_another_package"):
        own = of_algorithm(name)
        assert variants(own, 1) == [own] == [of_algorithm(name)]
        ramp = variants(own, 6)
        assert len({look.marker for look in ramp}) == len({look.colour for look in ramp}) == 6
        assert {look.line for look in ramp} == {own.line}
        brightness = [sum(to_rgb(look.colour)) for look in ramp]
        assert brightness == sorted(brightness, reverse=True)  # in grey too: from light to dark


def test_numbers_behind_the_pictures(results, tmp_path, small):
    arguments = ["made_up", f"results_dir={results}", "--out", str(tmp_path / "out")]
    assert figures.main(arguments) == 0
    lines = pd.read_csv(tmp_path / "out" / "made_up_regret_by_iteration.csv")
    assert list(lines.columns) == ["setting", "source", "z", "q", "S", "round", "mean", "se", "seeds"]
    assert len(lines) == 3 * 3
    for group in read(results):
        shown = lines[lines["setting"] == group.label]
        values = [[run.curve[t] for run in group.runs] for t in shown["round"]]
        np.testing.assert_allclose(shown["mean"], np.mean(values, axis=1), rtol=1e-5)
        np.testing.assert_allclose(shown["se"], np.std(values, axis=1, ddof=1) / 3**0.5, rtol=1e-5)
        assert shown["seeds"].tolist() == [3, 3, 3]
    points = pd.read_csv(tmp_path / "out" / "made_up_regret_by_epsilon.csv")
    private = points[points["setting"] == "DP-FTS-DE, P = 2, z = 1"]
    assert private["epsilon"].tolist() == [2.0] and private["round"].tolist() == [2]
    assert private["mean"].tolist() == pytest.approx([0.6])
    assert set(private["accountant"]) == {"pld"} and set(private["delta"]) == {0.01}
    references = points[points["setting"] != "DP-FTS-DE, P = 2, z = 1"]
    assert references["round"].tolist() == [2, 2]


def test_two_sweeps_around_a_centre_make_two_panels(fig3):
    by_z, by_q = found = sweeps.panels(read(fig3))
    assert by_q.title == "sampling probability q (DP-FTS-DE, P = 4, z = 1)"
    assert by_z.title == "noise multiplier z (DP-FTS-DE, P = 4, q = 0.35)"
    shared = [c for c in by_z.curves if c in by_q.curves and c.label == c.setting.label]
    own = [[c for c in panel.curves if c not in shared] for panel in found]
    assert [c.label for c in own[1]] == ["q = 0.35", "q = 0.25", "q = 0.2", "q = 0.15", "q = 0.1"]
    assert [c.label for c in own[0]] == ["z = 1", "z = 1.6", "z = 2", "z = 3", "z = 4"]
    assert own[0][0].setting == own[1][0].setting and own[0][0].style == own[1][0].style
    assert [c.label for c in shared] == ["TS", "FTS", "FTS-DE, P = 4", "random server, P = 4"]
    assert [c.style for c in shared] == [ALGORITHMS[n] for n in ("ts", "fts", "fts_de", "random_server")]
    for i, folder in enumerate(sorted((fig3 / "made_up").glob("[4-8]/0"))):  # z off q = .35 leaves no centre
        change(folder, {"privacy.q": 0.35 + 0.01 * i})
    shutil.rmtree(fig3 / "made_up" / "4" / "1")
    assert len(sweeps.panels(read(fig3))) == 1


def test_panels_and_caption_fit(fig3):
    groups = read(fig3)
    with mpl.rc_context(SCREEN.rc):
        for figure in (
            by_iteration.regret_by_iteration(groups),
            by_epsilon.regret_by_epsilon(groups, 60),
        ):
            figure.draw_without_rendering()
            boxes = [box.get_window_extent() for box in (*figure.texts, *figure.legends, *figure.axes)]
            boxes += [axes.xaxis.label.get_window_extent() for axes in figure.axes]
            for i, one in enumerate(boxes):
                assert one.x0 >= 0 and one.y0 >= 0 and one.x1 <= figure.bbox.width and one.y1 <= figure.bbox.height
                assert not any(one.overlaps(other) for other in boxes[i + 1 :])


def test_published_values_are_drawn_in_their_setting_colour(fig3):
    groups = read(fig3)
    known = published_values(groups)
    assert sorted(known) == sorted([
        "TS", "FTS", "FTS-DE, P = 4", "DP-FTS-DE, P = 4, z = 1, q = 0.35", "DP-FTS-DE, P = 4, z = 1, q = 0.25",
        "DP-FTS-DE, P = 4, z = 2", "DP-FTS-DE, P = 4, z = 4",
    ])  # fmt: skip
    assert known["TS"][60] == 0.23746 and 5 not in known["TS"]
    figure = by_iteration.regret_by_iteration(groups)
    assert "published" in legend(figure)
    for axes, colours in zip(figure.axes, (6, 5), strict=True):
        hollow = [line for line in axes.lines if line.get_markerfacecolor() == "white"]
        assert len(hollow) == colours
        drawn = {line.get_color() for line in axes.lines if line.get_markerfacecolor() != "white"}
        assert {line.get_color() for line in hollow} <= drawn
    for accountant, epsilon in (("pld", 3.5), ("moments", 5.25)):
        by_z, _ = by_epsilon.regret_by_epsilon(groups, 60, accountant).axes
        shown = {x: y for line in by_z.lines if line.get_markerfacecolor() == "white" for x, y in line.get_xydata()}
        assert shown[epsilon] == 0.23188  # published for (q, z) = (.35, 1)
    frame = by_iteration.table(groups)
    assert frame[frame["source"] == "published"]["se"].isna().all()


@pytest.mark.parametrize(
    "other", [{"problem.score": "margin"}, {"algorithm.message": "mean"}], ids=lambda o: next(iter(o))
)
def test_published_values_share_no_axis_with_other_problems(other, fig3):
    for folder in (fig3 / "made_up").glob("*/*"):
        change(folder, other)
    groups = read(fig3)
    assert published_values(groups) == {}
    assert "published" not in legend(by_iteration.regret_by_iteration(groups))


def test_what_differs_in_words(tmp_path):
    def write(setting, **values):
        folder = write_run(tmp_path, setting, 0, [1.0, 0.5], "fts")
        change(folder, {key.replace("__", "."): value for key, value in values.items()})

    for setting, follow in (("a", "inverse_sqrt"), ("b", "inverse_square"), ("c", "inverse")):
        write(setting, algorithm__follow=follow, algorithm__other=follow)
    assert [g.label for g in read(tmp_path)] == ["FTS, 1 − p_t = 1/t²", "FTS, 1 − p_t = 1/t", "FTS, 1 − p_t = 1/√t"]
    shutil.rmtree(tmp_path / "made_up")
    write("a", weights___target_="x.Uniform")
    write("b", weights___target_="x.Softmax", weights__a=15.0, weights__decay={"hold": 10})
    write("c", weights___target_="x.Softmax", weights__a=15.0, weights__decay={"hold": None})
    assert [g.label for g in read(tmp_path)] == [
        "FTS, softmax weights, decay after = 10", "FTS, softmax weights, weights never decay", "FTS, uniform weights",
    ]  # fmt: skip
    assert in_words("privacy.sampling", "fixed_size") == "fixed-size sampling"
    assert in_words("privacy.S", 11) == "S = 11"


def finding(claim, errors, verdict, source="paper", kind="effect", units="20 functions", id=""):
    return JudgedClaim(id or claim, "Fig. 2a", "fig2a", claim, source, "", "", errors, units, verdict, kind)


def test_caption_says_which_claims_hold(results):
    found = [
        finding("the print; moments", None, "holds", kind="epsilon", units="exact"),
        finding("S = 3 hurts", -3.7, "contrary", "reimplementation", units="9 seeds"),
        finding("DE beats FTS; regret", -0.04, "not decided"), finding("FTS beats TS; regret", 5.12, "holds"),
        finding("P = 2 beats P = 1; regret", 3.0, "holds"), finding("more with P", None, "not run"),
        finding("Sharing helps: FTS beats blind servers; regret", 2.9, "holds", "control", "control"),
        *(finding(f"Sharing helps: {i}", 0.1, "not decided", "control", "control") for i in range(2)),
    ]  # fmt: skip
    assert verdicts(found) == [
        "FTS beats TS; regret: holds (5.1 standard errors, 20 functions).",
        "P = 2 beats P = 1; regret: holds (3.0 standard errors, 20 functions).",
        "Sharing helps: FTS beats blind servers; regret (control): holds (2.9 standard errors, 20 functions).",
        "S = 3 hurts (reimplementation): contrary (−3.7 standard errors, 9 seeds).",
        "Others about these settings: 1 × holds, 3 × not decided.",
    ]
    many = verdicts([finding(f"{i}", 1.0, "holds" if i else "contrary") for i in range(9)])
    assert many[0].startswith("0: contrary") and many[6:] == ["Others about these settings: 3 × holds."]
    assert verdicts([found[5]]) == []
    assert len(verdicts([found[3], replace(found[3], id="again", repeats=found[3].id)])) == 1
    said = "N = 7 agents, P = 1 or 2 sub-regions, q = 0.25, S = 8. ε: PLD accountant, δ = 0.01, zero-out, user level."
    assert settings_in_words(read(results)).startswith(said)
    figure = by_iteration.regret_by_iteration(read(results))
    words, above = page.apart(figure)
    assert words.startswith(said) and words.endswith("± one standard error over 3 seeds, each with its own function.")
    assert figure.texts[-1].get_window_extent().y1 / figure.dpi <= above.y0 < above.y1 == figure.get_size_inches()[1]


def test_claims_stand_beside_no_figure_of_several_problems(results, monkeypatch):
    monkeypatch.setattr(pictures, "judge", lambda runs: [finding("FTS beats TS", 5.12, "holds")])
    (first, _) = drawn(results, "made_up")
    assert "FTS beats TS" in first.claims[0]
    write_run(results, "d", 0, [1.0, 0.5], problem="branin")
    assert not any(one.claims for one in drawn(results, "made_up"))


def test_a_formula_in_a_name_is_drawn_as_it_is(tmp_path, small):
    write_run(
        tmp_path, "a", 0, [1.0, 0.5, 0.4], "$\\frac{$", True, epsilon=TWO_ROUNDS, spent=[1, 2], problem="a$^b$",
        metric="$\\x$",
    )  # fmt: skip
    assert figures.main(["made_up", f"results_dir={tmp_path}", "--out", str(tmp_path / "out")]) == 0
    assert len(list((tmp_path / "out").iterdir())) == 6


def test_long_titles_fit(fig3):
    for folder in (fig3 / "made_up").glob("[5-9a-f]*/*"):
        shutil.rmtree(folder)  # one panel
    with mpl.rc_context(SCREEN.rc):
        figure = by_epsilon.regret_by_epsilon(read(fig3), 60)
    figure.draw_without_rendering()
    title = figure.texts[0].get_window_extent()
    assert (
        len(figure.axes) == 1 and title.x1 < figure.bbox.width and title.y0 > figure.legends[0].get_window_extent().y1
    )


def caption_of(results):
    return page.apart(by_iteration.regret_by_iteration(read(results)))[0]


def test_caption_says_what_is_cut_off(tmp_path):
    write_run(tmp_path, "a", 0, [0.9] * 3 + [0.32] * 57 + [0.3], "fts")
    assert "Rounds 0 to 2 of the lines are above the picture." in caption_of(tmp_path)
    write_run(tmp_path, "b", 0, [0.9] * 5 + [0.32] * 55 + [0.31])
    assert "Rounds 0 to 4 of some lines are above" in caption_of(tmp_path)
    write_run(tmp_path, "c", 0, [0.32] * 61, "fts_de")
    words = caption_of(tmp_path)
    assert "Rounds 0 to 4 of some lines are above the picture." in words


def test_many_points_at_one_epsilon_stay_together(tmp_path):
    for i in range(12):
        write_run(tmp_path, f"{i}", 0, [1.0, 0.5, 0.4], "dp_fts", True, S=i, epsilon=TWO_ROUNDS, spent=[1, 2])
    figure = by_epsilon.regret_by_epsilon(read(tmp_path), 2)
    drawn = [container.lines[0] for container in figure.axes[0].containers]
    assert len(drawn) == 12 and {point.get_xdata().tolist()[0] for point in drawn} == {2.0}
    assert len({(point.get_marker(), point.get_color()) for point in drawn}) == 12


def test_what_cannot_be_written_is_said_before_drawing(results, monkeypatch, capfd):
    (results / "file").write_text("")
    monkeypatch.setattr(pictures, "draw_experiment", None)
    assert figures.main(["made_up", f"results_dir={results}", "--out", str(results / "file" / "out")]) == 1
    err = capfd.readouterr().err
    assert "file is a file; give another place with --out" in err and err.count("\n") == 1


def test_all_experiments(results, tmp_path, small, capfd):
    write_run(results, "x", 0, [1.0, 0.5], experiment="another")
    write_run(results, "x", 0, [1.0, 0.5], experiment="broken")
    (results / "broken" / "x" / "0" / "summary.json").write_text("{")
    out = tmp_path / "out"
    arguments = [f"results_dir={results}", "--out", str(out)]
    assert figures.main(["--all", *arguments]) == 1
    said = capfd.readouterr()
    assert said.err.startswith("error: broken: ") and said.err.count("\n") == 1
    assert {path.name.split("_regret")[0] for path in out.iterdir()} == {"another", "made_up"}
    assert figures.main(["another", "another", *arguments]) == 0
    assert len(capfd.readouterr().out.splitlines()) == 3  # once
    assert figures.main(["--all", f"results_dir={tmp_path / 'none'}"]) == 1
    assert "no finished run" in capfd.readouterr().err
    for wrong in (["--all", "another"], []):
        with pytest.raises(SystemExit) as stop:
            figures.main([*wrong, *arguments])
        assert stop.value.code == 2


@pytest.mark.parametrize(
    ("style", "width"), [("screen", None), ("screen", 5), ("paper", None), ("paper", 2.5), ("talk", None), ("talk", 7)]
)
def test_nothing_is_cut_off_in_any_style(style, width, fig3, tmp_path):
    look = STYLES[style].of_width(width)
    groups = read(fig3)
    for folder in (fig3 / "made_up").glob("[0-9a-f]*/*"):  # a second experiment: one panel, long labels
        if int(folder.parent.name, 16) < 6:
            shutil.copytree(folder, tmp_path / "one" / "made_up" / folder.parent.name / folder.name)
    with mpl.rc_context(look.rc):
        for figure in (
            by_iteration.regret_by_iteration(groups, style=look),
            by_epsilon.regret_by_epsilon(groups, 60, style=look),
            by_epsilon.regret_by_epsilon(read(tmp_path / "one"), 60, style=look),
        ):
            assert overlapping(figure) == []
            assert figure.get_size_inches()[0] == (width or (look.wide if len(figure.axes) > 1 else look.width))


def test_a_paper_has_its_words_beside_the_picture(results, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(pictures, "judge", lambda runs: [finding("FTS beats TS", 5.12, "holds")])
    out = tmp_path / "out"
    arguments = ["made_up", f"results_dir={results}", "--out", str(out)]
    assert figures.main([*arguments, "--style", "paper", "--format", "pdf,svg", "--width", "3.25"]) == 0
    names = {f"made_up_regret_by_{x}.{kind}" for x in ("iteration", "epsilon") for kind in ("pdf", "svg", "csv", "md")}
    assert {path.name for path in out.iterdir()} == names
    text = (out / "made_up_regret_by_epsilon.md").read_text()
    title, caption, claims = text.strip().split("\n\n")
    assert title == "# Simple regret after 2 rounds, against privacy loss: synthetic problem"
    assert caption.startswith("N = 7 agents, P = 1 or 2 sub-regions, q = 0.25, S = 8. ε: PLD accountant, δ = 0.01")
    assert claims == "- FTS beats TS: holds (5.1 standard errors, 20 functions)."
    with mpl.rc_context(STYLES["paper"].rc):
        drawn_on_paper = pictures.draw_experiment("made_up", load.load(results, "made_up"), style=STYLES["paper"])
    for one in drawn_on_paper:
        assert not [text for text in one.figure.texts if text.get_visible() and text.get_text()]
        assert {text.get_fontsize() for found in one.figure.legends for text in found.get_texts()} == {8}
        assert one.figure.axes[0].xaxis.label.get_fontsize() == 8
    for one in drawn(results, "made_up"):  # on a screen there is a caption, and no claim in it
        shown = " ".join(text.get_text() for text in one.figure.texts if text.get_visible()).replace("\u00a0", " ")
        assert "δ = 0.01" in shown and "FTS beats TS" not in shown


def test_files_are_equal_byte_for_byte_and_fonts_are_embedded(results, tmp_path):
    for name in ("first", "second"):
        arguments = ["made_up", f"results_dir={results}", "--out", str(tmp_path / name), "--style", "paper"]
        assert figures.main([*arguments, "--format", "png,pdf,svg"]) == 0
    first, second = (sorted((tmp_path / name).iterdir()) for name in ("first", "second"))
    assert len(first) == 10
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    for path in first:
        content = path.read_bytes()
        assert b"Date" not in content or path.suffix == ".csv", path.name
        if path.suffix == ".pdf":
            assert b"/FontFile2" in content and b"/Type3" not in content
        if path.suffix == ".svg":
            assert b"<text" not in content and b"<path" in content


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--style", "poster"], "argument --style: invalid choice: 'poster'"),
        (["--format", "pdf,gif"], "argument --format: must name some of png, pdf, svg, got 'gif'"),
        (["--format", ""], "argument --format: must name some of png, pdf, svg, got ''"),
        (["--width", "wide"], "argument --width: invalid float value: 'wide'"),
        (["--width", "1"], "--width must be 5 to 30 inches in style screen, got 1"),
        (["--width", "nan", "--style", "paper"], "--width must be 2.5 to 30 inches in style paper, got nan"),
    ],
)
def test_wrong_options_are_one_sentence(options, sentence, results, tmp_path, capfd):
    arguments = ["made_up", f"results_dir={results}", "--out", str(tmp_path / "out")]
    with pytest.raises(SystemExit) as stop:
        figures.main([*arguments, *options])
    assert stop.value.code == 2
    assert f": error: {sentence}" in capfd.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "out").exists()


def test_a_method_looks_the_same_in_every_kind_of_picture(results, tmp_path):
    own = ALGORITHMS["ts"]
    groups = read(results)
    curve = by_iteration.regret_by_iteration(groups).axes[0].lines[0]
    level = next(line for line in by_epsilon.regret_by_epsilon(groups, 2).axes[0].lines)
    shutil.rmtree(tmp_path / "made_up")
    for seed in range(2):
        write_run(tmp_path, "a", seed, [1.0, 0.5, 0.4])
        for target in (1.0, 4.0):
            folder = write_run(
                tmp_path, f"b{target}", seed, [1.0, 0.5, 0.4], "dp_fts", True, epsilon={"pld": target, "moments": 9.0}
            )
            change(folder, {"privacy.epsilon": target})
    picture = equal_epsilon.figure(equal_epsilon.table(load.load(tmp_path, "made_up")))
    at_targets = next(line for line in picture.axes[0].lines if line.get_label() == "TS (ε = 0)")
    for line in (curve, level, at_targets):
        assert line.get_color() == own.colour
        scaled = [length * line.get_linewidth() for length in own.line[1]]
        assert list(line._dash_pattern[1]) == pytest.approx(scaled)
    assert curve.get_marker() == own.marker
    (private,) = picture.axes[0].containers[:1]
    assert private.lines[0].get_color() == ALGORITHMS["dp_fts"].colour
    assert [c.lines[0].get_xdata().tolist() for c in picture.axes[0].containers] == [[1.0], [4.0]]


def test_no_picture_has_a_colour_of_its_own():
    """Drawing modules take the looks of settings from one table; what is grey belongs to no setting."""
    greys = {"#444444", "#000000", "white", "black", "none"}
    for path in Path(page.__file__).parent.rglob("*.py"):
        if path.name == "looks.py":
            continue
        texts = [node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)]
        colours = {text for text in texts if isinstance(text, str) and mpl.colors.is_color_like(text)}
        named = {text for text in colours if text.startswith("#") or len(text) > 1} - greys
        assert not named, f"{path.name}: {named}"


@pytest.mark.parametrize(
    ("epsilon", "target", "entry"),
    [
        (7.054, None, "DP-FTS, z = 1 (ε = 7.05)"), (0.0123, None, "DP-FTS, z = 1 (ε = 0.012)"),
        (None, None, "DP-FTS, z = 1 (no finite ε)"), (0.995, 1.0, "DP-FTS, ε = 1"),
        (0.5, 1.0, "DP-FTS, ε = 1 (spent: 0.50)"), (1.01, 1.0, "DP-FTS, ε = 1 (spent: 1.01)"),
    ],
)  # fmt: skip
def test_the_legend_has_the_epsilon_of_each_private_setting(epsilon, target, entry, tmp_path):
    by = {"pld": epsilon, "moments": epsilon}
    folder = write_run(tmp_path, "a", 0, [1.0, 0.5, 0.4], "dp_fts", True, epsilon=by, spent=[0.1, epsilon or np.nan])
    change(folder, {"privacy.epsilon": target})
    write_run(tmp_path, "b", 0, [1.0, 0.5, 0.4])
    assert legend(by_iteration.regret_by_iteration(read(tmp_path))) == ["TS", entry]


def test_a_target_by_another_accountant_is_told_apart(tmp_path):
    folder = write_run(tmp_path, "a", 0, [1.0, 0.5], "dp_fts", True, epsilon={"pld": 1.0, "moments": 1.6}, spent=[1.0])
    change(folder, {"privacy.epsilon": 1.0})
    assert legend(by_iteration.regret_by_iteration(read(tmp_path), "moments")) == ["DP-FTS, ε = 1 (moments: 1.60)"]
    assert legend(by_iteration.regret_by_iteration(read(tmp_path))) == ["DP-FTS, ε = 1"]


def test_settings_of_one_method_are_ordered_by_epsilon(tmp_path):
    for name, z, epsilon in (("a", 1.0, 4.0), ("b", 3.0, 1.0), ("c", 0.0, None), ("d", 2.0, 2.0)):
        by = {"pld": epsilon, "moments": epsilon}
        write_run(tmp_path, name, 0, [1.0, 0.5], "dp_fts", True, z=z, epsilon=by)
    write_run(tmp_path, "e", 0, [1.0, 0.5])
    assert [g.first.setting for g in read(tmp_path)] == ["e", "b", "d", "a", "c"]


def test_widths_of_styles():
    assert STYLES["paper"].width == 3.25 and STYLES["paper"].wide == 6.75
    assert page_style.PAPER.of_width(None) is page_style.PAPER
    assert figures._formats("PDF, png,pdf") == ("pdf", "png")
