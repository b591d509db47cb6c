"""What a notebook shows of a result, its pictures, its comparison with another, and its way to a folder and back."""

import json
import shutil
import sys
from dataclasses import dataclass, fields, replace

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from scipy import stats

import dpfbo
from dpfbo import Categorical, Fixed, Float, Integer, Optimization, Ordinal, Preset, SettingError
from dpfbo.checkpoint import CheckpointError
from dpfbo.extras import MissingPackage
from dpfbo.formats.journal import StateError
from dpfbo.gp import Acquisition, OwnGP
from dpfbo.privacy.ledger import LedgerError
from dpfbo.study.algorithm import ALGORITHMS
from tests.helpers.objectives import sometimes, tuned

SPACE = {
    "rate": Float(1e-4, 1.0, log=True), "depth": Integer(1, 12), "kind": Categorical(["a", "b", "c"]),
    "size": Ordinal(["small", "large"]), "epochs": Fixed(3),
}  # fmt: skip
N, T, N_INIT = 4, 3, 3
PRIVATE = {"algorithm": "dp_prior", "epsilon": 1.0, "delta": 1e-3}
FEW = Acquisition(n_candidates=30, n_starts=2)


def found(f=tuned, **settings):
    few = {"n_agents": N, "rounds": T, "n_init": N_INIT, "acquisition": FEW}
    return dpfbo.optimize(f, SPACE, **{**few, "algorithm": "ts", "seed": 3, **settings})


def names_of_tags(html):
    return {part.split(">")[0].split(" ")[0].strip("/") for part in html.split("<")[1:]}


@pytest.fixture(scope="module")
def private():
    return found(**PRIVATE)


@pytest.fixture(autouse=True)
def _no_open_figures():
    yield
    plt.close("all")


def test_a_result_is_one_line_and_a_table(private):
    assert repr(private) == f"<dp_prior, {N} agents, {T} rounds: best_value {private.curve[-1]:.4g} (mean)>"
    html = private._repr_html_()
    for words in (
        "dp_prior",
        "epsilon",
        "1.00",
        "zero-out, user level",
        "pld",
        "3 of 3",
        "± ",
        "0.001",
        "releases",
        "knows the seed",
    ):
        assert words in html, words
    assert "nothing is sent or released" in found()._repr_html_()
    assert "no privacy guarantee" in found(algorithm="fts")._repr_html_() and "simulation" not in found()._repr_html_()


def test_an_unfinished_result_says_why_it_ended(tmp_path):
    part = found(max_evaluations=2, folder=tmp_path / "<b>")
    html = part._repr_html_()
    assert "0 of 3" in html and "max_evaluations=2" in html and "&lt;b&gt;" in html
    assert "no finished round" in repr(part)


def test_tables_escape_every_text():
    space = {"<i>": Categorical(["<script>", "&"]), "x": Float(0, 1)}
    result = dpfbo.optimize(lambda agent, x: x["x"], space, N, "ts", rounds=1, n_init=2)
    html = result.best()._repr_html_()
    assert names_of_tags(html) == {"table", "thead", "tbody", "tr", "th", "td"} and "&lt;i&gt;" in html


def test_the_best_are_a_list_and_a_table():
    result = found()
    best, frame = result.best(), result.best().to_pandas()
    assert isinstance(best, list) and best[:2] == [best[0], best[1]]
    assert list(frame) == ["agent", "value", "round", *SPACE]
    assert frame["value"].tolist() == [one.value for one in best]
    assert frame.loc[1, list(SPACE)].to_dict() == best[1].configuration
    assert best._repr_html_().count("<tr>") == N + 1
    clash = dpfbo.optimize(lambda agent, x: x["round"], {"round": Float(0, 1)}, N, "ts", rounds=1, n_init=1)
    assert list(clash.best().to_pandas()) == ["agent", "value", "round", "x.round"]
    nothing = found(max_evaluations=1).best()[:0]
    assert nothing == [] and list(type(best)(nothing).to_pandas()) == ["agent", "value", "round"]


def test_many_agents_are_not_all_shown():
    result = dpfbo.optimize(lambda agent, x: x["x"], {"x": Float(0, 1)}, 60, "local", rounds=1, n_init=1)
    html = result.best()._repr_html_()
    assert html.count("<tr>") == 51 and "and 10 more agents" in html


@pytest.mark.parametrize("name", ["history", "sites", "privacy"])
def test_a_plot_draws_on_the_axes_that_are_given(private, name):
    figure, ax = plt.subplots()
    assert getattr(private.plot, name)(ax) is ax
    made = getattr(private.plot, name)()
    assert made.get_figure() is not figure and made.get_xlabel() and made.get_ylabel()


def test_the_history_is_the_curve_with_its_standard_error(private):
    ax = private.plot()
    assert ax.lines[0].get_ydata().tolist() == private.curve
    band, errors = ax.collections[0].get_paths()[0].vertices[:, 1], private.result.rounds.standard_errors
    assert band.max() == pytest.approx(max(np.array(private.curve) + errors))


@pytest.mark.parametrize("maximize", [True, False])
def test_sites_are_in_the_order_of_their_last_values(maximize):
    result = found(tuned if maximize else lambda agent, x: -tuned(agent, x), maximize=maximize)
    start, end = (points.get_offsets() for points in result.plot.sites().collections[1:])
    best = {best.agent: best.value for best in result.best()}
    labels = [int(text.get_text()) for text in plt.gca().get_yticklabels()]
    assert [best[agent] for agent in labels] == pytest.approx(end[:, 0].tolist())
    assert end[:, 0].tolist() == sorted(end[:, 0], reverse=not maximize)
    assert ((end >= start) if maximize else (end <= start))[:, 0].all()


def test_a_slice_has_every_value_and_the_scale_of_its_parameter():
    result = found(lambda agent, x: -tuned(agent, x), maximize=False)
    panels = result.plot.slice()
    assert [ax.get_xlabel() for ax in panels] == ["rate", "depth", "kind", "size"]
    assert [ax.get_xscale() for ax in panels] == ["log", "linear", "linear", "linear"]
    assert [text.get_text() for text in panels[2].get_xticklabels()] == ["a", "b", "c"]
    points = panels[0].collections[0].get_offsets()
    assert len(points) == N * (N_INIT + T)
    assert points[:, 1].min() == pytest.approx(min(best.value for best in result.best()))
    alone = result.plot.slice("depth")
    assert alone.get_xlabel() == "depth" and alone.get_ylabel() == "value"
    strip = result.plot.slice("kind", plt.subplots()[1]).collections[0].get_offsets()[:, 0]
    assert np.abs(strip - strip.round()).max() < 0.3


CONDITIONAL = {
    "kind": Categorical(["linear", (1, 2)]), "degree": Integer(2, 4, when={"kind": [(1, 2)]}),
    "rates": Categorical([[0.1], {"a": [1]}, None]), "share": Float(0, 1, step=0.25),
}  # fmt: skip


def test_inactive_parameters_are_neither_drawn_nor_listed(tmp_path):
    f = lambda agent, x: x.get("degree", 0) + x["share"]
    result = dpfbo.optimize(f, CONDITIONAL, N, "local", rounds=6, n_init=5, acquisition=FEW, folder=tmp_path)
    active = result.to_pandas()["x.degree"].notna()
    points = result.plot.slice("degree").collections[0].get_offsets()
    assert 0 < len(points) == active.sum() < len(active)
    result.plot.importance()
    assert sorted(result.best().to_pandas()) == sorted(["agent", "value", "round", *CONDITIONAL])
    assert result.best()._repr_html_().count("<th ") == 7
    loaded = Optimization.load(tmp_path)
    check_equal(loaded, result)
    assert loaded.study.space == result.study.space


def test_a_problem_without_names_has_numbered_parameters():
    problem = dpfbo.problems.Branin(n_agents=N)
    study = dpfbo.create_study(problem.domain, n_agents=N, algorithm="ts", rounds=6, n_init=4, rng="seeded")
    result = dpfbo.run_study(study, problem)
    assert [ax.get_xlabel() for ax in result.plot.slice()] == ["x0", "x1"]
    assert list(result.best().to_pandas()) == ["agent", "value", "round", "x0", "x1"]
    assert result.plot.sites().get_xlabel() == "simple regret"
    assert [text.get_text() for text in result.plot.importance().get_yticklabels()] != []


def test_the_parameter_that_decides_is_the_most_important():
    far = lambda agent, x: 100 * agent + {"a": 0.0, "b": 3.0, "c": 1.0}[x["kind"]] + 0.01 * x["depth"]
    ax = found(far, n_agents=12, algorithm="local").plot.importance()
    bars = dict(zip((text.get_text() for text in ax.get_yticklabels()), ax.patches, strict=True))
    widths = {name: bar.get_width() for name, bar in bars.items()}
    assert max(widths, key=widths.get) == "kind" and widths["kind"] > 0.5
    assert abs(widths["rate"]) < 0.1 and abs(widths["size"]) < 0.1


def test_epsilon_is_drawn_after_each_broadcast():
    result = found(algorithm="dp_fts_de", epsilon=4.0, delta=1e-3)
    ax = result.plot.privacy()
    assert ax.lines[1].get_ydata() == pytest.approx([record.epsilon for record in result.result.server])
    assert ax.lines[0].get_ydata()[-1] == pytest.approx(result.epsilon)
    assert ax.lines[2].get_ydata()[0] == pytest.approx(result.study.plan.epsilon())


@pytest.mark.parametrize(
    ("draw", "sentence"),
    [
        (lambda r: r.plot.privacy(), "privacy needs a private algorithm, got ts"),
        (lambda r: r.plot.slice("depht"), "parameter must be one of 'rate', .*did you mean 'depth'"),
        (lambda r: r.plot.slice(ax=plt.gca()), "ax needs a parameter, one of rate, depth, kind, size"),
        (lambda r: r.plot.importance(), "importance needs at least 40 evaluations with a value, got 24"),
        (lambda r: found(lambda agent, x: agent, rounds=9).plot.importance(), "importance needs values that differ"),
        (lambda r: found(lambda *_: None, on_failure="penalty").plot.slice(), "slice needs an evaluation with a value"),
        (lambda r: found(max_evaluations=2).plot(), "history needs a finished round, got none"),
        (lambda r: found(max_evaluations=2).plot.sites(), "sites needs a finished round, got none"),
        (lambda r: r.compare(found(n_agents=5)), "other must have n_agents=4 like this result, got 5"),
        (lambda r: r.compare(found(max_evaluations=2)), "other must have values of at least two agents"),
        (lambda r: r.compare(found(maximize=False)), "other must have lower_is_better=False like this result"),
        (lambda r: r.compare(branin()), "other must have metric='best_value' like this result, got 'simple_regret'"),
    ],
)  # fmt: skip
def test_what_cannot_be_drawn_or_compared_is_one_sentence(draw, sentence):
    with pytest.raises(SettingError, match=sentence):
        draw(found())


@pytest.mark.parametrize(("package", "name"), [("matplotlib", "history"), ("sklearn", "importance")])
def test_a_missing_package_is_named(monkeypatch, private, package, name):
    for module in [module for module in sys.modules if module.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingPackage, match="pip install 'dpfbo"):
        getattr(found(rounds=9).plot, name)()


def branin():
    problem = dpfbo.problems.Branin(n_agents=N)
    study = dpfbo.create_study(
        problem.domain, n_agents=N, algorithm="ts", rounds=2, n_init=2, rng="seeded", acquisition=FEW
    )
    return dpfbo.run_study(study, problem)


@pytest.mark.parametrize("maximize", [True, False])
def test_a_comparison_is_a_paired_t_interval(maximize):
    f = tuned if maximize else lambda agent, x: -tuned(agent, x)
    long, short = (found(f, maximize=maximize, rounds=rounds) for rounds in (T, 1))
    compared = long.compare(short)
    ends = [[best.value for best in one.best()] for one in (long, short)]
    test = stats.ttest_rel(*ends)
    assert compared.mean / compared.standard_error == pytest.approx(test.statistic)
    assert compared.interval == pytest.approx(tuple(test.confidence_interval()))
    better = np.subtract(*ends) * (1 if maximize else -1) > 0
    assert (compared.n_better, compared.n_worse) == (better.sum(), 0)
    frame = compared.to_pandas()
    assert list(frame) == ["agent", "value", "other_value", "difference"] and len(frame) == N
    assert (frame["difference"] == frame["value"] - frame["other_value"]).all()
    direction = "larger" if maximize else "smaller"
    for text in (str(compared), compared._repr_html_()):
        assert f"{direction} is better" in text and "says nothing about other seeds" in text
    assert str(compared).startswith(f"ts ({T} rounds) less ts (1 round): best value ")


def test_agents_without_a_value_are_not_compared():
    def mute(agent, x):
        if agent == 1:
            raise RuntimeError("sensor off")
        return tuned(agent, x)

    assert found().compare(found(mute, on_failure="penalty")).agents == (0, 2, 3)


def check_equal(loaded, made):
    assert loaded.study == made.study and loaded.study.digest == made.study.digest
    assert loaded.to_pandas().equals(made.to_pandas())
    assert loaded.best() == made.best() and loaded.curve == made.curve
    assert (loaded.epsilons, loaded.delta, loaded.relation) == (made.epsilons, made.delta, made.relation)
    assert list(loaded.unfinished) == list(made.unfinished)
    assert loaded.result.server == made.result.server
    if made.curve:
        assert loaded.compare(made).mean == 0
        loaded.plot.slice()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_finished_study_is_loaded_as_it_was(tmp_path, name):
    budget = {"epsilon": 8.0, "delta": 1e-3} if name.startswith("dp_") else {}
    made = found(algorithm=name, folder=tmp_path, **budget)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for path in (made.folder, made.folder.parent, tmp_path):
        loaded = Optimization.load(path)
        check_equal(loaded, made)
        assert str(loaded) == str(made) and loaded.folder == made.folder
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    with pytest.raises(StateError, match="has no objective"):
        dpfbo.run_study(loaded.study, loaded.problem, dpfbo.Ledger())


@pytest.mark.parametrize("most", [1, N * N_INIT + 1, N * (N_INIT + 2)])
def test_an_unfinished_study_is_loaded_and_still_goes_on(tmp_path, most):
    part = found(sometimes, on_failure="penalty", max_evaluations=most, folder=tmp_path, **PRIVATE)
    loaded = Optimization.load(tmp_path)
    check_equal(loaded, part)
    assert loaded.stopped == (part.stopped if part.curve else "not finished")
    whole = found(sometimes, on_failure="penalty", folder=tmp_path, **PRIVATE)
    check_equal(Optimization.load(tmp_path), whole)


@pytest.mark.parametrize(
    "made", [found, branin, lambda: found(**PRIVATE), lambda: found(max_evaluations=N * N_INIT + 2)]
)
def test_a_result_without_a_folder_is_saved(tmp_path, made):
    made = made()
    path = made.save(tmp_path / "saved")
    loaded = Optimization.load(tmp_path)
    check_equal(loaded, made)
    assert loaded.stopped == made.stopped and loaded.folder == path
    assert (loaded.problem.metric, loaded.problem.name) == (made.problem.metric, made.problem.name)
    with pytest.raises(StateError, match="must be a new folder or an empty one"):
        made.save(path)


def test_minimised_values_keep_their_sign(tmp_path):
    made = found(lambda agent, x: -tuned(agent, x), maximize=False, folder=tmp_path)
    loaded = Optimization.load(tmp_path)
    assert loaded.best() == made.best() and loaded.problem.lower_is_better


def test_a_study_of_own_settings_is_loaded(tmp_path):
    preset = Preset(M=20, P=4, own_gp=OwnGP(lengthscale=0.3, variance=2.0, noise=1e-3, standardize=True))
    algorithm = replace(dpfbo.algorithm_named("dp_fts_de_plus", preset), name="mine", momentum=0.5)
    made = found(algorithm=algorithm, noise_multiplier=np.float64(0.7), folder=tmp_path, n_agents=8)
    check_equal(Optimization.load(tmp_path), made)


def test_a_grid_is_saved(tmp_path):
    points = torch.linspace(0, 1, 50, dtype=torch.float64)[:, None]
    grid = dpfbo.Grid(points, (0.0,), (1.0,))
    problem = dpfbo.problems.Synthetic(n_agents=N, grid_size=50, lengthscale=0.1)
    study = dpfbo.create_study(problem.domain, n_agents=N, algorithm="ts", rounds=2, n_init=2, rng="seeded")
    made = dpfbo.run_study(study, problem)
    made.save(tmp_path / "saved")
    loaded = Optimization.load(tmp_path / "saved")
    assert loaded.study.digest == made.study.digest and loaded.to_pandas().equals(made.to_pandas())
    assert isinstance(loaded.study.domain, type(grid))


@dataclass(frozen=True)
class OwnClass(OwnGP):
    """A part of a study that is not dpfbo's."""


def test_a_class_from_elsewhere_is_refused(tmp_path):
    made = found(preset=Preset(own_gp=OwnClass(lengthscale=0.3, variance=2.0, noise=1e-3)), folder=tmp_path)
    with pytest.raises(StateError, match=r"test_result\.OwnClass is not a class that a result may contain"):
        Optimization.load(made.folder)


@pytest.mark.parametrize("change", [{"study": "0" * 16}, {"event": "study"}])
def test_evaluations_of_another_study_are_refused(tmp_path, change):
    path = found(folder=tmp_path, max_evaluations=3).folder / "evaluations.jsonl"
    first, *others = path.read_text().splitlines()
    kept = json.loads(first) | change if "study" in change else change
    path.write_text("\n".join([json.dumps(kept), *others]) + "\n")
    with pytest.raises(StateError, match=r"evaluations\.jsonl cannot be loaded"):
        Optimization.load(tmp_path)


def test_dollars_begin_no_formula():
    space = {"$a$": Float(0, 1), "b": Categorical(["$x_{", {"long": ["a", "list", "of", "many", "words"]}])}
    result = dpfbo.optimize(lambda agent, x: x["$a$"], space, N, "local", rounds=9, n_init=3, acquisition=FEW)
    for ax in (*result.plot.slice(), result.plot.importance()):
        ax.get_figure().canvas.draw()
    assert "{'long': ['a', 'list',.." in [text.get_text() for text in result.plot.slice("b").get_xticklabels()]


def test_several_studies_in_a_folder_are_named(tmp_path):
    folders = [found(folder=tmp_path, seed=seed).folder.relative_to(tmp_path) for seed in (0, 1)]
    with pytest.raises(StateError, match=f"holds 2 results: load one of {folders[0]}, {folders[1]}$"):
        Optimization.load(tmp_path)
    with pytest.raises(StateError, match=r"absent holds no result: neither it nor a folder in it has the file optim"):
        Optimization.load(tmp_path / "absent")


def test_a_ledger_elsewhere_must_be_given(tmp_path):
    ledger = dpfbo.Ledger(tmp_path / "ledger.jsonl")
    made = found(folder=tmp_path / "study", ledger=ledger, rng="os", **PRIVATE)
    with pytest.raises(LedgerError, match="lacks the broadcast of round 0"):
        Optimization.load(made.folder)
    check_equal(Optimization.load(made.folder, dpfbo.Ledger(tmp_path / "ledger.jsonl")), made)


def edit(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def named(path, where="study"):
    """A change of the class of the study, or of its server."""

    def change(content):
        if where == "study":
            content["study"]["class"] = path
        else:
            content["study"]["settings"]["algorithm"]["settings"]["server"] = {"named": path}

    return change


@pytest.mark.parametrize(
    "change",
    [
        named("os.system"), named("dpfbo.problems.custom.Custom"), named("dpfbo.study.study.Tensor"),
        named("dpfbo.federated.nothing.Server", "server"), named("dpfbo.studyx.Server", "server"), named(3),
        named("tests.dpfbo.study.test_result.Mine", "server"), named("dpfbo.study.study.plan", "server"),
        lambda content: content["study"]["settings"].update(rounds=T + 1),
        lambda content: content["study"]["settings"].update(colour="red"),
        lambda content: content["study"]["settings"].pop("mechanism"),
        lambda content: content["study"]["settings"]["algorithm"]["settings"].update(M=-1),
        lambda content: content.pop("problem"), lambda content: content["problem"].update(more=1),
        lambda content: content.update(digest="0" * 16),
    ],
)  # fmt: skip
def test_an_edited_description_is_refused(tmp_path, change):
    folder = found(folder=tmp_path).folder
    edit(folder / "optimization.json", change)
    with pytest.raises(StateError, match=r"optimization\.json cannot be loaded \(edited, .*\): "):
        Optimization.load(folder)


@pytest.mark.parametrize("content", [b"", b"[1]", b"{", b"\xff", b"[" * 100_000])
def test_another_file_is_refused(tmp_path, content):
    (tmp_path / "optimization.json").write_bytes(content)
    with pytest.raises(StateError, match="cannot be loaded"):
        Optimization.load(tmp_path)


def test_rounds_of_another_study_are_refused(tmp_path):
    folders = [found(folder=tmp_path, seed=seed).folder for seed in (0, 1)]
    shutil.rmtree(folders[0] / "checkpoint")
    shutil.copytree(folders[1] / "checkpoint", folders[0] / "checkpoint")
    with pytest.raises(CheckpointError, match="is of another run"):
        Optimization.load(folders[0])


def test_a_field_that_a_later_version_adds_has_its_default(tmp_path):
    """A description without it, from before, makes the study with the default."""
    folder = found(folder=tmp_path).folder
    default = next(field.name for field in fields(dpfbo.Study) if field.name == "dropout")
    edit(folder / "optimization.json", lambda content: content["study"]["settings"].pop(default))
    assert Optimization.load(folder).curve
