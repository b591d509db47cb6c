"""The initial points of all agents: a public design, which depends on the run's public seed and on no data."""

from dataclasses import dataclass

import torch
from torch import Tensor

from dpfbo import checks
from dpfbo.rng import Streams
from dpfbo.space.domain import Domain, Grid
from dpfbo.space.regions import Regions


@dataclass(frozen=True)
class Design:
    """The initial points of each agent, which anybody can compute from the arguments and the seed.

    Args:
        domain: The search space.
        regions: The sub-regions; a single region lets every agent start anywhere in the domain.
        streams: The random numbers of the run's seed.
        n_init: The number of initial points of each agent.
        kind: `uniform` draws independent points in the agent's own region (Algo. 2 line 2). `sobol` uses one Sobol
            sequence over the whole domain, shifted at random; each agent in turn gets the next `n_init` points. On a
            grid with several axes, each point of the sequence moves to the nearest grid point. On a grid with one axis
            and G points, a point u of the sequence becomes grid point `floor(u G)`.

    Example:
        >>> from dpfbo.space.domain import Box
        >>> design = Design(Box((0.0,), (1.0,)), Regions(2, 1), Streams(seed=0), n_init=3)
        >>> points = design.points(torch.arange(4))
        >>> points.shape, bool((points[1::2] >= 0.5).all())
        (torch.Size([4, 3, 1]), True)
    """

    domain: Domain
    regions: Regions
    streams: Streams
    n_init: int
    kind: str = "uniform"

    def __post_init__(self) -> None:
        checks.integer("n_init", self.n_init, minimum=1, maximum=checks.MOST_INITIAL)
        checks.one_of("design", self.kind, ("uniform", "sobol"))

    def points(self, agents: Tensor) -> Tensor:
        """Return the agents' initial unit-cube points, `n x n_init x D`, on the device of `agents` (n ids)."""
        D = self.domain.dimension
        if self.kind == "sobol":
            regions, u = Regions(1, D), self._sobol(agents)
            if isinstance(self.domain, Grid) and D > 1:
                points = self.domain.unit_points
                return points[torch.cdist(u.flatten(0, 1), points).argmin(1)].view_as(u)
        else:
            u = self.streams.uniform("initial", agents, 0, self.n_init * D)
            regions = self.regions
        return regions.uniform_points(regions.assign(agents), u.view(len(agents), self.n_init, D), self.domain)

    def _sobol(self, agents: Tensor) -> Tensor:
        ids, k, D = agents.cpu(), self.n_init, self.domain.dimension
        if len(ids) == 0:
            return torch.zeros(0, k, D, dtype=torch.float64, device=agents.device)
        first, last = int(ids.min()), int(ids.max())
        engine = torch.quasirandom.SobolEngine(D)
        engine.fast_forward(first * k)
        sequence = engine.draw((last - first + 1) * k, dtype=torch.float64).view(-1, k, D)
        shift = self.streams.uniform("initial/shift", torch.zeros(1, dtype=torch.long, device="cpu"), 0, D)
        return ((sequence[ids - first] + shift) % 1).to(agents.device)
