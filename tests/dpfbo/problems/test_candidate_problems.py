"""The problems of outsourced optimisation: grids, loans and property as tables of candidates."""

import gzip
import math
import re
from collections import Counter
from dataclasses import fields

import numpy as np
import pytest
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf

from dpfbo.problems.branin_grid import BraninGrid
from dpfbo.problems.grid_gp import GridGP
from dpfbo.problems.loans import FILE, Loans
from dpfbo.problems.property import SOURCES, Property
from dpfbo.problems.readers.data_files import MissingData
from tests.helpers.compose import compose

LOANS = """id,funded_amnt_inv,int_rate,annual_inc,loan_status,total_pymnt_inv
1,1000,10,40000,Fully Paid,1100
2,2000,20,80000,Charged Off,500
3,4000,12,50000,Current,100
4,499.99,12,50000,Fully Paid,600
5,500,6,1000,Does not meet the credit policy. Status:Fully Paid,550
6,3000,7,,Fully Paid,3300
7,0,7,30000,Fully Paid,0
8,5000,24,60000,Default,1
"""
PRICES = "price,lat,other,lon\n100,1.3,a,103.8\n300,1.3,b,103.8\n150,1.4,,103.9\n400,1.2,d,104.0\n"
SINGAPORE = dict(lon=[103.6, 104.1], lat=[1.15, 1.48], lengthscale=2.0, mean=5.0, signal_sd=0.5, noise_sd=0.25)


def loans(folder, text=LOANS, **settings):
    path = folder / FILE
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()))
    given = dict(n_rows=None, lengthscales=[1.0, 2.0, 4.0], mean=0.1, signal_sd=0.05, noise_sd=0.3) | settings
    return Loans(data_dir=str(folder), **given)


def locations(folder, text=PRICES, **settings):
    path = folder / "own.csv"
    path.write_text(text)
    return Property(source="csv", file=str(path), **{"n_rows": None, **SINGAPORE, **settings})


def as_set(table):
    """Values of the rows by their natural features; no two rows of the small files have the same."""
    return dict(zip(map(tuple, table.natural.tolist()), table.values.tolist(), strict=True))


def replaced(one, other):
    """The number of rows to replace in one list to get the other, whatever the order."""
    assert len(one) == len(other)
    return (Counter(one) - Counter(other)).total()


@pytest.mark.parametrize("problem", [lambda _: GridGP(side_points=7), lambda _: BraninGrid(9), loans, locations])
def test_contract(problem, tmp_path):
    problem = problem(tmp_path)
    table, prior = problem.table, problem.prior
    assert (problem.n_agents, problem.metric, problem.lower_is_better) == (1, "simple_regret", True)
    assert problem.table is table
    for part in (table.rows, table.natural, table.values):
        assert part.dtype == torch.float64
        assert len(part) == table.public.n
    assert table.rows.shape == table.natural.shape
    assert torch.allclose(torch.tensor(table.lower), -torch.tensor(table.upper))  # the box has its centre at 0
    assert (prior.variance, prior.mean) == (1, 0)
    assert prior.noise > 0
    assert problem.noise_variance in (0, prior.noise)


def test_grid_is_the_papers():
    table = GridGP().table
    assert table.rows.shape == (10000, 2)
    assert table.upper == (3.2, 3.2)
    assert table.rows.abs().amax(0).tolist() == [3.2, 3.2]  # the corners are candidates
    scaled = 25 * table.rows / table.rows.norm(dim=1).max()
    assert torch.linalg.svdvals(scaled - scaled.mean(0)).tolist() == pytest.approx([1030.88, 1030.88], abs=0.005)
    order = table.natural[:2] - table.natural[0]
    assert order.tolist() == [[0, 0], [0, pytest.approx(8 / 99)]]


def test_draws_have_the_kernels_covariance():
    K = 2000
    draws = torch.stack([GridGP(side_points=3, side=3.0, function_seed=seed).table.values for seed in range(K)])
    rows = GridGP(side_points=3, side=3.0).table.rows
    expected = torch.exp(-0.5 * torch.cdist(rows, rows) ** 2)
    se = ((1 + expected**2) / K).sqrt()  # of a product of two jointly normal numbers
    assert ((draws.T @ draws / K - expected).abs() < 4.5 * se).all()
    assert (draws.mean(0).abs() < 4.5 / K**0.5).all()
    assert torch.equal(draws[7], GridGP(side_points=3, side=3.0, function_seed=7).table.values)


def test_branin_grid_is_standardised_and_has_three_optima():
    table = BraninGrid(side_points=301).table
    assert float(table.values.mean()) == pytest.approx(0, abs=0.02)
    assert float(table.values.std()) == pytest.approx(1, abs=0.02)
    assert float(table.values.max()) == pytest.approx((54.8104 - 0.39789) / 51.9496, abs=1e-4)
    best = table.natural[table.values > 1.047]
    for x in ((-math.pi, 12.275), (math.pi, 2.275), (9.42478, 2.475)):
        assert (best - torch.tensor(x)).norm(dim=1).min() < 0.05
    assert table.upper == pytest.approx((7.5 / 2.8, 7.5 / 6))


def test_loans_that_count_and_what_they_returned(tmp_path):
    table = loans(tmp_path).table
    assert table.names == ("amount", "rate", "income")
    returns = {(1000, 10, 40000): 0.1, (2000, 20, 80000): -0.75, (500, 6, 1000): 0.1}
    assert as_set(table) == pytest.approx({row: (r - 0.1) / 0.05 for row, r in returns.items()}, abs=1e-9)
    unit = torch.tensor([1.0, 2, 4]).double()
    centre = torch.tensor([500 * 35000, 5 * 25, 5000 * 500000]).double().sqrt().log()
    assert torch.allclose(table.rows * unit + centre, table.natural.log())
    assert table.upper == pytest.approx((math.log(70) / 2, math.log(5) / 4, math.log(100) / 8))
    assert table.rows[:, 2].min() < table.lower[2]  # an income outside the public bounds stays what it is
    assert loans(tmp_path).prior.noise == pytest.approx(36)


def test_property_averages_each_location_and_measures_in_km(tmp_path):
    problem = locations(tmp_path)
    table = problem.table
    assert problem.name == "property_csv"
    prices = {(103.8, 1.3): 200, (103.9, 1.4): 150, (104.0, 1.2): 400}
    assert as_set(table) == pytest.approx({row: (5 - math.log(p)) / 0.5 for row, p in prices.items()})  # cheap is good
    lon, lat = torch.deg2rad(table.natural).T  # distances on the sphere
    sine = torch.sin((lat[:, None] - lat) / 2) ** 2
    sine = sine + torch.cos(lat)[:, None] * torch.cos(lat) * torch.sin((lon[:, None] - lon) / 2) ** 2
    assert torch.allclose(2 * torch.cdist(table.rows, table.rows), 2 * 6378.1 * sine.sqrt().arcsin(), rtol=2e-3)
    assert problem.prior.noise == pytest.approx(0.25)


@pytest.mark.parametrize("name", SOURCES)
def test_property_sources_know_their_area(tmp_path, name):
    path = tmp_path / SOURCES[name].file
    path.parent.mkdir()
    lon, lat = (np.mean(b) for b in (SOURCES[name].area.lon, SOURCES[name].area.lat))
    rows = f"lon,lat,price_per_sqm\n{lon},{lat},3000\n{lon + 0.1},{lat + 0.1},5000\n"
    path.write_bytes(gzip.compress(rows.encode()))
    problem = Property(source=name, n_rows=None, data_dir=str(tmp_path))
    assert problem.name == SOURCES[name].name != "property_csv"
    assert problem.table.rows.norm(dim=1).min() < 1e-9
    assert problem.stand_in == SOURCES[name].stand_in
    assert "stand in for the paper's private property in Singapore" in problem.stand_in
    wider = Property(source=name, n_rows=None, data_dir=str(tmp_path), lengthscale=2 * problem.area.lengthscale)
    assert torch.allclose(2 * wider.table.rows, problem.table.rows)


def test_a_subset_is_drawn_with_its_own_seed(tmp_path):
    rng = np.random.default_rng(0)
    text = "lon,lat,price\n" + "".join(
        f"103.7{i:03},1.2{i:03},{p:.2f}\n" for i, p in enumerate(rng.uniform(50, 99, 200))
    )
    whole = locations(tmp_path, text).table.natural
    first, again, other = (locations(tmp_path, text, n_rows=40, subset_seed=s).table.natural for s in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert len(first.unique(dim=0)) == 40
    assert {tuple(row) for row in first.tolist()} <= {tuple(row) for row in whole.tolist()}
    assert len({tuple(row) for row in first.tolist()} & {tuple(row) for row in other.tolist()}) < 25
    with pytest.raises(ValueError, match="n_rows must be at most 200 for property_csv, got 201"):
        locations(tmp_path, text, n_rows=201)


def test_one_loan_that_is_another_changes_one_row(tmp_path):
    def rows(records):
        text = "".join(f"{i},{amount},{10 + i},{income},{status},900\n" for i, amount, income, status in records)
        return list(as_set(loans(tmp_path, LOANS.splitlines()[0] + "\n" + text, n_rows=8).table).items())

    records = [(i, 1000 + i, 40000 + i, "Fully Paid" if i % 4 else "Current") for i in range(24)]
    before = rows(records)
    out = [replaced(before, rows([*records[:i], (i, 499, 1, "Fully Paid"), *records[i + 1 :]])) for i in range(24)]
    assert (sum(out), max(out), any(out[::4])) == (8, 1, False)  # those that were in the table, no other with them
    entering = [(i, 1000, 40000, "Fully Paid") for i in range(0, 24, 4)]
    into = [replaced(before, rows([*records[: new[0]], new, *records[new[0] + 1 :]])) for new in entering]
    assert set(into) == {0, 1}
    assert replaced(before, rows([*records, (24, 2000, 50000, "Fully Paid")])) <= 1
    richer = rows([(i, amount, 99000 - income, status) for i, amount, income, status in records])
    assert [row[0] for row, _ in richer] == [row[0] for row, _ in before]  # incomes do not decide the order


def test_one_sale_that_is_another_changes_two_rows_and_the_place_of_one(tmp_path):
    def rows(records):
        text = "lon,lat,price\n" + "".join(f"{103.7 + p / 100:.2f},1.3{p % 7},{price}\n" for p, price in records)
        return list(as_set(locations(tmp_path, text, n_rows=5).table).items())

    records = [(i % 11, 100 + i) for i in range(28)]
    before = rows(records)
    changed, moved = Counter(), Counter()
    for i in range(28):
        for place in ((i + 3) % 11, 11):  # an occupied place, and an empty one
            after = rows([*records[:i], (place, 500), *records[i + 1 :]])
            changed[replaced(before, after)] += 1
            moved[replaced([row for row, _ in before], [row for row, _ in after])] += 1
    assert (set(changed), set(moved)) == ({0, 1, 2}, {0, 1})
    dearer = rows([(place, 2 * price) for place, price in records])
    assert [row for row, _ in dearer] == [row for row, _ in before]  # prices do not decide the order


def test_what_stands_in_for_the_papers_data_is_said(tmp_path):
    assert loans(tmp_path).stand_in.startswith("LendingClub loans 2007-2011 stand in for the paper's file")
    for problem in (locations(tmp_path), GridGP(side_points=3), BraninGrid(3)):
        assert problem.stand_in is None


def test_a_file_that_changes_is_read_again(tmp_path):
    assert len(locations(tmp_path).table.rows) == 3
    assert len(locations(tmp_path, PRICES + "500,1.25,e,103.7\n").table.rows) == 4


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("lon,lat\n103.8,1.3\n103.9,1.4\n", "own.csv must have a column 'price', got lon, lat"),
        (PRICES + ",1.3,,103.7\n", "own.csv, column price, row 5: must be a finite number"),
        (PRICES + "9,cheap,,103.7\n", "own.csv, column lat, row 5: must be a finite number"),
        (PRICES + "9,1.3,,inf\n", "own.csv, column lon, row 5: must be a finite number"),
        (PRICES + "0,1.3,,103.7\n", "own.csv, column price, row 5: must be above 0"),
        (PRICES + "1e-310,1.3,,103.7\n", "own.csv, column price, row 5: must be above 0, at least 2.23e-308"),
        ("lon,lat,price,price\n103.8,1.3,5,9\n103.9,1.4,6,7\n", "own.csv must have one column 'price', got 2"),
        (PRICES.replace(",a,", ",a,b,"), "own.csv is not a csv file whose rows have as many fields as its header"),
        (PRICES + "1,1.3,,103.7,9\n", "as many fields as its header (Error tokenizing data. C error: Expected 4"),
        ("lon,lat,price\n103.8,1.3,5\n", "own.csv, column lon: must have at least 2 different values, got 1 rows"),
        ("lon,lat,price\n", "own.csv, column lon: must have at least 2 different values, got 0 rows"),
        ("lon,lat,price\n103.8,1.3,5\n103.8,1.4,6\n", "own.csv, column lon: must have at least 2 different values"),
        ("lon,lat,price\n103.8,1.3,5\n103.9,1.4,5\n", "own.csv, column price: must have at least 2 different values"),
        ("lat,lon,price\n103.8,1.3,5\n103.9,1.4,6\n", "some locations must lie within the bounds lon and lat"),
        ("", "own.csv is not a csv file"),
    ],
)
def test_other_files_are_refused(tmp_path, text, says):
    with pytest.raises(ValueError, match=re.escape(says)) as caught:
        locations(tmp_path, text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (LOANS.replace("loan_status", "status"), "must have a column 'loan_status'"),
        (LOANS.replace("2000,20", "2000,0"), "column int_rate, row 2: must be above 0"),
        (LOANS.replace("2000,20", "2000,"), "column int_rate, row 2: must be a finite number"),
        (LOANS.replace("80000", "-1"), "column annual_inc, row 2: must be above 0"),
        (LOANS.replace("80000", "much"), "column annual_inc, row 2: must be a finite number"),
        (LOANS.replace("Fully Paid", "Current"), "at least 2 rows, got 1"),
    ],
)
def test_other_loans_are_refused(tmp_path, text, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        loans(tmp_path, text)


def test_missing_files_say_where_they_belong_and_what_fetches_them(tmp_path):
    with pytest.raises(MissingData, match=re.escape(f"{tmp_path}/{FILE} is missing") + ".*runners.fetch credit "):
        Loans(data_dir=str(tmp_path))
    with pytest.raises(MissingData, match="king_county_2014_2015.*runners.fetch homes "):
        Property(data_dir=str(tmp_path))
    with pytest.raises(MissingData, match="singapore_hdb_resale_2023.*runners.fetch flats "):
        Property(source="singapore", data_dir=str(tmp_path))
    with pytest.raises(MissingData, match="file must be a csv file, there is none at /no/where.csv"):
        Property(source="csv", file="/no/where.csv", **SINGAPORE)


@pytest.mark.parametrize(
    ("problem", "settings", "says"),
    [
        (GridGP, {"side_points": 1}, "side_points must be an integer of at least 2, got 1"),
        (GridGP, {"side": 0.0}, "side "),
        (GridGP, {"lengthscale": -1.0}, "lengthscale "),
        (GridGP, {"noise_variance": 0.0}, "noise_variance "),
        (GridGP, {"function_seed": -1}, "function_seed "),
        (BraninGrid, {"lengthscales": (1.0,)}, "lengthscales must be a number for each of x1, x2"),
        (BraninGrid, {"lengthscales": 2.0}, "lengthscales must be a number for each of x1, x2"),
        (BraninGrid, {"lengthscales": (1.0, math.nan)}, "lengthscales must be a finite number above 0"),
        (Loans, {"n_rows": 1}, "n_rows must be an integer of at least 2, got 1"),
        (Loans, {"subset_seed": 0.5}, "subset_seed "),
        (Loans, {"rate": (25.0, 5.0)}, "rate must have its lowest value first, got [25.0, 5.0]"),
        (Loans, {"income": (0.0, 5.0)}, "income must be a finite number above 0, got 0.0"),
        (Loans, {"amount": 500}, "amount must be two numbers [lowest, highest], got 500"),
        (Loans, {"signal_sd": 0.0}, "signal_sd "),
        (Loans, {"noise_sd": math.inf}, "noise_sd "),
        (Property, {"source": "tokyo"}, "source must be one of 'king_county', 'singapore', 'csv', got 'tokyo'"),
        (Property, {"source": "csv"}, "file must be given for source=csv"),
        (Property, {"file": "x.csv"}, "file must be given for source=csv and for no other, got 'x.csv'"),
        (
            Property,
            {"source": "csv", "file": "x", "mean": 1.0},
            "source=csv needs lon, lat, len",
        ),
        (Property, {"lat": (47.0, 91.0)}, "lat must lie in [-90, 90] degrees, got [47.0, 91.0]"),
        (Property, {"lengthscale": 0.0}, "lengthscale "),
    ],
)
def test_bad_settings_are_refused(problem, settings, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        problem(**settings)


def configured(name, *overrides):
    """The problem of conf/problem."""
    settings = OmegaConf.to_container(compose(f"problem={name}", *overrides).problem, resolve=True)
    return instantiate({key: value for key, value in settings.items() if key != "preset"})


@pytest.mark.parametrize("problem", [GridGP, BraninGrid, Loans, Property])
def test_defaults_are_those_of_the_yaml(problem):
    default = {part.name: part.default for part in fields(problem)}
    settings = OmegaConf.to_container(compose(f"problem={default['name']}").problem, resolve=True)
    for key in settings.keys() - {"_target_", "preset", "data_dir"}:
        value = settings[key]
        assert (tuple(value) if isinstance(value, list) else value) == default[key]


@pytest.mark.parametrize(
    ("name", "rounds", "delta", "r"),
    [("grid_gp", 50, 1e-5, 10), ("branin_grid", 20, 1e-5, 10), ("loans", 50, 1e-5, 15), ("property", 100, 1e-4, 15)],
)
def test_presets_of_the_paper(name, rounds, delta, r):
    preset = compose(f"problem={name}").problem.preset
    expected = dict(rounds=rounds, n_init=1, epsilon=pytest.approx(math.exp(1.1)), delta=delta, r=r)
    assert {key: preset[key] for key in expected} == expected


def test_the_function_is_that_of_the_seed():
    assert torch.equal(configured("grid_gp", "seed=3").table.values, GridGP(function_seed=3).table.values)


def test_real_loans(real_data):
    real_data(FILE)
    problem = configured("loans")
    assert len(Loans(n_rows=None).table.rows) == 41126
    table = problem.table
    assert table.rows.shape == (36000, 3)
    returns = table.values * problem.signal_sd + problem.mean
    assert -1 <= float(returns.min()) < float(returns.max()) < 1
    assert float(returns.mean()) == pytest.approx(problem.mean, abs=0.02)
    outside = (table.rows.abs() > torch.tensor(table.upper, dtype=torch.float64) + 1e-9).any(1)
    assert int(outside.sum()) < 100


@pytest.mark.parametrize("source", SOURCES)
def test_real_property(source, real_data):
    real_data(SOURCES[source].file)
    problem = configured("property", f"problem.source={source}")
    table = problem.table
    assert table.rows.shape == (2004, 2)
    assert (table.rows.abs() < torch.tensor(table.upper)).all()
    assert float(table.values.mean()) == pytest.approx(0, abs=1)  # the prior is about right
    assert 0.5 < float(table.values.std()) < 2
