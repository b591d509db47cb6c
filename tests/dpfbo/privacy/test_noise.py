"""Discrete noise on a grid, and noise multipliers by round."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from dpfbo.checks import SettingError
from dpfbo.federated.mechanism import SubsampledGaussian
from dpfbo.federated.schedule import Constant, PowerSchedule, Steps
from dpfbo.privacy import noise as noise_module
from dpfbo.privacy.entropy import SeededEntropy, SystemEntropy, gaussian
from dpfbo.privacy.noise import DiscreteGaussian, Gaussian
from dpfbo.rng import Streams
from runners.compose.composition import build
from tests.helpers.compose import compose

pytest.importorskip("opendp")
SHAPE = (3, 40)


def total(scale=1.0):
    return scale * torch.randn(*SHAPE, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def test_discrete_noise_has_the_promised_law_and_lies_on_the_grid():
    noise, sensitivity, sigma = DiscreteGaussian(20), 0.7, 1.1
    out = torch.stack([noise.add(total(), sigma, sensitivity, SystemEntropy(), t) for t in range(40)])
    grid = 0.5 * 2.0**-20  # the power of two below 0.7, 20 bits down
    assert torch.equal(torch.round(out / grid) * grid, out)
    drawn = ((out - total()) / sigma).flatten().numpy()
    assert stats.kstest(drawn, "norm").pvalue > 1e-4
    assert len(np.unique(drawn)) > 0.99 * len(drawn)


def test_rounding_is_paid_for():
    """Two sums at most the sensitivity apart are at most `inflation` times as far apart on the grid."""
    noise, sensitivity = DiscreteGaussian(20), 1e-3
    g = 2.0 ** (math.floor(math.log2(sensitivity)) - 20)
    direction = total()
    for scale in (1.0, 1e-3, 17.3):
        a = total(scale)
        b = a + sensitivity * direction / direction.norm()
        apart = (torch.round(a / g) - torch.round(b / g)).norm() * g
        assert float(apart) <= sensitivity * noise.inflation(a.numel())
    assert noise.inflation(a.numel()) < 1 + 1e-4
    assert Gaussian().inflation(10**6) == 1.0


def test_sigma_grows_with_the_rounding_and_the_charge_does_not():
    w = torch.full((3, 10), 0.1, dtype=torch.float64)
    plain = SubsampledGaussian(0.5, 1.0, 2.0, charge="effective")
    discrete = SubsampledGaussian(0.5, 1.0, 2.0, charge="effective", noise=DiscreteGaussian(20))
    messages = torch.zeros(10, 40, dtype=torch.float64)
    a, b = (m.release(messages, w, 40, SystemEntropy(), 0)[0] for m in (plain, discrete))
    inflation = DiscreteGaussian(20).inflation(120)
    assert b.sigma == pytest.approx(inflation * a.sigma, rel=1e-12)
    assert b.sensitivity == pytest.approx(inflation * a.sensitivity, rel=1e-12)
    assert discrete.dp_event(w, 0) == plain.dp_event(w, 0)


def test_without_noise_nothing_is_rounded_or_drawn():
    mechanism = SubsampledGaussian(1.0, 0.0, 100.0, noise=DiscreteGaussian(20))
    w, sent = torch.full((3, 10), 0.1, dtype=torch.float64), total()[0, :10].view(10, 1) / 3
    out, private = mechanism.release(sent, w, 1, SeededEntropy(Streams(0)), 0)
    assert torch.equal(out.values, w @ sent) and (out.sigma, private.noise) == (0.0, 0.0)
    assert mechanism.sigma(torch.zeros(3, 10, dtype=torch.float64)) == 0.0


def test_discrete_noise_has_no_seed():
    with pytest.raises(ValueError, match=r"has no seed: it needs entropy"):
        DiscreteGaussian().add(total(), 1.0, 1.0, SeededEntropy(Streams(0)), 0)
    with pytest.raises(ValueError, match=r"privacy/noise=discrete needs privacy.rng=os, got 'seeded'"):
        build(compose("privacy/noise=discrete"))
    build(compose("privacy/noise=discrete", "privacy.rng=os"))


def test_noise_beyond_its_integers_is_refused():
    """Saturated noise would be a constant, and the release the bare sum."""
    noise = DiscreteGaussian(30)
    with pytest.raises(ValueError, match=r"bits=30 cannot draw noise of 1e\+13 sensitivities"):
        noise.add(total(), 1e13, 1.0, SystemEntropy(), 0)
    with pytest.raises(ValueError, match="would overflow"):
        build(compose("privacy/noise=discrete", "privacy.rng=os", "privacy.z=1e9"))
    drawn = torch.stack([noise.add(total(), 2.0**25, 1.0, SystemEntropy(), 0) for _ in range(20)])
    assert len(drawn.unique()) > 0.99 * drawn.numel()
    assert float(drawn.std()) == pytest.approx(2.0**25, rel=0.1)


@pytest.mark.parametrize("huge", [1e300, -1e300])
def test_a_huge_sum_is_clamped_before_the_noise(huge):
    """To 2^56 steps of the grid, in both directions: at the ends of 64-bit integers it would have no noise."""
    out = DiscreteGaussian(30).add(torch.full((2, 50), huge, dtype=torch.float64), 1.0, 1.0, SystemEntropy(), 0)
    assert (out - math.copysign(2.0**26, huge)).abs().max() < 10
    assert len(out.unique()) > 90


def test_the_most_noise_has_2_to_the_56_steps():
    noise = DiscreteGaussian(30)
    noise.check(2.0**26, 1.0)
    with pytest.raises(ValueError, match="would overflow"):
        noise.check(math.nextafter(2.0**26, math.inf), 1.0)


def test_the_inflation_is_that_of_the_guarantee():
    """`1 + 2 g sqrt(size) / sensitivity`, with g at most 2^-bits of the sensitivity."""
    assert DiscreteGaussian(20).inflation(64, 2**10) == 1 + (2**-20 + 2**-32) * 8
    assert DiscreteGaussian(32).inflation(1) == pytest.approx(1 + 2**-32, rel=1e-15)


@pytest.mark.parametrize("bits", [19, 33, 2.5, True, "many"])
def test_bits_that_are_no_grid(bits):
    with pytest.raises(SettingError, match="^bits must be") as refused:
        DiscreteGaussian(bits)
    assert refused.value.name == "bits"


def test_schedules():
    assert [Constant()(t) for t in range(3)] == [1.0, 1.0, 1.0]
    assert [PowerSchedule(0.5)(t) for t in (0, 3, 8)] == [1.0, 2.0, 3.0]
    assert [Steps([2, 0.5])(t) for t in range(4)] == [2.0, 0.5, 0.5, 0.5]
    w = torch.full((1, 4), 0.25, dtype=torch.float64)
    mechanism = SubsampledGaussian(0.5, 2.0, 1.0, schedule=PowerSchedule(0.5))
    assert mechanism.sigma(w, 3) == pytest.approx(2 * mechanism.sigma(w, 0))
    assert mechanism.dp_event(w, 3).event.noise_multiplier == 4.0
    released, _ = mechanism.release(torch.zeros(4, 5), w, 5, SeededEntropy(Streams(0)), 3)
    assert released.sigma == pytest.approx(4.0 * mechanism.sensitivity(w))


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["privacy/schedule=steps", "privacy.schedule.factors=[]"], "privacy.schedule.factors must be a list"),
        (["privacy/schedule=steps", "privacy.schedule.factors=[1,0]"], "must be a finite number above 0, got 0"),
        (["privacy/schedule=steps", "privacy.schedule.factors=[1,0.001]"], "got 0.001 in round 1"),
        (["privacy/schedule=power", "privacy.schedule.exponent=nan"], "privacy.schedule.exponent must be a finite"),
        (["privacy/schedule=power", "privacy.schedule.exponent=-9"], "in round"),
        (["privacy.charge=cheap"], "privacy.charge must be one of 'nominal', 'effective', got 'cheap'"),
        (["algorithm.message=median"], "algorithm.message must be one of 'sample', 'mean', 'scores', got 'median'"),
        (["algorithm.momentum=1"], r"algorithm.momentum must lie in \[0, 1\), got 1"),
        (["algorithm.broadcasts=0"], "algorithm.broadcasts must be an integer of at least 1, got 0"),
        (["algorithm=fts_original", "algorithm.momentum=0.5"], "algorithm.momentum has no effect on algorithm=fts"),
        (["algorithm=ts", "algorithm.message=mean"], "algorithm.message has no effect on algorithm=ts"),
        (["algorithm=ts", "algorithm.broadcasts=3"], "algorithm.broadcasts has no effect on algorithm=ts"),
        (["algorithm=random_server", "algorithm.message_normalize=true"], "message_normalize has no effect on"),
        (["privacy.q=1e-13"], "must be at least 1e-12, got 1e-13"),
        (["algorithm.message_normalize=maybe"], "algorithm.message_normalize must be one of True, False, got 'maybe'"),
    ],
)  # fmt: skip
def test_bad_settings_are_one_sentence(overrides, says):
    with pytest.raises(ValueError, match=says):
        build(compose(*overrides))


def test_gaussian_noise_is_that_of_its_own_stream():
    """Named `noise`, scaled by sigma and added."""
    entropy, total = SeededEntropy(Streams(3)), torch.arange(6, dtype=torch.float64).view(2, 3)
    released = Gaussian().add(total, 0.7, 1.0, entropy, 4)
    assert torch.equal(released, total + 0.7 * gaussian(entropy, "noise", 4, (2, 3)))


def test_the_grid_rounds_to_the_nearest_step(monkeypatch):
    """By at most g / 2, as the guarantee says, and without a bias (4 standard errors of the mean of uniforms)."""
    monkeypatch.setattr(noise_module, "discrete_gaussian", lambda centres, scale: centres)
    g = 2.0**-20
    exact = 1e-3 * torch.randn(10_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    steps = (DiscreteGaussian(20).add(exact, 1.0, 1.0, SystemEntropy(), 0) - exact) / g
    assert steps.abs().max() <= 0.5
    for part in (steps, steps[exact > 0], steps[exact < 0]):
        assert abs(float(part.mean())) < 4 * (1 / 12 / len(part)) ** 0.5


def test_the_error_of_floating_point_summation_is_paid_for():
    n = 10**5
    x = torch.full((n,), 0.1, dtype=torch.float64) + 1e-9 * torch.arange(n)
    part = torch.ones(1, n, dtype=torch.float64) @ x[:, None]
    error = abs(float(part) - math.fsum(x.tolist()))
    assert error > 0
    assert 2 * error <= DiscreteGaussian(30).inflation(1, n) - DiscreteGaussian(30).inflation(1, 0)
