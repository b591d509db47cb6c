"""The modeler (Algo. 2): GP-UCB over the released candidates. It sees no row, no seed and no setting of the curator.

At step t it asks for a measurement of

    argmax mean(z) + sqrt(beta_t) sd(z),    beta_t = 2 ln(m t^2 pi^2 / (6 delta')),    delta' = delta_ucb / 2

over all m candidates (Srinivas et al. 2010, Theorem 1, finite domains).
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from dpfbo import checks
from dpfbo.checks import SettingError
from dpfbo.outsourced.hyperparameters import Fitted, fit
from dpfbo.outsourced.posterior import CandidatePosterior, Kernel, noise_aware_kernel
from dpfbo.outsourced.transforms import Candidates

POLICIES = ("gp_ucb", "random")
FITS = ("given", "ml")
_SMALLEST_NOISE = 1e-6  # noise over variance at the start of a fit


@dataclass(frozen=True)
class Belief:
    """The modeler's GP: SE kernel in the units of the candidates.

    variance, mean: those of the objective; noise: the variance of a measurement.
    """

    lengthscale: float
    variance: float
    noise: float
    mean: float


@dataclass(frozen=True)
class Policy:
    """The rule by which the modeler chooses candidates.

    policy: `gp_ucb`, or `random`, a uniform candidate (the control). delta_ucb: enters beta_t. noise_aware: the given
    kernel accounts for `Candidates.input_variance`. repeat: a candidate may be measured again, at most as often as
    `Candidates.counts` says. fit: `given`, always the belief; `ml`, maximum likelihood of the measurements so far
    whenever their number is a multiple of `every`, at the released points, so that their noise is part of the fit.

    Raises ValueError for another policy or fit, delta_ucb outside (0, 1], every < 2.
    """

    policy: str = "gp_ucb"
    delta_ucb: float = 0.05
    noise_aware: bool = True
    repeat: bool = True
    fit: str = "given"
    every: int = 5

    def __post_init__(self) -> None:
        checks.one_of("policy", self.policy, POLICIES)
        checks.probability("delta_ucb", self.delta_ucb)
        for name in ("noise_aware", "repeat"):
            checks.one_of(name, getattr(self, name), (True, False))
        checks.one_of("fit", self.fit, FITS)
        checks.integer("every", self.every, minimum=2)
        if self.policy == "random" and self.fit != "given":
            raise SettingError("fit", f"has no effect on policy=random: leave it out, got {self.fit!r}")


def beta(t: int, m: int, delta_ucb: float) -> float:
    """beta_t of step t >= 1 over m candidates."""
    return 2 * math.log(m * t**2 * math.pi**2 / (6 * delta_ucb / 2))


class Modeler:
    """A modeler's state between proposals. capacity: largest number of measurements."""

    def __init__(self, candidates: Candidates, belief: Belief, policy: Policy, capacity: int) -> None:
        self._candidates, self._belief, self._policy, self._capacity = candidates, belief, policy, capacity
        self._indices: list[int] = []
        self._y: list[float] = []
        self._steps = 0
        self._measured = torch.zeros(len(candidates.points), dtype=torch.long, device="cpu")
        self._most = self._limits()
        self._posterior = self._prior() if policy.policy == "gp_ucb" else None

    def propose(self, uniform: float) -> int:
        """The candidate to measure next. uniform: a random number in [0, 1), for the random policy."""
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
        """Add a measurement to the posterior."""
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
        """The largest number of measurements of each candidate: 1 without `repeat`, else its rounded count."""
        if not self._policy.repeat:
            return torch.ones_like(self._measured)
        counts = self._candidates.counts
        return None if counts is None else counts.round().clamp(min=1).long()

    def _prior(self) -> CandidatePosterior:
        b = self._belief
        candidates = self._candidates if self._policy.noise_aware else Candidates(self._candidates.points)
        points, kernel = noise_aware_kernel(candidates, b.lengthscale, b.variance, b.noise, b.mean)
        return CandidatePosterior(points, kernel, self._capacity)

    def _fitted(self) -> CandidatePosterior:
        """The posterior with hyper-parameters fitted to the measurements at the released points."""
        points, b = self._candidates.points, self._belief
        start = Fitted((b.lengthscale,) * points.shape[1], b.variance, max(b.noise, _SMALLEST_NOISE * b.variance))
        y = torch.tensor(self._y, dtype=torch.float64, device="cpu")
        found = fit(points[self._indices], y, start, ard=False)
        lengthscales = torch.tensor(found.lengthscales, dtype=points.dtype, device="cpu")
        kernel = Kernel(found.variance, 0.0, found.noise, found.mean)
        posterior = CandidatePosterior(points / lengthscales, kernel, self._capacity)
        posterior.refit(self._indices, self._y)
        return posterior
