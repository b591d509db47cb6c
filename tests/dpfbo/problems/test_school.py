"""The school problem: kernel ridge regressions of many schools as one batch."""

import re
import weakref

import numpy as np
import pytest
import torch
from scipy.io import loadmat, savemat
from sklearn.kernel_ridge import KernelRidge
from sklearn.model_selection import train_test_split

from dpfbo.problems.readers.data_files import MissingData
from dpfbo.problems.school import School
from dpfbo.rng import Streams
from runners.compose.composition import build
from tests.helpers.compose import compose
from tests.helpers.devices import same_elsewhere

SIZES = (9, 4, 12, 7, 16, 5, 10)


def cells(sizes=SIZES):
    """Students and scores in the upstream format: 8-bit integers, one cell a school."""
    rng = np.random.default_rng(0)
    X, Y = (np.empty((1, len(sizes)), dtype=object) for _ in range(2))
    for n, rows in enumerate(sizes):
        X[0, n] = rng.integers(0, 2, (rows, 28)).astype(np.uint8)
        X[0, n][:, 3:5] = rng.integers(0, 90, (rows, 2))
        Y[0, n] = rng.integers(1, 71, (rows, 1)).astype(np.uint8)
    return X, Y


def write(folder, contents):
    (folder / "school").mkdir()
    savemat(folder / "school" / "school.mat", contents)
    return str(folder)


@pytest.fixture(scope="module")
def mini(tmp_path_factory):
    X, Y = cells()
    return write(tmp_path_factory.mktemp("data"), {"X": X, "Y": Y})


def test_a_sweep_over_splits_does_not_keep_the_data_of_all(mini):
    """Real files have 70 MB for each split, and a sweep's process runs one seed after the other."""
    first = weakref.ref(School(data_dir=mini, n_agents=3)._schools.train)
    for split_seed in range(1, 4):
        assert len(School(data_dir=mini, n_agents=3, split_seed=split_seed)._schools.train)
    assert first() is None


def points(n, k, seed=0):
    u = torch.rand(n, k, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.tensor([-4.0, -4, -4]).double() + u * torch.tensor([6.0, 5, 5]).double()


def by_scikit_learn(X, y, x, split_seed=0):
    """1 - nmse of one school at x by sklearn's KernelRidge, the two gammas as scales of the features."""
    ridge, ability, other = 10 ** x.numpy()
    X, y = X.astype(float), y.ravel().astype(float)
    X[:, 3:5] /= 100
    X[:, 7:10] *= ability**0.5
    X[:, [*range(7), *range(10, 28)]] *= other**0.5
    X1, X2, y1, y2 = train_test_split(X, y, test_size=0.5, random_state=split_seed)
    model = KernelRidge(alpha=ridge, kernel="rbf", gamma=1.0).fit(X1, y1 - y1.mean())
    return 1 - ((y2 - y1.mean() - model.predict(X2)) ** 2).sum() / ((y2 - y1.mean()) ** 2).sum()


def assert_as_scikit_learn(problem, data, schools, split_seed=0):
    agents, x = torch.tensor(schools), points(len(schools), 4)
    y = problem.evaluate(agents, x, Streams(0), 1)
    for row, n in enumerate(schools):
        expected = [by_scikit_learn(data["X"][0, n], data["Y"][0, n], p, split_seed) for p in x[row]]
        assert y[row].tolist() == pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("split_seed", [0, 5])
def test_every_school_is_scikit_learns_kernel_ridge(mini, split_seed):
    X, Y = cells()
    problem = School(n_agents=7, data_dir=mini, split_seed=split_seed)
    assert_as_scikit_learn(problem, {"X": X, "Y": Y}, list(range(7)), split_seed)


def test_contract(mini):
    problem, agents, x = School(n_agents=7, data_dir=mini), torch.arange(7), points(7, 3)
    y = problem.evaluate(agents, x, Streams(0), 0)
    assert y.shape == (7, 3)
    assert y.dtype == torch.float64
    assert (y < problem.reference[:, None]).all()
    assert torch.equal(problem.true_value(agents, x, y), y)
    assert torch.equal(problem.evaluate(agents, x, Streams(1), 9), y)  # deterministic
    assert problem.domain.to_natural(torch.ones(3).double()).tolist() == [2, 1, 1]


def assert_alike_in_any_company(problem, N, counts):
    x = points(N, max(counts))
    y = problem.evaluate(torch.arange(N), x, Streams(0), 0)
    for some in ([0], [N - 1], [3, 1], [5, 2, 4], list(range(1, N))):
        for k in counts:
            assert torch.equal(problem.evaluate(torch.tensor(some), x[some, :k], Streams(0), 0), y[some, :k])


def test_a_school_scores_the_same_in_any_company(mini):
    assert_alike_in_any_company(School(n_agents=7, data_dir=mini), 7, (1, 3))


def test_the_first_schools_are_the_same_without_the_others(mini):
    x, agents = points(3, 2), torch.arange(3)
    whole, few = (School(n_agents=n, data_dir=mini).evaluate(agents, x, Streams(0), 0) for n in (7, 3))
    assert torch.equal(whole, few)


@pytest.mark.parametrize("ids", [[0, 1, 2], [4]])
def test_stays_on_the_device_of_its_tensors(mini, ids):
    ids, x = torch.tensor(ids), points(len(ids), 2)

    def evaluated():
        problem = School(n_agents=7, data_dir=mini)
        return problem.reference, problem.evaluate(ids, x, Streams(0), 1)

    same_elsewhere(evaluated)


def test_its_preset_builds(mini):
    experiment = build(compose("problem=school", "problem.n_agents=7", f"data_dir={mini}"))
    assert experiment.problem.domain.dimension == 3
    assert experiment.problem.metric == "nmse"


def test_missing_file_says_where_it_belongs(tmp_path):
    with pytest.raises(MissingData, match=r"school/school\.mat"):
        School(data_dir=str(tmp_path))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"n_agents": 8}, "n_agents must be at most 7, the schools in"),
        ({"n_agents": 0}, "n_agents must be an integer of at least 1, got 0"),
        ({"split_seed": -1}, "split_seed"),
    ],
)
def test_bad_settings_are_refused(mini, settings, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        School(data_dir=mini, **settings)


def broken(**changes):
    X, Y = cells((6, 8))
    for (name, n), value in changes.pop("cells", {}).items():
        {"X": X, "Y": Y}[name][0, n] = value
    return {"X": X, "Y": Y, **changes}


@pytest.mark.parametrize(
    ("contents", "says"),
    [
        ({"X": cells()[0]}, "needs the cells 'X' and 'Y' ('Y')"),
        (broken(Y=cells((6, 8, 9))[1]), "needs the cells"),
        (broken(cells={("X", 1): np.ones((8, 27))}), "28 features"),
        (broken(cells={("Y", 0): np.ones((7, 1))}), "28 features"),
        (broken(cells={("X", 0): np.ones((3, 28)), ("Y", 0): np.ones((3, 1))}), "at least 4 students"),
        (broken(cells={("X", 1): np.full((8, 28), np.nan)}), "finite"),
        (broken(cells={("Y", 1): np.full((8, 1), 20)}), "validation scores"),
    ],
)
def test_other_files_are_refused(tmp_path, contents, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        School(n_agents=2, data_dir=write(tmp_path, contents))


def test_real_file(real_data):
    file, problem = real_data("school/school.mat"), School()
    assert_as_scikit_learn(problem, loadmat(file), [0, 138])
    assert_alike_in_any_company(problem, 139, (1,))
    x = torch.cat([points(1, 4), torch.cartesian_prod(*torch.tensor([[-4.0, 2], [-4, 1], [-4, 1]]).double())[None]], 1)
    nmse = 1 - problem.evaluate(torch.arange(139), x.expand(139, -1, -1), Streams(0), 0)
    assert torch.isfinite(nmse).all()  # at the corners too
    best = nmse.min(1).values
    assert (nmse.max(1).values - best).median() > 0.2  # tuning matters
    assert nmse.mean(0).min() - best.mean() > 0.02  # the best setting differs between schools
