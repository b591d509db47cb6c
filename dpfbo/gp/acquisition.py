"""Maximisation of many functions at once: over the points of a grid, or in a box by ascents from candidates."""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from dpfbo import checks
from dpfbo.gp import batches, newton, optimize
from dpfbo.gp.averaged_gp import ImprovementSurface
from dpfbo.gp.compiled import calls
from dpfbo.gp.features import FeatureFunction, RandomFeatures, derivatives, product
from dpfbo.rng import Streams
from dpfbo.space.domain import CLUSTERS, Box, Domain, Grid
from dpfbo.space.mixed import MixedBox
from dpfbo.space.regions import EDGE, Regions

_AGENTS = 256  # agents whose functions are maximised at once on a CPU
_ACCELERATOR_BLOCK = 2**28  # entries in the slopes of all starts of a block on an accelerator: 2 GB
_CELLS = 8  # parts of either half of the axes; a cell of the box is a product of two parts and gives at most one start
_APART = 0.3  # length-scales: a start at most this far from a better one would climb to the same maximum
_GAIN = 2.0  # assumed limit of an ascent's gain, in units of `spread (h / l)^2` (see `_within_reach`); 1/4 is typical
_BORDER = 2.0  # assumed limit of the extra gain if the start is less than h from a border, in units of `spread h / l`
_SWEEPS = 2  # final searches along all discrete axes, each followed by an ascent along the continuous axes
_SURFACE = 2**22  # values in a block of improvement surfaces, over all points and models
_SCREENED = 512  # most points evaluated at once: of a surface on a grid, or of a posterior draw in a box
_SURFACE_STARTS = 5  # number of ascents on each improvement surface
_SLOPE = 1e-2  # slope of the log improvement, per unit-cube coordinate, below which an ascent ends
_LOG_GAIN = 1e-5  # relative gain in log improvement below which a step ends the ascent
_STEP = 0.05  # length of the first step on an improvement surface, in the unit cube
_PROMISE = 1e-10  # an ascent ends if its next step is predicted to gain at most this; values lie within [-1, 1]


@dataclass(frozen=True)
class BoxCandidates:
    """Candidates in a box: every point `left_i` in the first D1 axes with every point `right_j` in the other D2 axes.

    left: a x D1; right: b x D2, both sorted by cell (see `Acquisition`); a and b are powers of two. conditional: the
    mixed box if it has conditions, else None.
    """

    left: Tensor
    right: Tensor
    conditional: MixedBox | None = None

    @staticmethod
    def of(domain: Box | MixedBox, size: int, shift: Tensor) -> "BoxCandidates":
        """Make at least `size` candidates from Sobol points that are shifted by `shift` (D) modulo 1."""
        D, k = domain.dimension, -(-domain.dimension // 2)
        log_size = (size - 1).bit_length()
        log_a = log_size if D == 1 else -(-log_size // 2)
        left = (_sobol(2**log_a, k).to(shift.device) + shift[:k]) % 1
        right = (_sobol(2 ** (log_size - log_a), D - k).to(shift.device) + shift[k:]) % 1
        if isinstance(domain, MixedBox):
            left = MixedBox(domain.axes[:k]).snap(left)
            right = MixedBox(domain.axes[k:]).snap(right) if k < D else right
            return BoxCandidates(left, right, domain if domain.conditions else None)
        return BoxCandidates(left, right)

    @property
    def points(self) -> Tensor:
        """All candidates, `len(left) * len(right) x D`; row `i * len(right) + j` joins `left[i]` and `right[j]`."""
        points = product(self.left, self.right)
        return points if self.conditional is None else self.conditional.imputed(points)

    def starts(self, values: Tensor, n: int) -> Tensor:
        """Return the k best candidates from different cells for each of B functions, as B x k indices in `points`.

        The box is divided into cells, and each cell offers only its best candidate. The best candidate comes first. k
        is n or the number of cells, whichever is smaller.

        values: the values of the B functions at `points`, one row for each function.
        """
        (a, b), cells = (len(self.left), len(self.right)), _CELLS if self.right.shape[1] else _CELLS**2
        rows, columns = min(a, cells), min(b, cells)
        boxes = values.view(-1, rows, a // rows, columns, b // columns).transpose(2, 3).flatten(3).flatten(1, 2)
        best, inside = boxes.max(2)  # B x cells
        best, cell = best.sort(dim=1, descending=True, stable=True)
        cell = cell[:, :n]
        inside = inside.gather(1, cell)
        i = cell // columns * (a // rows) + inside // (b // columns)
        return i * b + cell % columns * (b // columns) + inside % (b // columns)


@lru_cache(maxsize=16)
def _sobol(n: int, dimension: int) -> Tensor:
    """Return the first n points of a Sobol sequence, n x dimension, sorted by their cell of the unit cube.

    The cells are the boxes of `Regions`. Their number is `_CELLS`, or `_CELLS^2` if `dimension` is 1.
    """
    if dimension == 0:
        return torch.zeros(n, 0, dtype=torch.float64, device="cpu")
    points = torch.quasirandom.SobolEngine(dimension).draw(n, dtype=torch.float64)
    return points[Regions(_CELLS**2 if dimension == 1 else _CELLS, dimension).region_of(points).argsort(stable=True)]


@dataclass(frozen=True)
class Acquisition:
    """A search for the maximisers of functions over the domain.

    On a grid, `maximize` and `maximize_shared` are exact. In a box, the candidates are shifted Sobol points. The box is
    divided into cells. Each of the best `1 + n_starts` cells gives its best candidate as a start. A start close to a
    better start is dropped. In a box without discrete axes, a start is also dropped if an ascent from there is not
    expected to rise above the best candidate. Newton's method climbs from each remaining start, without leaving the
    sub-region (`Regions`) of this start. Before each ascent, every discrete axis in turn is set to its best value.

    In a box, `maximize_improvement` ignores n_starts, and climbs with BFGS from the best candidate of each of the 5
    best cells. Each ascent may cross the whole box.

    Args:
        n_candidates: The smallest number of candidates.
        n_starts: The number of starts in addition to the best candidate.
        max_iterations: The largest number of steps of an ascent; 0 returns the best start.

    Example:
        >>> features = RandomFeatures(torch.tensor([[[4.0], [0.0]]]).double(), torch.tensor([[-2.0, 0.0]]).double())
        >>> weights, shift = torch.tensor([[[1.0, 0.0]]]).double(), torch.tensor([0.3]).double()
        >>> Acquisition().maximize_shared(features, weights, Regions(1, 1), Box((0.0,), (1.0,)), shift)
        tensor([[0.5000]], dtype=torch.float64)
    """

    n_candidates: int = 1000
    n_starts: int = 20
    max_iterations: int = 30

    def __post_init__(self) -> None:
        checks.integer("n_candidates", self.n_candidates, minimum=1)
        checks.integer("n_starts", self.n_starts, minimum=0)
        checks.integer("max_iterations", self.max_iterations, minimum=0)

    def shift(self, domain: Domain, streams: Streams, purpose: str, round: int, device: torch.device) -> Tensor:
        """Draw the shift of the candidates, D numbers in [0, 1) that all agents share in a round; empty on a grid."""
        everybody = torch.zeros(1, dtype=torch.long, device=device)
        return streams.uniform(purpose, everybody, round, 0 if isinstance(domain, Grid) else domain.dimension)[0]

    def maximize(self, function: FeatureFunction, domain: Domain, shift: Tensor) -> Tensor:
        """Return the maximiser of each of B functions, as unit-cube points B x D.

        shift: the numbers that the method `Acquisition.shift` draws; not used on a grid.
        """
        if isinstance(domain, Grid):
            return domain.unit_points[function(domain.unit_points[None]).argmax(1)]
        mixed = domain if isinstance(domain, MixedBox) else None
        candidates = BoxCandidates.of(domain, self.n_candidates, shift)
        if mixed is None and self.max_iterations and calls.can_search(function, domain.dimension):
            return calls.box_maximizers(function, candidates.left, candidates.right, self._rules())
        function = function.normalised()
        agents = _AGENTS
        if shift.device.type != "cpu":
            slopes = (1 + self.n_starts) * domain.dimension * function.features.frequencies.shape[1]
            agents = max(batches.PRODUCTS, _ACCELERATOR_BLOCK // slopes)
        return batches.in_blocks(
            lambda rows: self._search(function.select(rows), mixed, candidates), len(function), agents, shift.device
        )

    def candidates(self, domain: Domain, shift: Tensor) -> Tensor:
        """Return the points, k x D, at which posterior draws are evaluated: the whole grid, or at most 512 in a box."""
        if isinstance(domain, Grid):
            return domain.unit_points
        return BoxCandidates.of(domain, min(self.n_candidates, _SCREENED), shift).points

    def maximize_improvement(
        self, surface: ImprovementSurface, domain: Domain, shift: Tensor, known: Tensor | None = None
    ) -> Tensor:
        """Return the maximiser of each of B improvement surfaces, as unit-cube points B x D.

        Args:
            surface: The surfaces.
            domain: The domain. If a grid has more than 512 points, only some are evaluated (`Grid.screening`).
            shift: The numbers that the method `Acquisition.shift` draws.
            known: The rows of the grid to exclude for each surface, B x t. If all rows are known, none is excluded.
                Not used in a box.
        """
        models, device = surface.n_models, shift.device
        if isinstance(domain, Grid):
            at_once = max(1, _SURFACE // (models * min(len(domain.points), _SCREENED)))

            def best(rows: Tensor) -> Tensor:
                return _best_on_grid(surface.select(rows), domain, None if known is None else known[rows].long())

            return domain.unit_points[batches.in_blocks(best, len(surface), at_once, device)]
        candidates = BoxCandidates.of(domain, self.n_candidates, shift)
        at_once = max(1, _SURFACE // (models * self.n_candidates))
        return batches.in_blocks(
            lambda rows: self._climb(surface.select(rows), domain, candidates), len(surface), at_once, device
        )

    def _climb(self, surface: ImprovementSurface, domain: Box | MixedBox, candidates: BoxCandidates) -> Tensor:
        points, mixed = candidates.points, domain if isinstance(domain, MixedBox) else None
        best = points[candidates.starts(surface(points[None]), _SURFACE_STARTS)]  # B x k x D
        for _ in range(1 if mixed is None else 1 + _SWEEPS):
            if mixed is not None:
                best = _other_values(surface, mixed.snap(best), mixed)
            best = _best_ascent(surface, best, mixed, self.max_iterations)[:, None]
        return best[:, 0]

    def maximize_shared(
        self, features: RandomFeatures, weights: Tensor, regions: Regions, domain: Domain, shift: Tensor
    ) -> Tensor:
        """Apply `maximize` to B functions that share one feature map. weights: `B x P x M`."""
        length = features.frequencies.pow(2).mean().rsqrt().expand(len(weights))
        return self.maximize(FeatureFunction(features, weights, regions, length), domain, shift)

    def _rules(self) -> calls.Rules:
        return calls.Rules(
            armijo=newton.ARMIJO, hope=newton.HOPE, near=newton.NEAR, shorter=newton.SHORTER, flattest=newton.FLATTEST,
            tiny=newton.TINY, promise=_PROMISE, apart=_APART, gain=_GAIN, border=_BORDER, edge=EDGE[torch.float64],
            evaluations=self.max_iterations, n_starts=self.n_starts, cells=_CELLS,
        )  # fmt: skip

    @torch.inference_mode()  # saves a tenth of the time of small operations
    def _search(self, function: FeatureFunction, mixed: MixedBox | None, candidates: BoxCandidates) -> Tensor:
        values = function.to(torch.float32).on_product(candidates.left.float(), candidates.right.float())
        chosen = candidates.starts(values, 1 + self.n_starts)  # B x k
        starts = candidates.points[chosen]  # B x k x D
        if mixed is not None:
            starts = _other_values(function, starts, mixed)
        each = torch.arange(len(starts), device=starts.device)
        if self.max_iterations == 0:
            return starts[each, function(starts).argmax(1)]
        limits, climb = newton.Limits(_PROMISE, self.max_iterations), _distinct(starts, function)
        if mixed is None:
            climb &= _within_reach(values, chosen, starts, function)
        owner, which = climb.nonzero(as_tuple=True)
        x, value = _ascend(function, starts[owner, which], owner, limits, mixed)
        reached = value.new_full(starts.shape[:2], -torch.inf)
        reached[owner, which] = value
        starts[owner, which] = x
        best = starts[each, reached.argmax(1)]
        if mixed is not None:
            for _ in range(_SWEEPS):
                best = _other_values(function, mixed.snap(best)[:, None], mixed)[:, 0]
                best = _ascend(function, best, each, limits, mixed)[0]
        return best


def _distinct(starts: Tensor, function: FeatureFunction) -> Tensor:
    """Return a mask, B x k: False for starts close to an earlier start in the same region."""
    distance = torch.cdist(starts, starts, compute_mode="donot_use_mm_for_euclid_dist")  # B x k x k
    near = distance <= (_APART * function.length)[:, None, None]
    if function.regions.P > 1:
        region = function.regions.region_of(starts)
        near &= region[:, :, None] == region[:, None]
    return ~near.tril(-1).any(2)


def _within_reach(values: Tensor, chosen: Tensor, starts: Tensor, function: FeatureFunction) -> Tensor:
    """Return a mask, B x k, of the starts whose ascents may end above the best of all n candidates.

    An ascent is assumed to gain at most `spread (h / l) (_GAIN h / l + _BORDER)`; `_BORDER` is left out if the start is
    at least h from every border of its region. Here l is the function's length-scale, and spread is the range of the
    function's values at the candidates. h is `n^(-1/D)`, about the distance from a maximum to the nearest candidate.

    values: B x n. chosen: B x k, indices of starts, best first.
    """
    h = values.shape[1] ** (-1 / starts.shape[2])
    value, steps = values.gather(1, chosen), (h / function.length)[:, None]
    spread = value[:, :1] - values.amin(1, keepdim=True)
    lower, upper = function.regions.bounds(function.regions.region_of(starts))
    border = (torch.minimum(starts - lower, upper - starts) < h).any(2)
    return value >= value[:, :1] - spread * steps * (_GAIN * steps + _BORDER * border)


def _other_values(function: FeatureFunction | ImprovementSurface, points: Tensor, mixed: MixedBox) -> Tensor:
    """Move points, B x k x D, to the best value of each discrete axis, one axis after the other."""
    B, k, D = points.shape
    for axis in mixed.discrete:
        neighbours = mixed.neighbours(points.reshape(B * k, D), axis)  # Bk x m x D
        best = function(neighbours.reshape(B, -1, D)).view(B * k, -1).argmax(1)
        points = neighbours[torch.arange(B * k, device=points.device), best].view(B, k, D)
    return points


def _ascend(
    function: FeatureFunction, x0: Tensor, owner: Tensor, limits: newton.Limits, mixed: MixedBox | None = None
) -> tuple[Tensor, Tensor]:
    """Climb from each of the b points x0, b x D; return the end points and their values.

    The ascent from `x0[i]` climbs the function with the index `owner[i]`. Each ascent stays in the sub-region
    (`Regions`) of its start.
    """
    region = function.regions.region_of(x0)
    lower, upper = function.regions.bounds(region, x0.dtype)
    if mixed is not None:
        lower, upper = mixed.fixed(x0, lower, upper)
    angles, slopes, w = function.around(x0, region, owner)
    longest = function.length[owner].to(x0.dtype)
    x, value = newton.minimize(derivatives, x0, lower, upper, longest, limits, (angles, slopes, -w), owner)
    return x, -value


def _best_on_grid(surface: ImprovementSurface, grid: Grid, known: Tensor | None) -> Tensor:
    """Return, for each of B surfaces, the index of the grid point with the largest value.

    known: B x t, indices of grid points that are excluded. If all points are known, none is excluded.
    """
    every = torch.arange(len(grid.points), device=grid.points.device)
    rows = every if grid.screening is None else grid.screening[0]

    def at(rows: Tensor) -> Tensor:  # 1 x k or B x k
        values = surface(grid.unit_points[rows])
        if known is None:
            return values
        taken = torch.zeros(len(surface), len(every), dtype=torch.bool, device=values.device).scatter(1, known, True)
        taken &= ~taken.all(1, keepdim=True)
        return values.where(~taken.gather(1, rows.expand_as(values)), -torch.inf)

    values = at(rows[None])
    best, place = values.max(1)
    found = rows[place]
    if grid.screening is not None:
        clusters = values.topk(min(CLUSTERS, values.shape[1]), 1).indices
        members = grid.screening[1][clusters].flatten(1)  # B x k
        more, place = at(members).max(1)
        found = torch.where(more > best, members.gather(1, place[:, None])[:, 0], found)
    return found


def _best_ascent(surface: ImprovementSurface, starts: Tensor, mixed: MixedBox | None, iterations: int) -> Tensor:
    """Climb each surface by BFGS from its starts, B x k x D; return the best end points, B x D."""
    B, k, D = starts.shape
    x0 = starts.flatten(0, 1)
    lower, upper = torch.zeros_like(x0), torch.ones_like(x0)
    if mixed is not None:
        lower, upper = mixed.fixed(x0, lower, upper)

    def negative(x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, None]:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            value = -surface.select(rows // k)(x[:, None])[:, 0]
            (gradient,) = torch.autograd.grad(value.sum(), x)
        return value.detach(), gradient, None

    stopping = optimize.Stopping(_SLOPE, _LOG_GAIN, iterations)
    ends, values = optimize.minimize(negative, x0, lower, upper, torch.full_like(x0[:, 0], _STEP), stopping)
    best = values.view(B, k).argmin(1)
    return ends.view(B, k, D)[torch.arange(B, device=best.device), best]
