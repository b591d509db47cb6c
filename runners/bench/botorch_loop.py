"""BoTorch's part of a run: the fits of agents' own GPs, and the maxima of draws from them, on the data of a dpfbo run.

The kernel, its given or first hyper-parameters, and the numbers of candidates and starts are those of the run. On a
grid all agents of a block are one batched model, whose Matheron paths are evaluated at all points; in a box every
agent's path is maximised by `optimize_acqf`, as BoTorch's tutorials do. There is no server, and nothing is private.
"""

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

from dpfbo.clock import PhaseClock
from dpfbo.formats.words import Source
from dpfbo.gp.acquisition import Acquisition
from dpfbo.gp.own_gp import BOUNDS, OwnGP
from dpfbo.records import RoundRecord
from dpfbo.space.domain import Grid, embedded
from runners.bench.measured_process import BenchError, OnStep
from runners.compose.federated import FederatedExperiment

_BLOCK = 16  # agents in one batched model: a path has 1024 features at every point of the grid
_NOISE_FLOOR = 1e-5  # least noise variance of a draw, as in dpfbo
MISSING = "the suite compares with BoTorch, which is not installed: pip install 'dpfbo[botorch]', or --without-botorch"


def check_installed() -> None:
    """Raise BenchError where BoTorch is missing."""
    from importlib.util import find_spec

    if find_spec("botorch") is None:
        raise BenchError(MISSING)


def run(experiment: FederatedExperiment, records: Sequence[RoundRecord], on_step: OnStep) -> PhaseClock:
    """Time the fits that were due and the agents' own queries of all rounds of a run, given its records."""
    from botorch.utils.sampling import manual_seed

    agents, clock = experiment.agents, PhaseClock()
    domain, own = agents.domain, agents.own_gp
    u, y = (torch.cat([getattr(record, name) for record in records], 1) for name in ("u", "y"))  # N x n x D; N x n
    x = embedded(domain, u)
    hyper = torch.tensor([own.lengthscale, own.variance, own.noise], dtype=torch.float64).repeat(len(y), 1)  # N x 3
    with warnings.catch_warnings(), manual_seed(experiment.settings.seed):
        warnings.simplefilter("ignore")  # BoTorch asks for standardised outcomes, which would be another model
        for t in range(1, len(records)):
            n = agents.n_init + t - 1
            if own.due(n):
                with clock("fit"):
                    hyper = torch.stack([_fitted(x[i, :n], y[i, :n], own) for i in range(len(y))])
            chosen = (records[t].source[:, 0] == Source.own).nonzero()[:, 0]
            with clock("own_draw"):
                if isinstance(domain, Grid):
                    for rows in chosen.split(_BLOCK) if len(chosen) else ():
                        _argmax_on_grid(x[rows, :n], y[rows, :n], hyper[rows], domain)
                else:
                    for i in chosen.tolist():
                        _argmax_in_box(x[i, :n], y[i, :n], hyper[i], agents.acquisition)
            on_step(t, len(records) - 1)
    return clock


def _model(x: Tensor, y: Tensor, hyper: Tensor):  # type: ignore[no-untyped-def]
    """A `SingleTaskGP` with zero mean and SE kernel. x: [b x] n x D; y: [b x] n; hyper: [b x] 3."""
    from botorch.models import SingleTaskGP
    from gpytorch.constraints import GreaterThan
    from gpytorch.kernels import RBFKernel, ScaleKernel
    from gpytorch.likelihoods import GaussianLikelihood
    from gpytorch.means import ZeroMean

    batch = x.shape[:-2]
    kernel = ScaleKernel(RBFKernel(batch_shape=batch), batch_shape=batch)
    likelihood = GaussianLikelihood(batch_shape=batch, noise_constraint=GreaterThan(BOUNDS["noise"][0] / 2))
    model = SingleTaskGP(
        x, y[..., None], likelihood=likelihood, covar_module=kernel, mean_module=ZeroMean(), outcome_transform=None
    ).to(x)
    lengthscale, variance, noise = hyper.unbind(-1)
    kernel.base_kernel.lengthscale, kernel.outputscale = lengthscale[..., None, None], variance
    likelihood.noise = noise[..., None]
    return model


def _fitted(x: Tensor, y: Tensor, own: OwnGP) -> Tensor:
    """Length-scale, variance and noise of maximum marginal likelihood, from the start of the settings; 3."""
    from botorch.fit import fit_gpytorch_mll
    from gpytorch.mlls import ExactMarginalLogLikelihood

    start = torch.tensor([own.lengthscale, own.variance, own.noise], dtype=x.dtype)
    model = _model(x, y, start)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    kernel = model.covar_module
    found = (kernel.base_kernel.lengthscale, kernel.outputscale, model.likelihood.noise)
    return torch.stack([value.detach().reshape(()) for value in found])


def _floored(hyper: Tensor) -> Tensor:
    return torch.cat([hyper[..., :2], hyper[..., 2:].clamp(min=_NOISE_FLOOR)], -1)


def _argmax_on_grid(x: Tensor, y: Tensor, hyper: Tensor, grid: Grid) -> Tensor:
    """Maximisers of one path for each of b agents, b x D."""
    from botorch.sampling.pathwise import draw_matheron_paths

    with torch.no_grad():
        paths = draw_matheron_paths(_model(x, y, _floored(hyper)), sample_shape=torch.Size())
        points = grid.unit_points
        values = paths(points.expand(len(x), *points.shape))  # b x G
        return points[values.reshape(len(x), -1).argmax(1)]


def _argmax_in_box(x: Tensor, y: Tensor, hyper: Tensor, acquisition: Acquisition) -> Tensor:
    """The maximiser of one agent's path, D."""
    from botorch.acquisition.thompson_sampling import PathwiseThompsonSampling
    from botorch.optim import optimize_acqf

    path = PathwiseThompsonSampling(_model(x, y, _floored(hyper)))
    bounds = torch.stack([torch.zeros_like(x[0]), torch.ones_like(x[0])])
    best, _ = optimize_acqf(
        path, bounds, q=1, num_restarts=max(1, acquisition.n_starts), raw_samples=acquisition.n_candidates,
        options={"maxiter": acquisition.max_iterations},
    )  # fmt: skip
    return best[0].detach()
