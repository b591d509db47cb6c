"""Weights of distributed exploration against the published sequences."""

import numpy as np
import pytest
import torch

from dpfbo.federated.weights.decay import Decay
from dpfbo.federated.weights.power import Power
from dpfbo.federated.weights.softmax import Softmax
from dpfbo.federated.weights.uniform import Uniform

REAL = np.concatenate([np.full(10, 16.0), np.linspace(16, 1, 30), np.ones(20)])
SYNTHETIC = np.concatenate([np.full(5, 16.0), [16, 12.25, 8.5, 4.75, 1], np.ones(30)])
ASSIGNMENT = torch.arange(29) % 4


def ratio(weights, assignment):
    """Weight of a region's own agents, divided by that of the others."""
    own = assignment == torch.arange(len(weights))[:, None]
    return weights[own].max() / weights[~own].max()


@pytest.mark.parametrize(("decay", "sequence"), [(Decay(10, 30), REAL), (Decay(5, 5), SYNTHETIC)])
def test_softmax_follows_the_published_sequence(decay, sequence):
    weighting = Softmax(decay)
    for t, a_t in enumerate(sequence):
        w = weighting(t, ASSIGNMENT, 4)
        one_region = w[0, 0] / w[0, 1]  # agent 0 explores region 0, agent 1 does not
        assert float(one_region.log()) == pytest.approx(a_t - 1, abs=1e-9)


def test_softmax_with_a_9():
    weighting = Softmax(Decay(10, 30), a=9)
    for t, a_t in enumerate(REAL):
        w = weighting(t, ASSIGNMENT, 4)
        assert float((w[0, 0] / w[0, 1]).log()) == pytest.approx(9 * (a_t - 1) / 15, abs=1e-9)


@pytest.mark.parametrize(("c", "exponent"), [(1000, 1), (40, 2)])
def test_power_weights(c, exponent):
    weighting = Power(Decay(10, 30), c, exponent)
    for t, expected in enumerate(np.concatenate([np.full(10, c), np.linspace(c, 1, 30), np.ones(5)])):
        assert float(ratio(weighting(t, ASSIGNMENT, 4), ASSIGNMENT)) == pytest.approx(
            expected**exponent, rel=0.05
        )  # region sizes 8, 7, 7, 7 shift the maximum a little
        w = weighting(t, ASSIGNMENT, 4)
        assert float(w[0, 0] / w[0, 1]) == pytest.approx(expected**exponent)


@pytest.mark.parametrize("weighting", [Softmax(Decay(10, 30)), Power(Decay(10, 30)), Uniform(), Softmax(Decay(None))])
@pytest.mark.parametrize("P", [1, 2, 3, 4, 29])
def test_rows_sum_to_one_over_the_agents(weighting, P):
    for t in (0, 9, 10, 25, 39, 40, 1000):
        w = weighting(t, torch.arange(29) % P, P)
        assert w.shape == (P, 29)
        assert w.dtype == torch.float64
        assert torch.allclose(w.sum(1), torch.ones(P, dtype=torch.float64))
        assert (w >= 0).all()


def test_one_region_is_uniform_at_all_times():
    assert torch.allclose(
        Softmax(Decay(10, 30))(0, torch.zeros(5, dtype=torch.long), 1), torch.full((1, 5), 0.2).double()
    )


def test_never_decaying():
    weighting = Softmax(Decay(None))
    assert torch.equal(weighting(0, ASSIGNMENT, 4), weighting(10_000, ASSIGNMENT, 4))


def test_uniform_in_the_end():
    assert torch.allclose(Softmax(Decay(5, 5))(9, ASSIGNMENT, 4), Uniform()(0, ASSIGNMENT, 4))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Decay(-1), "hold must"),
        (lambda: Decay(3, 0), "steps must"),
        (lambda: Softmax(Decay(3), a=-1), "a must"),
        (lambda: Power(Decay(3), c=0), "c must"),
        (lambda: Power(Decay(3), exponent=-2), "exponent must"),
    ],
)
def test_refusals(make, says):
    with pytest.raises(ValueError, match=says):
        make()


ALL = [Softmax(Decay(10, 30)), Power(Decay(10, 30)), Power(Decay(10, 30), 40, 2), Uniform(), Softmax(Decay(None))]


@pytest.mark.parametrize("weighting", ALL)
def test_weights_follow_the_agents_and_not_their_order(weighting):
    order = torch.randperm(29, generator=torch.Generator().manual_seed(0))
    for t in (0, 15, 39, 60):
        assert torch.allclose(weighting(t, ASSIGNMENT[order], 4), weighting(t, ASSIGNMENT, 4)[:, order], rtol=1e-14)


@pytest.mark.parametrize("weighting", ALL)
@pytest.mark.parametrize("t", [0, 12, 100])
def test_one_region_is_uniform_whatever_the_weighting(weighting, t):
    w = weighting(t, torch.zeros(7, dtype=torch.long), 1)
    assert torch.allclose(w, torch.full((1, 7), 1 / 7, dtype=torch.float64), rtol=1e-14)


@pytest.mark.parametrize("weighting", ALL)
def test_a_region_never_counts_its_own_agents_less(weighting):
    own = torch.arange(4)[:, None] == ASSIGNMENT
    last = torch.full((4, 29), 1.0, dtype=torch.float64)
    for t in range(60):
        w = weighting(t, ASSIGNMENT, 4)
        assert torch.all(w[own].min() >= w[~own].max() * (1 - 1e-12))
        assert torch.all(w[own] <= last[own] + 1e-12), "own weights may only fall"
        last = w


def test_concentrated_weights_keep_their_digits():
    """A factor e^15 between inside and outside, in float64: not the 7 digits of single precision."""
    w = Softmax(Decay(None))(0, ASSIGNMENT, 4)
    expected = 1 / (8 + 21 * np.exp(-15.0))
    assert float(w[0, 0]) == pytest.approx(expected, rel=1e-14)
    assert float(w[0, 1]) == pytest.approx(expected * np.exp(-15.0), rel=1e-13)
    assert float(Softmax(Decay(None), a=300)(0, ASSIGNMENT, 4)[0, 1]) == pytest.approx(np.exp(-300.0) / 8, rel=1e-12)
    assert float(Power(Decay(None), 1000, 20)(0, ASSIGNMENT, 4)[0, 1]) == pytest.approx(1e-60 / 8, rel=1e-9)


def test_decay_at_its_edges():
    assert [Decay(2, 1)(t) for t in range(4)] == [1, 1, 0, 0]
    assert [Decay(0, 2)(t) for t in range(3)] == [1, 0, 0]
    assert [Decay(1, 3)(t) for t in range(5)] == [1, 1, 0.5, 0, 0]
    assert Decay(None)(10**9) == 1
