"""Accountants: published values, dp-accounting's own numbers, and order among the three."""

import csv
import itertools
import math
from pathlib import Path

import dp_accounting
import pytest
from absl import logging as absl_logging
from dp_accounting.pld import pld_privacy_accountant, privacy_loss_distribution
from dp_accounting.rdp import rdp_privacy_accountant
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfbo.federated.schedule import PowerSchedule, Steps
from dpfbo.federated.weights.decay import Decay
from dpfbo.privacy.accounting import UnsupportedEvent, default_delta
from dpfbo.privacy.accounting.moments import Moments
from dpfbo.privacy.accounting.pld import Pld, _losses
from dpfbo.privacy.accounting.rdp import Rdp
from tests.helpers.charges import events_charged

ALL = (Moments(), Rdp(), Pld())
PUBLISHED = list(csv.DictReader(open(Path(__file__).parents[4] / "analysis" / "published" / "privacy_losses.csv")))


def event(q, z):
    return dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(z))


def test_all_ten_published_losses_are_there():
    assert len(PUBLISHED) == 10
    assert {row["delta"] for row in PUBLISHED} == {"N^-1.1"}


@pytest.mark.parametrize("row", PUBLISHED, ids=lambda r: f"{r['experiment']} q={r['q']} z={r['z']}")
def test_moments_reproduce_the_paper_to_the_printed_digits(row):
    events = [event(float(row["q"]), float(row["z"]))] * int(row["T"])
    epsilon = Moments().curve(events, default_delta(int(row["N"])))[-1]
    assert round(epsilon, 2) == float(row["epsilon_moments"])


@pytest.mark.parametrize(
    ("N", "T", "q", "z", "expected"), [(29, 60, 0.35, 1, 10.38), (29, 60, 0.35, 2, 3.23), (200, 40, 0.25, 1, 7.05)]
)
def test_pld_values(N, T, q, z, expected):
    assert round(Pld().curve([event(q, z)] * T, default_delta(N))[-1], 2) == expected


@given(
    q=st.one_of(st.just(1.0), st.floats(0.005, 1.0)),
    z=st.floats(0.3, 20.0),
    T=st.integers(1, 200),
    N=st.integers(2, 1_000_000),
)
@settings(max_examples=20, deadline=None, derandomize=True)
def test_pld_is_below_rdp_is_below_moments(q, z, T, N):
    """Without slack, except that each PLD epsilon is rounded up by 1e-9."""
    moments, rdp, pld = (a.epsilon([event(q, z)] * T, default_delta(N)) for a in ALL)
    assert 0 <= pld <= rdp + 2e-9
    assert rdp <= moments


@pytest.mark.parametrize(("q", "z", "T", "delta"), [(0.35, 1.0, 20, 0.02), (0.1, 2.0, 50, 1e-4), (1.0, 3.0, 5, 1e-3)])
def test_agrees_with_dp_accounting(q, z, T, delta):
    relation = dp_accounting.NeighboringRelation.REPLACE_SPECIAL
    absl_logging.set_verbosity(absl_logging.ERROR)
    reference = rdp_privacy_accountant.RdpAccountant(neighboring_relation=relation).compose(event(q, z), T)
    assert Rdp().curve([event(q, z)] * T, delta)[-1] == pytest.approx(reference.get_epsilon(delta), rel=1e-9)
    reference = pld_privacy_accountant.PLDAccountant(neighboring_relation=relation).compose(event(q, z), T)
    assert Pld().curve([event(q, z)] * T, delta)[-1] == pytest.approx(reference.get_epsilon(delta), rel=1e-3)


@pytest.mark.parametrize("accountant", ALL, ids=lambda a: type(a).__name__)
class TestEach:
    def test_curve_has_one_value_an_event_and_never_falls(self, accountant):
        curve = accountant.curve([event(0.3, 1.2)] * 12, 0.01)
        assert len(curve) == 12
        assert all(b >= a - 1e-9 for a, b in itertools.pairwise(curve))
        assert accountant.curve([event(0.3, 1.2)] * 5, 0.01) == pytest.approx(curve[:5])
        assert accountant.curve([], 0.01) == []

    def test_order_of_mixed_events_does_not_matter(self, accountant):
        mixed = [event(0.3, 1.0), event(0.3, 2.0), event(0.1, 1.5)] * 3
        forward, backward = accountant.curve(mixed, 0.01)[-1], accountant.curve(mixed[::-1], 0.01)[-1]
        assert forward == pytest.approx(backward, rel=1e-6)
        weakest, strongest = [event(0.3, 1.0)] * 9, [event(0.1, 2.0)] * 9
        assert accountant.curve(strongest, 0.01)[-1] < forward < accountant.curve(weakest, 0.01)[-1]

    def test_no_noise_has_no_finite_epsilon_ever_after(self, accountant):
        curve = accountant.curve([event(0.3, 1.0), dp_accounting.NonPrivateDpEvent(), event(0.3, 1.0)], 0.01)
        assert math.isfinite(curve[0])
        assert curve[1:] == [math.inf, math.inf]

    def test_unsupported_event_is_refused(self, accountant):
        gaussian = dp_accounting.GaussianDpEvent(1.0)
        for other in (dp_accounting.SampledWithoutReplacementDpEvent(10, 3, gaussian), dp_accounting.LaplaceDpEvent(1)):
            with pytest.raises(UnsupportedEvent, match=type(other).__name__):
                accountant.curve([other], 0.01)

    @pytest.mark.parametrize("delta", [0, 1, -0.1, 1.5, "small", True, float("nan")])
    def test_delta_outside_its_range_is_refused(self, accountant, delta):
        with pytest.raises(ValueError, match=r"delta must lie in \(0, 1\)"):
            accountant.curve([event(0.3, 1.0)], delta)


def test_one_round_without_sampling_is_the_gaussian_mechanism():
    exact = dp_accounting.get_epsilon_gaussian(1.3, 0.01)
    assert Pld().curve([event(1.0, 1.3)], 0.01)[-1] == pytest.approx(exact, abs=2e-3)
    assert Pld().curve([event(1.0, 1.3)], 0.01)[-1] >= exact - 1e-9


def test_small_losses_are_discretised_finely_enough():
    events = [event(0.01, 20.0)] * 100
    assert Pld().curve(events, 1e-6)[-1] <= Rdp().curve(events, 1e-6)[-1]


LANDMINE, SYNTHETIC = (29, 4, 60, 0.35), (200, 2, 40, 0.25)


@pytest.mark.parametrize(
    ("scheme", "z", "decay", "expected"),
    [(LANDMINE, 1, Decay(10, 30), 6.20), (LANDMINE, 2, Decay(10, 30), 2.00), (SYNTHETIC, 1, Decay(5, 5), 6.46)],
)
def test_effective_losses_of_the_paper_s_noise(scheme, z, decay, expected):
    """Epsilons of dp-accounting's PLD at the effective multipliers; they pin the course of the weights too."""
    events, delta = events_charged(*scheme, z, decay, "effective"), default_delta(scheme[0])
    assert round(Pld().curve(events, delta)[-1], 2) == expected
    assert round(Pld().epsilon(events, delta), 2) == expected


@given(
    N=st.integers(2, 60), P=st.integers(1, 4), q=st.floats(0.05, 1.0), z=st.floats(0.5, 3.0), hold=st.integers(0, 6),
    growth=st.floats(-0.2, 1.0),
)  # fmt: skip
@settings(max_examples=6, deadline=None, derandomize=True)
def test_effective_is_never_above_nominal_and_tight_has_nothing_to_gain(N, P, q, z, hold, growth):
    scheme, decay, schedule = (N, min(P, N), 8, q), Decay(hold, 4), PowerSchedule(growth)
    nominal = events_charged(*scheme, z, decay, "nominal", schedule=schedule)
    tight = events_charged(*scheme, z, decay, "effective", "tight", schedule)
    multipliers = [e.event.noise_multiplier for e in nominal]
    assert [e.event.noise_multiplier for e in tight] == pytest.approx(multipliers, rel=1e-12)
    effective = events_charged(*scheme, z, decay, "effective", schedule=schedule)
    for accountant in (Moments(), Pld()):
        assert accountant.epsilon(effective, 0.01) <= accountant.epsilon(nominal, 0.01) + 2e-9


@pytest.mark.parametrize("schedule", [PowerSchedule(0.5), Steps([1.0, 1.3, 0.8])], ids=["power", "steps"])
def test_schedules_compose_in_any_order_as_dp_accounting_does(schedule):
    events, delta = events_charged(29, 4, 6, 0.3, 1.0, Decay(2, 3), "effective", schedule=schedule), 0.01
    relation = dp_accounting.NeighboringRelation.REPLACE_SPECIAL
    rdp = rdp_privacy_accountant.RdpAccountant(neighboring_relation=relation)
    pld = pld_privacy_accountant.PLDAccountant(relation, 1e-3)
    for e in events:
        rdp.compose(e)
        pld.compose(e)
    for accountant, reference in ((Rdp(), rdp), (Pld(), pld)):
        expected = pytest.approx(reference.get_epsilon(delta), rel=1e-6)  # multipliers are rounded down to 8 digits
        assert accountant.curve(events, delta)[-1] == expected
        assert accountant.epsilon(events, delta) == expected
        assert accountant.epsilon(events[::-1], delta) == expected
        assert accountant.epsilon(events[1::2] + events[::2], delta) == expected


@pytest.mark.parametrize(("q", "z"), [(0.35, 1.0), (0.01, 5.0), (0.9, 0.2), (1.0, 2.0), (0.5, 50.0)])
def test_one_round_has_dp_accounting_s_distribution(q, z):
    """The vectorised construction: the same divergences as dp-accounting's own, point by point."""
    interval = 1e-3 if z >= 0.5 else 1e-2
    reference = privacy_loss_distribution.from_gaussian_mechanism(
        z, sampling_prob=q, value_discretization_interval=interval,
        neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_SPECIAL,
    )  # fmt: skip
    ours = privacy_loss_distribution.PrivacyLossDistribution(*(loss.discretised(interval) for loss in _losses(q, z)))
    for epsilon in (-0.3, 0.0, 0.01, 0.5, 2.0, 10.0, math.inf):
        expected = reference.get_delta_for_epsilon(epsilon)
        assert ours.get_delta_for_epsilon(epsilon) == pytest.approx(expected, rel=1e-9, abs=1e-11)


def test_pld_bounds_the_exact_composition():
    """All rounds without sampling are one Gaussian of multiplier z / sqrt(T), whose epsilon is known."""
    for z, T, delta in ((3.0, 9, 1e-3), (1.0, 4, 0.02), (40.0, 100, 1e-5)):
        exact = dp_accounting.get_epsilon_gaussian(z / math.sqrt(T), delta)
        for epsilon in (Pld().epsilon([event(1.0, z)] * T, delta), Pld().curve([event(1.0, z)] * T, delta)[-1]):
            assert exact - 1e-12 <= epsilon <= exact + 2e-3


def test_deltas_near_the_rounding_errors_cost_more_never_less():
    exact = dp_accounting.get_epsilon_gaussian(1.0, 1e-12)
    for epsilon in (Pld().epsilon([event(1.0, 3.0)] * 9, 1e-12), Pld().curve([event(1.0, 3.0)] * 9, 1e-12)[-1]):
        assert exact <= epsilon <= exact + 0.02
    assert Pld().epsilon([event(0.1, 2.0)] * 1000, 1e-14) == math.inf


def test_curve_ends_where_epsilon_says():
    different = [event(0.35, 1 + t / 40) for t in range(12)]
    for accountant in ALL:
        assert accountant.curve(different, 0.02)[-1] == pytest.approx(accountant.epsilon(different, 0.02), rel=1e-8)
        assert accountant.epsilon([], 0.02) == 0.0


def test_divergences_too_small_to_compute_are_no_free_rounds():
    """Rounding makes them 0 or less, for which dp-accounting has epsilon 0; but there delta is mu / sqrt(2 pi)."""
    at_zero = 1e-3 * math.sqrt(10) / 1e6 / math.sqrt(2 * math.pi)
    assert Rdp().epsilon([event(1e-3, 1e6)] * 10, at_zero / 1e4) > 0


@pytest.mark.parametrize(("q", "z"), [(1e-3, 1e9), (1.0, 1e200), (1e-6, 0.3), (0.5, 0.01)])
def test_extremes_stay_numbers(q, z):
    pld, rdp, moments = (a.epsilon([event(q, z)] * 3, 1e-3) for a in (Pld(), Rdp(), Moments()))
    assert 0 <= pld <= rdp + 2e-9 <= moments + 4e-9 < math.inf


def test_mixed_multipliers_agree_with_dp_accounting():
    relation = dp_accounting.NeighboringRelation.REPLACE_SPECIAL
    mixed = [event(0.3, 1.0)] * 4 + [event(0.3, 2.5)] * 6 + [event(0.1, 0.8)] * 3
    rdp = rdp_privacy_accountant.RdpAccountant(neighboring_relation=relation)
    pld = pld_privacy_accountant.PLDAccountant(relation, 1e-3)
    for e in mixed:
        rdp.compose(e)
        pld.compose(e)
    assert Rdp().curve(mixed, 1e-3)[-1] == pytest.approx(rdp.get_epsilon(1e-3), rel=1e-9)
    assert Pld().curve(mixed, 1e-3)[-1] == pytest.approx(pld.get_epsilon(1e-3), abs=1e-3)


@pytest.mark.parametrize(("q", "z", "T"), [(0.35, 1.0, 60), (0.35, 4.0, 60), (0.25, 1.0, 40), (0.9, 0.7, 10)])
def test_pld_is_within_a_thousandth_of_dp_accounting(q, z, T):
    relation = dp_accounting.NeighboringRelation.REPLACE_SPECIAL
    reference = pld_privacy_accountant.PLDAccountant(neighboring_relation=relation).compose(event(q, z), T)
    assert Pld().curve([event(q, z)] * T, 0.02)[-1] == pytest.approx(reference.get_epsilon(0.02), abs=1e-3)


@given(
    q=st.floats(0.01, 0.99),
    z=st.floats(0.5, 4.0),
    T=st.integers(1, 15),
    better=st.sampled_from(["q", "z", "delta"]),
)
@settings(max_examples=10, deadline=None, derandomize=True)
def test_less_sampling_more_noise_or_a_larger_delta_never_cost_more(q, z, T, better):
    smaller = event(q / 1.5, z) if better == "q" else event(q, 1.5 * z) if better == "z" else event(q, z)
    delta = 0.02 if better == "delta" else 0.01
    for accountant in ALL:
        before, after = accountant.curve([event(q, z)] * T, 0.01)[-1], accountant.curve([smaller] * T, delta)[-1]
        assert after <= before + 1e-6


def test_curves_change_no_input():
    events = [event(0.3, 1.0), event(0.3, 2.0)]
    for accountant in ALL:
        accountant.curve(events, 0.01)
    assert events == [event(0.3, 1.0), event(0.3, 2.0)]


def test_moments_stop_at_32():
    """With rare sampling the largest moment is the best one, and epsilon tends to `log(1/delta) / 32`."""
    assert Moments().curve([event(1e-7, 10.0)], 1e-3)[-1] == pytest.approx(math.log(1e3) / 32, rel=1e-6)


@pytest.mark.parametrize(("z", "T", "delta"), [(3.0, 1000, 1e-12), (3.0, 300, 1e-11), (1.0, 40, 1e-13)])
def test_pld_bounds_the_exact_epsilon_of_many_rounds_at_a_small_delta(z, T, delta):
    """The FFT's own errors are as large as delta here; without sampling T rounds are one Gaussian."""
    exact = dp_accounting.get_epsilon_gaussian(z / math.sqrt(T), delta)
    spent = Pld().epsilon([event(1.0, z)] * T, delta)
    assert exact <= spent <= 1.2 * exact


def test_pld_curve_of_a_long_run_is_solved_here_and_there_and_never_too_small():
    events = [event(0.1, 2.0)] * 350
    curve = Pld().curve(events, 1e-3)
    assert len(curve) == 350
    assert curve == sorted(curve)
    for k in (1, 50, 200, 347, 350):
        assert Pld().epsilon(events[:k], 1e-3) - 2e-9 <= curve[k - 1] <= Pld().epsilon(events[: k + 6], 1e-3) + 2e-9
    assert curve[-1] == pytest.approx(Pld().epsilon(events, 1e-3), abs=2e-9)
