"""Batched Newton minimisation in boxes: many small problems as one batch, each with a trust region of its own.

An iteration evaluates every running problem once: a step that fails is tried again, shorter, while the others go on.
So the number of operations does not depend on the slowest line search. A problem takes the path that it would take
alone; problems that have converged leave the batch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dpfbo.gp import batches, optimize

# values (b), gradients (b x D) and Hessians (b x D x D) at points x (b x D) of problems, given the rows of their data
Function = Callable[..., tuple[Tensor, Tensor, Tensor]]

_ARMIJO = 1e-4
_HOPE = 4.0  # times `-d.g`: the decrease that a start may still reach (1/2 for a quadratic; tests count lost starts)
_NEAR = 0.02  # fraction of the box: coordinates closer to a bound, and within the radius, may go straight to it
_SHORTER = 0.25  # times the length of a step that failed: that of the next one
_RUNNING = 0.75  # share of a batch below which converged problems are taken out
_FLATTEST = 1e-6  # smallest curvature, relative to the largest, that a step divides by
_TINY = 1e-300


@dataclass(frozen=True)
class Limits:
    """When a problem stops: its next step promises less than `decrease` times `max(|f|, 1)`; or `evaluations` of all."""

    decrease: float
    evaluations: int


@dataclass
class _Batch:
    """The problems of a batch. radius: b, the length of the longest next step; longest: b, its largest value."""

    rows: Tensor
    x: Tensor
    f: Tensor
    g: Tensor
    H: Tensor
    radius: Tensor
    longest: Tensor
    lower: Tensor
    upper: Tensor
    data: tuple[Tensor, ...]

    def take(self, i: Tensor) -> "_Batch":
        *own, data = vars(self).values()
        return _Batch(*(value.index_select(0, i) for value in own), tuple(d.index_select(0, i) for d in data))


def minimize(
    function: Function,
    x0: Tensor,
    lower: Tensor,
    upper: Tensor,
    longest: Tensor,
    limits: Limits,
    data: Sequence[Tensor],
    group: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Minimise B functions of D variables, each within its own box.

    A step is `-|H|^-1 g`, with the absolute eigenvalues of the Hessian, on the coordinates that are not held at a
    bound; no longer than the problem's radius, which a step that decreases the value too little shrinks and any other
    doubles, up to `longest`.

    x0, lower, upper: B x D; longest: B. data: tensors with one row a problem, which the function gets after the
    points. group: B, the group of each start, if only the best of a group is needed: a start ends as soon as `_HOPE`
    times the predicted decrease of its next step would not reach its group's best value. Returns the best points
    (B x D) and their values (B). A problem whose value or derivatives at x0 are not finite stays there, at infinity.
    """
    x_best, device = x0.clamp(lower, upper), x0.device
    f_best = torch.full_like(x0[:, 0], torch.inf)
    if len(x0) == 0:
        return x_best, f_best
    rows = batches.filled(len(x0), batches.PRODUCTS, device)
    x, low, high, longest = (v.index_select(0, rows) for v in (x_best, lower, upper, longest))
    data = tuple(d.index_select(0, rows) for d in data)
    batch = _Batch(rows, x, *_finite(*function(x, *data)), longest, longest, low, high, data)
    best = None if group is None else torch.full_like(f_best, torch.inf)  # of each group
    for _ in range(limits.evaluations):
        d, length = _step(batch)
        predicted = (d * batch.g).sum(1).neg_()
        running = predicted > limits.decrease * batch.f.abs().clamp_(min=1)
        if group is not None and best is not None:
            of = group.index_select(0, batch.rows)
            best.scatter_reduce_(0, of, batch.f, "amin")
            running &= batch.f - _HOPE * predicted <= best.index_select(0, of)
        kept = running.nonzero()[:, 0]
        if len(kept) < _RUNNING * len(running):
            x_best[batch.rows], f_best[batch.rows] = batch.x, batch.f
            if len(kept) == 0:
                return x_best, f_best
            kept = kept[batches.filled(len(kept), batches.PRODUCTS, device)]
            batch, d, length, running = batch.take(kept), d[kept], length[kept], running[kept]
        batch = _moved(function, batch, d, length, running)
    x_best[batch.rows], f_best[batch.rows] = batch.x, batch.f
    return x_best, f_best


def _finite(f: Tensor, g: Tensor, H: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Values and derivatives; a problem where one of them is not finite has no slope, and infinity as its value."""
    ok = _all_finite(f, g, H)
    return torch.where(ok, f, torch.inf), torch.where(ok[:, None], g, 0.0), torch.where(ok[:, None, None], H, 0.0)


def _all_finite(f: Tensor, g: Tensor, H: Tensor) -> Tensor:
    return (f + g.sum(1) + H.sum((1, 2))).isfinite()


def _moved(function: Function, b: _Batch, d: Tensor, length: Tensor, running: Tensor) -> _Batch:
    """The batch after the steps d (b x D) of the running problems, as far as they decrease the values enough.

    A problem that is not running does not move; its radius shrinks, so that it does not run again.
    """
    x = (b.x + d).clamp_(b.lower, b.upper)
    f, g, H = function(x, *b.data)
    enough = torch.addcmul(b.f, ((x - b.x) * b.g).sum(1), torch.full_like(f, _ARMIJO))
    ok = running & (f <= enough) & _all_finite(f, g, H)
    radius = torch.where(ok, torch.minimum(2 * b.radius, b.longest), _SHORTER * length)
    column = ok[:, None]
    return _Batch(
        b.rows, torch.where(column, x, b.x), torch.where(ok, f, b.f), torch.where(column, g, b.g),
        torch.where(column[:, None], H, b.H), radius, b.longest, b.lower, b.upper, b.data,
    )  # fmt: skip


def _step(b: _Batch) -> tuple[Tensor, Tensor]:
    """The next step of each problem, b x D, and its length.

    Coordinates close to a bound that a descent would push outward move to the bound, whatever the curvature.
    """
    room = torch.where(b.g > 0, b.lower - b.x, b.upper - b.x)
    held = room.abs() <= torch.minimum(_NEAR * (b.upper - b.lower), b.radius[:, None])
    d = solved(b.H, b.g, held)
    length = torch.linalg.vector_norm(d, dim=1)
    factor = (b.radius / length.clamp(min=_TINY)).clamp_(max=1)
    return torch.where(held, room, d * -factor[:, None]), length * factor


def solved(H: Tensor, g: Tensor, held: Tensor) -> Tensor:
    """`|H|^-1 g` on the coordinates that are not held, b x D; 0 on the others."""
    free = torch.where(held[:, :, None] | held[:, None, :], 0.0, H)
    values, vectors = optimize.eigh(free)
    values = values.abs_()
    values = torch.maximum(values, _FLATTEST * values.amax(1, keepdim=True)).clamp_(min=_TINY)
    along = (vectors.mT @ torch.where(held, 0.0, g).unsqueeze(-1)).squeeze(-1)
    return (vectors @ (along / values).unsqueeze(-1)).squeeze(-1)
