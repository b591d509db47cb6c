"""Homes, flats and credit: models of the sales, or the loans, of each place."""

import gzip
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.metrics import r2_score, roc_auc_score
from sklearn.svm import SVR

import dpfbo
from dpfbo.problems.places.homes_flats_credit import Credit, Flats, Homes
from dpfbo.problems.places.place_models import load_places
from dpfbo.problems.readers.data_files import MissingData
from dpfbo.rng import Streams
from runners.compose.composition import build
from runners.identity.setting import label
from tests.helpers.compose import compose
from tests.helpers.devices import same_elsewhere

KINDS = {"homes": Homes, "flats": Flats, "credit": Credit}
PLACES = {"homes": ["98001", "98002", "98004"], "flats": ["BEDOK", "BISHAN", "YISHUN"], "credit": ["AL", "AZ", "WI"]}
TEXTS = {"storey_range": ["01 TO 03", "04 TO 06", "10 TO 12"], "flat_type": ["3 ROOM", "4 ROOM", "EXECUTIVE"]}
STATUS = ["Fully Paid", "Does not meet the credit policy. Status:Charged Off", "Current", "Charged Off", "Fully Paid"]


def table(kind, extra=10):
    """Records in the upstream format: a few more than a place needs, in mixed order, and one place with too few."""
    records, rng = KINDS[kind].records, np.random.default_rng(0)
    rows = 2 * records.fewest if kind == "credit" else records.fewest + extra
    places = np.repeat([*PLACES[kind], "OTHER"], [rows] * 3 + [records.fewest - 1])
    n = len(places)
    made = pd.DataFrame({name: rng.integers(1, 999, n) / 4 for name in records.numbers})
    made.insert(0, "other", "x")
    made[records.place] = places
    for name in records.texts:
        made[name] = rng.choice(TEXTS[name], n)
    total = made[list(records.numbers[:3])].sum(1) + rng.normal(size=n)
    status = np.where(total > total.median(), "Charged Off", rng.choice(STATUS, n))
    made[records.target] = status if records.classes else total.clip(1)
    return made.sample(frac=1, random_state=0)


def write(folder, kind, made):
    path = Path(folder) / KINDS[kind].records.file
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(gzip.compress(made.to_csv(index=False).encode()))
    return str(folder)


@pytest.fixture(scope="module")
def mini(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    for kind in KINDS:
        write(folder, kind, table(kind))
    return str(folder)


CASES = [("homes", "svr"), ("homes", "trees"), ("flats", "svr"), ("credit", "trees")]


def problem_of(kind, mini, model=None, **settings):
    model = {} if model is None else {"model": model}
    return KINDS[kind](**{"n_agents": 3, "n_jobs": 1, "data_dir": mini, **model, **settings})


def points(problem, n, k, seed=0):
    u = torch.rand(n, k, problem.domain.dimension, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return problem.domain.to_natural(u)


@pytest.mark.parametrize(("kind", "model"), CASES)
def test_contract_and_shards(mini, kind, model):
    problem = problem_of(kind, mini, model)
    agents, x = torch.arange(3), points(problem, 3, 2)
    y = problem.evaluate(agents, x, Streams(0), 0)
    assert (y.shape, y.dtype, problem.noise_variance) == ((3, 2), torch.float64, 0)
    assert (y < problem.reference[:, None]).all()
    assert len(y.unique()) > 3
    assert torch.equal(problem.true_value(agents, x, y), y)
    assert torch.equal(problem.evaluate(agents, x, Streams(1), 9), y)  # deterministic
    for some in ([2], [1, 0]):
        assert torch.equal(problem.evaluate(torch.tensor(some), x[some, 1:], Streams(0), 0), y[some, 1:])
    fewer = problem_of(kind, mini, model, n_agents=2)
    assert torch.equal(fewer.evaluate(agents[:2], x[:2], Streams(0), 0), y[:2])
    assert problem.metric == ("one_minus_auc" if kind == "credit" else "one_minus_r2")


@pytest.mark.parametrize(
    ("model", "u", "x"),
    [
        ("svr", 0, [0.01, 0.001, 0.001]),
        ("svr", 0.6, [10**0.4, 10**-0.6, 10**-1.2]),
        ("svr", 1, [100, 10, 1]),
        ("trees", 0, [0.01, 1, 0.2, 1]),
        ("trees", 0.6, [10**-0.8, 5, 0.68, 7]),
        ("trees", 1, [1, 8, 1, 40]),
    ],
)
def test_search_spaces_are_logarithmic_with_whole_numbers(mini, model, u, x):
    domain = problem_of("homes", mini, model).domain
    natural = domain.to_natural(torch.full((domain.dimension,), u, dtype=torch.float64))
    assert natural.tolist() == pytest.approx(x)


def test_a_regression_is_scikit_learns_on_standardised_halves_without_shared_sales(mini):
    problem = problem_of("homes", mini)
    own = pd.read_csv(Path(mini) / problem.records.file, dtype={"zipcode": str})
    own = own[own["zipcode"] == "98002"].sample(130, random_state=0)
    X = own[list(problem.records.numbers)].to_numpy()
    X[:, [2, 5]] = np.log1p(X[:, [2, 5]])
    y = np.log1p(own["price"].to_numpy())
    X, y = (X - X[:65].mean(0)) / X[:65].std(0), (y - y[:65].mean()) / y[:65].std()
    expected = r2_score(y[65:], SVR(C=10, gamma=0.02, epsilon=0.1).fit(X[:65], y[:65]).predict(X[65:]))
    x = torch.tensor([[[10, 0.02, 0.1]]], dtype=torch.float64)
    assert float(problem.evaluate(torch.tensor([1]), x, Streams(0), 0)) == pytest.approx(expected, abs=1e-9)
    assert len(np.unique(X, axis=0)) == 130


def test_a_classifier_is_scikit_learns_on_finished_loans(mini):
    problem = problem_of("credit", mini)
    X, y = load_places(problem.records, problem._path, 0)[2]
    half = len(y) // 2
    assert set(y) == {0, 1}
    own = table("credit").query("addr_state == 'WI'")
    assert half == min(len(own[own["loan_status"] != "Current"]), 400) // 2
    model = GradientBoostingClassifier(
        learning_rate=0.3, max_depth=2, subsample=0.5, min_samples_leaf=7, n_estimators=25, random_state=0
    )
    expected = roc_auc_score(y[half:], model.fit(X[:half], y[:half]).predict_proba(X[half:])[:, 1])
    x = torch.tensor([[[0.3, 2, 0.5, 7]]], dtype=torch.float64)
    assert float(problem.evaluate(torch.tensor([2]), x, Streams(0), 0)) == pytest.approx(expected, abs=1e-12)


def test_texts_count_as_their_first_number(mini):
    problem = problem_of("flats", mini)
    X, _ = load_places(problem.records, problem._path, 0)[0]
    assert [len(set(column)) for column in X.T[4:]] == [3, 3]  # 1, 4, 10 and 3, 4, 6


def test_equal_records_count_once_and_empty_fields_leave_a_record_out(tmp_path):
    made = table("homes", extra=0)
    doubled = pd.concat([made, made[made["zipcode"] == "98001"]])
    problem = problem_of("homes", write(tmp_path, "homes", doubled))
    assert [len(y) for _, y in load_places(problem.records, problem._path, 0)] == [120] * 3
    doubled.loc[doubled.index[doubled["zipcode"] == "98004"][0], "grade"] = np.nan
    write(tmp_path, "homes", doubled)
    load_places.cache_clear()
    with pytest.raises(ValueError, match="n_agents must be at most 2, the places with at least 120 records in"):
        problem_of("homes", str(tmp_path))


def test_the_split_seed_chooses_the_sales(mini):
    one, other = (problem_of("homes", mini, split_seed=seed) for seed in (0, 1))
    agents, x = torch.arange(3), points(one, 3, 1)
    assert not torch.equal(one.evaluate(agents, x, Streams(0), 0), other.evaluate(agents, x, Streams(0), 0))


def test_spread_over_processes_is_the_same(mini):
    one, two = (problem_of("flats", mini, n_jobs=k) for k in (1, 2))
    agents, x = torch.arange(3), points(one, 3, 2)
    assert torch.equal(one.evaluate(agents, x, Streams(0), 1), two.evaluate(agents, x, Streams(0), 1))


def test_stays_on_the_device_of_its_tensors(mini):
    problem, ids = problem_of("homes", mini), torch.arange(3)
    x = points(problem, 3, 2)
    same_elsewhere(lambda: (problem.reference, problem.evaluate(ids, x, Streams(0), 1)))


@pytest.mark.parametrize(("kind", "model"), [("homes", "svr"), ("homes", "trees")])
@pytest.mark.parametrize("algorithm", ["dp_prior", "dp_fts_de"])
def test_private_studies_search_every_axis(mini, kind, model, algorithm):
    problem = problem_of(kind, mini, model)
    study = dpfbo.create_study(
        problem.domain, n_agents=3, algorithm=algorithm, epsilon=2.0, delta=1e-2, rounds=2, n_init=3, rng="seeded"
    )
    best = [agent.configuration for agent in dpfbo.run_study(study, problem).best()]
    for axis, values in zip(problem.domain.axes, zip(*best, strict=True), strict=True):
        assert len(values) == 3 and all(axis.lower <= value <= axis.upper for value in values)
        assert axis.size is None or all(value == round(value) for value in values)


@pytest.mark.parametrize("kind", KINDS)
def test_its_preset_builds_and_its_runs_have_its_name(mini, kind):
    cfg = compose(f"problem={kind}", "problem.n_agents=3", f"data_dir={mini}", "algorithm=ts")
    problem = build(cfg).problem
    assert (type(problem), problem.name) == (KINDS[kind], kind)
    assert (cfg.rounds, cfg.n_init) == (10, 3)
    assert label(cfg) == f"{kind}, ts"


@pytest.mark.parametrize("kind", KINDS)
def test_missing_file_says_how_to_fetch_it(tmp_path, kind):
    with pytest.raises(MissingData, match=rf"{KINDS[kind].records.file}.*runners.fetch {kind} "):
        KINDS[kind](data_dir=str(tmp_path))


@pytest.mark.parametrize(
    ("kind", "settings", "says"),
    [
        ("homes", {"n_agents": 4}, "n_agents must be at most 3, the places with at least 120 records in"),
        ("flats", {"n_agents": 0}, "n_agents must be an integer of at least 1, got 0"),
        ("homes", {"model": "cnn"}, "model must be one of 'svr', 'trees', got 'cnn'"),
        ("credit", {"model": "svr"}, "model must be one of 'trees', got 'svr'"),
        ("flats", {"split_seed": -1}, "split_seed"),
        ("credit", {"n_jobs": 0}, "n_jobs"),
    ],
)
def test_bad_settings_are_refused(mini, kind, settings, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        problem_of(kind, mini, **settings)


@pytest.mark.parametrize(
    ("kind", "column", "value", "says"),
    [
        ("homes", "zipcode", None, "must have a column 'zipcode', got"),
        ("flats", "town", None, "must have a column 'town', got"),
        ("credit", "addr_state", None, "must have a column 'addr_state', got"),
        ("homes", "grade", "fine", "column grade, row 1: must be a finite number"),
        ("homes", "price", -1, "column price, row 1: must be at least 0"),
        ("homes", "price", 5, "zipcode 98001 needs moderate numbers, and in each half different values of price"),
        ("credit", "loan_status", "Fully Paid", "in each half different values of loan_status"),
        ("credit", "loan_status", "Current", "n_agents must be at most 0"),
    ],
)
def test_other_files_are_refused(tmp_path, kind, column, value, says):
    made = table(kind)
    made = made.drop(columns=column) if value is None else made.assign(**{column: value})
    with pytest.raises(ValueError, match=re.escape(says)):
        problem_of(kind, write(tmp_path, kind, made))


@pytest.mark.parametrize(("kind", "model"), CASES)
def test_real_file(real_data, kind, model):
    real_data(KINDS[kind].records.file)
    problem = KINDS[kind](model=model)
    N, places = problem.n_agents, load_places(problem.records, problem._path, 0)
    assert len(places) == N == {"homes": 63, "flats": 25, "credit": 31}[kind]
    for X, y in places:
        half = len(y) // 2
        whole = np.c_[X, y]
        assert half >= problem.records.fewest // 2
        assert not set(map(bytes, whole[:half])) & set(map(bytes, whole[half:]))
    x = points(problem, 1, 6).expand(N, -1, -1)
    y = problem.evaluate(torch.arange(N), x, Streams(0), 0)
    assert torch.isfinite(y).all()
    assert (y.max(1).values - y.min(1).values).median() > (0.05 if kind == "credit" else 0.2)  # tuning matters
