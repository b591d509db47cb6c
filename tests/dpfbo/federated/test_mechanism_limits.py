"""The ends of the mechanism's ranges: the smallest q and z that are taken, and noise that is no ordinary number."""

import math
import sys

import pytest
import torch

from dpfbo.checks import SettingError
from dpfbo.federated.mechanism import SubsampledGaussian
from dpfbo.federated.schedule import PowerSchedule, Steps
from dpfbo.privacy.noise import DiscreteGaussian

ONE = torch.ones(1, 1, dtype=torch.float64)


def test_the_smallest_probability_and_multiplier_are_taken():
    assert SubsampledGaussian(1e-12, 0.01, 1.0).multiplier(0) == 0.01
    with pytest.raises(SettingError, match="^sampling must be one of"):
        SubsampledGaussian(0.5, 1.0, 1.0, sampling="roulette")
    with pytest.raises(SettingError, match="got inf in round 0"):
        SubsampledGaussian(0.5, 1e308, 1.0, schedule=Steps([10.0]))
    with pytest.raises(SettingError, match="got 0.001 in round 0"):
        SubsampledGaussian(0.5, 1.0, 1.0, schedule=Steps([0.001, 1.0]))


@pytest.mark.parametrize(
    ("z", "norm"), [(1.0, sys.float_info.min), (0.5, sys.float_info.min), (1e200, 1e200), (0.5, 5e-324)]
)
def test_noise_that_is_no_ordinary_number_is_refused(z, norm):
    with pytest.raises(SettingError, match="^clip_norm .* no ordinary number"):
        SubsampledGaussian(1.0, z, norm).sigma(ONE)


def test_sigma_is_that_of_round_0_if_none_is_named():
    mechanism = SubsampledGaussian(1.0, 2.0, 1.0, schedule=PowerSchedule(0.5))
    assert mechanism.sigma(ONE) == mechanism.sigma(ONE, 0) == 2.0 < mechanism.sigma(ONE, 1)


def test_small_noise_that_cannot_be_drawn_is_refused_before_it_is():
    mechanism = SubsampledGaussian(1.0, 1e9, 1e-12, noise=DiscreteGaussian(30))
    assert math.isclose(1e9 * mechanism.sensitivity(ONE), 1e-3)
    with pytest.raises(ValueError, match="would overflow"):
        mechanism.sigma(ONE)
