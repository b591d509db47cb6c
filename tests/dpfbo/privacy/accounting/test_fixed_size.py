"""Subsets of a fixed size: the bound of Wang, Balle and Kasiviswanathan (2019), with the factor 2 counted once."""

import itertools
import math
from decimal import Decimal, localcontext

import dp_accounting
import numpy as np
import pytest
import torch
from dp_accounting.rdp import rdp_privacy_accountant
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfbo.federated.mechanism import SubsampledGaussian
from dpfbo.formats.words import REPLACE_ONE
from dpfbo.privacy.accounting import UnsupportedEvent
from dpfbo.privacy.accounting.events import round_event
from dpfbo.privacy.accounting.fixed_size import ORDERS, FixedSize

DELTA = 29**-1.1


def theorem_27(k, N, multiplier, order):
    """Thm. 27 for a Gaussian, written out anew in exact arithmetic.

    `(1/(a-1)) log(1 + g^2 C(a,2) min(4 (e^{e(2)} - 1), 2 e^{e(2)}) + sum_{j=3}^a 4 g^j C(a,j) sqrt(B(2 floor(j/2))
    B(2 ceil(j/2))))` with `g = k/N`, `e(i) = i / (2 m^2)` and `B(l) = |sum_i (-1)^i C(l,i) e^{(i-1) e(i)}|`; every
    term of the sum is at most `2 g^j C(a,j) e^{(j-1) e(j)}`, the general bound of Thm. 9.
    """
    with localcontext() as context:
        context.prec = 150  # the alternating sums cancel
        g, m = Decimal(k) / Decimal(N), Decimal(multiplier)
        moment = lambda i: (Decimal(i * (i - 1)) / (2 * m * m)).exp()
        B = [abs(sum((-1) ** i * math.comb(l, i) * moment(i) for i in range(l + 1))) for l in range(order + 2)]
        total = 1 + g**2 * math.comb(order, 2) * min(4 * (moment(2) - 1), 2 * moment(2))
        for j in range(3, order + 1):
            ternary = 4 * (B[2 * (j // 2)] * B[2 * ((j + 1) // 2)]).sqrt()
            total += g**j * math.comb(order, j) * min(ternary, 2 * moment(j))
        return float(total.ln() / (order - 1))


@pytest.mark.parametrize(("k", "N", "z"), [(10, 29, 1.0), (10, 29, 4.0), (50, 200, 2.0), (1, 29, 1.0), (3, 1000, 3.0)])
@pytest.mark.parametrize("order", [2, 3, 4, 7, 8, 16, 32])
def test_divergences_are_those_of_theorem_27(k, N, z, order):
    """The theorem's Gaussian, of two messages 2 C apart, has multiplier z/2: z is relative to one message."""
    ours = FixedSize()._cost(N, k, z / 2)[ORDERS.index(order)]
    plain = order / (2 * (z / 2) ** 2)
    assert ours == pytest.approx(min(theorem_27(k, N, z / 2, order), plain), rel=1e-7)


@pytest.mark.parametrize(("k", "N", "z", "T"), [(10, 29, 2.0, 60), (50, 200, 3.0, 40), (20, 1000, 2.0, 100)])
def test_epsilon_is_the_theorem_s_by_the_tighter_conversion(k, N, z, T):
    """`eps = min_a T e'(a) + log((a - 1)/a) - log(delta a)/(a - 1)`, whole orders (Canonne et al. 2020, Prop. 12)."""
    epsilons = [
        T * theorem_27(k, N, z / 2, a) + math.log1p(-1 / a) - math.log(DELTA * a) / (a - 1) for a in range(2, 33)
    ]
    ours = FixedSize().epsilon([round_event(k / N, z, (k, N))] * T, DELTA)
    assert ours == pytest.approx(min(epsilons), rel=2e-3)  # only some whole orders are tried


@pytest.mark.parametrize(("k", "N", "z"), [(10, 29, 1.0), (10, 29, 3.0), (3, 100, 1.5), (28, 29, 2.0), (29, 29, 2.0)])
@pytest.mark.parametrize("order", [2, 3, 8])
def test_two_worlds_diverge_no_more_than_it_says(k, N, z, order):
    """The actual pair: one agent sends +C in one world and -C in the other, everyone else zero; sigma = z C."""
    x = np.linspace(-30 * z, 30 * z, 300_001)
    log_density = lambda mean: -((x - mean) ** 2) / (2 * z * z) - math.log(z * math.sqrt(2 * math.pi))
    with np.errstate(divide="ignore"):
        plus, minus = (
            np.logaddexp(np.log1p(-k / N) + log_density(0), math.log(k / N) + log_density(C)) for C in (1.0, -1.0)
        )
    true = math.log(np.exp(order * plus - (order - 1) * minus).sum() * (x[1] - x[0])) / (order - 1)
    said = FixedSize()._cost(N, k, z / 2)[ORDERS.index(order)]
    assert true <= said * (1 + 1e-9)
    if k == N:  # without the factor 2 it would be a quarter of it
        assert true == pytest.approx(said, rel=1e-6)


def test_event_has_the_noise_over_the_distance_of_two_messages():
    mechanism = SubsampledGaussian(0.35, 1.7, 2.0, "tight", "fixed_size")
    weights = torch.full((1, 29), 1 / 29, dtype=torch.float64)
    event = mechanism.dp_event(weights, 0)
    apart = 2 * mechanism.message_norm(1) * float(weights.max()) / 0.35  # both of the clip norm, opposite
    assert event.event.noise_multiplier == pytest.approx(mechanism.sigma(weights) / apart)
    assert (event.sample_size, event.source_dataset_size) == (10, 29)
    FixedSize().check(event)


@pytest.mark.parametrize("z", [1.0, 2.5, 8.0])
def test_without_subsampling_it_is_the_plain_gaussian_of_half_the_multiplier(z):
    event, plain = round_event(1.0, z, (29, 29)), dp_accounting.GaussianDpEvent(z / 2)
    relation = dp_accounting.NeighboringRelation.REPLACE_ONE
    for T in (1, 20):
        exact = dp_accounting.get_epsilon_gaussian(z / 2 / math.sqrt(T), DELTA)
        assert FixedSize().epsilon([event] * T, DELTA) == pytest.approx(exact, rel=1e-9)
        assert FixedSize().curve([event] * T, DELTA)[-1] == pytest.approx(exact, rel=1e-9)
        assert exact < rdp_privacy_accountant.RdpAccountant(ORDERS, relation).compose(plain, T).get_epsilon(DELTA)


@given(N=st.integers(2, 300), z=st.floats(0.5, 8.0), share=st.floats(0.01, 1.0))
@settings(max_examples=12, deadline=None, derandomize=True)
def test_a_smaller_subset_or_more_noise_never_costs_more(N, z, share):
    k = max(1, int(share * N))
    cost = lambda k, z: FixedSize().epsilon([round_event(k / N, z, (k, N))] * 5, 0.01)
    assert cost(k, z) <= cost(N, z) + 1e-9
    assert cost(k, 1.3 * z) <= cost(k, z) + 1e-9
    assert cost(max(1, k // 2), z) <= cost(k, z) + 1e-9


@pytest.mark.parametrize(("k", "N", "multiplier"), [(10, 29, 0.5), (28, 29, 2.0), (5, 10_000, 1.0)])
def test_divergences_grow_with_the_order_and_stay_below_the_plain_gaussian(k, N, multiplier):
    ours = FixedSize()._cost(N, k, multiplier)[:-1]
    assert (ours <= np.array(ORDERS) / (2 * multiplier**2) + 1e-15).all()
    assert (np.diff(ours) >= -1e-12).all()


def test_curve_and_epsilon_agree_whatever_the_order():
    events = [round_event(0.35, 1 + t / 3, (10, 29)) for t in range(5)] * 2
    curve = FixedSize().curve(events, DELTA)
    assert len(curve) == 10 and all(b >= a for a, b in itertools.pairwise(curve))
    assert curve[-1] == pytest.approx(FixedSize().epsilon(events[::-1], DELTA), rel=1e-12)
    assert FixedSize().curve([], DELTA) == []
    assert FixedSize().epsilon([], DELTA) == 0.0


def test_no_noise_has_no_finite_epsilon():
    nothing = dp_accounting.NonPrivateDpEvent()
    curve = FixedSize().curve([round_event(0.35, 3.0, (10, 29)), nothing], DELTA)
    assert math.isfinite(curve[0]) and curve[1] == math.inf
    assert FixedSize().epsilon([nothing], DELTA) == math.inf


@pytest.mark.parametrize(
    "event",
    [
        round_event(0.35, 1.0),
        dp_accounting.GaussianDpEvent(1.0),
        dp_accounting.SampledWithoutReplacementDpEvent(10, 3, dp_accounting.LaplaceDpEvent(1.0)),
    ],
)
def test_other_events_are_refused_in_one_sentence(event):
    with pytest.raises(UnsupportedEvent, match=r"replace-one relation: use sampling=fixed_size") as error:
        FixedSize().check(event)
    assert type(event).__name__ in str(error.value)


def test_a_subset_of_more_than_all_is_refused():
    with pytest.raises(UnsupportedEvent, match="needs a subset of 1 to 10 of 10 agents, got 11"):
        FixedSize().check(round_event(1.0, 2.0, (11, 10)))


def test_relation_and_delta():
    assert FixedSize().relation == REPLACE_ONE
    assert not FixedSize().approximation
    with pytest.raises(ValueError, match=r"delta must lie in \(0, 1\)"):
        FixedSize().epsilon([round_event(0.35, 1.0, (10, 29))], 0)
