"""Noise with one fault each: functions of (total, sigma, entropy, round) that return the release."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from dpfbo.privacy.entropy import gaussian
from dpfbo.privacy.noise import Gaussian


@dataclass(frozen=True)
class FaultyNoise(Gaussian):
    """Noise that a function adds."""

    noisy: Callable

    def add(self, total, sigma, sensitivity, entropy, round):
        return self.noisy(total, sigma, entropy, round)


def standard(entropy, round, shape):
    """The real noise at sigma 1."""
    return gaussian(entropy, "noise", round, tuple(shape))


def half(total, sigma, entropy, round):
    return total + sigma / 2 * standard(entropy, round, total.shape)


def first_region_alone(total, sigma, entropy, round):
    noisy = total + sigma * standard(entropy, round, total.shape)
    return torch.cat([noisy[:1], total[1:]])


def shared_by_regions(total, sigma, entropy, round):
    return total + sigma * standard(entropy, round, (1, total.shape[1]))


def same_in_every_round(total, sigma, entropy, round):
    return total + sigma * standard(entropy, 0, total.shape)


def repeated_in_odd_rounds(total, sigma, entropy, round):
    return total + sigma * standard(entropy, earlier(round), total.shape)


def earlier(round):
    """An odd round from 3 on is taken for the one two before it."""
    return round - 2 if round % 2 and round >= 3 else round


def uniform(total, sigma, entropy, round):
    u = entropy.uniform("noise", round, total.numel()).view(total.shape)
    return total + sigma * math.sqrt(12) * (u - 0.5)


def of_the_choice(total, sigma, entropy, round):
    return total + sigma * gaussian(entropy, "choice", round, tuple(total.shape))


def one_bare_feature(total, sigma, entropy, round):
    noisy = total + sigma * standard(entropy, round, total.shape)
    noisy[:, 3] = total[:, 3]
    return noisy


def truncated(total, sigma, entropy, round):
    """Noise beyond four standard deviations is taken at half its size."""
    x = standard(entropy, round, total.shape)
    return total + sigma * torch.where(x.abs() > 4, x / 2, x)


def in_single_precision(total, sigma, entropy, round):
    return total + sigma * standard(entropy, round, total.shape).float().double()


def of_single_uniforms(total, sigma, entropy, round):
    """Box and Muller's, of uniforms with 24 bits."""
    half = math.ceil(total.numel() / 2)
    u = torch.floor(entropy.uniform("noise", round, 2 * half) * 2.0**24) / 2.0**24
    radius, angle = torch.sqrt(-2 * torch.log1p(-u[:half])), 2 * math.pi * u[half:]
    x = torch.cat([radius * torch.cos(angle), radius * torch.sin(angle)])
    return total + sigma * x[: total.numel()].view(total.shape)


def signs_of_the_first_region(total, sigma, entropy, round):
    """Region 1 has the sizes of region 0's noise, with signs of its own."""
    x = standard(entropy, round, total.shape)
    x[1] = x[0] * x[1].sign()
    return total + sigma * x
