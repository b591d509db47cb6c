"""Accountants: published values, dp-accounting's own numbers, and order among the three."""

import csv
import itertools
import math
from pathlib import Path

import dp_accounting
import pytest
from absl import logging as absl_logging
from dp_accounting.pld import pld_privacy_accountant
from dp_accounting.rdp import rdp_privacy_accountant
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfbo.accounting import UnsupportedEvent, check_delta, default_delta
from dpfbo.accounting.moments import Moments
from dpfbo.accounting.pld import Pld
from dpfbo.accounting.rdp import Rdp
from dpfbo.weights.decay import Decay

ALL = (Moments(), Rdp(), Pld())
PUBLISHED = list(csv.DictReader(open(Path(__file__).parent.parent / "analysis" / "published" / "privacy_losses.csv")))


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
    q=st.floats(0.01, 1.0),
    z=st.floats(0.5, 5.0),
    T=st.integers(1, 30),
    N=st.integers(5, 10_000),
)
@settings(max_examples=15, deadline=None, derandomize=True)
def test_pld_is_below_rdp_is_below_moments(q, z, T, N):
    moments, rdp, pld = (a.curve([event(q, z)] * T, default_delta(N)) for a in ALL)
    for m, r, p in zip(moments, rdp, pld, strict=True):
        assert p <= r + 1e-6
        assert r <= m + 1e-9


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
        with pytest.raises(ValueError, match=r"privacy\.delta must lie in \(0, 1\)"):
            accountant.curve([event(0.3, 1.0)], delta)


def test_one_round_without_sampling_is_the_gaussian_mechanism():
    exact = dp_accounting.get_epsilon_gaussian(1.3, 0.01)
    assert Pld().curve([event(1.0, 1.3)], 0.01)[-1] == pytest.approx(exact, abs=2e-3)
    assert Pld().curve([event(1.0, 1.3)], 0.01)[-1] >= exact - 1e-9


def test_small_losses_are_discretised_finely_enough():
    events = [event(0.01, 20.0)] * 100
    assert Pld().curve(events, 1e-6)[-1] <= Rdp().curve(events, 1e-6)[-1]


def test_default_delta():
    assert default_delta(200) == 200**-1.1
    check_delta(default_delta(1))


def test_decay_of_the_published_weights_gives_the_effective_losses():
    """Pins the sequence a_t: accounted by effective multipliers, it gives 6.20, 2.00 and 6.46 (dp-accounting PLD)."""
    cases = [(29, 4, 60, 0.35, 1, Decay(10, 30), 6.20), (29, 4, 60, 0.35, 2, Decay(10, 30), 2.00)]
    cases.append((200, 2, 40, 0.25, 1, Decay(5, 5), 6.46))
    for N, P, T, q, z, decay, expected in cases:
        events = []
        for t in range(T):
            own = [sum(n % P == i for n in range(N)) for i in range(P)]
            outside = math.exp(-15 * decay(t))
            inside = [1 / (own[i] + (N - own[i]) * outside) for i in range(P)]
            norms = [
                math.sqrt(inside[i] ** 2 + sum((outside * inside[j]) ** 2 for j in range(P) if j != i))
                for i in range(P)
            ]
            events.append(event(q, z * math.sqrt(P) * max(inside) / max(norms)))
        assert round(Pld().curve(events, default_delta(N))[-1], 2) == expected


def test_mixed_multipliers_agree_with_dp_accounting():
    relation = dp_accounting.NeighboringRelation.REPLACE_SPECIAL
    mixed = [event(0.3, 1.0)] * 4 + [event(0.3, 2.5)] * 6 + [event(0.1, 0.8)] * 3
    rdp = rdp_privacy_accountant.RdpAccountant(neighboring_relation=relation)
    pld = pld_privacy_accountant.PLDAccountant(neighboring_relation=relation)
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
    """Where sampling is rare the largest moment binds, and with it `log(1/delta) / 32` is all that is left."""
    assert Moments().curve([event(1e-7, 10.0)], 1e-3)[-1] == pytest.approx(math.log(1e3) / 32, rel=1e-6)
