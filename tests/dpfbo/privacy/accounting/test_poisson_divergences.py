"""Rényi divergences of many events: the series itself, term by term, and where it does not converge."""

import itertools
import math

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import gammaln, log_ndtr, logsumexp

from dpfbo.privacy.accounting import poisson_divergences as module
from dpfbo.privacy.accounting.poisson_divergences import poisson_divergences

ORDERS = (1.1, 1.5, 2, 2.1, 2.5, 3, 6.5, 10.9, 14, 33, 64)
Q = np.array([0.3, 1.0, 0.02, 0.9, 0.001, 0.5, 1.0, 0.0001, 0.7])
Z = np.array([1.0, 2.0, 0.8, 5.0, 1.5, 100.0, 0.5, 3.0, 0.9])


def log_terms(q, z, order, n):
    """Logarithms of the first n terms of both sums (Mironov, Talwar, Zhang 2019, Sec. 3.3), |binom| for binom."""
    i, z0 = np.arange(n), z * z * math.log(1 / q - 1) + 0.5
    j = order - i
    log_binomial = gammaln(order + 1) - gammaln(i + 1) - gammaln(j + 1)
    first = i * math.log(q) + j * math.log1p(-q) + (i * i - i) / (2 * z * z) + log_ndtr((z0 - i) / z)
    second = j * math.log(q) + i * math.log1p(-q) + (j * j - j) / (2 * z * z) + log_ndtr((j - z0) / z)
    return log_binomial + np.array([first, second])


def whole(q, z, order):
    """`log E[ratio^order]` by integration."""
    x = np.linspace(-12 * z, order + 12 * z, 40_001)
    density = -0.5 * (x / z) ** 2 - math.log(z * math.sqrt(2 * math.pi)) + math.log(x[1] - x[0])
    return logsumexp(density + order * np.logaddexp(math.log1p(-q), math.log(q) + (2 * x - 1) / (2 * z * z)))


def reference(q, z, order):
    if q == 1:
        return order / (2 * z * z)
    if float(order).is_integer():
        return whole(q, z, order) / (order - 1)
    terms = log_terms(q, z, order, 100_000)
    if terms[:, 999].max() >= logsumexp(terms[:, :1000]) - 30:
        return math.inf
    return logsumexp(terms) / (order - 1)


def test_divergences_are_those_of_the_series():
    found = poisson_divergences(Q, Z, ORDERS)
    expected = np.array(
        [[reference(q, z, order) for order in ORDERS] for q, z in zip(Q.tolist(), Z.tolist(), strict=True)]
    )
    assert np.isinf(expected).any() and np.isfinite(expected).any(axis=0).all()
    assert found == pytest.approx(expected, rel=1e-10, abs=2e-10)  # of what the series leaves out: from above
    known = np.isfinite(expected)
    assert np.all(found[known] >= expected[known] * (1 - 1e-10) - 2e-12)


def test_events_in_several_blocks_are_those_of_one(monkeypatch):
    at_once = poisson_divergences(Q, Z, ORDERS)
    monkeypatch.setattr(module, "_BLOCK", 2)
    assert np.array_equal(poisson_divergences(Q[::-1], Z[::-1], ORDERS), at_once[::-1])
    assert np.array_equal(poisson_divergences(Q[:1], Z[:1], ORDERS), at_once[:1])
    assert np.array_equal(poisson_divergences(Q[1:2], Z[1:2], ORDERS), at_once[1:2])
    assert poisson_divergences(Q[:0], Z[:0], ORDERS).shape == (0, len(ORDERS))


@pytest.mark.parametrize(("q", "order"), [(0.5, 1.5), (0.3, 1.1), (0.3, 1.5), (0.6, 1.5), (0.9, 1.1), (0.5, 2.1)])
def test_the_series_ends_where_its_thousandth_term_is_small(q, order):
    """The multipliers where convergence begins and ends, by the terms themselves: finite there, infinite beyond."""

    def left(z):
        terms = log_terms(q, z, order, 1000)
        return terms[:, 999].max() - logsumexp(terms) + 30

    limits = np.geomspace(0.3, 3000, 60)
    signs = [left(z) > 0 for z in limits]
    for a, b in itertools.pairwise(range(60)):
        if signs[a] != signs[b]:
            edge = brentq(left, limits[a], limits[b], xtol=1e-13)
            sides = edge * np.array([1 - 1e-7, 1 + 1e-7])
            orders = [order] if order < 2 else [order - 1, order]  # those of one fraction are computed together
            found = poisson_divergences(np.array([q, q]), sides, orders)[:, -1]
            assert np.isinf(found).tolist() == [signs[a], signs[b]]
    assert len(set(signs)) == 2
