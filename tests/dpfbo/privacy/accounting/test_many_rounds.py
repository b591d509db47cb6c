"""Many different rounds, composed all at once: upper bounds, near dp-accounting's, and continuous with the rest."""

import itertools
import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from scipy.signal import fftconvolve

from dpfbo.privacy.accounting import MANY_DIFFERENT, many_rounds, moments, pld, rdp
from dpfbo.privacy.accounting.many_rounds import epsilons_of_different_rounds
from dpfbo.privacy.accounting.moments import Moments, log_moments
from dpfbo.privacy.accounting.pld import Pld
from dpfbo.privacy.accounting.poisson_divergences import poisson_divergences
from dpfbo.privacy.accounting.rdp import ORDERS, Rdp, _divergences
from dpfbo.privacy.budget import EpsilonCurve

SCHEDULES = {
    "noise falls": ([(0.25, 4 - 0.02 * t) for t in range(100)], 3e-3),
    "sampling grows": ([(0.01 + 0.002 * t, 1.0) for t in range(80)], 1e-5),
    "no sampling": ([(1.0, 3 + 0.05 * t) for t in range(60)], 1e-6),
    "some not sampled": ([(1.0 if t % 3 else 0.3, 2 + 0.05 * t) for t in range(60)], 1e-4),
    "little noise": ([(0.1, 0.4 + 0.01 * t) for t in range(50)], 1e-5),
    "rare": ([(0.001, 2 + 0.01 * t) for t in range(60)], 1e-8),
    "unlike": ([(0.2, float(z)) for z in np.geomspace(30, 1, 60)], 1e-5),
}


def event(q, z):
    return dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(z))


def at_once(kinds, delta, each=True):
    return epsilons_of_different_rounds(kinds, delta, np.zeros(len(kinds)), each)


def fine(kinds, delta, interval):
    """Epsilon by dp-accounting's own distributions, as far from the exact one as their interval."""
    total = None
    for q, z in kinds:
        one = privacy_loss_distribution.from_gaussian_mechanism(
            z, sampling_prob=q, value_discretization_interval=interval, use_connect_dots=True
        )
        total = one if total is None else total.compose(one)
    return total.get_epsilon_for_delta(delta)


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_epsilon_is_that_of_one_by_one_within_the_discretisation(name):
    """Both are upper bounds: one is below the other by no more than the other's own discretisation."""
    kinds, delta = SCHEDULES[name]
    single = np.array(Pld().curve([event(*kind) for kind in kinds], delta))
    together = np.array(at_once(kinds, delta))
    h = many_rounds.RESOLUTION * math.sqrt(np.mean([(q / z) ** 2 for q, z in kinds]))
    assert np.all(together <= single * 1.001 + h)
    assert np.all(together >= single * 0.999)
    assert together[-1] == pytest.approx(single[-1], rel=1e-3)


@pytest.mark.parametrize("name", ["noise falls", "no sampling", "unlike"])
def test_it_is_not_below_dp_accounting(name):
    """With an interval so fine that dp-accounting's result is exact to 1e-5."""
    kinds, delta = SCHEDULES[name]
    kinds = kinds[::4]
    reference = fine(kinds, delta, 2e-4)
    assert reference * (1 - 1e-5) <= at_once(kinds, delta)[-1] <= reference * 1.001


@pytest.mark.parametrize("each", [True, False])
def test_gaussians_without_sampling_have_the_exact_epsilon(each):
    multipliers = np.linspace(20.0, 60.0, 300)
    kinds = [(1.0, float(z)) for z in multipliers]
    exact = dp_accounting.get_epsilon_gaussian(float(np.sum(multipliers**-2.0)) ** -0.5, 1e-5)
    assert exact <= at_once(kinds, 1e-5, each)[-1] <= 1.0005 * exact


def test_the_curve_never_falls_and_its_end_is_the_total():
    for kinds, delta in SCHEDULES.values():
        curve = at_once(kinds, delta)
        assert len(curve) == len(kinds)
        assert all(a <= b for a, b in itertools.pairwise(curve))
        assert curve[-1] == pytest.approx(at_once(kinds, delta, each=False)[-1], rel=1e-6)


def test_a_finer_grid_gives_a_smaller_bound(monkeypatch):
    kinds, delta = SCHEDULES["noise falls"]
    found = []
    for resolution in (0.16, 0.08, 0.04, 0.02):
        monkeypatch.setattr(many_rounds, "RESOLUTION", resolution)
        found.append(at_once(kinds, delta)[-1])
    assert found == sorted(found, reverse=True)
    assert found[2] - found[3] < (found[0] - found[1]) / 10  # the error falls with the square of the interval


def test_a_wide_sum_is_composed_on_a_coarser_grid_from_above(monkeypatch):
    kinds, delta = SCHEDULES["little noise"]
    usual = at_once(kinds, delta)[-1]
    monkeypatch.setattr(many_rounds, "_MOST_POINTS", 1000)
    assert usual <= at_once(kinds, delta)[-1] < 1.5 * usual


@pytest.mark.parametrize("add", [False, True])
def test_the_losses_lie_above_the_exact_ones(add):
    """Their divergence is the exact one at the grid's points, not smaller between, and no mass is missing."""
    q, z, h = np.array([0.3, 1.0, 0.01]), np.array([0.8, 2.0, 1.5]), 0.01
    losses = many_rounds._Losses.of(q, z, add, h, 1e-12)
    assert np.all(losses.masses >= 0) and np.all(losses.infinite <= 1e-12)
    assert losses.masses.sum(axis=1) + losses.infinite == pytest.approx(1.0, abs=1e-9)
    values = losses.indices * h
    for epsilon in (*values[::37], 0.0512, 0.1234, 1.2345):
        gains = np.maximum(-np.expm1(np.minimum(epsilon - values, 0.0)), 0.0)
        found = losses.masses @ gains + losses.infinite
        exact = many_rounds.hockey_stick(np.array([epsilon]), q[:, None], z[:, None], add)[:, 0]
        assert np.all(found >= exact - 1e-14)
        if epsilon in values[values >= 0]:
            assert found == pytest.approx(exact, abs=1e-13)


@pytest.mark.parametrize("add", [False, True])
def test_the_sum_is_the_convolution(add):
    """A product of transforms on the circle equals the plain convolution, up to the ends that count as spent."""
    kinds, delta = SCHEDULES["sampling grows"]
    kinds = kinds[:6]
    q, z = np.array(kinds).T
    losses = many_rounds._Losses.of(q, z, add, 0.01, 1e-9)
    width = int(losses.indices[-1] - losses.indices[0]) + 1
    total, least = np.ones(1), 0
    for masses in losses.masses:
        one = np.zeros(width)
        one[losses.indices - losses.indices[0]] = masses
        total, least = np.maximum(fftconvolve(total, one), 0), least + int(losses.indices[0])
    values = (np.arange(len(total)) + least) * losses.interval
    infinite = float(losses.infinite.sum())

    def divergence(epsilon):
        return infinite + float(total @ np.maximum(-np.expm1(np.minimum(epsilon - values, 0.0)), 0.0))

    window = many_rounds._Window.of(losses, np.arange(6), delta * 1e-6, True)
    epsilon = many_rounds._curve(losses, window, np.arange(6), delta, np.full(6, infinite))[-1]
    assert divergence(epsilon) <= delta * (1 + 1e-6) and divergence(epsilon - 1e-6) > delta * (1 - 1e-4)
    above = total[values > window.top[-1] * losses.interval].sum()
    assert above <= window.tail  # the Chernoff bound holds


def test_delta_that_is_spent_already_pays_for_nothing():
    kinds, _ = SCHEDULES["noise falls"]
    assert at_once(kinds, 1e-5)[0] < math.inf
    lost = np.where(np.arange(len(kinds)) < 50, 0.0, 1e-5)
    curve = epsilons_of_different_rounds(kinds, 1e-5, lost, True)
    assert curve[49] < math.inf and set(curve[50:]) == {math.inf}


@pytest.mark.parametrize("delta", [1e-15, 1e-308, 5e-324])
def test_a_delta_below_rounding_errors_has_no_epsilon(delta):
    events = [event(0.2, 2 + 0.01 * t) for t in range(MANY_DIFFERENT + 1)]
    assert Pld().epsilon(events, delta) == math.inf
    assert set(Pld().curve(events, delta)) == {math.inf}


@pytest.mark.parametrize(
    "kinds",
    [
        [(0.5, 0.02 + 1e-5 * t) for t in range(130)],
        [(1e-6, 1e3 + t) for t in range(130)],
        [(1.0, 1e6 - t) for t in range(130)],
        [(0.999, 0.3 + 0.1 * t) for t in range(130)],
    ],
    ids=["tiny noise", "hardly sampled", "huge noise", "nearly all"],
)
def test_extreme_rounds_have_bounds_between_the_exact_and_that_of_renyi(kinds):
    """A mixture diverges no more than the plain Gaussian, whose epsilon is known."""
    events, delta = [event(*kind) for kind in kinds], 1e-5
    epsilon = Pld().epsilon(events, delta)
    plain = dp_accounting.get_epsilon_gaussian(float(sum(z**-2.0 for _, z in kinds)) ** -0.5, delta)
    assert 0 <= epsilon <= plain * 1.01 + 1e-4
    assert epsilon == pytest.approx(Pld().curve(events, delta)[-1], rel=1e-5, abs=1e-8)


class TestAccountants:
    """With 16 kinds in the place of 128: dp-accounting, one by one, is slow."""

    MANY = 16
    KINDS = tuple((0.2, 2 + 0.01 * t) for t in range(MANY + 1))

    @pytest.fixture(autouse=True)
    def fewer(self, monkeypatch):
        for module in (moments, pld, rdp):
            monkeypatch.setattr(module, "MANY_DIFFERENT", self.MANY)

    @pytest.mark.parametrize("accountant", [Pld(), Rdp(), Moments()], ids=["pld", "rdp", "moments"])
    def test_one_more_different_round_continues_the_curve(self, accountant):
        events, delta = [event(*kind) for kind in self.KINDS], 1e-4
        few, many = accountant.curve(events[:-1], delta), accountant.curve(events, delta)
        assert many[:-1] == pytest.approx(few, rel=1e-3 if isinstance(accountant, Pld) else 1e-9)
        assert many[-1] >= many[-2]
        assert accountant.epsilon(events, delta) == pytest.approx(many[-1], rel=1e-6)

    @pytest.mark.parametrize("accountant", [Pld(), Rdp(), Moments()], ids=["pld", "rdp", "moments"])
    def test_a_round_without_noise_costs_everything_from_then_on(self, accountant):
        events = [event(*kind) for kind in self.KINDS]
        events.insert(9, dp_accounting.NonPrivateDpEvent())
        curve = accountant.curve(events, 1e-4)
        assert curve[8] < math.inf and set(curve[9:]) == {math.inf}
        assert accountant.epsilon(events, 1e-4) == math.inf

    def test_few_kinds_of_many_rounds_stay_with_one_by_one(self, monkeypatch):
        def fail(*_):
            raise AssertionError

        monkeypatch.setattr("dpfbo.privacy.accounting.pld.epsilons_of_different_rounds", fail)
        events = [event(*kind) for kind in self.KINDS[:2]] * self.MANY
        assert Pld().curve(events, 1e-4)[-1] > 0
        with pytest.raises(AssertionError):
            Pld().curve([event(*kind) for kind in self.KINDS], 1e-4)

    def test_pld_is_below_rdp_is_below_moments(self):
        events = [event(0.05 + 0.002 * t, 1 + 0.01 * t) for t in range(200)]
        pld, rdp, moments = (a.curve(events, 1e-5) for a in (Pld(), Rdp(), Moments()))
        assert all(a <= b <= c for a, b, c in zip(pld, rdp, moments, strict=True))

    def test_a_curve_that_was_planned_is_computed_once(self, monkeypatch):
        computed, accountant = [], Rdp()
        monkeypatch.setattr(
            Rdp, "curve", lambda self, events, delta: computed.append(len(events)) or [1.0] * len(events)
        )
        events = [event(0.21, 2.5 + 0.01 * t) for t in range(40)]
        curve = EpsilonCurve(accountant, events, 1e-4)
        assert [curve.after(events[:k]) for k in range(41)] == [0.0] + [1.0] * 40
        assert computed == [40]


RNG = np.random.default_rng(7)


@pytest.mark.parametrize(
    ("q", "z"),
    [(0.5, 1.0), (0.5, 1e3), (0.9, 50.0), (0.01, 1e6), (1.0, 3.0), (1e-5, 0.4), (0.35, 0.3)]
    + [(float(RNG.uniform(0.001, 1)), float(10 ** RNG.uniform(-0.6, 1.5))) for _ in range(8)],
)
def test_divergences_at_once_are_dp_accountings(q, z):
    """At every order, infinite ones included; they are not below, but for rounding errors."""
    found = poisson_divergences(np.array([q, 0.3]), np.array([z, 1.0]), ORDERS)[0]
    reference = np.array(_divergences(q, z))
    finite = np.isfinite(reference)
    assert np.array_equal(np.isfinite(found), finite)
    assert np.all(found[finite] >= reference[finite] * (1 - 1e-12) - 2e-14)
    assert found[finite] == pytest.approx(reference[finite], rel=1e-8, abs=1e-8)  # whose series ends earlier


def test_moments_at_once_are_those_of_one_by_one():
    q, z = np.linspace(0.01, 0.9, 10), np.linspace(0.5, 8.0, 10)
    together = poisson_divergences(q, z, range(2, 34)) * np.arange(1, 33)
    single = np.array([log_moments(a, b) for a, b in zip(q.tolist(), z.tolist(), strict=True)])
    assert together == pytest.approx(single, rel=1e-9, abs=1e-13)
