"""Releases against their definitions: the published projection, and two transforms with a guarantee."""

import math

import dp_accounting
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dpfbo.outsourced.table import Table
from dpfbo.outsourced.transforms.cells import Cells
from dpfbo.outsourced.transforms.cover import Cover
from dpfbo.outsourced.transforms.gaussian import GaussianNoise
from dpfbo.outsourced.transforms.histogram import Histogram
from dpfbo.outsourced.transforms.plain import Plain
from dpfbo.outsourced.transforms.random_projection import RandomProjection, singular_values, threshold
from dpfbo.privacy.accounting.analytic_gaussian import AnalyticGaussian, noise_multiplier
from dpfbo.privacy.entropy import SeededEntropy, SystemEntropy, gaussian
from dpfbo.privacy.noise import DiscreteGaussian
from dpfbo.problems.grid_gp import GridGP
from dpfbo.rng import Streams

EPSILON, DELTA = math.exp(1.1), 1e-5
LOWER, UPPER = (-3.0, -1.0, -0.5), (3.0, 1.0, 0.5)
EASY, STRICT = 1e4, 1.0  # claimed epsilons at which all singular values of `table()` reach w, and none does


def table(rows=None, n=200, beyond=1.0):
    """Uniform rows over the public box, or over `beyond` times its sides."""
    if rows is None:
        u = np.random.default_rng(5).uniform(-beyond, beyond, (n, 3))
        rows = torch.from_numpy(u * np.array(UPPER))
    return Table(rows, rows, torch.arange(len(rows), dtype=torch.float64), ("a", "b", "c"), LOWER, UPPER)


def seeded(seed=0):
    return SeededEntropy(Streams(seed))


def values(transform, some_table, seed=0):
    return placed(*transform.release(some_table, seeded(seed)))


def placed(release, private):
    """The released values in the order of the table."""
    found = release.values.numpy()
    if private.order is None:
        return found
    assert sorted(private.order) == list(range(len(found)))
    return found[np.argsort(private.order)]


# --- random_projection


def published_rows(rows):
    """Algo. 1, line 1 in numpy: norms of at most 25, then columns of mean zero."""
    X = rows.numpy() * 25 / np.sqrt((rows.numpy() ** 2).sum(1)).max()
    return X - X.mean(0)


def test_threshold_of_the_paper():
    assert threshold(10, EPSILON, 1e-5) == pytest.approx(976.1, abs=0.05)
    assert threshold(15, EPSILON, 1e-5) == pytest.approx(1224.7, abs=0.05)
    assert float(singular_values(GridGP().table.rows)[-1]) == pytest.approx(1030.88, abs=0.005)


def test_projection_of_rows_that_reach_w():
    r, M = 6, gaussian(seeded(3), "projection", 0, (3, 6)).numpy()
    expected = published_rows(table().rows) @ M / math.sqrt(r)
    assert np.abs(values(RandomProjection(r, EASY, DELTA), table(), 3) - expected).max() < 1e-12
    assert np.abs(values(RandomProjection(r, EASY, DELTA), table(), 4) - expected).max() > 1


@pytest.mark.parametrize("inflation", ["paper", "authors"])
@pytest.mark.parametrize("epsilon", [STRICT, 15.0])  # 15: the largest singular value reaches w, the others do not
def test_projection_of_raised_rows(inflation, epsilon):
    """The release agrees with one from the eigenvectors of the Gram matrix."""
    X, M = published_rows(table().rows), gaussian(seeded(3), "projection", 0, (3, 2)).numpy()
    w = 16 * math.sqrt(2 * math.log(2 / DELTA)) / epsilon * math.log(16 * 2 / DELTA)
    squares, V = np.linalg.eigh(X.T @ X)
    s = np.sqrt(squares)
    assert s[0] < w and (s[-1] > w) == (epsilon == 15)
    factors = np.sqrt(s**2 + w**2) / s if inflation == "paper" else (s + w) / s
    expected = X @ V @ np.diag(factors) @ V.T @ M / math.sqrt(2)
    got = values(RandomProjection(2, epsilon, DELTA, inflation), table(), 3)
    assert np.abs(got - expected).max() < 1e-10 * np.abs(expected).max()


@pytest.mark.parametrize(("margin", "raised"), [(1 + 1e-9, False), (1 - 1e-9, True)])
def test_rows_are_raised_exactly_where_the_smallest_singular_value_is_below_w(margin, raised):
    smallest = np.linalg.svd(published_rows(table().rows), compute_uv=False)[-1]
    epsilon = threshold(4, 1.0, DELTA) / smallest * margin
    as_published = values(RandomProjection(4, EASY, DELTA), table())
    assert (np.abs(values(RandomProjection(4, epsilon, DELTA), table()) - as_published).max() > 0.1) == raised


def test_projected_squared_distances_are_right_in_expectation():
    X, r, runs = published_rows(table(n=12).rows), 4, 400
    ratios = []
    for seed in range(runs):
        Z = values(RandomProjection(r, EASY, DELTA), table(n=12), seed)
        ratios.append([((Z[i] - Z[j]) ** 2).sum() / ((X[i] - X[j]) ** 2).sum() for i, j in ((0, 1), (2, 7), (4, 9))])
    mean = np.mean(ratios, axis=0)
    assert (np.abs(mean - 1) < 4 * math.sqrt(2 / r / runs)).all()  # chi^2_r / r
    assert (np.abs(np.var(ratios, axis=0) / (2 / r) - 1) < 0.5).all()


@pytest.mark.parametrize("epsilon", [EASY, STRICT])
def test_projections_tell_the_column_space_so_that_nothing_is_private(epsilon):
    """Why the claim is labelled: a row moved by 1e-3 of 25 leaves the space that every release of the rows lies in."""
    X = published_rows(table().rows)
    rows = table().rows.clone()
    rows[17] += 1e-3 * 3.2 / 25
    outside = np.eye(len(X)) - X @ np.linalg.pinv(X)
    for seed in range(3):
        own = values(RandomProjection(5, epsilon, DELTA), table(), seed)
        neighbours = values(RandomProjection(5, epsilon, DELTA), table(rows), seed)
        assert np.abs(outside @ own).max() < 1e-9 * np.abs(own).max()
        assert np.abs(outside @ neighbours).max() > 1e-6 * np.abs(neighbours).max()


def test_a_projection_never_claims_to_be_private():
    transform = RandomProjection(5, EPSILON, DELTA)
    assert transform.private is False
    assert transform.event(table().public) == dp_accounting.NonPrivateDpEvent()
    assert AnalyticGaussian("none").epsilon([transform.event(table().public)], DELTA) == math.inf
    claim = transform.published_claim(table().public)
    assert "published claim (eps 3.004, delta 1e-05); not a guarantee when n > d + 1, here n = 200, d = 3" in claim
    assert "not a guarantee when n > d + 1" in transform.published_claim(table(n=5).public)
    at_four = transform.published_claim(table(n=4).public)
    assert "n > d + 1" in at_four and "its proof does not cover this transform" in at_four


def test_plain_is_the_rows():
    assert np.abs(values(Plain(), table()) - published_rows(table().rows)).max() < 1e-12
    assert Plain().event(table().public) == dp_accounting.NonPrivateDpEvent()


# --- gaussian


def delta_of(epsilon, z):
    """Delta by Balle and Wang 2018, Theorem 8, a second version."""
    low = stats.norm.logcdf(-0.5 / z - epsilon * z)
    return stats.norm.cdf(0.5 / z - epsilon * z) - math.exp(epsilon + low)


@pytest.mark.parametrize("delta", [1e-9, 1e-5, 1e-4, 0.1])
@pytest.mark.parametrize("epsilon", [0.05, 1.0, EPSILON, 12.182, 40.0])
def test_noise_is_the_least_that_keeps_the_guarantee(epsilon, delta):
    sigma = GaussianNoise(epsilon, delta).sigma(table().public)
    assert delta_of(epsilon, sigma) <= delta
    assert delta_of(epsilon, sigma * (1 - 1e-6)) > delta
    counts = Histogram(epsilon, delta).sigma(table().public)
    assert counts == pytest.approx(math.sqrt(2) * sigma, rel=1e-12)


@pytest.mark.parametrize("transform", [GaussianNoise, Histogram])
@pytest.mark.parametrize("epsilon", [0.3, 1.0, EPSILON, 12.182])
def test_the_event_costs_the_target_and_never_more(transform, epsilon):
    some = transform(epsilon, DELTA)
    spent = AnalyticGaussian(some.relation).epsilon([some.event(table().public)], DELTA)
    assert epsilon * (1 - 1e-6) <= spent <= epsilon


def test_two_releases_cost_what_one_with_both_noises_costs():
    events = [GaussianNoise(e, DELTA).event(table().public) for e in (1.0, 2.0)]
    a, b = (noise_multiplier(e, DELTA) for e in (1.0, 2.0))
    spent = AnalyticGaussian("any").epsilon(events, DELTA)
    assert delta_of(spent, (a**-2 + b**-2) ** -0.5) == pytest.approx(DELTA, rel=1e-4)
    assert AnalyticGaussian("any").curve(events, DELTA) == [pytest.approx(1.0, rel=1e-6), spent]


finite = st.floats(-1, 1, allow_nan=False)


@settings(deadline=None, max_examples=60)
@given(
    st.integers(0, 29),
    st.tuples(finite, finite, finite),
    st.tuples(finite, finite, finite),
    st.sampled_from((1.0, 4.0)),
)
def test_neighbours_have_means_at_most_one_apart_in_one_row(row, place, direction, beyond):
    """Under equal noise only the mean of one row differs, with no change of a scale or a centre."""
    rows = table(n=30).rows.clone()
    rows[row] = torch.tensor(place) * torch.tensor(UPPER) * beyond
    step = torch.tensor(direction, dtype=torch.float64)
    step = step / max(float(step.norm()), 1.0)  # in units of the scaled rows
    other = rows.clone()
    other[row] += step * math.sqrt(9 + 1 + 0.25) / 25
    transform = GaussianNoise(EPSILON, DELTA)
    moved = values(transform, table(other)) - values(transform, table(rows))
    assert np.linalg.norm(moved) <= 1 + 1e-9
    assert not moved[np.arange(30) != row].any()
    if all(((r >= torch.tensor(LOWER)) & (r <= torch.tensor(UPPER))).all() for r in (rows[row], other[row])):
        assert np.abs(moved[row] - step.numpy()).max() < 1e-9
    assert transform.scale(table(rows)) == transform.scale(table(other)) == 25 / math.sqrt(9 + 1 + 0.25)


def test_a_row_far_away_changes_its_own_mean_alone_and_is_moved_to_the_box():
    transform, rows = GaussianNoise(EPSILON, DELTA), table().rows.clone()
    before = values(transform, table(rows))
    rows[4] = torch.tensor([1e6, -1e6, 0.2])
    after, private = transform.release(table(rows), seeded())
    assert private.diagnostics.n_clipped == 1
    changed = (placed(after, private) != before).any(1)
    assert changed.nonzero()[0].tolist() == [4]
    noise = before[4] - table().rows[4].numpy() * 25 / math.sqrt(10.25)
    assert placed(after, private)[4] - noise == pytest.approx(np.array([3, -1, 0.2]) * 25 / math.sqrt(10.25))


@pytest.mark.parametrize("entropy", [seeded(), SystemEntropy()], ids=["seeded", "os"])
def test_noise_of_the_rows_is_normal_and_of_the_stated_size(entropy):
    transform, some = GaussianNoise(EPSILON, DELTA), table(n=4000)
    release, private = transform.release(some, entropy)
    noise = placed(release, private) - some.rows.numpy() * 25 / math.sqrt(10.25)
    unit = noise / transform.sigma(some.public)
    assert np.abs(unit.mean(0)).max() < 4.5 / math.sqrt(len(unit))
    assert np.abs(unit.var(0) - 1).max() < 4.5 * math.sqrt(2 / len(unit))
    assert np.abs(np.corrcoef(unit.T) - np.eye(3)).max() < 4.5 / math.sqrt(len(unit))
    assert stats.kstest(unit.ravel(), "norm").pvalue > 1e-5
    assert private.diagnostics.noise == pytest.approx(np.linalg.norm(noise))
    assert (release.sigma, release.sensitivity) == (transform.sigma(some.public), 1.0)


def test_a_modeler_is_told_the_noise():
    transform, some = GaussianNoise(EPSILON, DELTA), table()
    release, private = transform.release(some, seeded())
    candidates = transform.candidates(release.values, some.public)
    assert torch.equal(candidates.points, release.values)
    assert candidates.input_variance.tolist() == [transform.sigma(some.public) ** 2] * 3
    assert not candidates.fresh
    rows_of = transform.candidate_rows(release.values, private.order, some)
    assert [rows_of.rows(i).tolist() for i in range(len(rows_of))] == [[row] for row in private.order]


@pytest.mark.parametrize("entropy", ["seeded", "os"])
def test_the_order_of_the_rows_is_secret_and_new(entropy):
    """A table may be sorted by a private column, so a released row's place must be independent of its rank."""
    some, transform = table(n=400), GaussianNoise(EPSILON, DELTA)
    sources = [seeded(k) if entropy == "seeded" else SystemEntropy() for k in range(40)]
    orders = [transform.release(some, source)[1].order for source in sources]
    assert len({tuple(order) for order in orders}) == 40
    correlations = [stats.spearmanr(order, range(400)).statistic for order in orders]
    assert abs(np.mean(correlations)) < 4.5 / math.sqrt(40 * 399)
    first = np.bincount([order[0] // 100 for order in orders], minlength=4)
    assert stats.chisquare(first).pvalue > 1e-4


class Mixed:
    """Numbers of one source for the order of the rows, and of another for all else."""

    reproducible = True

    def __init__(self, order, others):
        self.order, self.others = order, others

    def uniform(self, purpose, round, size):
        return (self.order if purpose == "order" else self.others).uniform(purpose, round, size)


def test_the_order_and_the_noise_are_of_different_streams():
    """The order stays where only the noise changes, changes where the noise stays, and is not sorted by its numbers."""
    some, transform = table(n=400), GaussianNoise(EPSILON, DELTA)
    (one, order), (other, same) = (transform.release(some, Mixed(seeded(1), seeded(k))) for k in (2, 3))
    assert order.order == same.order and not torch.equal(one.values, other.values)
    third, another = transform.release(some, Mixed(seeded(4), seeded(2)))
    assert another.order != order.order
    rows = some.rows * transform.scale(some)
    noise, noise_too = (r.values - rows[private.order] for r, private in ((one, order), (third, another)))
    assert torch.allclose(noise, noise_too, atol=1e-9)
    numbers = seeded(2).uniform("noise", 0, 400)
    assert abs(stats.spearmanr(order.order, numbers.argsort()).statistic) < 4.5 / math.sqrt(399)


@pytest.mark.parametrize("transform", [GaussianNoise, Histogram])
def test_discrete_noise_is_inflated_and_lies_on_its_grid(transform):
    pytest.importorskip("opendp")
    plain, exact = transform(EPSILON, DELTA), transform(EPSILON, DELTA, noise=DiscreteGaussian())
    some = table(n=50)
    assert plain.sigma(some.public) < exact.sigma(some.public) < plain.sigma(some.public) * (1 + 1e-6)
    assert exact.event(some.public) == plain.event(some.public)
    released = exact.release(some, SystemEntropy())[0].values
    steps = released * 2.0**30
    assert torch.equal(steps, steps.round())
    with pytest.raises(ValueError, match="discrete noise has no seed"):
        exact.release(some, seeded())


# --- histogram and cover


def counts(cells, some_table):
    return torch.bincount(cells.of(some_table)[0], minlength=len(cells)).numpy()


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 39), st.tuples(finite, finite, finite), st.sampled_from((0.5, 1.0, 1.5, 1e9)), st.integers(2, 9))
def test_a_replaced_row_changes_the_counts_by_at_most_sqrt_two(row, place, beyond, longest):
    some = table(n=40, beyond=1.3)
    other = some.rows.clone()
    other[row] = torch.tensor(place) * torch.tensor(UPPER) * beyond
    cells = Cells(some.public, longest)
    before, after = counts(cells, some), counts(cells, table(other))
    assert before.sum() == after.sum() == 40
    assert np.linalg.norm(after - before) <= math.sqrt(2) * (1 + 1e-15)
    transform = Histogram(EPSILON, DELTA, cells=longest)
    released = values(transform, table(other)) - values(transform, some)
    assert np.linalg.norm(released) <= math.sqrt(2) * (1 + 1e-9)


@pytest.mark.parametrize("longest", [2, 3, 7, 12])
def test_cells_partition_the_box(longest):
    """Every point of a cell in a box of sides 6, 2, 1 gets that cell's number: centres, corners and random points."""
    cells = Cells(table().public, longest)
    sides = [round(longest * side / 6) or 1 for side in (6, 2, 1)]
    assert len(cells) == math.prod(sides) and list(cells.shape) == sides
    centres, scale = cells.centres() / cells.scale, 25 / math.sqrt(10.25)
    assert cells.scale == pytest.approx(scale)
    widths = np.array([6, 2, 1]) / sides
    assert cells.widths.numpy() == pytest.approx(widths * scale)
    assert (centres.abs() < torch.tensor(UPPER)).all()
    u = np.random.default_rng(1).uniform(-0.5, 0.5, (20, 3)) * (1 - 1e-9)
    for offset in [np.zeros(3), *u]:
        inside = centres + torch.from_numpy(offset * widths)
        number, _ = cells.of(table(torch.cat([inside, torch.tensor([LOWER, UPPER], dtype=torch.float64)])))
        assert number.tolist() == [*range(len(cells)), 0, len(cells) - 1]
    assert sum(math.prod(widths) for _ in centres) == pytest.approx(6 * 2 * 1)


def test_the_box_is_closed_and_rows_outside_count_for_the_border_cell():
    cells = Cells(table().public, 6)
    centres = cells.centres().numpy() / cells.scale
    rng = np.random.default_rng(2)
    corners = np.array([[x, y, z] for x in (-3, 3) for y in (-1, 1) for z in (-0.5, 0.5)], dtype=float)
    outside = rng.uniform(-3, 3, (100, 3)) * np.array(UPPER)
    rows = np.concatenate([corners, outside])
    number, n_moved = cells.of(table(torch.from_numpy(rows)))
    half = cells.widths.numpy() / cells.scale / 2
    gap = (np.abs(rows[:, None] - centres) - half).clip(min=0)  # to every cell, as a box
    distance = np.sqrt((gap**2).sum(2))
    assert (distance[np.arange(len(rows)), number.numpy()] <= distance.min(1) + 1e-12).all()
    assert n_moved == (np.abs(rows) > np.array(UPPER)).any(1).sum()
    assert 0 < n_moved < len(rows)


def test_the_number_of_cells_is_public():
    """The number follows from n, the box and the guarantee, and not from the rows."""
    for n, epsilon in ((200, EPSILON), (10_000, EPSILON), (10_000, 0.2)):
        some = table(n=n).public
        cells = Histogram(epsilon, DELTA).grid(some)
        least = 5 * math.sqrt(2) * noise_multiplier(epsilon, DELTA)
        assert len(cells) * least <= n or cells.longest == 2
        assert len(Cells(some, cells.longest + 1)) * least > n
    assert len(Histogram(EPSILON, DELTA).grid(table(n=2).public)) >= 2
    with pytest.raises(ValueError, match="at most 1000000 cells, got 2000 x 667 x 333"):
        Histogram(EPSILON, DELTA, cells=2000).grid(table().public)


def test_a_modeler_keeps_the_cells_that_stand_out():
    some, transform = table().public, Histogram(EPSILON, DELTA, cells=6, threshold=2.5)
    line = 2.5 * transform.sigma(some)
    grid = transform.grid(some)
    noisy = torch.full((len(grid), 1), -5.0, dtype=torch.float64)
    noisy[[1, 3, 4], 0] = torch.tensor([line * (1 + 1e-12), line, line * 9], dtype=torch.float64)
    assert transform.kept(noisy, some).tolist() == [1, 4]
    candidates = transform.candidates(noisy, some)
    assert torch.equal(candidates.points, grid.centres()[[1, 4]])
    assert candidates.input_variance.numpy() == pytest.approx((grid.widths.numpy() ** 2) / 12)
    assert candidates.fresh
    assert transform.kept(noisy.clamp(max=line) + torch.linspace(-2, -1, len(grid))[:, None], some).tolist() == [4]


def test_candidates_hold_the_rows_of_their_cells_and_those_of_empty_cells_the_nearest():
    rows = table(n=60).rows
    rows = rows[rows[:, 0] < 0]  # the right half of the box is empty
    some, cover = table(rows), Cover(cells=6)
    released = cover.release(some, seeded())[0].values
    rows_of, cells = cover.candidate_rows(released, None, some), cover.grid(some.public)
    centres, half = cells.centres() / cells.scale, cells.widths / cells.scale / 2
    assert len(rows_of) == len(cells) == len(cover.candidates(released, some.public).points)
    inside = ((rows[None] - centres[:, None]).abs() < half).all(2)
    n_empty = 0
    for k, members in enumerate(map(rows_of.rows, range(len(rows_of)))):
        expected = inside[k].nonzero()[:, 0].tolist()
        if not expected:
            n_empty += 1
            expected = [int(((rows - centres[k]) ** 2).sum(1).argmin())]
        assert members.tolist() == expected
    assert n_empty >= len(cells) / 2
    kept = torch.full((len(cells), 1), -1.0, dtype=torch.float64)
    kept[[0, 10], 0] = 1e3
    some_of_them = Histogram(EPSILON, DELTA, cells=6).candidate_rows(kept, None, some)
    assert [some_of_them.rows(i).tolist() for i in range(2)] == [rows_of.rows(0).tolist(), rows_of.rows(10).tolist()]


def test_noise_of_the_counts_is_normal_and_of_the_stated_size():
    transform, some = Histogram(EPSILON, DELTA, cells=30), table(n=4000)
    release, _ = transform.release(some, seeded())
    unit = (release.values[:, 0].numpy() - counts(transform.grid(some.public), some)) / transform.sigma(some.public)
    assert abs(unit.mean()) < 4.5 / math.sqrt(len(unit))
    assert abs(unit.var() - 1) < 4.5 * math.sqrt(2 / len(unit))
    assert stats.kstest(unit, "norm").pvalue > 1e-5
    assert release.sigma == pytest.approx(noise_multiplier(EPSILON, DELTA) * math.sqrt(2))


def test_a_cover_releases_nothing():
    cover, other = Cover(), table(table().rows.flip(0) * 0.3)
    assert cover.event(other.public) is None and cover.private is False
    released = values(cover, other)
    assert np.array_equal(released, values(cover, table(), seed=9)) and not released.any()
    cells = cover.grid(other.public)
    assert len(cells) * 25 <= 200 < len(Cells(other.public, cells.longest + 1)) * 25


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: RandomProjection(0, 1.0, 0.1), r"r must be an integer of at least 1, got 0"),
        (lambda: RandomProjection(True, 1.0, 0.1), r"r must be an integer of at least 1, got True"),
        (lambda: RandomProjection(2, 0, 0.1), r"epsilon must be a finite number above 0, got 0"),
        (lambda: RandomProjection(2, 1.0, 1), r"delta must lie in \(0, 1\), got 1"),
        (lambda: RandomProjection(2, 1.0, 0.1, "more"), r"inflation must be one of 'paper', 'authors'"),
        (lambda: GaussianNoise(math.nan, 0.1), r"epsilon must be a finite number above 0, got nan"),
        (lambda: GaussianNoise(math.inf, 0.1), r"epsilon must be a finite number above 0, got inf"),
        (lambda: GaussianNoise(1.0, 0.0), r"delta must lie in \(0, 1\), got 0.0"),
        (lambda: Histogram(1.0, 0.1, cells=1), r"cells must be an integer of at least 2, got 1"),
        (lambda: Histogram(1.0, 0.1, threshold=-1), r"threshold must be a finite number of at least 0"),
        (lambda: Cover(cells=1), r"cells must be an integer of at least 2, got 1"),
        (lambda: table(table().rows[:1]), r"must have at least 2 rows, got 1"),
        (lambda: table(torch.ones(4, 3)), r"feature a must not be constant, got 4 equal values"),
        (lambda: table(torch.full((4, 3), math.nan)), r"must be finite numbers"),
        (lambda: noise_multiplier(1e300, 0.1), r"epsilon"),
        (lambda: noise_multiplier(1e-12, 1e-12), r"needs more noise than can be accounted for"),
    ],
)  # fmt: skip
def test_refused(make, says):
    with pytest.raises(ValueError, match=says):
        make()
