"""Expected improvement under a Bayesian average of Gaussian processes, for a batch of agents.

Model j has a kernel k_j, a noise variance v_j and a factor r_j of a known mean function g. Observations y at x are

    y = c 1 + r_j g(x) + f + e,    f ~ GP(0, s^2 k_j),    e ~ N(0, s^2 v_j)

If r_j = 0, k_j is the SE kernel k_l of length-scale l. If r_j > 0, `k_j(x, z) = a k_l(x, z) + psi(x)' C psi(z)` with
features psi; a and C are `own` and `covariance` of the `KnownMean`. The prior of c is flat, and `1 / s^2` has a Gamma
prior with nu degrees of freedom and mean 1. Let `K = k_j(x, x) + v_j I`, `p = 1' K^-1 1`, and S the minimum over c of
`|K^-1/2 (y - r_j g - c 1)|^2`. The restricted log likelihood of t observations is, up to a constant,

    -(1/2) (t - 1 + nu) log s^2 - (1/2) log |K| - (1/2) log p,    s^2 = (S + nu) / (t - 1 + nu)

The posterior at a point z is that of universal kriging. With the minimising c and `k = k_j(x, z)`, its mean is
`r_j g(z) + c + k' K^-1 (y - r_j g - c 1)`, and its variance is `s^2 (k_j(z, z) - k' K^-1 k + (1 - 1' K^-1 k)^2 / p)`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from dpfbo import checks
from dpfbo.checks import SettingError
from dpfbo.gp import batches
from dpfbo.gp.compiled import calls
from dpfbo.gp.compiled.loading import computes
from dpfbo.gp.nystrom import scaled_kernels
from dpfbo.gp.posterior import cholesky
from dpfbo.space.domain import CLUSTERS, Grid

_NU = 1.0  # nu, degrees of freedom of the Gamma prior of 1 / s^2, whose mean is 1
_LENGTH = (math.log(0.4), 0.7)  # mean and standard deviation of the prior of log(length-scale)
_FLAT = 1e-12  # observations count as equal if their standard deviation is at most this fraction of the largest |y|
_MOST_POINTS = 2048  # most points of a grid whose kernels are tabulated; then a table takes up to about 150 MB
LEAST_WEIGHT = 0.01  # models less probable than this fraction of the most probable one are left out
MODELS = 12  # an agent averages at most this number of models, the most probable ones
_DRAW_JITTER = 1e-6  # added to the variances of a draw, relative to s^2
_LEAST = 1e-9  # least variance of a prediction, relative to s^2


@dataclass(frozen=True)
class KnownMean:
    """The posterior of the function that all agents share, `psi(x) . w` with features psi and random weights w.

    Attributes:
        mean: The mean of w (M), in units of an objective's standard deviation; the known mean function is
            `psi(x) . mean`.
        covariance: The covariance of w, M x M.
        own: The fraction of an objective's variance that is not shared.
        log_weights: For each of L length-scales, the log prior weight of a model with the known mean minus the log
            prior weight of a model without a known mean (L).
    """

    mean: Tensor
    covariance: Tensor
    own: Tensor
    log_weights: Tensor


@dataclass(frozen=True)
class Places:
    """Points as inputs of the kernels.

    x: unit-cube points after `dpfbo.space.domain.embedded`, `n x k x D'`; psi: the features of the points,
    `n x k x M`, if the models have a `KnownMean`.
    """

    x: Tensor
    psi: Tensor | None = None

    def select(self, rows: Tensor) -> "Places":
        return Places(self.x[rows], None if self.psi is None else self.psi[rows])


@dataclass(frozen=True)
class AveragedGP:
    """A Bayesian average of Gaussian processes that differ in length-scale, noise and use of a shared mean.

    Args:
        lengthscales: The length-scales l, which `scaled_kernels` multiplies by sqrt(D / 3) in D dimensions.
        noises: The noise variances, relative to the variance of the kernel.
        factors: The factors r of the shared mean, in addition to 0. Not used without a shared mean.
        warp: True to replace values below an agent's median by normal quantiles of their ranks (Song et al., The Vizier
            Gaussian process bandit algorithm, 2024).
        acquisition: `ei` for the expected improvement, averaged over models; `ts` for a posterior draw (Thompson
            sampling). The draw uses one model, chosen at random by posterior probability, and is evaluated only
            at `Acquisition.candidates`.

    Raises:
        SettingError: A number is not positive, a list is empty, or an option is unknown.

    Example:
        >>> x = torch.tensor([[[0.0], [0.4], [1.0]]]).double()
        >>> fitted = AveragedGP().fit(Places(x), torch.tensor([[0.0, 1.0, 0.0]]).double())
        >>> improvement = fitted.log_expected_improvement(Places(torch.tensor([[[0.45], [0.95]]]).double()))
        >>> bool(improvement[0, 0] > improvement[0, 1])
        True
    """

    lengthscales: tuple[float, ...] = (0.05, 0.1, 0.2, 0.4, 0.8)
    noises: tuple[float, ...] = (0.001, 0.1)
    factors: tuple[float, ...] = (1.0, 2.0, 4.0)
    warp: bool = True
    acquisition: str = "ei"

    def __post_init__(self) -> None:
        for name in ("lengthscales", "noises", "factors"):
            values = tuple(getattr(self, name))
            object.__setattr__(self, name, values)
            if not values:
                raise SettingError(name, "must name at least one number, got none")
            for value in values:
                checks.positive(name, value)
        checks.one_of("warp", self.warp, (True, False))
        checks.one_of("acquisition", self.acquisition, ("ei", "ts"))

    def fit(self, observed: Places, y: Tensor, known: KnownMean | None = None) -> "Fitted":
        """Fit all models to the observations y, n x t, at the observed places."""
        z = self.transformed(y)
        n, t = z.shape
        v = torch.tensor(self.noises, dtype=z.dtype, device=z.device)
        K = self.kernels(observed, observed, known)  # n x C x t x t
        K = K[:, :, None] + v[:, None, None] * torch.eye(t, dtype=z.dtype, device=z.device)
        K = K.flatten(1, 2)  # n x J x t x t
        L = cholesky(K.flatten(0, 1)).view_as(K)
        g = torch.zeros_like(z)
        if known is not None and observed.psi is not None:
            g = batches.product(observed.psi, known.mean[:, None])[..., 0]
        sides = torch.stack([z, g, torch.ones_like(z)], -1)[:, None].expand(-1, K.shape[1], -1, -1)
        white_z, white_g, one = torch.linalg.solve_triangular(L, sides, upper=False).unbind(-1)  # n x J x t
        r = self._factors(known, z)
        p = one.square().sum(2)  # n x J
        residual = white_z[:, :, None] - r[:, None] * white_g[:, :, None]  # n x J x R x t
        c = (residual @ one.unsqueeze(-1))[..., 0] / p[..., None]  # n x J x R
        residual = residual - c[..., None] * one[:, :, None]
        degrees = t - 1 + _NU
        variance = (residual.square().sum(3) + _NU) / degrees
        determinant = L.diagonal(dim1=2, dim2=3).log().sum(2) + 0.5 * p.log()  # n x J
        score = -0.5 * degrees * variance.log() - determinant[..., None] + self._log_prior(known, r)
        log_p = torch.log_softmax(score.flatten(1), 1)  # n x JR
        shared = log_p.view_as(score)[:, :, 1:].exp().sum((1, 2))
        log_p, kept = log_p.topk(min(MODELS, int(log_p[0].isfinite().sum())), 1)  # n x m
        log_p = log_p.where(log_p >= log_p[:, :1] + math.log(LEAST_WEIGHT), -torch.inf)
        j = kept // len(r)
        each = torch.arange(n, device=z.device)[:, None]
        return Fitted(
            self, known, observed, torch.log_softmax(log_p, 1), j // len(v), r[kept % len(r)], L[each, j], one[each, j],
            p[each, j], residual.flatten(1, 2)[each, kept], c.flatten(1)[each, kept], variance.flatten(1)[each, kept],
            z.amax(1), shared,
        )  # fmt: skip

    def transformed(self, y: Tensor) -> Tensor:
        """Standardise the observations, n x t; with `warp`, apply `half_ranked` and standardise again."""
        return standardised(half_ranked(standardised(y))) if self.warp else standardised(y)

    def _factors(self, known: KnownMean | None, like: Tensor) -> Tensor:
        return torch.tensor((0.0, *self.factors) if known is not None else (0.0,), dtype=like.dtype, device=like.device)

    def maximizers_on_grid(
        self, grid: Grid, index: Tensor, y: Tensor, known: KnownMean | None = None, psi: Tensor | None = None
    ) -> tuple[Tensor, Tensor] | None:
        """Find, by compiled code, the grid row at which each agent's expected improvement is largest.

        Observed rows are excluded. Returns the rows (n) and `Fitted.shared` (n). A row is -1 if the compiled code finds
        none; use tensor operations for such an agent. Returns None if the acquisition is `ts`, if the grid has more
        than 2048 points, or if there is no compiled code for these tensors.

        index: n x t, grid rows of the observations; psi: G x M, features of the grid.
        """
        if self.acquisition != "ei" or len(grid.points) > _MOST_POINTS or not computes(y, grid.points):
            return None
        r, v = self._factors(known, y), torch.tensor(self.noises, dtype=y.dtype)
        order, plain = _tables(grid, self.lengthscales)
        common, own, mean = None, 1.0, torch.zeros(len(order.rows), dtype=y.dtype)
        if known is not None and psi is not None:
            common, own = _common_table(known.covariance, psi, order.rows), float(known.own)
            mean = (psi @ known.mean)[order.rows]
        prior = self._log_prior(known, r)
        kept = min(MODELS, int(prior.isfinite().sum()))
        return calls.grid_improvements(
            order, plain, common, own, v, mean, r, prior, index, self.transformed(y), _improvements(), kept,
            LEAST_WEIGHT, CLUSTERS,
        )  # fmt: skip

    def kernels(self, a: Places, b: Places, known: KnownMean | None) -> Tensor:
        """Return the covariances between the s places a and the t places b under all C kernels, n x C x s x t.

        The first L kernels are the SE kernels `k_l` with the L length-scales. If `known` is given, L more kernels
        follow: `w k_l(x, z) + psi(x)' S psi(z)`, where psi are the features of a place, w is `known.own`, and S is
        `known.covariance`.
        """
        plain = scaled_kernels(a.x, b.x, self.lengthscales)
        if known is None or a.psi is None or b.psi is None:
            return plain
        common = batches.product(a.psi, known.covariance) @ b.psi.mT
        return torch.cat([plain, known.own * plain + common[:, None]], 1)

    def variances(self, a: Places, known: KnownMean | None) -> Tensor:
        """Return the diagonals of `kernels(a, a, known)`, n x C x s."""
        plain = torch.ones_like(a.x[..., :1]).mT.expand(-1, len(self.lengthscales), -1)
        if known is None or a.psi is None:
            return plain
        common = (batches.product(a.psi, known.covariance) * a.psi).sum(2)
        return torch.cat([plain, known.own * plain + common[:, None]], 1)

    def _log_prior(self, known: KnownMean | None, r: Tensor) -> Tensor:
        """Return the log prior weights of the models, J x R.

        A model combines one of J pairs (kernel, noise variance) with one of the R factors in `r`, by which the known
        mean is multiplied. SE kernels need the factor 0, and other kernels need a positive factor; the log weight of
        any other combination is -inf.
        """
        l = torch.tensor(self.lengthscales, dtype=r.dtype, device=r.device)
        prior = (-0.5 * ((l.log() - _LENGTH[0]) / _LENGTH[1]).square())[:, None]  # L x 1
        if known is not None:
            never = torch.full_like(prior, -torch.inf)
            shared = (prior + known.log_weights[:, None]).expand(-1, len(r) - 1)
            prior = torch.cat([torch.cat([prior, never.expand_as(shared)], 1), torch.cat([never, shared], 1)])
        return prior.repeat_interleave(len(self.noises), 0)


@dataclass(frozen=True)
class Fitted:
    """The posteriors of n agents, each under its m most probable models.

    log_probability: n x m, the models' log posterior probabilities. kernel: n x m, each model's index in
    `AveragedGP.kernels`. best: n, each agent's largest observation after `AveragedGP.transformed`. shared: n, the total
    probability of all models with the known mean.
    """

    gp: AveragedGP
    known: KnownMean | None
    observed: Places
    log_probability: Tensor
    kernel: Tensor
    factor: Tensor
    L: Tensor
    one: Tensor
    precision: Tensor
    residual: Tensor
    constant: Tensor
    variance: Tensor
    best: Tensor
    shared: Tensor

    def __len__(self) -> int:
        return len(self.best)

    def select(self, rows: Tensor) -> "Fitted":
        parts = (value[rows] for value in list(vars(self).values())[3:])
        return Fitted(self.gp, self.known, self.observed.select(rows), *parts)

    def predict(self, at: Places) -> tuple[Tensor, Tensor]:
        """Return the means and standard deviations at places under every model, each n x m x k."""
        each = torch.arange(len(self), device=self.best.device)[:, None]
        k = self.gp.kernels(self.observed, at, self.known)[each, self.kernel]  # n x m x t x k
        V = torch.linalg.solve_triangular(self.L, k, upper=False)
        constant = (1 - (self.one.unsqueeze(2) @ V)[:, :, 0]).square() / self.precision[..., None]
        prior = self.gp.variances(at, self.known).expand(len(self), -1, -1)[each, self.kernel]
        unit = (prior - V.square().sum(2) + constant).clamp(min=_LEAST)  # n x m x k
        mean = (self.residual.unsqueeze(2) @ V)[:, :, 0] + self.constant[..., None]
        if self.known is not None and at.psi is not None:
            mean = mean + self.factor[..., None] * batches.product(at.psi, self.known.mean[:, None])[:, None, :, 0]
        return mean, (self.variance[..., None] * unit).sqrt()

    def draw(self, at: Places, u: Tensor, e: Tensor) -> Tensor:
        """Draw the values of each of n agents' functions at k places; return them as n x k.

        First, one of the agent's models is drawn, each with its posterior probability. Then the values are drawn from
        the posterior of this model. u: n uniforms, for the models; e: n x k standard normals, for the values.
        """
        model = (u[:, None] >= self.log_probability.exp().cumsum(1)[:, :-1]).sum(1)
        each = torch.arange(len(self), device=u.device)
        c, one = self.kernel[each, model], self.one[each, model][:, None]  # n, n x 1 x t
        k = self.gp.kernels(self.observed, at, self.known)[each, c]  # n x t x k
        V = torch.linalg.solve_triangular(self.L[each, model], k, upper=False)
        rest = (1 - one @ V) / self.precision[each, model].sqrt()[:, None, None]  # n x 1 x k
        prior = self.gp.kernels(at, at, self.known).expand(len(self), -1, -1, -1)[each, c]
        covariance = prior - V.mT @ V + rest.mT @ rest  # n x k x k
        covariance.diagonal(dim1=1, dim2=2).add_(_DRAW_JITTER)
        mean, _ = self.predict(at)
        return (
            mean[each, model]
            + self.variance[each, model].sqrt()[:, None] * (cholesky(covariance) @ e[..., None])[..., 0]
        )

    def log_expected_improvement(self, at: Places) -> Tensor:
        """Return the log of the models' average expected improvement over the best observation, n x k."""
        mean, sd = self.predict(at)
        u = (mean - self.best[:, None, None]) / sd
        return torch.logsumexp(self.log_probability[..., None] + sd.log() + log_improvement(u), 1)


def standardised(y: Tensor) -> Tensor:
    """Subtract each row's mean and divide by its standard deviation; rows of equal values become 0."""
    mean, sd = y.mean(1, keepdim=True), y.std(1, correction=0, keepdim=True)
    flat = sd <= _FLAT * y.abs().amax(1, keepdim=True)
    return torch.where(flat, 0.0, (y - mean) / torch.where(flat, 1.0, sd))


def normal_scores(y: Tensor) -> Tensor:
    """Return the normal scores of rows of t values, `Phi^-1((rank - 1/2) / t)`; equal values share their mean rank."""
    return torch.special.ndtri((_ranks(y) - 0.5) / y.shape[1])


def half_ranked(y: Tensor) -> Tensor:
    """Replace values below their row's median m by `m + d Phi^-1(rank / (t + 1))`.

    The row has t values, and d is the root mean square of `y - m` over y >= m.
    """
    m = y.quantile(0.5, 1, keepdim=True)
    above = (y - m).clamp(min=0)
    d = (above.square().sum(1, keepdim=True) / (y >= m).sum(1, keepdim=True)).sqrt()
    quantile = torch.special.ndtri(_ranks(y) / (y.shape[1] + 1))
    return torch.where(y < m, m + d * quantile, y)


def _ranks(y: Tensor) -> Tensor:
    """Rank the values of each row from 1; equal values share their mean rank."""
    less = (y[:, None, :] < y[:, :, None]).sum(2)
    equal = (y[:, None, :] == y[:, :, None]).sum(2)
    return less + (equal.to(y.dtype) + 1) / 2


def log_improvement(u: Tensor) -> Tensor:
    """Compute `log(phi(u) + u Phi(u))`, also for u << 0 (Ament et al., Unexpected improvements to EI, NeurIPS 2023)."""
    near = u.clamp(min=-1)
    direct = (torch.exp(-0.5 * near * near) / math.sqrt(2 * math.pi) + near * torch.special.ndtr(near)).log()
    a = -u.clamp(max=-1)
    mills = math.sqrt(math.pi / 2) * torch.special.erfcx(a / math.sqrt(2))
    rest = torch.where(a < 1e3, torch.log1p(-a.clamp(max=1e3) * mills), -2 * a.log())
    return torch.where(u > -1, direct, -0.5 * (a * a + math.log(2 * math.pi)) + rest)


@lru_cache(maxsize=1)
def _improvements() -> Tensor:
    return log_improvement(torch.linspace(-16, 16, 8193, dtype=torch.float64, device="cpu")).exp()


@lru_cache(maxsize=4)
def _tables(grid: Grid, lengthscales: tuple[float, ...]) -> tuple[calls.GridColumns, Tensor]:
    order = calls.GridColumns.of(grid)
    return order, scaled_kernels(grid.unit_points, grid.unit_points, lengthscales)[..., order.rows].contiguous()


@lru_cache(maxsize=2)
def _common_table(covariance: Tensor, psi: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    columns = psi[rows]
    return psi @ covariance @ columns.mT, ((columns @ covariance) * columns).sum(1)


Locate = Callable[[Tensor], Places]  # converts unit-cube points, n x k x D, to places


@dataclass(frozen=True)
class ImprovementSurface:
    """The log expected improvement of n agents as a function of unit-cube points."""

    fitted: Fitted
    locate: Locate

    def __len__(self) -> int:
        return len(self.fitted)

    @property
    def n_models(self) -> int:
        return self.fitted.log_probability.shape[1]

    def __call__(self, u: Tensor) -> Tensor:
        """Return the values, n x k, at unit-cube points u.

        u: `n x k x D`, or `1 x k x D` if all agents have the same points.
        """
        return self.fitted.log_expected_improvement(self.locate(u))

    def select(self, rows: Tensor) -> "ImprovementSurface":
        return ImprovementSurface(self.fitted.select(rows), self.locate)
