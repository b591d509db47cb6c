"""Batched box-constrained minimisation: many small problems as one batch of tensors.

Projected Newton steps where the Hessian is given, projected BFGS steps where it is not. Each problem has its
own curvature, line search and stopping test, so it takes the path that it would take alone; problems that have
converged leave the batch.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

# values (b), gradients (b x D) and Hessians (b x D x D, or None) at x (b x D) of the problems `rows` (b)
Function = Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor | None]]

_ARMIJO = 1e-4
_MAX_BACKTRACKS = 20
_HOPE = 10.0  # a quadratic model promises half of `-d.g`: losing a start that would have won is rare (see the tests)
_FLATTEST = 1e-6  # smallest curvature, relative to the largest, that a Newton step divides by


@dataclass(frozen=True)
class Stopping:
    """When one problem of the batch is done (the two tests of L-BFGS-B, and its iteration limit)."""

    gradient: float = 1e-5
    relative_decrease: float = 2.2e-9
    max_iterations: int = 100


@dataclass
class _Batch:
    """The problems that are still running. curvature: Hessians (Newton) or inverse Hessian estimates (BFGS)."""

    rows: Tensor
    x: Tensor
    f: Tensor
    g: Tensor
    curvature: Tensor
    fresh: Tensor  # BFGS estimate not yet scaled by a measured curvature

    def keep(self, mask: Tensor) -> "_Batch":
        return self if mask.all() else _Batch(*(value[mask] for value in vars(self).values()))


def minimize(
    function: Function,
    x0: Tensor,
    lower: Tensor,
    upper: Tensor,
    step: Tensor,
    stopping: Stopping = Stopping(),
    group: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Minimise B functions of D variables, each within its own box.

    x0, lower, upper: B x D. step: B, the length of the first BFGS step, and of the longest Newton step. group: B,
    for several starts of one problem, of which only the best will be used: a start leaves as soon as even
    `_HOPE` times the decrease that its next step promises would not bring it to its group's best value.
    Returns the best points (B x D) and their values (B). A problem whose value at x0 is not finite stays there.
    """
    rows = torch.arange(len(x0))
    x = x0.clamp(lower, upper)
    f, g, H = function(x, rows)
    newton = H is not None
    batch = _Batch(rows, x, f, g, H if H is not None else _initial(g, step), torch.ones_like(f, dtype=torch.bool))
    x_best, f_best = x.clone(), f.clone()
    for _ in range(stopping.max_iterations):
        low, high = lower[batch.rows], upper[batch.rows]
        batch = batch.keep(_projected_gradient(batch, low, high) > stopping.gradient)
        if len(batch.rows) == 0:
            break
        low, high = lower[batch.rows], upper[batch.rows]
        direction = _newton(batch, low, high, step[batch.rows]) if newton else _quasi_newton(batch, low, high)
        if group is not None:
            hopeful = _hopeful(batch, direction, f_best, group)
            batch, direction, low, high = batch.keep(hopeful), direction[hopeful], low[hopeful], high[hopeful]
        new = _line_search(function, batch, direction, low, high)
        decrease = batch.f - new.f
        if not newton:
            new.curvature, new.fresh = _bfgs(batch, new)
        x_best[new.rows], f_best[new.rows] = new.x, new.f
        batch = new.keep(decrease > stopping.relative_decrease * torch.maximum(batch.f.abs(), new.f.abs()))
    return x_best, f_best


def _hopeful(b: _Batch, direction: Tensor, f_best: Tensor, group: Tensor) -> Tensor:
    """Starts that may still become the best of their group (the best one always may)."""
    best = torch.full((int(group.max()) + 1,), torch.inf, dtype=f_best.dtype)
    best = best.scatter_reduce(0, group, f_best, "amin")[group[b.rows]]
    promised = -(direction * b.g).sum(1)
    return (b.f - _HOPE * promised <= best) | (b.f <= best)


def _projected_gradient(b: _Batch, lower: Tensor, upper: Tensor) -> Tensor:
    """Largest entry of the projected gradient (NaN compares as finished)."""
    return ((b.x - b.g).clamp(lower, upper) - b.x).abs().amax(1)


def _free(b: _Batch, lower: Tensor, upper: Tensor) -> Tensor:
    """1 for coordinates that the gradient does not hold at a bound, 0 for the others."""
    return (~(((b.x <= lower) & (b.g > 0)) | ((b.x >= upper) & (b.g < 0)))).to(b.x.dtype)


def _newton(b: _Batch, lower: Tensor, upper: Tensor, longest: Tensor) -> Tensor:
    """`-|H|^-1 g` on the free coordinates, |H| with the absolute eigenvalues of H: it descends at saddles too."""
    free = _free(b, lower, upper)
    H = free[:, :, None] * b.curvature * free[:, None, :] + torch.diag_embed(1 - free)
    values, vectors = torch.linalg.eigh(H)
    values = values.abs()
    values = torch.maximum(values, _FLATTEST * values.amax(1, keepdim=True)).clamp(min=1e-300)
    d = -(vectors @ ((vectors.mT @ (b.g * free).unsqueeze(-1)) / values.unsqueeze(-1))).squeeze(-1)
    return d * (longest / d.norm(dim=1).clamp(min=1e-300)).clamp(max=1)[:, None]


def _quasi_newton(b: _Batch, lower: Tensor, upper: Tensor) -> Tensor:
    free = _free(b, lower, upper)
    return -(b.curvature @ (b.g * free).unsqueeze(-1)).squeeze(-1) * free


def _line_search(function: Function, b: _Batch, direction: Tensor, lower: Tensor, upper: Tensor) -> _Batch:
    """Backtrack along the projected direction until the Armijo condition holds; a problem where it never does stays."""
    new = _Batch(b.rows, b.x.clone(), b.f.clone(), b.g.clone(), b.curvature.clone(), b.fresh)
    todo, step = torch.arange(len(b.rows)), torch.ones_like(b.f)
    for _ in range(_MAX_BACKTRACKS):
        trial = (b.x[todo] + step[todo, None] * direction[todo]).clamp(lower[todo], upper[todo])
        f, g, H = function(trial, b.rows[todo])
        slope = ((trial - b.x[todo]) * b.g[todo]).sum(1)
        ok = (f <= b.f[todo] + _ARMIJO * slope) & torch.isfinite(g).all(1)
        done = todo[ok]
        new.x[done], new.f[done], new.g[done] = trial[ok], f[ok], g[ok]
        if H is not None:
            new.curvature[done] = H[ok]
        if len(done) == len(todo):
            break
        failed = ~ok
        step[todo[failed]] *= _shrink(b.f[todo[failed]], f[failed], slope[failed])
        todo = todo[failed]
    return new


def _shrink(f0: Tensor, f1: Tensor, slope: Tensor) -> Tensor:
    """Where the parabola through the failed trial has its minimum, within [0.1, 0.5] of the step."""
    return torch.nan_to_num(-slope / (2 * (f1 - f0 - slope)), nan=0.1).clamp(0.1, 0.5)


def _initial(g: Tensor, step: Tensor) -> Tensor:
    """Inverse Hessian estimates whose first step has length `step`."""
    scale = step / g.norm(dim=1).clamp(min=1e-12)
    return scale[:, None, None] * torch.eye(g.shape[1], dtype=g.dtype)


def _bfgs(old: _Batch, new: _Batch) -> tuple[Tensor, Tensor]:
    """BFGS update of the inverse Hessian estimates where the measured curvature `s.d` is positive."""
    s, d, H = new.x - old.x, new.g - old.g, old.curvature
    sd = (s * d).sum(1)
    good = sd > 1e-10 * s.norm(dim=1) * d.norm(dim=1)
    eye = torch.eye(s.shape[1], dtype=s.dtype)
    scale = (sd / (d * d).sum(1).clamp(min=1e-300))[:, None, None]
    H = torch.where((old.fresh & good)[:, None, None], scale * eye, H)
    rho = torch.where(good, 1 / sd.clamp(min=1e-300), 0.0)[:, None, None]
    V = eye - rho * s[:, :, None] * d[:, None, :]
    updated = V @ H @ V.mT + rho * s[:, :, None] * s[:, None, :]
    return torch.where(good[:, None, None], updated, H), old.fresh & ~good
