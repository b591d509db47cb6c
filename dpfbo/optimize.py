"""Batched box-constrained quasi-Newton minimisation: many small problems as one batch of tensors.

Each problem gets its own BFGS matrix, projected step, line search and stopping test, so it takes the path that it would
take alone; problems that have converged leave the batch.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

ValueAndGradient = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]

_ARMIJO = 1e-4
_MAX_HALVINGS = 20


@dataclass(frozen=True)
class Stopping:
    """When one problem of the batch is done (the two tests of L-BFGS-B, and its iteration limit)."""

    gradient: float = 1e-5
    relative_decrease: float = 2.2e-9
    max_iterations: int = 100


def minimize(
    value_and_gradient: ValueAndGradient,
    x0: Tensor,
    lower: Tensor,
    upper: Tensor,
    initial_step: Tensor,
    stopping: Stopping = Stopping(),
) -> tuple[Tensor, Tensor]:
    """Minimise B functions of D variables, each within its own box, by projected BFGS.

    value_and_gradient(x, rows): values `b` and gradients `b x D` at `x` (b x D) of the problems `rows` (b indices into the
    batch). x0, lower, upper: B x D. initial_step: B, the length of each problem's first step.
    Returns the best points (B x D) and their values (B). A problem whose value at x0 is not finite stays there.
    """
    B, D = x0.shape
    x_best, f_best = x0.clone(), torch.empty(B, dtype=x0.dtype)
    rows = torch.arange(B)
    x = x0.clamp(lower, upper)
    f, g = value_and_gradient(x, rows)
    H = _initial_inverse_hessian(g, initial_step)
    fresh = torch.ones(B, dtype=torch.bool)  # H not yet scaled by a measured curvature
    for _ in range(stopping.max_iterations):
        x_best[rows], f_best[rows] = x, f
        active = _active(x, g, lower[rows], upper[rows], stopping)
        if not active.all():
            rows, x, f, g, H, fresh = (a[active] for a in (rows, x, f, g, H, fresh))
        if len(rows) == 0:
            return x_best, f_best
        low, high = lower[rows], upper[rows]
        x_new, f_new, g_new = _line_search(value_and_gradient, rows, x, f, g, H, low, high)
        decrease = f - f_new
        s, d = x_new - x, g_new - g
        H, fresh = _update(H, s, d, fresh)
        x, f, g = x_new, f_new, g_new
        x_best[rows], f_best[rows] = x, f
        going = decrease > stopping.relative_decrease * torch.maximum(f.abs(), (f + decrease).abs()).clamp(min=1e-300)
        rows, x, f, g, H, fresh = (a[going] for a in (rows, x, f, g, H, fresh))
        if len(rows) == 0:
            break
    return x_best, f_best


def _initial_inverse_hessian(g: Tensor, initial_step: Tensor) -> Tensor:
    scale = initial_step / g.norm(dim=1).clamp(min=1e-12)
    return scale[:, None, None] * torch.eye(g.shape[1], dtype=g.dtype)


def _free(x: Tensor, g: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """Coordinates that are not held at a bound by the gradient."""
    return ~(((x <= lower) & (g > 0)) | ((x >= upper) & (g < 0)))


def _active(x: Tensor, g: Tensor, lower: Tensor, upper: Tensor, stopping: Stopping) -> Tensor:
    """Problems whose projected gradient is still above the tolerance (NaN counts as finished)."""
    projected = (x - g).clamp(lower, upper) - x
    return projected.abs().amax(1) > stopping.gradient


def _line_search(
    fun: ValueAndGradient, rows: Tensor, x: Tensor, f: Tensor, g: Tensor, H: Tensor, lower: Tensor, upper: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Backtrack along the projected quasi-Newton path until the Armijo condition holds; else stay."""
    free = _free(x, g, lower, upper).to(x.dtype)
    direction = -(H @ (g * free).unsqueeze(-1)).squeeze(-1) * free  # descent: H is positive definite
    x_new, f_new, g_new = x.clone(), f.clone(), g.clone()
    step = torch.ones(len(rows), 1, dtype=x.dtype)
    todo = torch.arange(len(rows))
    for _ in range(_MAX_HALVINGS):
        trial = (x[todo] + step[todo] * direction[todo]).clamp(lower[todo], upper[todo])
        ft, gt = fun(trial, rows[todo])
        slope = ((trial - x[todo]) * g[todo]).sum(1)
        ok = torch.isfinite(ft) & (ft <= f[todo] + _ARMIJO * slope) & torch.isfinite(gt).all(1)
        done = todo[ok]
        x_new[done], f_new[done], g_new[done] = trial[ok], ft[ok], gt[ok]
        todo = todo[~ok]
        if len(todo) == 0:
            break
        step[todo] = step[todo] * _interpolated(f[todo], ft[~ok], slope[~ok])
    return x_new, f_new, g_new


def _interpolated(f0: Tensor, f1: Tensor, slope: Tensor) -> Tensor:
    """Shrink factor: the minimiser of the parabola through the failed trial, kept within [0.1, 0.5]."""
    factor = -slope / (2 * (f1 - f0 - slope)).clamp(min=1e-300)
    return torch.nan_to_num(factor, nan=0.1).clamp(0.1, 0.5)[:, None]


def _update(H: Tensor, s: Tensor, d: Tensor, fresh: Tensor) -> tuple[Tensor, Tensor]:
    """BFGS update of the inverse Hessians where the curvature `s.d` is positive."""
    sd = (s * d).sum(1)
    good = sd > 1e-10 * s.norm(dim=1) * d.norm(dim=1)
    rescale = (fresh & good)[:, None, None]
    eye = torch.eye(s.shape[1], dtype=s.dtype)
    H = torch.where(rescale, (sd / (d * d).sum(1).clamp(min=1e-300))[:, None, None] * eye, H)
    rho = torch.where(good, 1 / sd.clamp(min=1e-300), torch.zeros_like(sd))[:, None, None]
    V = eye - rho * s[:, :, None] * d[:, None, :]
    H_new = V @ H @ V.mT + rho * s[:, :, None] * s[:, None, :]
    return torch.where(good[:, None, None], H_new, H), fresh & ~good
