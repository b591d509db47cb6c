"""Every problem: the contract, by one shared test; then properties of each."""

import re

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split
from sklearn.svm import SVC

from dpfbo.problems import landmine
from dpfbo.problems.branin import Branin
from dpfbo.problems.custom import Custom, EvaluationError
from dpfbo.problems.landmine import Landmine
from dpfbo.problems.readers.data_files import MissingData
from dpfbo.problems.synthetic import Synthetic
from dpfbo.problems.synthetic_heterogeneous import SyntheticHeterogeneous
from dpfbo.rng import Streams
from tests.helpers.data_files import write_mini_landmine

HERE = "tests.helpers.objectives"


@pytest.fixture(scope="module")
def mini_landmine(tmp_path_factory):
    return write_mini_landmine(tmp_path_factory.mktemp("data"))


@pytest.fixture(params=["synthetic", "heterogeneous", "branin", "custom", "landmine"])
def problem(request, mini_landmine):
    return {
        "synthetic": lambda: Synthetic(n_agents=7, grid_size=200),
        "heterogeneous": lambda: SyntheticHeterogeneous(n_agents=7, grid_size=200),
        "branin": lambda: Branin(n_agents=7),
        "custom": lambda: Custom(f"{HERE}:sphere", (0, 0, 0), (1, 1, 1), 7, optimum=0.0),
        "landmine": lambda: Landmine(n_agents=7, data_dir=str(mini_landmine), n_jobs=1),
    }[request.param]()


def points(problem, n, k, seed=0):
    u = torch.rand(n, k, problem.domain.dimension, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    if hasattr(problem.domain, "points"):
        return problem.domain.points[(u[..., 0] * len(problem.domain.points)).long()]
    return problem.domain.to_natural(u)


def test_contract(problem):
    agents, streams = torch.arange(problem.n_agents), Streams(3)
    x = points(problem, problem.n_agents, 2)
    y = problem.evaluate(agents, x, streams, 1)
    value = problem.true_value(agents, x, y)
    assert y.shape == value.shape == (7, 2)
    assert y.dtype == value.dtype == torch.float64
    assert torch.isfinite(y).all()
    assert torch.equal(y, problem.evaluate(agents, x, streams, 1))
    assert isinstance(problem.metric, str)
    some = torch.tensor([5, 2])  # a shard of agents sees what the whole would
    assert torch.allclose(problem.evaluate(some, x[some], streams, 1), y[some], atol=0, rtol=1e-12)
    assert problem.reference.shape == (7,)
    assert (value <= problem.reference[:, None] + 1e-9).all()


def test_synthetic_follows_the_paper():
    problem = Synthetic(n_agents=300, function_seed=4)
    common = problem.values.mean(0)
    assert problem.domain.points.shape == (1000, 1)
    assert torch.allclose((problem.values - problem.values[0]).abs().unique().max(), torch.tensor(0.04).double())
    deviation = (problem.values - common).abs()
    assert deviation.max() < 0.0264  # +-.02 around f, and the mean of 300 signs within 5.5 SE at every point
    assert abs(float(common.min())) < 0.01
    assert abs(float(common.max()) - 1) < 0.01
    signs = problem.values > common
    assert abs(float(signs.double().mean()) - 0.5) < 4 * 0.5 / (300 * 1000) ** 0.5
    lag = torch.linspace(0, 1, 1000)[30]  # one length-scale: correlation exp(-1/2)
    assert float(lag) == pytest.approx(0.03, abs=1e-3)


def test_synthetic_kernel_has_the_stated_lengthscale():
    f = torch.stack([Synthetic(n_agents=1, perturbation=0.0, function_seed=s).values[0] for s in range(60)])

    # scaling to [0, 1] keeps shape: compare mean squared increments over lags within each function
    def increments(lag):
        return ((f[:, lag:] - f[:, :-lag]) ** 2).mean(1)

    ratio = (increments(30) / increments(300)).mean()  # (1 - e^-1/2) / (1 - e^-50)
    se = (increments(30) / increments(300)).std() / 60**0.5
    assert abs(float(ratio) - 0.3935) < 4 * float(se)


def test_synthetic_noise_variance():
    problem, agents = Synthetic(n_agents=200, grid_size=50), torch.arange(200)
    x = points(problem, 200, 20)
    noise = problem.evaluate(agents, x, Streams(0), 1) - problem.true_value(agents, x, x[..., 0])
    assert float(noise.var()) == pytest.approx(0.01, rel=4 * (2 / 4000) ** 0.5)


def test_adding_agents_keeps_the_others():
    for kind in (Synthetic, SyntheticHeterogeneous):
        assert torch.allclose(kind(n_agents=5).values, kind(n_agents=9).values[:5], atol=1e-12, rtol=0)


def test_heterogeneity_mixes_own_and_common():
    none = SyntheticHeterogeneous(n_agents=4, alpha=0.0).values
    assert torch.allclose(none, none[:1].expand(4, -1))
    base, own = none[0], SyntheticHeterogeneous(n_agents=4, alpha=1.0).values
    mixed = SyntheticHeterogeneous(n_agents=4, alpha=0.7).values
    assert torch.allclose(mixed, 0.7 * own + 0.3 * base)
    assert own.min(1).values.abs().max() == 0
    assert (own.max(1).values == 1).all()


def test_branin_optimum_is_attained():
    problem = Branin(n_agents=5, shift=2.0, noise_variance=0.0, function_seed=1)
    grid = torch.cartesian_prod(*[torch.linspace(0, 1, 1501, dtype=torch.float64)] * 2)
    x = problem.domain.to_natural(grid)[None].expand(5, -1, -1)
    best = problem.true_value(torch.arange(5), x, x[..., 0]).max(1).values
    assert (best <= problem.reference).all()
    assert torch.allclose(best, problem.reference, atol=1e-3)


def test_custom_direction_and_optimum():
    agents, x = torch.arange(2), torch.tensor([[[0.5]], [[0.5]]], dtype=torch.float64)
    smaller = Custom(f"{HERE}:sphere", (0,), (1,), 2, maximize=False)
    assert torch.allclose(smaller.evaluate(agents, x, Streams(0), 0)[:, 0], torch.tensor([0.25, 0.16]).double())
    assert smaller.metric == "best_value"
    assert smaller.lower_is_better
    known = Custom(f"{HERE}:sphere", (0,), (1,), 2, optimum=[0.0, 1.0])
    assert known.metric == "simple_regret"
    assert known.reference.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("name", "says"), [("broken", "raised RuntimeError: sensor off"), ("not_a_number", "finite"), ("text", "a number")]
)
def test_custom_failures_name_agent_and_point(name, says):
    problem = Custom(f"{HERE}:{name}", (0,), (1,), 2)
    with pytest.raises(EvaluationError, match=rf"agent 0, x = \[0.5\].*{says}"):
        problem.evaluate(torch.arange(2), torch.full((2, 1, 1), 0.5, dtype=torch.float64), Streams(0), 0)


@pytest.mark.parametrize("function", ["nowhere:f", f"{HERE}:nothing", "plain", f"{HERE}:__name__"])
def test_custom_refuses_what_it_cannot_call(function):
    with pytest.raises(ValueError, match=r"function"):
        Custom(function, (0,), (1,), 2)


@pytest.mark.parametrize(
    ("kind", "settings", "says"),
    [
        (Synthetic, {"n_agents": 0}, "n_agents must be an integer of at least 1, got 0"),
        (Synthetic, {"noise_variance": -1}, "noise_variance"),
        (SyntheticHeterogeneous, {"alpha": 1.5}, "alpha"),
        (Branin, {"shift": 3}, "shift"),
        (Landmine, {"score": "accuracy"}, "score must be one of 'margin', 'platt', got 'accuracy'"),
        (Landmine, {"n_jobs": 0}, "n_jobs"),
        (Landmine, {"scale": "cubic"}, "scale must be one of 'linear', 'log', got 'cubic'"),
    ],
)
def test_bad_settings_are_refused(kind, settings, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        kind(**settings)


def test_landmine_missing_file_says_what_to_run(tmp_path):
    with pytest.raises(MissingData, match="python -m runners.fetch landmine"):
        Landmine(data_dir=str(tmp_path))


def test_landmine_other_file_is_refused(tmp_path):
    (tmp_path / "landmine").mkdir()
    (tmp_path / "landmine" / "LandmineData.mat").write_bytes(b"not a mat file" * 50)
    with pytest.raises(ValueError, match="not a landmine file"):
        Landmine(data_dir=str(tmp_path))


def test_landmine_platt_is_noisy_but_reproducible(mini_landmine):
    problem = Landmine(score="platt", n_agents=4, data_dir=str(mini_landmine), n_jobs=1)
    agents, x = torch.arange(4), points(problem, 4, 3)
    first = problem.evaluate(agents, x, Streams(0), 1)
    assert torch.equal(first, problem.evaluate(agents, x, Streams(0), 1))
    assert not torch.equal(first, problem.evaluate(agents, x, Streams(0), 2))


def test_landmine_spread_over_processes_is_the_same(mini_landmine):
    one, two = (Landmine(n_agents=5, data_dir=str(mini_landmine), n_jobs=k) for k in (1, 2))
    agents, x = torch.arange(5), points(one, 5, 2)
    assert torch.equal(one.evaluate(agents, x, Streams(0), 1), two.evaluate(agents, x, Streams(0), 1))


def test_landmine_in_logarithms_is_the_same_svm(mini_landmine):
    linear, log = (Landmine(n_agents=5, data_dir=str(mini_landmine), n_jobs=1, scale=s) for s in ("linear", "log"))
    assert (linear.domain.lower, linear.domain.upper) == ((1e-4, 0.01), (10, 10))  # the paper's
    assert (log.domain.lower, log.domain.upper) == ((-4, -2), (1, 1))
    agents, x = torch.arange(5), points(log, 5, 3)
    assert torch.equal(log.evaluate(agents, x, Streams(0), 1), linear.evaluate(agents, 10**x, Streams(0), 1))


@pytest.mark.parametrize("n", [1, 3])
def test_the_first_fields_are_the_same_without_the_others(mini_landmine, n):
    whole, few = (Landmine(n_agents=k, data_dir=str(mini_landmine), n_jobs=1) for k in (5, n))
    x = points(whole, 5, 2)
    y = whole.evaluate(torch.arange(5), x, Streams(0), 1)
    assert torch.equal(few.evaluate(torch.arange(n), x[:n], Streams(0), 1), y[:n])


def test_landmine_real_file(real_data):
    from scipy.io import loadmat

    file = real_data("landmine/LandmineData.mat")
    problem = Landmine(n_jobs=1)
    agents, x = torch.tensor([0, 28]), torch.tensor([[[1.0, 0.1]], [[5.0, 2.0]]], dtype=torch.float64)
    y = problem.evaluate(agents, x, Streams(0), 0)
    data = loadmat(file)
    for row, (field, (C, gamma)) in enumerate([(0, (1.0, 0.1)), (28, (5.0, 2.0))]):
        X, t = data["feature"][0][field], data["label"][0][field].ravel()
        X1, X2, t1, t2 = train_test_split(X, t, test_size=0.5, stratify=t, random_state=0)
        expected = roc_auc_score(t2, SVC(C=C, gamma=gamma).fit(X1, t1).decision_function(X2))
        assert float(y[row, 0]) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    "problem", [Synthetic(7, grid_size=50), SyntheticHeterogeneous(7, grid_size=50), Branin(7)], ids=lambda p: p.name
)
def test_every_observation_has_noise_of_its_own(problem):
    """No agent, round or point repeats the noise of another, not even with the other sign."""
    agents = torch.arange(7)
    x = points(problem, 7, 2)
    value = problem.true_value(agents, x, x[..., 0])
    noise = torch.stack([problem.evaluate(agents, x, Streams(0), t) - value for t in range(8)])
    assert len((noise.abs() * 1e10).round().unique()) == 8 * 7 * 2


def test_landmine_platt_fits_have_seeds_of_their_own(mini_landmine, monkeypatch):
    problem, seeds = Landmine(score="platt", n_agents=4, data_dir=str(mini_landmine)), []

    def noted(scores, fits, n_jobs):
        seeds.extend(fit.seed for fit in fits)
        return np.zeros(len(fits))

    monkeypatch.setattr(landmine, "in_processes", noted)
    for t in range(8):
        problem.evaluate(torch.arange(4), points(problem, 4, 3), Streams(0), t)
    assert len(set(seeds)) == len(seeds) == 8 * 4 * 3


@pytest.mark.parametrize("kind", [Synthetic, SyntheticHeterogeneous])
def test_the_optimum_is_over_all_points_of_the_grid(kind):
    """On grids of two points, where each of them is the best one of some agent."""
    best = set()
    for seed in range(8):
        problem = kind(n_agents=5, grid_size=2, function_seed=seed)
        everywhere = problem.domain.points.expand(5, -1, -1)
        values = problem.true_value(torch.arange(5), everywhere, everywhere[..., 0])
        assert torch.equal(values, problem.values)
        assert torch.equal(problem.reference, values.max(1).values)
        best |= set(values.argmax(1).tolist())
    assert best == {0, 1}
