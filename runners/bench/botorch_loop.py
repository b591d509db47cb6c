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
from dpfbo.extras import needing
from dpfbo.formats.words import Source
from dpfbo.gp.acquisition import Acquisition
from dpfbo.gp.own_gp import BOUNDS, OwnGP
from dpfbo.records import RoundRecord
from dpfbo.space.domain import Grid, embedded
from runners.compose.federated import FederatedExperiment

with needing("botorch", "the comparison with BoTorch"):
    from botorch.acquisition.thompson_sampling import PathwiseThompsonSampling
    from botorch.fit import fit_gpytorch_mll
    from botorch.models import SingleTaskGP
    from botorch.optim import optimize_acqf
    from botorch.sampling.pathwise import draw_matheron_paths
    from botorch.utils.sampling import manual_seed
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ZeroMean
from gpytorch.mlls import ExactMarginalLogLikelihood

_BLOCK = 16  # agents in one batched model: a path has 1024 features at every point of the grid
_NOISE_FLOOR = 1e-5  # least noise variance of a draw, as in dpfbo


def run(experiment: FederatedExperiment, records: Sequence[RoundRecord]) -> PhaseClock:
    """Time the fits that were due and the agents' own queries of all rounds of a run, given its records."""
    agents, clock = experiment.agents, PhaseClock()
    domain, own = agents.domain, agents.own_gp
    u, y = (torch.cat([getattr(record, name) for record in records], 1) for name in ("u", "y"))  # N x n x D; N x n
    x = embedded(domain, u)
    hyper = _start(own).repeat(len(y), 1)  # N x 3
    with warnings.catch_warnings(), manual_seed(experiment.settings.seed):
        warnings.simplefilter("ignore")  # BoTorch asks for standardised outcomes, which would be another model
        for t in range(1, len(records)):
            n = agents.n_init + t - 1
            if own.due(n):
                with clock("fit"):
                    hyper = torch.stack([fitted(x[i, :n], y[i, :n], own) for i in range(len(y))])
            chosen = (records[t].source[:, 0] == Source.own).nonzero()[:, 0]
            drawn = torch.cat([hyper[:, :2], hyper[:, 2:].clamp(min=_NOISE_FLOOR)], 1)
            with clock("own_draw"):
                if isinstance(domain, Grid):
                    for rows in chosen.split(_BLOCK) if len(chosen) else ():
                        argmax_on_grid(x[rows, :n], y[rows, :n], drawn[rows], domain)
                else:
                    for i in chosen.tolist():
                        argmax_in_box(x[i, :n], y[i, :n], drawn[i], agents.acquisition)
    return clock


def _start(own: OwnGP) -> Tensor:
    """Length-scale, variance and noise of the settings, 3."""
    return torch.tensor([own.lengthscale, own.variance, own.noise], dtype=torch.float64)


def _model(x: Tensor, y: Tensor, hyper: Tensor) -> SingleTaskGP:
    """A model with zero mean and SE kernel. x: [b x] n x D; y: [b x] n; hyper: [b x] 3."""
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


def fitted(x: Tensor, y: Tensor, own: OwnGP) -> Tensor:
    """Length-scale, variance and noise of maximum marginal likelihood, from the start of the settings; 3."""
    model = _model(x, y, _start(own))
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    kernel = model.covar_module
    found = (kernel.base_kernel.lengthscale, kernel.outputscale, model.likelihood.noise)
    return torch.stack([value.detach().reshape(()) for value in found])


def argmax_on_grid(x: Tensor, y: Tensor, hyper: Tensor, grid: Grid) -> Tensor:
    """Maximisers of one path for each of b agents, b x D."""
    with torch.no_grad():
        paths = draw_matheron_paths(_model(x, y, hyper), sample_shape=torch.Size())
        points = grid.unit_points
        values = paths(points.expand(len(x), *points.shape))  # b x G
        return points[values.reshape(len(x), -1).argmax(1)]


def argmax_in_box(x: Tensor, y: Tensor, hyper: Tensor, acquisition: Acquisition) -> Tensor:
    """The maximiser of one agent's path, D."""
    path, bounds = PathwiseThompsonSampling(_model(x, y, hyper)), torch.stack([0 * x[0], 0 * x[0] + 1])
    best, _ = optimize_acqf(
        path, bounds, q=1, num_restarts=max(1, acquisition.n_starts), raw_samples=acquisition.n_candidates,
        options={"maxiter": acquisition.max_iterations},
    )  # fmt: skip
    return best[0].detach()
