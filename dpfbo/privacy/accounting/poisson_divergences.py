"""Rényi divergences of many different Poisson-sampled Gaussians at once."""

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import erfcx, gammaln, logsumexp, ndtr

_TERMS = 1000  # of dp-accounting's series for a fractional order; one that needs more counts as infinite there and here
_SMALL = 30.0  # logarithm of the sum over the last term, from which on that series counts as converged
_BLOCK = 256  # events at a time


def poisson_divergences(q: np.ndarray, z: np.ndarray, orders: Sequence[float]) -> np.ndarray:
    """Rényi divergences of Poisson-sampled Gaussians at orders above 1, `log(A_order) / (order - 1)`.

        A_a = sum_i |binom(a, i)| (1 - q)^(a - i) q^i (exp((i^2 - i) / (2 z^2)) Phi((z0 - i) / z) + ...)

    is the series of Mironov, Talwar, Zhang (2019, Sec. 3.3) at absolute values, as dp-accounting has it: see
    `_log_moments` for fractional orders, `_log_whole_moments` for whole ones. Without sampling the divergence is
    `order / (2 z^2)`.

    Guarantee: upper bounds, infinite at the same orders as those of dp-accounting, not below them but for rounding
    errors, and not above by more than 1e-8, since its series ends earlier.

    q, z: K, sampling probabilities and multipliers, q in (0, 1] and z > 0. Returns K x orders.
    """
    found = np.empty((len(q), len(orders)))
    whole = [i for i, order in enumerate(orders) if float(order).is_integer()]
    fractions: dict[float, list[int]] = {}
    for i, order in enumerate(orders):
        if i not in whole:
            fractions.setdefault(round(order % 1, 9), []).append(i)
    for first in range(0, len(q), _BLOCK):
        rows = np.arange(first, min(first + _BLOCK, len(q)))
        plain, rows = rows[q[rows] == 1], rows[q[rows] < 1]
        found[plain] = np.asarray(orders) / (2 * z[plain, None] ** 2)
        if len(rows):
            block = found[rows]
            for i in whole:
                block[:, i] = _log_whole_moments(q[rows], z[rows], int(orders[i])) / (orders[i] - 1)
            for columns in fractions.values():
                several = np.array([orders[i] for i in columns])
                block[:, columns] = _log_moments(q[rows], z[rows], several) / (several - 1)
            found[rows] = block
    return found


def _log_whole_moments(q: np.ndarray, z: np.ndarray, order: int) -> np.ndarray:
    """`log sum_i binom(order, i) (1 - q)^(order - i) q^i exp((i^2 - i) / (2 z^2))`, i = 0..order; K."""
    i, q, z = np.arange(order + 1), q[:, None], z[:, None]
    terms = _log_binomials(np.array([order]), i) + i * np.log(q) + (order - i) * np.log1p(-q)
    return np.asarray(logsumexp(terms + (i * i - i) / (2 * z * z), axis=1))


def _log_moments(q: np.ndarray, z: np.ndarray, orders: np.ndarray) -> np.ndarray:
    """`log A_a` at orders a with one fractional part, inf where the series does not converge; K x orders.

        A_a = (1 - q)^a sum_i |binom(a, i)| (B(i) + B'(a - i)),    z0 = z^2 log(1 / q - 1) + 1/2
        B(i) = (q / (1 - q))^i exp((i^2 - i) / (2 z^2)) Phi((z0 - i) / z),    B'(j) the same with Phi((j - z0) / z)

    i and a - i run over grids that all these orders share, so the sums are products of matrices. The first terms,
    which may overflow, are added as logarithms. The rest of the series is added from above: |binom(a, i)| sums to
    |binom(a - 1, n - 1)| over i >= n > a, and B and B' fall from n on.
    """
    whole = np.floor(orders).astype(int)
    head = int(whole.max()) + 2  # terms with a - i > -1
    i, log_b = np.arange(_TERMS + 1), _log_factors(q, z, np.arange(_TERMS + 1), 1.0)  # K x terms
    j = orders[0] - whole[0] + np.arange(whole.max(), whole.min() - _TERMS - 1, -1)
    log_b2 = _log_factors(q, z, j, -1.0)
    b, b2 = np.exp(log_b[:, head:_TERMS]), np.exp(log_b2[:, head:])
    log_a = np.empty((len(q), len(orders)))
    for column, (order, floor) in enumerate(zip(orders.tolist(), whole.tolist(), strict=True)):
        shift = int(whole.max()) - floor  # position of a - 0 in j
        log_binomials = _log_binomials(np.array([order]), i[:-1])
        second = log_b2[:, shift : shift + _TERMS + 1]  # at a - i, i = 0..terms
        first_terms = np.concatenate([log_b[:, :head], second[:, :head]], axis=1) + np.tile(log_binomials[:head], 2)
        weights = np.exp(log_binomials[head:])
        tail_weight = math.exp(float(_log_binomials(np.array([order - 1]), np.array([_TERMS - 1]))[0]))
        last = np.exp(np.maximum(log_b[:, -1], second[:, -1]))
        rest = b @ weights + b2[:, shift : shift + _TERMS - head] @ weights + 2 * last * tail_weight
        with np.errstate(divide="ignore"):
            total = np.logaddexp(logsumexp(first_terms, axis=1), np.log(rest))
        last_term = log_binomials[-1] + np.maximum(log_b[:, -2], second[:, -2])
        log_a[:, column] = np.where(last_term < total - _SMALL, total + order * np.log1p(-q), np.inf)
    return log_a


def _log_factors(q: np.ndarray, z: np.ndarray, i: np.ndarray, sign: float) -> np.ndarray:
    """`log((q / (1 - q))^i exp((i^2 - i) / (2 z^2)) Phi(u))`, u = sign (z0 - i) / z; K x i.

    Where u < 0 this is `log(erfcx(-u / sqrt 2) / 2) - z0^2 / (2 z^2)`, without cancellation.
    """
    q, z = q[:, None], z[:, None]
    log_odds = np.log(q) - np.log1p(-q)
    z0 = 0.5 - z * z * log_odds
    u = sign * (z0 - i) / z
    logs, negative = i * log_odds + (i * i - i) / (2 * z * z), u < 0
    logs[~negative] += np.log(ndtr(u[~negative]))
    logs[negative] = np.log(erfcx(u[negative] / -math.sqrt(2)) / 2)
    return np.asarray(logs - np.where(negative, z0**2 / (2 * z * z), 0.0))


def _log_binomials(order: np.ndarray, i: np.ndarray) -> np.ndarray:
    """`log |binom(order, i)|`."""
    return np.asarray(gammaln(order + 1) - gammaln(i + 1) - gammaln(order - i + 1))
