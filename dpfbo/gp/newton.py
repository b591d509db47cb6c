"""Batched Newton minimisation in boxes: many small problems as one batch, each with its own trust region."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dpfbo.gp import batches, optimize

# values (b), gradients (b x D) and Hessians (b x D x D) at points x (b x D), given the problems' rows of the data
Function = Callable[..., tuple[Tensor, Tensor, Tensor]]

ARMIJO = 1e-4
HOPE = 2.0  # assumed limit of a start's further decrease, in units of `-d.g` for the next step d; 1/2 for a quadratic
NEAR = 0.02  # fraction of the box: coordinates closer to a bound than this and than the radius may move to it at once
SHORTER = 0.25  # radius after a step that failed, relative to the length of this step
_RUNNING = 0.7  # share of running problems below which finished ones are removed from the batch
FLATTEST = 1e-6  # smallest curvature, relative to the largest, that a step divides by
TINY = 1e-300


@dataclass(frozen=True)
class Limits:
    """The limits at which the minimisation of a function stops.

    decrease: stop if the next step is predicted to lower the value by this much or less.
    evaluations: the largest number of steps; each step evaluates the function once.
    """

    decrease: float
    evaluations: int


@dataclass
class _Problems:
    """The b problems of a batch. rows: their positions in the result; data: their data, which `Function` takes.

    state: b rows; each holds x (D), the gradient (D), the Hessian (D^2), the value and the radius. fixed: b rows; each
    holds the lower and the upper corner (D each), the sides of the box times `NEAR` (D), and the largest radius.
    """

    rows: Tensor
    group: Tensor
    state: Tensor
    fixed: Tensor
    data: tuple[Tensor, ...]
    D: int

    def take(self, i: Tensor) -> "_Problems":
        rows, group, state, fixed = (v.index_select(0, i) for v in (self.rows, self.group, self.state, self.fixed))
        return _Problems(rows, group, state, fixed, tuple(d.index_select(0, i) for d in self.data), self.D)

    def unpacked(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        D, s = self.D, self.state
        return s[:, :D], s[:, D : 2 * D], s[:, 2 * D : -2].view(-1, D, D), s[:, -2], s[:, -1]


def minimize(
    function: Function, x0: Tensor, lower: Tensor, upper: Tensor, longest: Tensor, limits: Limits,
    data: Sequence[Tensor], group: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Minimise B functions of D variables, each within its own box (lower, upper: B x D); return points and values.

    Each function is a problem that starts at x0 (B x D). If the value or a derivative at x0 is not finite, the problem
    ends at x0 with value infinity. Steps are `-|H|^-1 g`, where |H| is the Hessian with absolute eigenvalues. They are
    shortened to the radius of a trust region, which is at most `longest` (B).

    data: tensors that are passed to the function, with one row per problem. group: B, the group of each problem. With
    groups, a problem ends early if it is not expected to become the best of its group.
    """
    (B, D), device = x0.shape, x0.device
    if B == 0:
        return x0, x0.new_empty(0)
    alone = torch.arange(B, device=device)
    rows = batches.filled(B, batches.PRODUCTS, device)
    fixed = torch.cat([lower, upper, NEAR * (upper - lower), longest[:, None]], 1)
    start = _Problems(alone, alone if group is None else group, x0, fixed, tuple(data), D).take(rows)
    x = x0.index_select(0, rows).clamp(start.fixed[:, :D], start.fixed[:, D : 2 * D])
    batch = replace(start, state=_finite(_packed(x, *function(x, *start.data), start.fixed[:, -1]), D))
    found = batch.state.clone()
    best = torch.full_like(x0[:, 0], torch.inf)  # of each group
    for _ in range(limits.evaluations):
        x, g, H, f, radius = batch.unpacked()
        d, length = _step(x, g, H, radius, batch.fixed)
        promised = (d * g).sum(1).neg_()
        running = promised > limits.decrease
        if group is not None:
            best.scatter_reduce_(0, batch.group, f, "amin")
            running &= torch.sub(f, promised, alpha=HOPE) <= best.index_select(0, batch.group)
        kept = running.nonzero()[:, 0]
        if len(kept) < _RUNNING * len(running):
            found.index_copy_(0, batch.rows, batch.state)
            if len(kept) == 0:
                return found[:B, :D], found[:B, -2]
            kept = kept[batches.filled(len(kept), batches.PRODUCTS, device)]
            batch, d, length, running = batch.take(kept), d[kept], length[kept], running[kept]
        batch.state = _moved(function, batch, d, length, running)
    found.index_copy_(0, batch.rows, batch.state)
    return found[:B, :D], found[:B, -2]


def _packed(x: Tensor, f: Tensor, g: Tensor, H: Tensor, radius: Tensor) -> Tensor:
    return torch.cat([x, g, H.flatten(1), f[:, None], radius[:, None]], 1)


def _finite(state: Tensor, D: int) -> Tensor:
    """Set derivatives to 0 and the value to infinity in each row that has a number that is not finite."""
    failed = ~state.sum(1).isfinite()
    state[:, D:-2].masked_fill_(failed[:, None], 0.0)
    state[:, -2].masked_fill_(failed, torch.inf)
    return state


def _moved(function: Function, b: _Problems, d: Tensor, length: Tensor, running: Tensor) -> Tensor:
    """Take the step of each running problem if this step lowers the value enough; return the new states.

    If the step is taken, the radius of the trust region doubles, up to the largest radius. If not, the radius becomes
    `SHORTER` times the length of the step. d: the steps, one row for each problem; length: the lengths of the steps;
    running: False for each problem that has stopped.
    """
    D, (old, slope, _, before, radius) = b.D, b.unpacked()
    x = (old + d).clamp_(b.fixed[:, :D], b.fixed[:, D : 2 * D])
    f, g, H = function(x, *b.data)
    new = _packed(x, f, g, H, torch.minimum(2 * radius, b.fixed[:, -1]))
    enough = torch.add(before, ((x - old) * slope).sum(1), alpha=ARMIJO)
    ok = running & (f <= enough) & new.sum(1).isfinite()
    b.state[:, -1] = SHORTER * length
    return torch.where(ok[:, None], new, b.state)


def _step(x: Tensor, g: Tensor, H: Tensor, radius: Tensor, fixed: Tensor) -> tuple[Tensor, Tensor]:
    D = x.shape[1]
    room = torch.where(g > 0, fixed[:, :D], fixed[:, D : 2 * D]) - x
    held = room.abs() <= torch.minimum(fixed[:, 2 * D : 3 * D], radius[:, None])
    d = solved(H, g, held)
    length = torch.linalg.vector_norm(d, dim=1)
    factor = (radius / length.clamp(min=TINY)).clamp_(max=1)
    step = torch.where(held, room, d * -factor[:, None])
    return step, torch.linalg.vector_norm(step, dim=1)


def solved(H: Tensor, g: Tensor, held: Tensor) -> Tensor:
    """Compute `|H|^-1 g` (see `minimize`), b x D, over the coordinates that are not `held`; held ones get 0."""
    values, vectors = optimize.eigh(H.masked_fill(held[:, :, None] | held[:, None, :], 0.0))
    values = values.abs_()
    values = torch.maximum(values, FLATTEST * values.amax(1, keepdim=True)).clamp_(min=TINY)
    along = vectors.mT @ g.masked_fill(held, 0.0).unsqueeze(-1)
    return (vectors @ along.div_(values.unsqueeze(-1)))[:, :, 0]
