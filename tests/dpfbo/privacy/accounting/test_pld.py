"""The PLD accountant's own parts: divergences, grids, compositions, and the search for epsilon."""

import itertools
import math
from types import SimpleNamespace

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss

from dpfbo.privacy.accounting import pld
from dpfbo.privacy.accounting.events import round_event
from dpfbo.privacy.accounting.pld import Pld

REMOVE, ADD = AdjacencyType.REMOVE, AdjacencyType.ADD
EVENT = round_event(0.3, 1.0)


@pytest.mark.parametrize(("q", "z"), [(0.35, 1.0), (0.01, 5.0), (0.9, 0.3), (1.0, 2.0)])
def test_divergences_are_dp_accountings_point_by_point(q, z):
    grid = np.linspace(-4.0, 6.0, 61)
    losses = pld._losses(q, z)
    assert [loss.adjacency_type for loss in losses] == ([REMOVE, ADD] if q < 1 else [REMOVE])
    for loss in losses:
        theirs = GaussianPrivacyLoss(z, sampling_prob=q, adjacency_type=loss.adjacency_type)
        expected = [theirs.get_delta_for_epsilon(float(epsilon)) for epsilon in grid]
        found = loss.get_delta_for_epsilon(grid)
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-13)
        assert np.all((found >= 0) & (found <= 1))


def test_divergences_stay_probabilities_where_rounding_errors_are_larger():
    for q, z in ((0.5, 0.02), (1.0, 0.05)):
        for loss in pld._losses(q, z):
            found = loss.get_delta_for_epsilon(np.linspace(-600.0, 600.0, 2001))
            assert np.all((found >= 0) & (found <= 1))


def test_losses_are_on_the_grid_from_end_to_end():
    for loss in pld._losses(0.3, 0.8):
        pmf, (low, high) = loss.discretised(0.01), loss.span
        assert pmf._lower_loss == math.floor(low / 0.01)
        assert pmf.size == math.ceil(high / 0.01) - math.floor(low / 0.01) + 1
        for epsilon in (-0.2, 0.0, 0.3, 1.0):
            exact = float(loss.get_delta_for_epsilon(np.array([epsilon]))[0])
            assert pmf.get_delta_for_epsilon(epsilon) == pytest.approx(exact, abs=1e-10)
            between = float(loss.get_delta_for_epsilon(np.array([epsilon + 0.005]))[0])
            assert pmf.get_delta_for_epsilon(epsilon + 0.005) >= between


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ([], 1e-3),
        ([(0.5, 1.0)], 1e-3),
        ([(0.5, 0.5)], 1e-3),
        ([(0.01, 20.0)], 0.05 * 0.01 / 20),
        ([(0.5, 1.0), (0.01, 4.0), (0.1, 1.0)], 0.05 * 0.01 / 4),
        ([(1e-7, 200.0)], 1e-6),
        ([(0.5, 0.25)], 4e-3),
        ([(0.5, 0.25), (0.5, 0.2), (0.5, 1.0)], 1e-3 / 0.16),
    ],
)
def test_the_interval_is_that_of_the_smallest_loss_unless_another_is_too_long(kinds, expected):
    assert pld._interval([loss for kind in kinds for loss in pld._losses(*kind)]) == pytest.approx(expected, rel=1e-12)


def test_no_loss_gets_more_than_a_million_points():
    losses = pld._losses(1e-6, 0.5)
    longest = max(loss.span[1] - loss.span[0] for loss in losses)
    assert longest / 1e6 > 1.5e-6
    assert pld._interval(losses) == pytest.approx(longest / 1e6, rel=1e-12)


def test_kinds_share_one_grid_and_those_without_noise_have_none():
    one = pld._one_round_each([(0.3, 1.0), (1.0, 0.0), (0.01, 4.0), (1.0, 3.0)])
    assert list(one) == [(0.3, 1.0), (0.01, 4.0), (1.0, 3.0)]
    assert {round(p._pmf_remove._discretization / (0.05 * 0.01 / 4), 9) for p in one.values()} == {1.0}
    exact = dp_accounting.get_epsilon_gaussian(3.0, 1e-3)
    assert one[1.0, 3.0].get_epsilon_for_delta(1e-3) == pytest.approx(exact, abs=1e-3)


class Word:
    """A distribution that notes how it was composed."""

    def __init__(self, name):
        self.name = name

    def self_compose(self, times):
        return Word(f"{times}{self.name}")

    def compose(self, other):
        return Word(f"({self.name} {other.name})")


def test_neighbours_are_composed_first():
    one = {1: Word("a"), 2: Word("b"), 3: Word("c")}
    assert pld._composed(None, one, {1: 1}) is one[1]
    assert pld._composed(None, one, {2: 2, 1: 1, 3: 5}).name == "((2b a) 5c)"
    assert pld._composed(Word("x"), one, {1: 3, 2: 1}).name == "((x 3a) b)"
    assert pld._composed(Word("x"), one, {1: 1}).name == "(x a)"
    assert pld._composed(Word("x"), one, {1: 3, 2: 1, 3: 1}).name == "((x 3a) (b c))"


class TestEpsilon:
    """The search, where the divergence is known: `exp(-eps)` or a line, and a part that no epsilon covers."""

    @staticmethod
    def total(of, never=0.0):
        return SimpleNamespace(get_delta_for_epsilon=lambda epsilon: of(epsilon) + never)

    @pytest.mark.parametrize("at_least", [0.0, 3.0, 17.5])
    @pytest.mark.parametrize(("delta", "rounds"), [(1e-9, 1), (1e-12, 1000), (4e-14, 200), (2.1e-14, 100)])
    def test_it_is_the_least_and_rounded_up(self, delta, rounds, at_least):
        exact = -math.log(delta - 1e-14 - 1e-16 * rounds)
        found = pld._epsilon(self.total(lambda epsilon: math.exp(-epsilon)), delta, rounds, at_least)
        assert exact + 1e-10 <= found <= exact + 2.1e-9

    def test_one_that_is_enough_already_stays(self):
        line = self.total(lambda epsilon: max(1 - epsilon, 0.0))
        assert pld._epsilon(line, 0.5, 1, 0.75) == 0.75
        assert pld._epsilon(line, 1.0 + 2e-14, 1) == 0.0
        assert pld._epsilon(self.total(lambda epsilon: 0.5), 0.5 + 1e-14 + 1e-16, 1, 2.0) == 2.0

    def test_there_is_none_if_what_is_never_covered_is_too_much(self):
        assert pld._epsilon(self.total(lambda epsilon: math.exp(-epsilon), 0.1), 0.1, 1) == math.inf
        assert pld._epsilon(self.total(lambda epsilon: math.exp(-epsilon)), 1.5e-14, 51) == math.inf
        line = self.total(lambda epsilon: max(1 - epsilon / 5, 0.0))
        assert pld._epsilon(line, 1e-14 + 1e-16 * 7, 7) == 8.0 + 1e-9


class TestCurve:
    @pytest.mark.parametrize(("n", "step"), [(1, 1), (200, 1), (201, 4), (240, 4), (241, 5)])
    def test_more_than_two_hundred_rounds_are_solved_at_sixty(self, monkeypatch, n, step):
        asked = []

        def epsilon(total, delta, rounds, at_least=0.0):
            asked.append((total, delta, rounds, at_least))
            return 10.0 + rounds

        monkeypatch.setattr(pld, "_composed", lambda total, one, kinds: (total or 0) + sum(kinds.values()))
        monkeypatch.setattr(pld, "_epsilon", epsilon)
        rounds = [min(first + step, n) for first in range(0, n, step)]
        expected = [10.0 + next(r for r in rounds if r > i) for i in range(n)]
        assert Pld().curve([EVENT] * n, 0.01) == expected
        assert [a[:3] for a in asked] == [(r, 0.01, r) for r in rounds]
        assert [a[3] for a in asked] == [0.0, *(10.0 + r for r in rounds[:-1])]

    def test_rounds_without_noise_end_it(self, monkeypatch):
        composed = []
        monkeypatch.setattr(pld, "_composed", lambda *a: composed.append(a))
        monkeypatch.setattr(pld, "_epsilon", lambda *a, **k: math.inf if len(composed) == 2 else 1.0)
        assert Pld().curve([EVENT] * 4, 0.01) == [1.0, math.inf, math.inf, math.inf]
        assert len(composed) == 2
        assert Pld().curve([round_event(0.3, None), EVENT], 0.01) == [math.inf] * 2
        assert len(composed) == 2


def test_epsilons_do_not_fall_along_a_mixed_curve_and_end_at_the_total():
    events = [EVENT, round_event(0.01, 4.0), round_event(1.0, 9.0)] * 3
    curve = Pld().curve(events, 1e-4)
    assert all(a <= b for a, b in itertools.pairwise(curve))
    assert curve[-1] == pytest.approx(Pld().epsilon(events, 1e-4), abs=3e-9)
    assert Pld().epsilon([], 1e-4) == 0.0 and Pld().curve([], 1e-4) == []


def test_what_is_no_delta_or_no_event_is_refused():
    Pld().check(EVENT)
    with pytest.raises(ValueError, match="cannot analyse LaplaceDpEvent"):
        Pld().check(dp_accounting.LaplaceDpEvent(1.0))
    for ask in (Pld().curve, Pld().epsilon):
        with pytest.raises(ValueError, match=r"delta must lie in \(0, 1\)"):
            ask([EVENT], 1.0)


def test_one_round_of_each_direction_by_integration():
    """`E[(1 - exp(eps - loss))_+]` under the first distribution of each direction, on a fine grid."""
    q, z, epsilon = 0.3, 0.8, 0.2
    x = np.linspace(-12.0, 13.0, 2_000_001)
    plain, shifted = (np.exp(-0.5 * ((x - c) / z) ** 2) / (z * math.sqrt(2 * math.pi)) for c in (0.0, 1.0))
    mixed = (1 - q) * plain + q * shifted
    for loss, (upper, lower) in zip(pld._losses(q, z), ((mixed, plain), (plain, mixed)), strict=True):
        exact = np.maximum(upper - math.exp(epsilon) * lower, 0.0).sum() * (x[1] - x[0])
        assert loss.get_delta_for_epsilon(np.array([epsilon]))[0] == pytest.approx(exact, rel=1e-8)
