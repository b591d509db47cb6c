"""Draws from an agent's own posterior (local Thompson sampling), and their maximisers."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from dpfbo import checks
from dpfbo.checks import SettingError
from dpfbo.gp import batches, hyperparameters
from dpfbo.gp.acquisition import Acquisition
from dpfbo.gp.compiled import calls
from dpfbo.gp.compiled.loading import computes
from dpfbo.gp.features import FeatureFunction, RandomFeatures
from dpfbo.gp.own_gp import AnyHyperparameters, Hyperparameters, KernelParameters, OwnGP
from dpfbo.gp.posterior import cholesky, sample_weights
from dpfbo.rng import Streams
from dpfbo.space.domain import Domain, Grid, embedded, embedded_dimension
from dpfbo.space.regions import Regions

METHODS = ("rff", "exact", "gpytorch")
_NOISE_FLOOR = 1e-5  # least variance of the observation noise in a draw
_TENSORS = 8  # number of t x F tensors that a draw of one agent takes, with t observations and F features
_REACH = 7.0  # the SE kernel counts as 0 beyond 7 l, and its spectrum beyond 7 / l: exp(-24.5) = 2e-11

Normals = Callable[[int, Tensor, int], Tensor]  # maps (octave, rows, size) to standard normals, len(rows) x size


@dataclass(frozen=True)
class ConfidenceScale:
    """The factor beta_t that scales a draw's deviation from the posterior mean (Algo. 2 line 6).

        beta_t = B + R sqrt(2 (gamma + 1 + log(4 / delta))),    gamma = 1/2 log det(I + K / noise)

    By Theorem 2 of Chowdhury and Gopalan (2017), `|f - mu| <= beta_t sd` for all t and x with probability at least 1 -
    delta / 4. The bound needs `noise = 1 + 2 / T` (`dpfbo.federated.theory.regularization`) and a kernel that is given,
    not fitted. In the theorem, gamma is the largest information gain of any t - 1 observations. Here, gamma is the gain
    of the agent's own observations. The theorem's proof bounds this gain by the largest one. The share delta / 4 is
    the maintainers' reading of Algo. 2.

    Args:
        norm_bound: B, an upper bound of an objective's norm in the RKHS of the agent's kernel, in the units of its GP.
        noise_sd: R, the sub-Gaussian constant of the observation noise; for normal noise, the standard deviation.
        delta: A probability, not the delta of differential privacy.

    Raises:
        SettingError: norm_bound or noise_sd is not positive, or delta lies outside (0, 1].

    Example:
        >>> ConfidenceScale(norm_bound=1.0, noise_sd=0.5, delta=0.1).beta(torch.tensor([0.0, 2.0]))
        tensor([2.5312, 2.8288])
    """

    norm_bound: float
    noise_sd: float
    delta: float

    def __post_init__(self) -> None:
        checks.positive("norm_bound", self.norm_bound)
        checks.positive("noise_sd", self.noise_sd)
        checks.probability("delta", self.delta)

    def beta(self, gain: Tensor) -> Tensor:
        """Return beta_t for each information gain gamma."""
        return self.norm_bound + self.noise_sd * (2 * (gain + 1 + math.log(4 / self.delta))).sqrt()


@dataclass(frozen=True)
class OwnDraw:
    """A draw from the posterior of each agent's own GP; the agent queries the draw's maximiser.

    Args:
        method: `rff` uses random features, new in each round; `exact` uses no approximation, but needs a
            one-dimensional grid; `gpytorch` allows every kernel of `OwnGP`.
        n_features: The number of random features for `rff`, and for `gpytorch` in a box without discrete axes.
        scale: If given, a draw's deviation from the posterior mean is multiplied by the theory's factor beta_t. The
            method must then be `rff` or `exact`. None: draws are not scaled, as in the paper's experiments.

    Raises:
        SettingError: The method is unknown, n_features is out of range, or `gpytorch` is given a scale.

    Example:
        >>> own = OwnGP("given", lengthscale=0.2, variance=1.0, noise=1e-4)
        >>> line = Grid(torch.linspace(0, 1, 5).double()[:, None], (0.0,), (1.0,))
        >>> x, y = line.unit_points[None, :3], torch.tensor([[-1.0, 9.0, -1.0]]).double()  # one agent's observations
        >>> OwnDraw("exact").maximizers(torch.arange(1), x, y, own.start(1), line, Acquisition(), Streams(seed=0), 1)
        tensor([[0.2500]], dtype=torch.float64)
    """

    method: str = "rff"
    n_features: int = 100
    scale: ConfidenceScale | None = field(default=None, metadata={"named": "if given"})

    def __post_init__(self) -> None:
        checks.one_of("method", self.method, METHODS)
        checks.integer("n_features", self.n_features, minimum=1, maximum=checks.MOST_FEATURES)
        if self.scale is not None and self.method == "gpytorch":
            raise SettingError("scale", "has no effect on method=gpytorch: leave it out")

    def check_against(self, domain: Domain, own_gp: OwnGP = OwnGP()) -> None:
        """Raise SettingError if the domain or the agents' GPs do not allow this kind of draw."""
        if self.method == "exact" and not (isinstance(domain, Grid) and domain.dimension == 1):
            raise SettingError("method", "'exact' needs a one-dimensional grid, use 'rff' here")
        if self.method != "gpytorch" and own_gp.extensions:
            raise SettingError("method", f"must be gpytorch for own_gp.{own_gp.extensions[0]}, got {self.method!r}")

    def maximizers(
        self, agents: Tensor, x: Tensor, y: Tensor, hyper: AnyHyperparameters, domain: Domain, acquisition: Acquisition,
        streams: Streams, round: int, index: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """Return the maximiser of one posterior draw per agent, `n x D` in the unit cube; all tensors share one device.

        Args:
            agents: The ids of n agents.
            x: Each agent's observed unit-cube points, `n x t x D`.
            y: The observations, `n x t`.
            hyper: The agents' hyper-parameters; only the method `gpytorch` accepts `KernelParameters`.
            domain: The search space.
            acquisition: The search for the maximum in a box.
            streams: The random numbers of the run's seed.
            round: The round t.
            index: Each point's row in a grid, `n x t`; None to look the rows up.
        """
        noise = hyper.noise.clamp(min=_NOISE_FLOOR)
        if self.method == "gpytorch":
            from dpfbo.gp import gpytorch_draws  # its import takes seconds

            draw = gpytorch_draws.Draw(agents, embedded(domain, x), y, hyper, noise, streams, round)
            return draw.maximizers(domain, acquisition, self.n_features)
        if isinstance(hyper, KernelParameters):
            raise SettingError("method", f"must be gpytorch for {hyper.own.extensions[0]}, got {self.method!r}")
        if self.scale is not None:  # a draw given y / beta is the scaled draw divided by beta: the same maximiser
            L = hyperparameters.gram_cholesky(embedded(domain, x), hyper, noise)
            gain = L.diagonal(dim1=1, dim2=2).log().sum(1) - 0.5 * y.shape[1] * noise.log()
            y = y / self.scale.beta(gain)[:, None]
        if self.method == "exact" and isinstance(domain, Grid):
            e = noise.sqrt()[:, None] * streams.normal("own_draw/noise", agents, round, y.shape[1])

            def normals(octave: int, rows: Tensor, size: int) -> Tensor:
                return streams.normal(f"own_draw/weights/{octave}", agents[rows], round, size)

            index = domain.index_of(x) if index is None else index
            return domain.unit_points[exact_maximizers_on_grid(domain.line, index, y, hyper, noise, normals, e)]
        shift = acquisition.shift(domain, streams, "own_draw/starts", round, agents.device)
        found = torch.empty(len(agents), domain.dimension, dtype=x.dtype, device=x.device)
        for r in batches.blocks(len(agents), _TENSORS * x.shape[1] * self.n_features, x.device):
            function = self._feature_draw(agents[r], x[r], y[r], hyper.select(r), noise[r], domain, streams, round)
            found[r] = acquisition.maximize(function, domain, shift)
        return found

    @torch.inference_mode()
    def _feature_draw(
        self, agents: Tensor, x: Tensor, y: Tensor, hyper: Hyperparameters, noise: Tensor, domain: Domain,
        streams: Streams, round: int,
    ) -> FeatureFunction:  # fmt: skip
        F, (n, t, _), D = self.n_features, x.shape, embedded_dimension(domain)
        s = streams.normal("own_draw/frequencies", agents, round, F * D).view(n, F, D)
        b = 2 * math.pi * streams.uniform("own_draw/phases", agents, round, F)
        features = RandomFeatures(s / hyper.lengthscale[:, None, None], b).on(domain)
        sd = hyper.variance.sqrt()
        Phi = features(x).mul_(sd[:, None, None])  # n x t x F
        K = Phi @ Phi.mT
        K.diagonal(dim1=1, dim2=2).add_(noise[:, None])
        L = cholesky(K)
        w0 = streams.normal("own_draw/weights", agents, round, F)
        e = noise.sqrt()[:, None] * streams.normal("own_draw/noise", agents, round, t)
        w = sample_weights(Phi, L, y, w0, e)
        return FeatureFunction(features, w[:, None], Regions(1, domain.dimension), hyper.lengthscale)


def exact_maximizers_on_grid(
    grid: Tensor, index: Tensor, y: Tensor, hyper: Hyperparameters, noise: Tensor, normals: Normals, e: Tensor
) -> Tensor:
    """Return the grid row at which each of the n draws of `exact_draw_on_grid` is largest."""
    if not computes(y, grid):
        return exact_draw_on_grid(grid, index, y, hyper, noise, normals, e).argmax(1)
    found = torch.empty(len(y), dtype=torch.int64)
    octaves, rest = _octaves(hyper), y - e
    for k in octaves.unique().tolist():
        n = (octaves == k).nonzero()[:, 0]
        circle, basis = _basis(grid, k)
        z = normals(k, n, basis.shape[1])
        found[n] = calls.grid_maximizers(grid, basis, circle, index[n], rest[n], z, hyper.select(n), noise[n])
    if len(failed := (found < 0).nonzero()[:, 0]):  # compiled code adds no jitter
        some = (index[failed], y[failed], hyper.select(failed), noise[failed])
        values = exact_draw_on_grid(grid, *some, lambda k, rows, size: normals(k, failed[rows], size), e[failed])
        found[failed] = values.argmax(1)
    return found


def exact_draw_on_grid(
    grid: Tensor, index: Tensor, y: Tensor, hyper: Hyperparameters, noise: Tensor, normals: Normals, e: Tensor
) -> Tensor:
    """Draw n exact samples of SE Gaussian process posteriors on a grid of G points in [0, 1], by Matheron's rule.

        f = f0 + k(grid, x) (K + noise I)^-1 (y - f0(x) - e)

    The result is n x G. The prior draw f0 is a random Fourier series; its kernel equals the SE kernel on [0, 1] to
    1e-10. Length-scales in (2^(i - 1), 2^i] belong to octave i. All length-scales of an octave share one Fourier basis.

    index: n x t, the indices of the observed points in the grid; y: n x t; noise: n; e: n x t, drawn noise; normals: a
    function. `normals(i, rows, size)` returns the standard normals of octave i, len(rows) x size, for the samples whose
    indices (0 to n - 1) are in `rows`.
    """
    L = hyperparameters.gram_cholesky(grid[index][..., None], hyper, noise)
    octave = _octaves(hyper)
    values = torch.empty(len(y), len(grid), dtype=y.dtype, device=y.device)
    for k in octave.unique().tolist():  # at most 15 octaves lie between the bounds of the fit
        n = batches.padded((octave == k).nonzero()[:, 0])
        circle, basis = _basis(grid, k)
        spectrum = _spectrum(hyper.select(n), circle, (basis.shape[1] - 1) // 2)  # n x F
        w = spectrum.sqrt() * normals(k, n, spectrum.shape[1])
        at_x = (w @ basis.mT).gather(1, index[n].long())  # cheaper than the basis at each agent's points
        v = torch.cholesky_solve((y[n] - at_x - e[n]).unsqueeze(-1), L[n]).squeeze(-1)  # n x t
        update = embedding_bag(index[n], basis, per_sample_weights=v, mode="sum")  # sum_i v_i basis[x_i], n x F
        values[n] = (w + spectrum * update) @ basis.mT
    return values


def _octaves(hyper: Hyperparameters) -> Tensor:
    return hyper.lengthscale.log2().ceil().long()


@lru_cache(maxsize=32)
def _basis(grid: Tensor, octave: int) -> tuple[float, Tensor]:
    """Return the period of an octave's Fourier basis, and the values of the basis on the grid, G x F.

    All length-scales in (2^(octave - 1), 2^octave] share this basis.
    """
    longest = 2.0**octave
    circle = 1 + _REACH * longest
    return circle, _fourier_basis(grid, circle, math.ceil(_REACH * circle / (math.pi * longest)))


def _spectrum(hyper: Hyperparameters, circle: float, harmonics: int) -> Tensor:
    """Return the SE kernel's Fourier coefficients for `[1, cos.., sin..]` of period `circle`, n x (1 + 2 harmonics)."""
    l = hyper.lengthscale[:, None]
    j = torch.arange(harmonics + 1, dtype=l.dtype, device=l.device)
    a = math.sqrt(2 * math.pi) * l / circle * torch.exp(-0.5 * (2 * math.pi * j * l / circle) ** 2)
    a = a * hyper.variance[:, None]
    return torch.cat([a[:, :1], 2 * a[:, 1:], 2 * a[:, 1:]], 1)


def _fourier_basis(x: Tensor, circle: float, harmonics: int) -> Tensor:
    j = torch.arange(1, harmonics + 1, dtype=x.dtype, device=x.device)
    angle = 2 * math.pi / circle * x[..., None] * j
    return torch.cat([torch.ones_like(x)[..., None], torch.cos(angle), torch.sin(angle)], -1)
