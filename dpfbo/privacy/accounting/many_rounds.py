"""Composition of many different rounds by Fourier transforms of one length, for the `pld` accountant."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.fft
from scipy.signal import lfilter
from scipy.special import log_ndtr, ndtr, ndtri

RESOLUTION = 0.02  # the grid's interval over the root mean square of q / z
_FINEST = 1e-6  # smallest interval
_DENSE = 200  # multiples of the interval on either side of 0 that are all used; farther out one in |loss| / (200 h) is
_MOST_POINTS = 1 << 20  # of the circle
_CUT = 1e-6  # part of delta that counts as spent for the tails that are cut off
_BLOCK = 1 << 21  # numbers of a transform's rows held at a time
_LOW_TAIL = 1e-10  # probability of a round's low losses that are rounded up to the lowest point
_EXPONENTS = 24  # that are tried for a Chernoff bound
_LARGEST_EXPONENT = 700.0
_PRECISION = 1e-9  # of epsilon, which is rounded up

Kind = tuple[float, float]  # q and z of a round


def epsilons_of_different_rounds(kinds: Sequence[Kind], delta: float, lost: np.ndarray, each: bool) -> list[float]:
    """Epsilon after each round, or (each=False) after the last one alone.

    The losses of a round, in the two directions of the relation, lie on multiples of one interval h, from above
    ("connect the dots", Doroshenko et al. 2022): on all of them near 0, on fewer farther out, where the gaps grow with
    the loss. Their sum is the product of their Fourier transforms, on a circle of n points.

    Guarantee: upper bounds of epsilon.

    - What lies beyond the upper end u of n points counts as delta that is spent, by the Chernoff bound
      `P(L_1 + ... + L_t > u) <= min_s exp(-s u) prod_t E[exp(s L_t)]`; so does the loss beyond a round's last point.
      Both together are at most 1e-6 delta.
    - Negative probabilities, which are rounding errors, count as 0. `lost` is spent for rounding errors.

    The discretisation adds about h^2 / 6 a round to the variance of the sum, `h = 0.02 sqrt(mean_t (q_t / z_t)^2)`:
    less than 0.01 % of it. Epsilons that are much smaller than that of an average round are only known up to h.

    kinds: (q, z) of each round, z > 0. lost: T, what is spent besides after each round.
    """
    if lost[0] > delta:
        return [math.inf] * (len(kinds) if each else 1)
    different = sorted(set(kinds))
    q, z = np.array(different).T
    position = {kind: i for i, kind in enumerate(different)}
    rounds = np.array([position[kind] for kind in kinds])
    interval = max(RESOLUTION * math.sqrt(float(np.mean((q / z)[rounds] ** 2))), _FINEST)
    epsilons = np.zeros(len(kinds) if each else 1)
    for add in (False, True) if (q < 1).any() else (False,):
        losses = _Losses.of(q, z, add, interval, _CUT / 2 * delta / len(kinds))
        window = _Window.of(losses, rounds, _CUT / 2 * delta, each)
        while window.n > _MOST_POINTS:
            losses = _Losses.of(q, z, add, 2 * losses.interval, losses.tail)
            window = _Window.of(losses, rounds, window.tail, each)
        spent = np.cumsum(losses.infinite[rounds]) + lost + window.tail
        if each:
            found = _curve(losses, window, rounds, delta, spent)
        else:
            found = _last(losses, window, rounds, delta, spent[-1:])
        epsilons = np.maximum(epsilons, found)
    return np.maximum.accumulate(epsilons).tolist()


@dataclass(frozen=True)
class _Losses:
    """The discretised losses of K kinds of round in one direction: G multiples of an interval, with masses K x G.

    infinite: K, probabilities of an infinite loss. tail: largest probability beyond the last index.
    """

    interval: float
    indices: np.ndarray
    masses: np.ndarray
    infinite: np.ndarray
    tail: float

    @classmethod
    def of(cls, q: np.ndarray, z: np.ndarray, add: bool, interval: float, tail: float) -> "_Losses":
        ends = []
        for end, beyond in ((-1, max(tail, _LOW_TAIL)), (1, tail)):
            # log of the density ratio without sampling, at the number of standard deviations that few draws exceed
            log_ratio = (1 - 2 * z * float(ndtri(beyond))) / (2 * z * z)
            ends.append(-_sampled(q, -end * log_ratio) if add else _sampled(q, end * log_ratio))
        low, high = float(ends[0].min()), float(ends[1].max())
        indices = _indices(low / interval, high / interval)
        masses, infinite = np.empty((len(q), len(indices))), np.empty(len(q))
        step = max(1, _BLOCK // 4 // len(indices))
        for first in range(0, len(q), step):
            rows = slice(first, first + step)
            masses[rows], infinite[rows] = _connected(indices * interval, q[rows, None], z[rows, None], add)
        return cls(interval, indices, masses, infinite, tail)

    def transforms(self, rows: np.ndarray, n: int) -> np.ndarray:
        """The Fourier transforms of some kinds' losses on a circle of n points; rows x (n // 2 + 1), complex."""
        circle = np.zeros((len(rows), n))
        turns = self.indices // n
        for turn in range(int(turns[0]), int(turns[-1]) + 1):
            columns = slice(*np.searchsorted(turns, [turn, turn + 1]))
            circle[:, self.indices[columns] - turn * n] += self.masses[rows, columns]
        return np.asarray(scipy.fft.rfft(circle, axis=1, overwrite_x=True))


def _sampled(q: np.ndarray, log_ratio: np.ndarray) -> np.ndarray:
    """`log(1 - q + q ratio)`."""
    with np.errstate(divide="ignore"):
        return np.logaddexp(np.log1p(-q), np.log(q) + log_ratio)


def _indices(low: float, high: float) -> np.ndarray:
    """Ascending whole numbers from below `low` to above `high`: all near 0, then with gaps that grow."""
    growth, furthest = 1 + 1 / _DENSE, math.ceil(max(-low, high)) + 1
    n_growing = math.ceil(math.log(max(furthest / _DENSE, 1.0)) / math.log(growth)) + 2
    growing = np.ceil(_DENSE * growth ** np.arange(n_growing)).astype(np.int64)
    one_side = np.concatenate([np.arange(1, _DENSE), growing])
    both = np.concatenate([-one_side[::-1], [0], one_side])
    first, last = np.searchsorted(both, [math.floor(low), math.ceil(high)])
    return both[max(first - 1, 0) : last + 1]


def hockey_stick(epsilon: np.ndarray, q: np.ndarray | float, z: np.ndarray | float, add: bool) -> np.ndarray:
    """Divergences of rounds, `delta(eps) = U(x) - e^eps L(x)`, U and L distribution functions at the x of loss eps.

    With `g(eps) = log((e^eps - (1 - q)) / q)`, -inf up to log(1 - q), below which no loss of a sampled round lies:
    remove: `U = q N(-1, z^2) + (1 - q) N(0, z^2)`, `L = N(0, z^2)`, `x = -1/2 - z^2 g(eps)`; add, its mirror:
    `U = N(0, z^2)`, `L = q N(1, z^2) + (1 - q) N(0, z^2)`, `x = 1/2 + z^2 g(-eps)`.

    epsilon: G. q, z: K x 1, or numbers. Returns K x G, or G.
    """
    with np.errstate(divide="ignore"):
        log_rest, log_q = np.log1p(-q), np.log(q)
        signed = -epsilon if add else epsilon
        g = signed - log_q + np.log(np.maximum(-np.expm1(log_rest - signed), 0.0))
        if add:
            x = 0.5 + z * z * g
            log_lower = np.logaddexp(log_rest + log_ndtr(x / z), log_q + log_ndtr((x - 1) / z))
            upper = ndtr(x / z)
        else:
            x = -0.5 - z * z * g
            upper, log_lower = (1 - q) * ndtr(x / z) + q * ndtr((x + 1) / z), log_ndtr(x / z)
    return np.clip(upper - np.exp(epsilon + log_lower), 0.0, 1.0)


def _connected(losses: np.ndarray, q: np.ndarray, z: np.ndarray, add: bool) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities of losses on a grid, K x G, from above, and of infinite ones (Doroshenko et al., Algo. 1).

    The divergence is taken as `max(1 - e^eps, 0) + D(eps)`; below 0, D is e^eps times the divergence of the other
    direction at -eps. Without the first part, a mass of 1 at 0, rounding errors are small in both tails.
    """
    n_below = int(np.searchsorted(losses, 0.0))
    below, above = losses[:n_below], losses[n_below:]
    D_below = np.exp(below) * hockey_stick(-below, q, z, not add)
    D = np.concatenate([D_below, hockey_stick(above, q, z, add)], axis=1)  # K x G
    rises, gaps = np.diff(D, axis=1), np.diff(losses)
    masses = np.zeros_like(D)
    masses[:, 0] = -D[:, 0]
    masses[:, 1:] = rises / np.expm1(-gaps)
    masses[:, :-1] += rises / np.expm1(gaps)
    masses[:, n_below] += 1.0  # the loss 0, or the least one if all are positive
    return np.maximum(masses, 0.0), D[:, -1]


@dataclass(frozen=True)
class _Window:
    """The n points of a circle: for each number of rounds, those up to an index `top` that the sum hardly exceeds."""

    n: int
    top: np.ndarray
    tail: float

    @classmethod
    def of(cls, losses: _Losses, rounds: np.ndarray, tail: float, each: bool) -> "_Window":
        values = losses.indices * losses.interval
        deviation = np.sqrt(losses.masses @ values**2)[rounds].clip(min=losses.interval)
        s = np.geomspace(2 / np.linalg.norm(deviation), 16 / deviation.min(), _EXPONENTS)
        counts = np.arange(1, len(rounds) + 1) if each else np.array([len(rounds)])
        ends = [_ends(losses.masses, side * values, s, tail, rounds, counts) for side in (1, -1)]
        top = np.ceil(ends[0] / losses.interval).astype(np.int64)
        bottom = np.floor(-ends[1] / losses.interval).astype(np.int64)
        return cls(scipy.fft.next_fast_len(int((top - bottom).max()) + 2, real=True), top, tail)


def _ends(
    masses: np.ndarray, values: np.ndarray, s: np.ndarray, tail: float, rounds: np.ndarray, counts: np.ndarray
) -> np.ndarray:
    """Chernoff bounds that the sums of the first `counts` rounds exceed with probability at most `tail`."""
    largest = float(values.max())
    s = s[s * largest <= _LARGEST_EXPONENT]
    means = np.log(masses @ np.exp(np.outer(values, s)))[rounds]  # T x s
    totals = np.cumsum(means, axis=0)[counts - 1]
    return np.minimum(((totals - math.log(tail)) / s).min(axis=1, initial=math.inf), counts * largest)


def _last(losses: _Losses, window: _Window, rounds: np.ndarray, delta: float, spent: np.ndarray) -> np.ndarray:
    """Epsilon after all rounds; one number."""
    total = np.ones(window.n // 2 + 1, dtype=complex)
    times = Counter(rounds.tolist())
    step = max(1, _BLOCK // window.n)
    kinds = np.array(sorted(times, key=lambda kind: times[kind]))
    for first in range(0, len(kinds), step):
        rows = kinds[first : first + step]
        for kind, transform in zip(rows.tolist(), losses.transforms(rows, window.n), strict=True):
            total *= _power(transform, times[kind])
    return _epsilons(total[None], losses.interval, window.n, window.top, spent, delta, 0.0)


def _curve(losses: _Losses, window: _Window, rounds: np.ndarray, delta: float, spent: np.ndarray) -> np.ndarray:
    """Epsilon after each round; T."""
    total, found = np.ones(window.n // 2 + 1, dtype=complex), np.zeros(len(rounds))
    step = max(1, _BLOCK // window.n)
    for first in range(0, len(rounds), step):
        several = slice(first, first + step)
        products = losses.transforms(rounds[several], window.n)
        for transform in products:
            total = np.multiply(total, transform, out=transform)
        total = total.copy()  # of the block's last row, whose block is then free
        at_least = found[first - 1] if first else 0.0
        found[several] = _epsilons(
            products, losses.interval, window.n, window.top[several], spent[several], delta, at_least
        )
    return found


def _power(transform: np.ndarray, times: int) -> np.ndarray:
    """A transform to a whole power, by squaring."""
    found, square = None, transform
    while True:
        if times & 1:
            found = square if found is None else found * square
        times >>= 1
        if not times:
            assert found is not None
            return found
        square = square * square


def _epsilons(
    transforms: np.ndarray, interval: float, n: int, top: np.ndarray, spent: np.ndarray, delta: float, at_least: float
) -> np.ndarray:
    """The least epsilons, from `at_least` on, whose divergence is at most delta, rounded up; inf where there is none.

    With S_j the mass of the losses l_j and above, and `R_j = sum_(i >= j) p_i exp(l_j - l_i)`: `delta(eps) = spent +
    S_j - exp(eps - l_j) R_j` for eps between l_(j - 1) and l_j.
    """
    circle = np.maximum(scipy.fft.irfft(transforms, n=n, axis=1, overwrite_x=True), 0.0)
    found = np.full(len(top), at_least)
    for row, (last, lost) in enumerate(zip(top.tolist(), spent.tolist(), strict=True)):
        if lost > delta or math.isinf(at_least):
            found[row] = math.inf
            continue
        first = max(math.floor(at_least / interval), last - n + 1)
        found[row] = max(at_least, first * interval)
        if last <= first:
            continue
        masses = circle[row, np.arange(last, first, -1) % n]  # p_last, ..., p_(first + 1)
        above, scaled = np.cumsum(masses), lfilter([1.0], [1.0, -math.exp(-interval)], masses)
        excess = lost - delta + above - math.exp(-interval) * scaled  # at l_(last - 1), ..., l_first
        j = int(np.argmax(excess > 0))
        if excess[j] > 0:
            epsilon = (last - j) * interval + math.log((lost - delta + above[j]) / scaled[j])
            found[row] = max(found[row], epsilon + _PRECISION)
    return found
