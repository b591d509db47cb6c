"""A plain DP-FTS-DE: Algorithms 1 and 2 of Dai et al. (2021) in NumPy, with every posterior from scratch.

It is a reference for dpfbo's results and times, and shares none of the algorithm's code with dpfbo.
"""

from dataclasses import dataclass, field

import numpy as np
import torch
from scipy.linalg import LinAlgError, cho_solve, cholesky, solve_triangular
from scipy.optimize import Bounds, minimize

from dpfbo import checks
from dpfbo.clock import PhaseClock
from dpfbo.federated.server import Server
from dpfbo.federated.weights.softmax import Softmax
from dpfbo.gp.acquisition import Acquisition
from dpfbo.problems.problem import Problem
from dpfbo.rng import Streams
from dpfbo.space.domain import Domain, Grid
from runners.compose.settings import FederatedSettings

FOLLOW = {"inverse_sqrt": 0.5, "inverse": 1.0, "inverse_square": 2.0, "never": np.inf}  # 1 - p_t = t^-exponent
HYPER_BOUNDS = np.array([(5e-3, 1e2), (1e-6, 1e3), (1e-8, 1e2)])  # length-scale, variance, noise
WORST = 1e25  # replaces an infinite negative log likelihood, from which a line search cannot step back
NOISE_FLOOR = 1e-5  # least noise variance of an own draw
SAME_POINT = 1e-9  # distance on every axis below which two points are one
OPEN_FACE = 1e-9  # distance that L-BFGS-B keeps from the open upper faces of a region


@dataclass(frozen=True)
class Features:
    """A feature map `phi(x) = cos(s . x + b)`, scaled to unit norm. s: M x D; b: M."""

    s: np.ndarray
    b: np.ndarray

    @classmethod
    def draw(cls, M: int, D: int, lengthscale: float, rng: np.random.Generator) -> "Features":
        """Draw the map of an SE kernel with length-scale l: `s ~ N(0, l^-2 I)`, `b ~ U[0, 2 pi]`."""
        return cls(rng.standard_normal((M, D)) / lengthscale, rng.uniform(0, 2 * np.pi, M))

    def __call__(self, X: np.ndarray) -> np.ndarray:
        """Return the features of points, `k x D -> k x M`."""
        c = np.cos(X @ self.s.T + self.b)
        return c / np.linalg.norm(c, axis=1, keepdims=True)

    def value_and_gradient(self, x: np.ndarray, omega: np.ndarray) -> tuple[float, np.ndarray]:
        """Return `phi(x) . omega` and its gradient at one point x (D)."""
        angle = self.s @ x + self.b
        c, norm = np.cos(angle), np.linalg.norm(np.cos(angle))
        value = c @ omega / norm
        return value, (np.sin(angle) * (value * c / norm - omega) / norm) @ self.s


@dataclass
class PlainAgent:
    """An agent's state. X: t x D, in the unit cube; y: t; hyper: length-scale, variance and noise of its own GP."""

    id: int
    hyper: np.ndarray
    X: np.ndarray
    y: np.ndarray = field(default_factory=lambda: np.empty(0))


def run(problem: Problem, settings: FederatedSettings, rounds: int, seed: int) -> tuple[np.ndarray, PhaseClock]:
    """Run TS, FTS or DP-FTS-DE for the first `rounds` rounds.

    Returns the problem's metric after each round, N x (rounds + 1), and the seconds by phase. Raises ValueError for a
    setting that dpfbo has and this plain loop lacks.
    """
    softmax = _check(settings)
    a, rng, streams, clock = settings.algorithm, np.random.default_rng(seed), Streams(seed), PhaseClock()
    N, domain, own = problem.n_agents, problem.domain, a.own_gp
    D, parts = domain.dimension, region_parts(a.P, domain.dimension)
    shared = Features.draw(a.M, D, a.lengthscale, rng)
    hyper = np.array([own.lengthscale, own.variance, own.noise])
    agents = [PlainAgent(n, hyper, np.empty((0, D))) for n in range(N)]
    omega = np.zeros((a.P, a.M))  # the last broadcast
    best, metric = np.full(N, -np.inf), np.empty((N, rounds + 1))
    for t in range(rounds + 1):
        messages = []
        for agent in agents:
            if t == 0:
                X = initial_points(agent.id % a.P, settings.n_init, parts, domain, rng)
            else:
                if own.fit != "given" and len(agent.y) % own.every == 0:
                    with clock("fit"):
                        agent.hyper = fit(agent.X, agent.y, hyper)
                X = query(agent, t, omega, shared, domain, settings, rng, clock)[None]
            ids, x = torch.tensor([agent.id]), domain.to_natural(torch.from_numpy(X))[None]  # 1 x k x D
            with clock("objective"):
                y = problem.evaluate(ids, x, streams, t)
            best[agent.id] = max(best[agent.id], float(problem.true_value(ids, x, y).max()))
            agent.X, agent.y = np.vstack([agent.X, X]), np.append(agent.y, y.numpy())
            if a.server is not None and t < rounds:
                with clock("message"):
                    messages.append(draw_weights(shared(agent.X), agent.y, a.message_noise, rng))
        if messages:
            with clock("server"):
                omega = aggregate(np.stack(messages), region_weights(t, N, a.P, softmax), settings, rng)
        metric[:, t] = best if problem.reference is None else problem.reference.numpy() - best
    return metric, clock


def query(
    agent: PlainAgent, t: int, omega: np.ndarray, shared: Features, domain: Domain, settings: FederatedSettings,
    rng: np.random.Generator, clock: PhaseClock,
) -> np.ndarray:  # fmt: skip
    """Return the query of one agent in round t >= 1, of shape D (Algo. 2, lines 5 to 9)."""
    a, acquisition, D = settings.algorithm, settings.acquisition, domain.dimension
    exponent = FOLLOW[a.follow]
    if exponent < np.inf and rng.random() < t**-exponent:
        with clock("acquisition"):
            x = maximise(shared, omega, domain, acquisition, rng)
    else:
        with clock("own_draw"):
            lengthscale, variance, noise = agent.hyper
            fresh = Features.draw(a.own_draw.n_features, D, lengthscale, rng)
            w = draw_weights(np.sqrt(variance) * fresh(agent.X), agent.y, max(noise, NOISE_FLOOR), rng)
            x = maximise(fresh, w[None], domain, acquisition, rng)
    repeats = (np.abs(agent.X - x) < SAME_POINT).all(1).any()
    return rng.random(D) if repeats and not isinstance(domain, Grid) else x


def weight_posterior(Phi: np.ndarray, y: np.ndarray, lam: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean `nu` (M) of Dai et al. (2021), eq. 2, and the Cholesky factor of its `Sigma` (M x M).

    `Sigma = Phi^T Phi + lam I`; Phi: t x M; y: t.
    """
    L = cholesky(Phi.T @ Phi + lam * np.eye(Phi.shape[1]), lower=True)
    return cho_solve((L, True), Phi.T @ y), L


def draw_weights(Phi: np.ndarray, y: np.ndarray, lam: float, rng: np.random.Generator) -> np.ndarray:
    """Draw M weights from `N(nu, lam Sigma^-1)`; see `weight_posterior`."""
    nu, L = weight_posterior(Phi, y, lam)
    return nu + np.sqrt(lam) * solve_triangular(L, rng.standard_normal(len(nu)), lower=True, trans="T")


def aggregate(
    messages: np.ndarray, weights: np.ndarray, settings: FederatedSettings, rng: np.random.Generator
) -> np.ndarray:
    """Sample agents, clip, sum and add noise (Algo. 1, lines 5 to 12): messages N x M, weights P x N -> P x M."""
    if not settings.algorithm.private:
        return weights @ messages
    m = settings.privacy.mechanism
    q, z, S = m.sampling_probability, m.noise_multiplier, m.clip_norm
    C, total = S / np.sqrt(len(weights)), np.zeros((len(weights), messages.shape[1]))
    for n in np.flatnonzero(rng.random(len(messages)) < q):
        clipped = messages[n] * C / max(C, np.linalg.norm(messages[n]))
        total += np.outer(weights[:, n], clipped) / q
    sigma = z * weights.max() * S / q
    return total + sigma * rng.standard_normal(total.shape)


def region_weights(t: int, N: int, P: int, weights: Softmax) -> np.ndarray:
    """Return the softmax weights `phi_n^(i) ∝ exp((a_t - 1) I[n in region i])`, P x N."""
    hold, steps = weights.decay.hold, weights.decay.steps
    fall = np.append(np.linspace(1, 0, steps)[:-1], 0.0)
    share = 1.0 if hold is None or t < hold else fall[min(t - hold, steps - 1)]
    inside = np.arange(N) % P == np.arange(P)[:, None]
    raw = np.exp(weights.a * share * (inside - 1.0))
    return raw / raw.sum(1, keepdims=True)


def region_parts(P: int, D: int) -> tuple[int, ...]:
    """Return the number of parts of each axis; their product is P.

    Each axis starts with one part. Then each prime factor of P, largest first, multiplies the number of parts of the
    axis that has the fewest.
    """
    parts, factors = [1] * D, []
    for k in range(2, P + 1):
        while P % k == 0:
            factors.append(k)
            P //= k
    for k in reversed(factors):
        parts[parts.index(min(parts))] *= k
    return tuple(parts)


def cells_of(X: np.ndarray, parts: tuple[int, ...]) -> np.ndarray:
    """Return the cell of each point on each axis, `... x D -> ... x D`."""
    return np.clip(np.floor(X * parts).astype(int), 0, np.array(parts) - 1)


def regions_of(X: np.ndarray, parts: tuple[int, ...]) -> np.ndarray:
    """Return the region of each point, `k x D -> k`."""
    return np.ravel_multi_index(tuple(cells_of(X, parts).T), parts)


def cell_bounds(cell: np.ndarray, parts: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return the lower and upper corner of one cell, D each.

    If an upper face of the cell lies inside the unit cube, the face belongs to the next cell. The upper corner then
    lies below the face by the tiny distance `OPEN_FACE`.
    """
    last = cell == np.array(parts) - 1
    return cell / parts, np.where(last, 1.0, (cell + 1) / parts - OPEN_FACE)


def initial_points(region: int, k: int, parts: tuple[int, ...], domain: Domain, rng: np.random.Generator) -> np.ndarray:
    """Draw k points uniformly in a region, k x D (Algo. 2, line 2)."""
    if isinstance(domain, Grid):
        points = domain.unit_points.numpy()
        return rng.choice(points[regions_of(points, parts) == region], k)
    lower, upper = cell_bounds(np.array(np.unravel_index(region, parts)), parts)
    return rng.uniform(lower, upper, (k, domain.dimension))


def maximise(
    features: Features, omega: np.ndarray, domain: Domain, acquisition: Acquisition, rng: np.random.Generator
) -> np.ndarray:
    """Return `argmax_x phi(x) . omega^(i[x])`, a point of shape D; i[x] is the region of x.

    On a grid, the maximum is exact. In a box, it is the best that random candidates and L-BFGS-B find.
    """
    D, parts = domain.dimension, region_parts(len(omega), domain.dimension)
    grid = domain.unit_points.numpy() if isinstance(domain, Grid) else None
    candidates = rng.random((acquisition.n_candidates, D)) if grid is None else grid
    values = (features(candidates) * omega[regions_of(candidates, parts)]).sum(1)
    x, value = candidates[values.argmax()], values.max()
    if grid is not None:
        return x
    starts = rng.random((acquisition.n_starts, D))
    for start, region, cell in zip(starts, regions_of(starts, parts), cells_of(starts, parts), strict=True):

        def negative(x: np.ndarray, w: np.ndarray = omega[region]) -> tuple[float, np.ndarray]:
            value, gradient = features.value_and_gradient(x, w)
            return -value, -gradient

        lower, upper = cell_bounds(cell, parts)
        found = minimize(
            negative, np.array(start), jac=True, method="L-BFGS-B", bounds=Bounds(lower, upper),
            options={"maxiter": acquisition.max_iterations},
        )  # fmt: skip
        if -found.fun > value:
            x, value = found.x, -found.fun
    return x


def fit(X: np.ndarray, y: np.ndarray, start: np.ndarray) -> np.ndarray:
    """Return the hyper-parameters of maximum marginal likelihood, found by L-BFGS-B on their logarithms."""

    def negative(theta: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = log_likelihood(theta, X, y)
        return (-value, -gradient) if np.isfinite(value) else (WORST, gradient)

    found = minimize(negative, np.log(start), jac=True, method="L-BFGS-B", bounds=np.log(HYPER_BOUNDS))
    return np.exp(found.x) if found.fun < WORST else start


def log_likelihood(theta: np.ndarray, X: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray]:
    """Return log marginal likelihood and gradient (Rasmussen and Williams 2006, eq. 5.8, 5.9); -inf if singular.

    theta: logarithms of length-scale, variance and noise; X: t x D; y: t.
    """
    lengthscale, variance, noise = np.exp(theta)
    D2 = ((X[:, None] - X) ** 2).sum(-1)  # t x t
    K, eye = variance * np.exp(-0.5 * D2 / lengthscale**2), np.eye(len(y))
    try:
        L = cholesky(K + noise * eye, lower=True)
    except LinAlgError:
        return -np.inf, np.zeros(3)
    alpha = cho_solve((L, True), y)
    value = -0.5 * y @ alpha - np.log(L.diagonal()).sum() - 0.5 * len(y) * np.log(2 * np.pi)
    slopes = (K * D2 / lengthscale**2, K, noise * eye)  # dA / dtheta
    return value, np.array([0.5 * (alpha @ dA @ alpha - np.trace(cho_solve((L, True), dA))) for dA in slopes])


def _check(settings: FederatedSettings) -> Softmax:
    a, p = settings.algorithm, settings.privacy.mechanism
    checks.one_of("algorithm.server", getattr(a.server, "__name__", None), (None, Server.__name__))
    checks.one_of("algorithm.follow", a.follow, FOLLOW)
    checks.one_of("algorithm.paired", a.paired, (False,))
    checks.one_of("algorithm.own_draw.method", a.own_draw.method, ("rff",))
    checks.one_of("privacy.sensitivity", p.calibration, ("paper",))
    checks.one_of("privacy.sampling", p.sampling, ("poisson",))
    if not isinstance(settings.weights, Softmax):
        raise ValueError("weights must be softmax for the plain loop")
    return settings.weights
