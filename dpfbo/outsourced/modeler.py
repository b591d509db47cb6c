"""The modeler of PO-GP-UCB (Algo. 2): it runs GP-UCB over candidates that it computes from the release.

At step t it asks the curator to measure the candidate

    argmax mean(z) + sqrt(beta_t) sd(z),    beta_t = 2 ln(m t^2 pi^2 / (6 delta')),    delta' = delta_ucb / 2

over all m candidates; `Policy` sets delta_ucb (Srinivas et al. 2010, Theorem 1, finite domains).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dpfbo import checks
from dpfbo.checks import SettingError
from dpfbo.gp.posterior import cholesky
from dpfbo.outsourced.hyperparameters import Belief, fit
from dpfbo.outsourced.transforms import Candidates

_SMALLEST_NOISE = 1e-6  # the least noise at the start of a fit, divided by the variance


@dataclass(frozen=True)
class Policy:
    """The rule by which the modeler chooses candidates.

    Args:
        policy: `gp_ucb`; or `random` for uniformly random candidates, as a control.
        delta_ucb: An upper bound on the probability that GP-UCB's confidence bounds ever fail.
        noise_aware: True if the kernel accounts for the difference between a candidate's point and the row of the table
            that is measured (`Candidates.input_variance`). A fit by `ml` replaces this kernel by one that ignores the
            difference.
        repeat: False to measure each candidate at most once. True to limit a candidate's measurements to its count in
            `Candidates.counts`, rounded; a limit below 1 becomes 1. If the counts are unknown, there is no limit. Once
            every candidate has reached its limit, the limits no longer apply.
        fit: `given` to keep the belief's hyper-parameters; or `ml` to fit them by maximum likelihood at the released
            (noisy) points.
        every: With `ml`, a fit is due whenever the number of measurements is a multiple of this number.

    Raises:
        SettingError: policy or fit is unknown, delta_ucb lies outside (0, 1], every is below 2, or a random policy has
            the fit `ml`.
    """

    policy: str = "gp_ucb"
    delta_ucb: float = 0.05
    noise_aware: bool = True
    repeat: bool = True
    fit: str = "given"
    every: int = 5

    def __post_init__(self) -> None:
        checks.one_of("policy", self.policy, ("gp_ucb", "random"))
        checks.probability("delta_ucb", self.delta_ucb)
        for name in ("noise_aware", "repeat"):
            checks.one_of(name, getattr(self, name), (True, False))
        checks.one_of("fit", self.fit, ("given", "ml"))
        checks.integer("every", self.every, minimum=2)
        if self.policy == "random" and self.fit != "given":
            raise SettingError("fit", f"has no effect on policy=random: leave it out, got {self.fit!r}")


@dataclass(frozen=True)
class Kernel:
    """The kernel `amplitude exp(-|a - a'|^2 / 2) + nugget I[same candidate]` on points divided by their length-scales.

    noise: the variance of the measurement noise. mean: the objective's mean.
    """

    amplitude: float
    nugget: float
    noise: float
    mean: float


def noise_aware_kernel(candidates: Candidates, belief: Belief) -> tuple[Tensor, Kernel]:
    """Return the points divided by length-scales, and the SE kernel convolved with the distribution of the inputs.

    Let l be the length-scale, and v the variance of the difference between a candidate and the measured row
    (`Candidates.input_variance`). Inputs `z + e` and `z' + e'` near candidates z and z', with independent
    `e, e' ~ N(0, diag v)`, have the expected covariance

        variance prod_k (l^2 / (l^2 + 2 v_k))^(1/2) exp(-sum_k (z_k - z'_k)^2 / (2 (l^2 + 2 v_k)))

    Let `rest` be `variance` minus this covariance at z = z'. If a candidate may be measured at a different row each
    time (`Candidates.fresh`), `rest` is added to the variance of the measurement noise. If a candidate is always
    measured at the same row, `rest` is added to the kernel as the nugget.
    """
    v, lengthscale, variance = candidates.input_variance, belief.lengthscale, belief.variance
    if v is None:
        return candidates.points / lengthscale, Kernel(variance, 0.0, belief.noise, belief.mean)
    widened = lengthscale**2 + 2 * v
    amplitude = variance * math.sqrt(float((lengthscale**2 / widened).prod()))
    rest = variance - amplitude
    nugget, extra = (0.0, rest) if candidates.fresh else (rest, 0.0)
    return candidates.points / widened.sqrt(), Kernel(amplitude, nugget, belief.noise + extra, belief.mean)


class CandidatePosterior:
    """Mean and variance of the objective at m candidates; the variance includes the nugget and no measurement noise.

    With `L` the Cholesky factor of `K(S, S) + noise I` over the measured candidates S, and `V = L^-1 K(S, all)`:

        mean = mu + V^T L^-1 (y - mu),    variance = k(z, z) - sum_i V_i^2

    After t measurements, the next one takes O(m t) operations. points: m x r, divided by length-scales. kernel: K,
    noise and mu. capacity: the largest number of measurements.
    """

    def __init__(self, points: Tensor, kernel: Kernel, capacity: int) -> None:
        self.kernel, self._points = kernel, points
        self._squares = points.square().sum(1)
        self._V = torch.zeros(capacity, len(points), dtype=points.dtype, device=points.device)
        self._count = 0
        self.mean = torch.full_like(self._squares, kernel.mean)
        self.variance = torch.full_like(self._squares, kernel.amplitude + kernel.nugget)

    def observe(self, index: int, y: float) -> None:
        t, V = self._count, self._V
        if t == len(V):
            raise ValueError(f"this posterior holds at most {len(V)} measurements")
        known = V[:t]
        row = torch.addmv(self._covariances(index), known.T, known[:, index], alpha=-1)
        pivot = math.sqrt(max(float(row[index]), 0.0) + self.kernel.noise)
        row /= pivot
        self.mean += row * ((y - float(self.mean[index])) / pivot)
        self.variance -= row.square()
        V[t] = row
        self._count += 1

    def refit(self, indices: Sequence[int], y: Sequence[float]) -> None:
        """Replace all measurements by t >= 1 given ones, in O(m t^2)."""
        t = len(indices)
        K = torch.stack([self._covariances(i) for i in indices])
        noise = self.kernel.noise * torch.eye(t, dtype=K.dtype, device=K.device)
        L = cholesky((K[:, list(indices)] + noise)[None])[0]
        V = torch.linalg.solve_triangular(L, K, upper=False)
        residual = torch.tensor(y, dtype=K.dtype, device=K.device) - self.kernel.mean
        weights = torch.linalg.solve_triangular(L, residual[:, None], upper=False)[:, 0]
        self._V[:t], self._count = V, t
        self.mean = self.kernel.mean + V.T @ weights
        self.variance = self.kernel.amplitude + self.kernel.nugget - V.square().sum(0)

    def _covariances(self, index: int) -> Tensor:
        point = self._points[index]
        distances = (self._squares + self._squares[index] - 2 * (self._points @ point)).clamp_(min=0)
        row = self.kernel.amplitude * torch.exp(-0.5 * distances)
        row[index] = self.kernel.amplitude + self.kernel.nugget
        return row


def beta(t: int, m: int, delta_ucb: float) -> float:
    """Return `beta_t = 2 ln(m t^2 pi^2 / (6 delta'))`, `delta' = delta_ucb / 2`, for step t >= 1 and m candidates."""
    return 2 * math.log(m * t**2 * math.pi**2 / (6 * delta_ucb / 2))


class Modeler:
    """A modeler, which proposes candidates and observes measurements. capacity: the largest number of measurements."""

    def __init__(self, candidates: Candidates, belief: Belief, policy: Policy, capacity: int) -> None:
        self._candidates, self._belief, self._policy, self._capacity = candidates, belief, policy, capacity
        self._indices: list[int] = []
        self._y: list[float] = []
        self._steps = 0
        self._measured = torch.zeros(len(candidates.points), dtype=torch.long, device="cpu")
        self._most = self._limits()
        self._posterior = self._prior() if policy.policy == "gp_ucb" else None

    def propose(self, uniform: float) -> int:
        """Return the index of the candidate to measure next. uniform: a number in [0, 1), for the random policy."""
        m = len(self._measured)
        barred = None if self._most is None else self._measured >= self._most
        barred = None if barred is None or bool(barred.all()) else barred
        self._steps += 1
        if self._posterior is None:
            free = torch.arange(m, device="cpu") if barred is None else (~barred).nonzero()[:, 0]
            return int(free[int(uniform * len(free))])
        width = math.sqrt(beta(self._steps, m, self._policy.delta_ucb))
        score = self._posterior.mean + width * self._posterior.variance.clamp(min=0).sqrt()
        return int((score if barred is None else score.masked_fill_(barred, -torch.inf)).argmax())

    def observe(self, index: int, y: float) -> None:
        self._indices.append(index)
        self._y.append(y)
        self._measured[index] += 1
        if self._posterior is None:
            return
        if self._policy.fit == "ml" and len(self._y) % self._policy.every == 0:
            self._posterior = self._fitted()
        else:
            self._posterior.observe(index, y)

    def _limits(self) -> Tensor | None:
        """Return the largest number of measurements of each candidate (see `Policy.repeat`); None for no limit."""
        if not self._policy.repeat:
            return torch.ones_like(self._measured)
        counts = self._candidates.counts
        return None if counts is None else counts.round().clamp(min=1).long()

    def _prior(self) -> CandidatePosterior:
        candidates = self._candidates if self._policy.noise_aware else Candidates(self._candidates.points)
        return CandidatePosterior(*noise_aware_kernel(candidates, self._belief), self._capacity)

    def _fitted(self) -> CandidatePosterior:
        points, b = self._candidates.points, self._belief
        start = replace(b, noise=max(b.noise, _SMALLEST_NOISE * b.variance))
        y = torch.tensor(self._y, dtype=torch.float64, device="cpu")
        found = fit(points[self._indices], y, start)
        kernel = Kernel(found.variance, 0.0, found.noise, found.mean)
        posterior = CandidatePosterior(points / found.lengthscale, kernel, self._capacity)
        posterior.refit(self._indices, self._y)
        return posterior
