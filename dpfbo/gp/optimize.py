"""Batched minimisation in boxes by BFGS, or by Newton's method if the function gives Hessians.

Each function of a batch is a problem, whose iterates do not depend on the other problems. If problems are grouped (see
`minimize`), a problem stops early if it is not expected to reach the lowest value found so far in its group. The module
`newton` is faster, but always needs Hessians.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from dpfbo.gp import batches

# values (b), gradients (b x D) and Hessians (b x D x D, or None) at x (b x D) of the problems `rows` (b)
Function = Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor | None]]

_ARMIJO = 1e-4
_MAX_BACKTRACKS = 12
_HOPE = 6.0  # assumed limit of a start's further decrease, in units of `-d.g` for the next step d; 1/2 for a quadratic
_NEAR = 1e-6  # fraction of the box: coordinates closer to a bound than this count as lying on it
_MATRICES = 2**19  # matrices whose eigenvalues are computed at once
_FLATTEST = 1e-6  # smallest curvature, relative to the largest, that a Newton step divides by


@dataclass(frozen=True)
class Stopping:
    """The two stopping tests of L-BFGS-B, applied to each problem, and the largest number of iterations."""

    gradient: float = 1e-5
    relative_decrease: float = 2.2e-9
    max_iterations: int = 100


@dataclass
class _Batch:
    """The b problems that are still running; curvature: their Hessians, given (Newton) or estimated (BFGS)."""

    rows: Tensor
    x: Tensor
    f: Tensor
    g: Tensor
    curvature: Tensor
    steepest: Tensor  # b booleans: the next step follows the negative gradient

    def keep(self, mask: Tensor) -> "_Batch":
        kept = mask.nonzero()[:, 0]
        return self if len(kept) == len(mask) else self.take(kept)

    def take(self, indices: Tensor) -> "_Batch":
        return _Batch(*(value.index_select(0, indices) for value in vars(self).values()))


def minimize(
    function: Function, x0: Tensor, lower: Tensor, upper: Tensor, step: Tensor, stopping: Stopping = Stopping(),
    group: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Minimise B functions of D variables, each within its own box (lower, upper: B x D); return points and values.

    Each function is a problem that starts at x0 (B x D). If the value at x0 is not finite, the problem ends at x0.

    step: B, the length of a gradient step before the line search, and the largest length of a Newton step. group: B,
    the group of each problem. With groups, a problem ends early if it is not expected to become the best of its group.
    """
    function = _padded(function)
    x, rows = x0.clamp(lower, upper), torch.arange(len(x0), device=x0.device)
    f, g, H = function(x, rows)
    newton = H is not None
    curvature = torch.eye(x.shape[1], dtype=x.dtype, device=x.device).expand(len(x), -1, -1) if H is None else H
    batch = _Batch(rows, x, f, g, curvature, torch.full_like(f, not newton, dtype=torch.bool))
    x_best, f_best = x.clone(), f.clone()
    n_groups = 0 if group is None or len(group) == 0 else int(group.max()) + 1
    batch = batch.keep(torch.isfinite(f))
    for _ in range(stopping.max_iterations):
        low, high = lower.index_select(0, batch.rows), upper.index_select(0, batch.rows)
        batch = batch.keep(_projected_gradient(batch, low, high) > stopping.gradient)
        if len(batch.rows) == 0:
            break
        low, high = lower.index_select(0, batch.rows), upper.index_select(0, batch.rows)
        direction = _direction(batch, low, high, step.index_select(0, batch.rows), newton)
        predicted = -(direction * batch.g).sum(1)
        running = torch.ones_like(batch.steepest)
        if newton:  # the Hessian is exact: a problem without a predicted decrease has converged
            running &= predicted > stopping.relative_decrease * batch.f.abs().clamp(min=1)
        if group is not None:
            best = f_best.new_full((n_groups,), torch.inf).scatter_reduce(0, group, f_best, "amin")[group[batch.rows]]
            running &= (batch.f - _HOPE * predicted <= best) | (batch.f <= best)
        kept = running.nonzero()[:, 0]
        if len(kept) < len(running):
            batch, direction, low, high = batch.take(kept), direction[kept], low[kept], high[kept]
        if len(batch.rows) == 0:
            break
        new = _line_search(function, batch, direction, low, high)
        if not newton:
            new.curvature = _bfgs(batch, new)
        x_best[new.rows], f_best[new.rows] = new.x, new.f
        decrease = batch.f - new.f
        enough = decrease > stopping.relative_decrease * torch.maximum(batch.f.abs(), new.f.abs()).clamp(min=1)
        doubtful = ~enough & ~batch.steepest & ((decrease <= 0) if newton else True)
        new.steepest = doubtful
        batch = new.keep(enough | doubtful)
    return x_best, f_best


def _padded(function: Function) -> Function:
    """Return the function with padded batches, so that the value at a point does not depend on the other points."""

    def evaluate(x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        n = len(rows)
        if n % batches.ROWS == 0:
            return function(x, rows)
        fill = batches.whole(n, rows.device)
        f, g, H = function(x[fill], rows[fill])
        return f[:n], g[:n], None if H is None else H[:n]

    return evaluate


def _direction(b: _Batch, lower: Tensor, upper: Tensor, step: Tensor, newton: bool) -> Tensor:
    near = torch.minimum(_projected_gradient(b, lower, upper), _NEAR * (upper - lower).amax(1))[:, None]
    to_lower, to_upper = (b.x - lower <= near) & (b.g > 0), (upper - b.x <= near) & (b.g < 0)
    held = to_lower | to_upper
    g = torch.where(held, 0.0, b.g)
    length = step / g.norm(dim=1).clamp(min=1e-300)
    gradient_step = -g * length[:, None]
    curved = _newton(b.curvature, g, held, step if newton else torch.full_like(step, torch.inf))
    d = torch.where(b.steepest[:, None], gradient_step, curved)
    d = torch.where(to_lower, lower - b.x, d)
    return torch.where(to_upper, upper - b.x, d)


def _newton(H: Tensor, g: Tensor, held: Tensor, longest: Tensor) -> Tensor:
    """Return `-|H|^-1 g` on the free coordinates, b x D, at most `longest` long; |H| has H's absolute eigenvalues."""
    free = (~held).to(g.dtype)
    values, vectors = eigh(free[:, :, None] * H * free[:, None, :] + torch.diag_embed(1 - free))
    values = values.abs()
    values = torch.maximum(values, _FLATTEST * values.amax(1, keepdim=True)).clamp(min=1e-300)
    d = -(vectors @ ((vectors.mT @ g.unsqueeze(-1)) / values.unsqueeze(-1))).squeeze(-1)
    return d * (longest / d.norm(dim=1).clamp(min=1e-300)).clamp(max=1)[:, None]


def eigh(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the eigenvalues and eigenvectors of symmetric matrices, B x D x D.

    Large batches are split, because CUDA stores the size of its workspace in 32 bits.
    """
    parts = [torch.linalg.eigh(part) for part in matrices.split(_MATRICES)]
    if len(parts) == 1:
        return parts[0][0], parts[0][1]
    values, vectors = zip(*parts, strict=True)
    return torch.cat(values), torch.cat(vectors)


def _projected_gradient(b: _Batch, lower: Tensor, upper: Tensor) -> Tensor:
    return ((b.x - b.g).clamp(lower, upper) - b.x).abs().amax(1)


def _line_search(function: Function, b: _Batch, direction: Tensor, lower: Tensor, upper: Tensor) -> _Batch:
    """Backtrack along the projected direction until the Armijo condition holds; if it never does, the point stays."""
    new, ok, slope = _trial(function, b, direction, lower, upper)
    todo = (~ok).nonzero()[:, 0]
    if len(todo) == 0:
        return new
    f_failed, slope = new.f[todo], slope[todo]
    step = torch.ones_like(slope)
    for name in ("x", "f", "g", "curvature"):
        getattr(new, name)[todo] = getattr(b, name)[todo]
    for _ in range(_MAX_BACKTRACKS):
        # the minimiser of the parabola through the failed trial, as a fraction of the step
        shrink = -slope / (2 * (f_failed - b.f[todo] - slope))
        step = step * torch.nan_to_num(shrink, nan=0.1).clamp(0.1, 0.5)
        part = b.take(todo)
        trial, ok, slope = _trial(function, part, step[:, None] * direction[todo], lower[todo], upper[todo])
        done, failed = ok.nonzero()[:, 0], (~ok).nonzero()[:, 0]
        for name in ("x", "f", "g", "curvature"):
            getattr(new, name)[todo[done]] = getattr(trial, name)[done]
        todo, f_failed, slope, step = todo[failed], trial.f[failed], slope[failed], step[failed]
        if len(todo) == 0:
            break
    return new


def _trial(function: Function, b: _Batch, step: Tensor, lower: Tensor, upper: Tensor) -> tuple[_Batch, Tensor, Tensor]:
    """Move the points of the batch by `step` (b x D), but not out of the boxes.

    Returns the moved batch and two tensors with one entry per problem. The first is True if the Armijo condition holds
    and the new gradient is finite. The second is the change in value that the old gradient predicts.
    """
    x = (b.x + step).clamp(lower, upper)
    f, g, H = function(x, b.rows)
    slope = ((x - b.x) * b.g).sum(1)
    ok = (f <= b.f + _ARMIJO * slope) & torch.isfinite(g).all(1)
    return _Batch(b.rows, x, f, g, b.curvature.clone() if H is None else H, b.steepest), ok, slope


def _bfgs(old: _Batch, new: _Batch) -> Tensor:
    """Update the estimated Hessians by BFGS where the curvature along the step is positive."""
    s, d = new.x - old.x, new.g - old.g
    sd, dd = (s * d).sum(1), (d * d).sum(1)
    good = sd > 1e-10 * s.norm(dim=1) * d.norm(dim=1)
    scaled = (dd / sd.clamp(min=1e-300))[:, None, None] * torch.eye(s.shape[1], dtype=s.dtype, device=s.device)
    B = torch.where((old.steepest & good)[:, None, None], scaled, old.curvature)
    Bs = (B @ s.unsqueeze(-1)).squeeze(-1)
    sBs = (s * Bs).sum(1).clamp(min=1e-300)[:, None, None]
    gained = d[:, :, None] * d[:, None, :] / sd.clamp(min=1e-300)[:, None, None]
    return torch.where(good[:, None, None], B - Bs[:, :, None] * Bs[:, None, :] / sBs + gained, B)
