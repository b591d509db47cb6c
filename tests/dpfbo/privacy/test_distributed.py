"""Noise in shares: what honest survivors add is enough, and its law is that of one discrete Gaussian."""

import math

import numpy as np
import pytest
import torch

from dpfbo.checks import SettingError
from dpfbo.privacy.distributed import BITS, DistributedNoise, modular, quantised
from dpfbo.privacy.entropy import SeededEntropy, SystemEntropy
from dpfbo.rng import Streams


def discrete(sd, reach):
    """The probabilities of N_Z(0, sd^2) on -reach..reach."""
    p = np.exp(-0.5 * (np.arange(-reach, reach + 1) / sd) ** 2)
    return p / p.sum()


def log_gap(noise, scale):
    """The natural logarithm of the `gap` in the guarantee of `DistributedNoise`, for noise of `scale` steps."""
    n, s2 = noise.n_sites, scale**2 / noise.honest
    terms = [-2 * math.pi**2 * s2 * k / (k + 1) for k in range(1, n)]
    return math.log(10) + max(terms) + math.log(sum(math.exp(x - max(terms)) for x in terms))


@pytest.mark.parametrize(("n", "sd"), [(2, 0.7), (3, 0.9), (6, 0.8)])
def test_the_sum_of_shares_has_almost_the_law_of_one_discrete_gaussian(n, sd):
    """Where both differ enough to be seen, the gap of Kairouz, Liu and Steinke (Prop. 12) bounds the difference."""
    reach = 12
    total = np.ones(1)
    for _ in range(n):
        total = np.convolve(total, discrete(sd, reach))
    middle = slice(len(total) // 2 - 4, len(total) // 2 + 5)
    one = discrete(sd * math.sqrt(n), n * reach)
    difference = np.abs(np.log(total[middle] / one[middle])).max()
    assert 1e-6 < difference < math.exp(log_gap(DistributedNoise(n), sd * math.sqrt(n)))


def test_the_gap_of_real_studies_is_below_any_number():
    assert log_gap(DistributedNoise(25, 2, 3), 2.0 * 2**BITS) < math.log(1e-30) * 1e6


@pytest.mark.parametrize("entropy", [SystemEntropy(), SeededEntropy(Streams(0))])
def test_shares_have_their_variance(entropy):
    noise, scale, size = DistributedNoise(10, 2, 1), 5e4, 4000
    share = noise.share(3, scale, size, entropy, 0).double()
    ratio = float(share.square().mean()) / (scale**2 / 7)
    assert abs(ratio - 1) < 4 * math.sqrt(2 / size)
    assert torch.equal(share, share.round())


def test_seeded_shares_differ_by_site_and_round():
    noise, entropy = DistributedNoise(3), SeededEntropy(Streams(0))
    draws = [noise.share(site, 1e5, 50, entropy, t) for site, t in ((0, 0), (1, 0), (0, 1))]
    assert torch.equal(draws[0], noise.share(0, 1e5, 50, entropy, 0))
    for a in range(3):
        for b in range(a):
            assert not torch.equal(draws[a], draws[b])


def test_rounding_keeps_the_sensitivity_that_is_charged():
    generator = torch.Generator().manual_seed(0)
    x = torch.nn.functional.normalize(torch.randn(300, 80, generator=generator, dtype=torch.float64), dim=1)
    longest = quantised(x, 1.0).double().norm(dim=1).max() * 2.0**-BITS
    assert longest <= DistributedNoise(2).inflation(80)
    assert not quantised(torch.zeros(1, 80), 1.0).any()


def test_sums_are_taken_modulo_32_bits():
    values = torch.tensor([2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 5])
    assert modular(values).tolist() == [2**31 - 1, -(2**31), -(2**31), 2**31 - 1, 5]


def test_what_does_not_fit_is_refused():
    DistributedNoise(100).check(50 * 2.0**BITS)
    with pytest.raises(ValueError, match="may exceed 32 bits"):
        DistributedNoise(40_000).check(2.0**BITS)
    with pytest.raises(ValueError, match="may exceed 32 bits"):
        DistributedNoise(10).check(5e3 * 2.0**BITS)
    with pytest.raises(ValueError, match="is finer than the grid"):
        DistributedNoise(10).check(5.0)


@pytest.mark.parametrize(("n", "dropouts", "colluders"), [(2, 1, 0), (5, 2, 1), (10, 0, 10), (4, 2, 0)])
def test_more_dropouts_and_colluders_than_the_sum_bears_are_refused(n, dropouts, colluders):
    with pytest.raises(SettingError, match="must stay below half of the other sites"):
        DistributedNoise(n, dropouts, colluders)


@pytest.mark.parametrize(("n", "dropouts", "colluders"), [(2, 0, 0), (5, 1, 2), (25, 2, 8), (100, 30, 33)])
def test_the_threshold_lets_survivors_unmask_and_no_server_see_two_sums(n, dropouts, colluders):
    t = DistributedNoise(n, dropouts, colluders).threshold
    assert t <= n - dropouts
    assert 2 * t > n + colluders
    assert t > colluders
