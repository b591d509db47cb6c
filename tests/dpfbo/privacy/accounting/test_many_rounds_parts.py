"""Parts of the composition of many different rounds: the grid, its window, the transforms, the least epsilon."""

import math

import numpy as np
import pytest
import scipy.fft
from scipy.optimize import brentq

from dpfbo.privacy.accounting import many_rounds, pld
from dpfbo.privacy.accounting.many_rounds import epsilons_of_different_rounds

H = 0.05


def growing(n):
    return [*range(1, 200), *(math.ceil(200 * 1.005**k) for k in range(n))]


@pytest.mark.parametrize(
    ("low", "high"),
    [(-10.3, 7.2), (-10.0, 7.0), (-1.5, 0.2), (0.4, 3.0), (-200.0, 200.0), (-199.5, 777.7), (-5000, 31)],
)
def test_indices_are_dense_near_zero_and_sparse_far_out(low, high):
    """From two below the lowest to the highest that are on the grid: whole to 200, then 0.5 % apart."""
    found = many_rounds._indices(low, high).tolist()
    side = growing(1000)
    every = sorted([-i for i in side] + [0, *side])
    below, above = [i for i in every if i < math.floor(low)], [i for i in every if i >= math.ceil(high)]
    assert found == [i for i in every if below[-1] <= i <= above[0]]


def test_the_ratio_with_sampling():
    q, ratio = np.array([0.3, 1.0, 0.01]), np.array([2.0, -1.0, 700.0])
    expected = [math.log(0.7 + 0.3 * math.exp(2.0)), -1.0, 700 + math.log(0.01)]
    assert many_rounds._sampled(q, ratio) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("add", [False, True])
def test_divergences_are_those_of_a_single_kind(add):
    grid, kinds = np.linspace(-3.0, 4.0, 36), [(0.35, 1.0), (0.01, 5.0), (0.9, 0.3), (1.0, 2.0)]
    q, z = np.array(kinds).T[:, :, None]
    found = many_rounds.hockey_stick(grid, q, z, add)
    for row, kind in zip(found, kinds, strict=True):
        loss = pld._losses(*kind)[-1 if add else 0]  # the same without sampling
        assert row == pytest.approx(loss.get_delta_for_epsilon(grid), rel=1e-11, abs=1e-15)


@pytest.mark.parametrize("add", [False, True])
def test_divergences_stay_probabilities_where_rounding_errors_are_larger(add):
    q, z = np.array([[0.5], [1.0], [0.01]]), np.array([[0.05], [0.05], [3.0]])
    found = many_rounds.hockey_stick(np.linspace(-600.0, 600.0, 4001), q, z, add)
    assert np.all((found >= 0) & (found <= 1))


@pytest.mark.parametrize("add", [False, True])
def test_the_grid_of_losses_ends_where_few_draws_are(add):
    """The standard deviations are those of 1e-12 and 1e-10, or of 1e-3; the kind that goes farthest decides."""
    q, z, h = np.array([0.3, 0.9, 0.05]), np.array([0.8, 3.0, 1.0]), 0.01

    def loss(side, deviations):
        return np.log1p(q * np.expm1(side * (1 + 2 * z * deviations) / (2 * z * z)))

    for tail, far, near in ((1e-12, 7.034483825, 6.361340902), (1e-3, 3.090232306, 3.090232306)):
        losses = many_rounds._Losses.of(q, z, add, h, tail)
        low, high = (-loss(1, near), -loss(-1, far)) if add else (loss(-1, near), loss(1, far))
        assert losses.indices.tolist() == many_rounds._indices(low.min() / h, high.max() / h).tolist()
        assert losses.tail == tail and losses.interval == h


@pytest.mark.parametrize("add", [False, True])
def test_blocks_change_nothing(monkeypatch, add):
    q, z = np.linspace(0.1, 0.9, 11), np.linspace(0.8, 3.0, 11)
    at_once = many_rounds._Losses.of(q, z, add, 0.02, 1e-9)
    kinds, lost = [*zip(q.tolist(), z.tolist(), strict=True)] * 3, np.full(33, 1e-14)
    curve, last = (epsilons_of_different_rounds(kinds, 1e-5, lost, each) for each in (True, False))
    for block in (1, 3000, 30_000):
        monkeypatch.setattr(many_rounds, "_BLOCK", block)
        in_blocks = many_rounds._Losses.of(q, z, add, 0.02, 1e-9)
        assert np.array_equal(in_blocks.masses, at_once.masses)
        assert np.array_equal(in_blocks.infinite, at_once.infinite)
        assert epsilons_of_different_rounds(kinds, 1e-5, lost, True) == pytest.approx(curve, rel=1e-9)
        assert epsilons_of_different_rounds(kinds, 1e-5, lost, False) == pytest.approx(last, rel=1e-9)


def test_transforms_are_those_of_the_wrapped_masses():
    indices, n = np.array([-25, -12, -3, -1, 0, 2, 7, 8, 19, 31]), 8
    masses = np.random.default_rng(0).random((5, len(indices)))
    losses = many_rounds._Losses(H, indices, masses, np.zeros(5), 0.0)
    circle = np.zeros((3, n))
    for column, index in enumerate(indices):
        circle[:, index % n] += masses[[4, 0, 2], column]
    assert losses.transforms(np.array([4, 0, 2]), n) == pytest.approx(np.fft.rfft(circle), abs=1e-12)


@pytest.mark.parametrize("times", [1, 2, 3, 4, 5, 6, 7, 8, 13, 64])
def test_powers(times):
    transform = np.exp(1j * np.linspace(0, 3, 7)) * 0.9
    kept = transform.copy()
    assert many_rounds._power(transform, times) == pytest.approx(transform**times, rel=1e-12)
    assert np.array_equal(transform, kept)


def chernoff(masses, values, s, tail, rounds, counts):
    found = []
    for count in counts:
        bounds = [count * values.max()]
        for one in s:
            if one * values.max() <= 700:
                log_means = [math.log(float(masses[kind] @ np.exp(one * values))) for kind in rounds[:count]]
                bounds.append((sum(log_means) - math.log(tail)) / one)
        found.append(min(bounds))
    return found


@pytest.mark.parametrize("largest", [1.0, 30.0, 6999.0])
def test_ends_are_chernoff_s(largest):
    rng = np.random.default_rng(1)
    masses = rng.dirichlet(np.ones(7), size=3) * 0.999
    values = np.array([-2.0, -1.0, -0.2, 0.0, 0.3, 0.9, largest])
    s, rounds, counts = np.array([1e-3, 0.1, 0.7, 3.0]), np.array([0, 2, 2, 1, 0, 1]), np.array([1, 2, 3, 6])
    for tail in (1e-9, 0.1):
        found = many_rounds._ends(masses, values, s, tail, rounds, counts)
        assert found == pytest.approx(chernoff(masses, values, s, tail, rounds, counts), rel=1e-12)
    without = many_rounds._ends(masses, values, np.array([1e4]), 1e-9, rounds, counts)
    assert without.tolist() == (counts * largest).tolist()


@pytest.mark.parametrize("each", [True, False])
def test_the_window_holds_both_ends(monkeypatch, each):
    monkeypatch.setattr(scipy.fft, "next_fast_len", lambda n, real: n if real else 0)
    q, z, rounds = np.array([0.3, 0.5]), np.array([1.0, 2.0]), np.array([0, 1, 1, 0, 1])
    losses = many_rounds._Losses.of(q, z, False, 0.01, 1e-10)
    window = many_rounds._Window.of(losses, rounds, 1e-8, each)
    values, counts = losses.indices * 0.01, np.arange(1, 6) if each else np.array([5])
    deviation = np.sqrt([losses.masses[kind] @ values**2 for kind in rounds])
    s = np.geomspace(2 / math.sqrt(float(np.sum(deviation**2))), 16 / deviation.min(), 24)
    up, down = (chernoff(losses.masses, side * values, s, 1e-8, rounds, counts) for side in (1, -1))
    top = [math.ceil(end / 0.01) for end in up]
    assert window.top.tolist() == top and window.tail == 1e-8
    widest = max(t - math.floor(-end / 0.01) for t, end in zip(top, down, strict=True))
    assert window.n == widest + 2


def test_rounds_that_lose_nothing_have_a_window_too():
    losses = many_rounds._Losses(H, np.array([-1, 0, 1]), np.array([[0.0, 1.0, 0.0]]), np.zeros(1), 0.0)
    with np.errstate(all="raise"):
        window = many_rounds._Window.of(losses, np.zeros(3, dtype=int), 1e-9, True)
    assert window.n >= 2 and np.all(window.top >= 0)


@pytest.mark.parametrize("add", [False, True])
def test_a_grid_that_ends_early_loses_no_mass(add):
    """Losses below the lowest point are rounded up to it; those above the highest count as infinite."""
    q, z, losses = np.array([[0.3], [0.9]]), np.array([[0.8], [2.0]]), np.array([-0.1, -0.04, 0.0, 0.05, 0.2, 0.3])
    masses, infinite = many_rounds._connected(losses, q, z, add)
    assert infinite == pytest.approx(many_rounds.hockey_stick(losses[-1:], q, z, add)[:, 0], rel=1e-12)
    assert np.all(infinite > 1e-3) and np.all(masses[:, 0] > 1e-3)
    assert masses.sum(axis=1) + infinite == pytest.approx(1.0, abs=1e-12)


class TestEpsilons:
    """On a circle of 101 points, from masses that are known: the least by bisection of the sum itself."""

    N = 101

    def rows(self, seed=0, low=-30, high=40, k=4):
        rng, masses = np.random.default_rng(seed), np.zeros((k, high - low + 1))
        masses[:, rng.choice(high - low + 1, 25, replace=False)] = rng.dirichlet(np.ones(25), size=k)
        circle = np.zeros((k, self.N))
        for column in range(masses.shape[1]):
            circle[:, (low + column) % self.N] += masses[:, column]
        return masses, np.arange(low, high + 1) * H, np.fft.rfft(circle)

    @staticmethod
    def least(masses, values, budget, at_least):
        def excess(epsilon):
            return float(masses @ np.maximum(-np.expm1(np.minimum(epsilon - values, 0.0)), 0.0)) - budget

        return at_least if excess(at_least) <= 0 else brentq(excess, at_least, 50.0, xtol=1e-14)

    @pytest.mark.parametrize("at_least", [0.0, 0.37, 1.0])
    @pytest.mark.parametrize("delta", [0.5, 0.1, 1e-2, 1e-6])
    def test_they_are_the_least(self, delta, at_least):
        masses, values, transforms = self.rows()
        spent = np.array([0.0, 0.1, 0.9, 0.999]) * delta
        top = np.array([40, 41, 50, 69])
        found = many_rounds._epsilons(transforms, H, self.N, top, spent, delta, at_least)
        for row in range(4):
            exact = self.least(masses[row], values, delta - spent[row], at_least)
            assert found[row] - exact == pytest.approx(0.0 if exact == at_least else 1e-9, abs=1e-10)

    def test_nothing_is_left_or_ever_was(self):
        _, _, transforms = self.rows()
        top, spent = np.full(4, 40), np.array([0.0, 0.01, 0.02, 0.011])
        found = many_rounds._epsilons(transforms.copy(), H, self.N, top, spent, 0.01, 0.0)
        assert np.isfinite(found).tolist() == [True, True, False, False]
        found = many_rounds._epsilons(transforms, H, self.N, top, np.zeros(4), 0.01, math.inf)
        assert found.tolist() == [math.inf] * 4

    def test_below_the_window_nothing_is_known(self):
        """All losses lie above 1: even a delta of nearly 1 pays for none below the circle's lowest point."""
        masses, values, _ = self.rows(low=21, high=60)
        circle = np.zeros((4, 30))
        for column, index in enumerate(range(21, 61)):
            circle[:, index % 30] += masses[:, column] * (index > 30)
        top = np.full(4, 60)
        found = many_rounds._epsilons(np.fft.rfft(circle), H, 30, top, np.zeros(4), 0.9999999, 0.0)
        assert found == pytest.approx(31 * H, abs=1e-8)
        assert np.all(found >= 31 * H)

    def test_a_top_below_what_was_reached_keeps_it(self):
        _, _, transforms = self.rows()
        top = np.array([10, 20, 20, 40])
        found = many_rounds._epsilons(transforms, H, self.N, top, np.zeros(4), 1e-9, 1.0)
        assert found[:3].tolist() == [1.0, 1.0, 1.0] and found[3] > 1.5


KINDS = [(0.25, 4 - 0.06 * t) for t in range(20)] + [(1.0, 5.0 + t) for t in range(10)] + [(0.1, 0.5)] * 3
RECORDED = {
    0.001: (0.13661716097, 0.71717498199, 1.31751683595, 5.21993804953),
    1e-07: (0.41131413611, 1.50567622278, 2.4972548012, 12.33500751845),
}


@pytest.mark.parametrize("delta", RECORDED)
def test_epsilons_do_not_drift(delta):
    """After 1, 15, 25 and 33 rounds epsilon is as on the day it was compared with that of one by one.

    Another grid or window moves the last digits, which must be meant.
    """
    lost = 1e-14 + 1e-16 * np.arange(1, 34)
    curve = epsilons_of_different_rounds(KINDS, delta, lost, True)
    assert [curve[t - 1] for t in (1, 15, 25, 33)] == pytest.approx(RECORDED[delta], rel=1e-9)
    assert epsilons_of_different_rounds(KINDS, delta, lost, False) == pytest.approx(curve[-1:], rel=1e-9)
    assert epsilons_of_different_rounds(KINDS[:1], delta, lost, False) == pytest.approx(curve[:1], rel=1e-2)


class TestDirections:
    """Both directions of the relation are computed, on a grid that is made coarser if the circle is too large."""

    @pytest.fixture
    def made(self, monkeypatch):
        made, of = [], many_rounds._Losses.of

        def watched(q, z, add, interval, tail):
            made.append((add, interval, tail))
            return of(q, z, add, interval, tail)

        monkeypatch.setattr(many_rounds._Losses, "of", watched)
        return made

    @pytest.mark.parametrize("each", [True, False])
    @pytest.mark.parametrize(
        ("kinds", "directions"),
        [
            ([(0.3, 1.0), (0.2, 2.0)], [False, True]),
            ([(1.0, 4.0), (1.0, 5.0)], [False]),
            ([(1.0, 4.0), (0.2, 2.0)], [False, True]),
        ],
    )
    def test_both_count_unless_no_round_is_sampled(self, monkeypatch, made, kinds, directions, each):
        results = iter([np.array([1.0, 5.0, 2.0]), np.array([3.0, 2.0, 4.0])])
        monkeypatch.setattr(many_rounds, "_curve" if each else "_last", lambda *a: next(results)[: 3 if each else 1])
        found = epsilons_of_different_rounds([*kinds, kinds[0]], 1e-3, np.zeros(3), each)
        assert found == ([3.0, 5.0, 5.0] if len(directions) == 2 else [1.0, 5.0, 5.0])[: 3 if each else 1]
        assert [add for add, _, _ in made] == directions
        interval = 0.02 * math.sqrt(np.mean([(q / z) ** 2 for q, z in [*kinds, kinds[0]]]))
        for _, *numbers in made:
            assert numbers == pytest.approx([interval, 0.5e-6 * 1e-3 / 3], rel=1e-12, abs=0)

    def test_a_circle_that_is_too_large_gets_a_coarser_grid(self, monkeypatch, made):
        kinds, sizes, of = KINDS[-3:], [], many_rounds._Window.of

        def watched(*arguments):
            window = of(*arguments)
            sizes.append((window.n, window.tail))
            return window

        monkeypatch.setattr(many_rounds._Window, "of", watched)
        usual = epsilons_of_different_rounds(kinds, 1e-5, np.zeros(3), True)
        (interval, largest), fine = (made[0][1], max(n for n, _ in sizes)), list(made)
        for limit, doublings in ((largest, 0), (largest - 1, 1), (largest // 3, 2)):
            made.clear()
            monkeypatch.setattr(many_rounds, "_MOST_POINTS", limit)
            found = epsilons_of_different_rounds(kinds, 1e-5, np.zeros(3), True)
            assert max(i for _, i, _ in made) == pytest.approx(interval * 2**doublings)
            assert {tail for _, _, tail in made} == {tail for _, _, tail in fine}
            assert (made == fine) == (doublings == 0) and all(isinstance(add, bool) for add, _, _ in made)
            assert all(a * (1 - 1e-3) <= b <= 1.2 * a for a, b in zip(usual, found, strict=True)), (usual, found)
        assert {tail for _, tail in sizes} == {0.5e-6 * 1e-5}

    def test_the_interval_has_a_least(self, made):
        epsilons_of_different_rounds([(1.0, 1e6), (1.0, 2e6)], 1e-3, np.zeros(2), True)
        assert made[0][1] == 1e-6

    def test_what_is_lost_from_the_start_leaves_nothing(self):
        lost = np.array([1e-4, 3e-4, 3e-4])
        assert epsilons_of_different_rounds(KINDS[:3], 0.9e-4, lost, True) == [math.inf] * 3
        assert epsilons_of_different_rounds(KINDS[:3], 0.9e-4, lost, False) == [math.inf]
        curve = epsilons_of_different_rounds(KINDS[:3], 2e-4, lost, True)
        assert np.isfinite(curve).tolist() == [True, False, False]
        assert epsilons_of_different_rounds(KINDS[:3], 4e-4, lost, True)[2] < math.inf
