"""PO-GP-UCB's theorems: the numbers by NumPy, and Theorem 2 on a released table."""

import math

import numpy as np
import pytest
import torch

from dpfbo.checks import SettingError
from dpfbo.outsourced import theory
from dpfbo.outsourced.transforms.random_projection import RandomProjection, threshold
from dpfbo.privacy.entropy import SeededEntropy
from dpfbo.rng import Streams


@pytest.mark.parametrize("inflation", ["paper", "authors"])
@pytest.mark.parametrize("raised", [True, False])
def test_distances_keep_within_the_factors(inflation, raised):
    n, nu, mu = 30, 0.5, 0.01
    r = theory.fewest_columns(n, nu, mu)
    assert r == math.ceil(8 * math.log(n**2 / mu) / nu**2)
    rows = torch.randn(n, 3, generator=torch.Generator().manual_seed(0)).double() * torch.tensor([1.0, 5.0, 9.0])
    rows = rows - rows.mean(0)
    transform = RandomProjection(r, 200.0 if raised else 1e6, 1e-3, inflation)
    w, smallest = threshold(r, transform.epsilon, 1e-3), float(torch.linalg.svdvals(rows).min())
    C = theory.stretch(smallest, w, inflation)
    assert (C > 1) == raised == (smallest < w)
    before, after = (torch.pdist(x).square() for x in (rows, transform.made_of(rows, SeededEntropy(Streams(0)))))
    factors = after / before
    assert factors.min() >= 1 - nu and factors.max() <= (1 + nu) * C
    stretched = torch.pdist(transform.raised(rows)).square() / before
    assert stretched.min() >= 1 - 1e-9 and 0.8 * C < stretched.max() <= C * (1 + 1e-9)  # C' cannot be much smaller


def test_stretch_by_hand():
    assert theory.stretch(2.0, 1.0) == 1.0
    assert theory.stretch(2.0, 3.0) == 3.25 and theory.stretch(2.0, 3.0, "authors") == 6.25
    assert theory.stretch(0.0, 3.0) is None


def test_regret_of_gp_ucb():
    bound = theory.gp_ucb_regret(beta=20.0, gain=7.0, noise=0.25, steps=50)
    assert bound == pytest.approx(np.sqrt(8 / np.log(1 + 1 / 0.25) * 20 * 7 / 50))


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: theory.fewest_columns(10, 0.6, 0.1), r"nu must lie in \(0, 0.5\], got 0.6"),
        (lambda: theory.fewest_columns(10, 0.5, 0.0), "mu must lie in"),
        (lambda: theory.fewest_columns(1, 0.5, 0.1), "n must be an integer of at least 2"),
        (lambda: theory.gp_ucb_regret(1.0, 1.0, 0.0, 5), "noise must be"),
        (lambda: theory.gp_ucb_regret(1.0, 1.0, 0.1, 0), "steps must be"),
    ],
)
def test_refusals(call, says):
    with pytest.raises(SettingError, match=says):
        call()
