"""Algorithm 2 of DP-FTS-DE: the agents' side of a round, for all agents as one batch.

t = 0:  an agent queries the initial points and sends a message
t >= 1: it queries the argmax of a draw from its own posterior with probability p_t, else the argmax of the last
        broadcast; it adds the observation to its history and sends a new message
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from dpfbo import checks, extensions
from dpfbo.checks import SettingError
from dpfbo.clock import PhaseClock
from dpfbo.federated.broadcast import AgentVectors, Broadcast, Points, RegionVectors, SharedPrior
from dpfbo.federated.population.state import AgentsState, Query
from dpfbo.federated.prior import known_mean
from dpfbo.federated.prior import messages as prior_messages
from dpfbo.formats.words import Source
from dpfbo.gp import batches, hyperparameters
from dpfbo.gp.acquisition import Acquisition
from dpfbo.gp.averaged_gp import AveragedGP, Fitted, ImprovementSurface, KnownMean, Locate, Places, standardised
from dpfbo.gp.design import Design
from dpfbo.gp.draws import OwnDraw
from dpfbo.gp.features import RandomFeatures
from dpfbo.gp.nystrom import NystromFeatures
from dpfbo.gp.own_gp import OwnGP
from dpfbo.gp.posterior import cholesky, mean_weights, sample_weights
from dpfbo.rng import Streams
from dpfbo.space.domain import Domain, Grid, embedded, embedded_dimension
from dpfbo.space.mixed import MixedBox
from dpfbo.space.regions import Regions

FOLLOW_PROBABILITY: dict[str, Callable[[int], float]] = {  # by name, the probability 1 - p_t of following the server
    "inverse_sqrt": lambda t: 1 / math.sqrt(t),  # the paper's synthetic experiments
    "inverse": lambda t: 1 / t,  # the paper's real-data experiments
    "inverse_square": lambda t: 1 / t**2,  # the theory
    "never": lambda t: 0.0,  # p_t = 1: local Thompson sampling alone
    "always": lambda t: 1.0,
}
_MESSAGES = ("sample", "mean", "scores")
_BLOCK = 2**21  # numbers in the tensors of a block of agents on a CPU: 16 MB, which the allocator keeps for reuse
_ACCELERATOR_BLOCK = 2**31  # numbers in the tensors of a block on an accelerator: 16 GB
_TABLE = 2**26  # most numbers in a table of features: 512 MB
_REPEAT = 1e-9  # two unit-cube points this close on every axis are the same query


@dataclass(frozen=True)
class Agents:
    """Runs Algorithm 2 of DP-FTS-DE for all agents, with shared settings.

    Args:
        domain: The search space, of D axes.
        regions: The P sub-regions.
        features: The map of M random features; a message holds weights of these features.
        streams: All random numbers of the agents.
        rounds: T, the number of rounds.
        n_init: The number of initial points of each agent.
        message_noise: The noise variance lambda of the paper's eq. 2.
        follow: The schedule of the probability `1 - p_t` that an agent follows the server, a name in
            `FOLLOW_PROBABILITY`.
        own_gp: The agents' own Gaussian processes.
        own_draw: The method of drawing from the posteriors of `own_gp`.
        acquisition: The search for the maximum of an acquisition function.
        message: The content of a message. `sample`: a posterior draw (the paper). `mean`: the posterior mean.
            `scores`: what a server needs to infer the private prior (`dpfbo.federated.prior`). Any other value is the
            name of a `dpfbo.messages` entry point.
        message_center: True to subtract an agent's mean observation before its message is computed.
        local_initialisation: True for initial points in the agent's own region (the paper).
        design_kind: The design of the initial points, `uniform` or `sobol`.
        averaged_gp: A Bayesian average of GPs, by which agents choose their queries; None to use `own_gp` and `follow`.
            After a broadcast of a `SharedPrior`, the average also includes GPs with the mean function of this prior.

    Raises:
        SettingError: An argument is out of range, or contradicts the domain or the private prior.

    Example:
        >>> import dpfbo
        >>> domain, streams = dpfbo.Box((0.0,), (1.0,)), Streams(0)
        >>> features = dpfbo.gp.shared_features(20, 1, 0.2, streams.generator("features"))
        >>> agents = Agents(
        ...     domain, Regions(2, 1), features, streams, rounds=5, n_init=3, message_noise=0.01, follow="inverse_sqrt"
        ... )
        >>> agents.message_size, agents.design.points(torch.arange(4)).shape  # M, N x n_init x D
        (20, torch.Size([4, 3, 1]))
    """

    domain: Domain
    regions: Regions
    features: RandomFeatures | NystromFeatures
    streams: Streams
    rounds: int
    n_init: int
    message_noise: float
    follow: str
    own_gp: OwnGP = OwnGP()
    own_draw: OwnDraw = OwnDraw()
    acquisition: Acquisition = Acquisition()
    message: str = "sample"
    message_center: bool = False
    local_initialisation: bool = True
    design_kind: str = "uniform"
    averaged_gp: AveragedGP | None = None

    def __post_init__(self) -> None:
        checks.integer("rounds", self.rounds, minimum=1, maximum=checks.MOST_ROUNDS)
        checks.integer("n_init", self.n_init, minimum=1, maximum=checks.MOST_INITIAL)
        checks.positive("message_noise", self.message_noise)
        checks.one_of("message", self.message, [*_MESSAGES, *extensions.entries(extensions.MESSAGES)])
        checks.one_of("message_center", self.message_center, (True, False))
        checks.one_of("local_initialisation", self.local_initialisation, (True, False))
        checks.one_of("follow", self.follow, FOLLOW_PROBABILITY)
        self.own_draw.check_against(self.domain, self.own_gp)
        self.design  # noqa: B018
        if (self.message == "scores") != isinstance(self.features, NystromFeatures):
            raise SettingError("message", f"must be 'scores' for a private prior, and only then, got {self.message!r}")
        if self.message == "scores":
            checks.integer("n_init", self.n_init, minimum=2)  # the centred features of one point are zero
            if self.averaged_gp is None:
                raise SettingError("averaged_gp", "must be given for a private prior")

    @cached_property
    def design(self) -> Design:
        regions = self.regions if self.local_initialisation else Regions(1, self.domain.dimension)
        return Design(self.domain, regions, self.streams, self.n_init, self.design_kind)

    @property
    def message_size(self) -> int:
        return self.features.size

    @property
    def threads_allowed(self) -> bool:
        """True if threads may compute blocks of agents in parallel; False with GPyTorch."""
        return "gpytorch" not in (self.own_draw.method, self.own_gp.fit) and not self.own_gp.extensions

    def agents_at_once(self, device: torch.device) -> int:
        """Return the number of agents whose tensors fit into the memory limit of one step."""
        M, capacity = self.features.size, self.n_init + self.rounds
        wide = max(M, self.own_draw.n_features) * capacity + capacity**2
        if isinstance(self.domain, Grid):
            wide += len(self.domain.points)
        return max(1, (_BLOCK if device.type == "cpu" else _ACCELERATOR_BLOCK) // wide)

    def to(self, device: torch.device) -> "Agents":
        """Return a copy with domain and features on a device."""
        return replace(self, domain=self.domain.to(device), features=self.features.to(device))

    @cached_property
    def table(self) -> Tensor | None:
        """The features of all points of the grid, G x M; None on other domains and on very large grids."""
        if not isinstance(self.domain, Grid) or len(self.domain.points) * self.features.size > _TABLE:
            return None
        return self.features(self.domain.unit_points[None])[0]

    def features_at(self, points: Tensor) -> Tensor:
        """Return the features of each agent's t points, n x t x M.

        points: if the domain is a `Grid`, the row indices of the points, n x t; otherwise unit-cube points, n x t x D.
        """
        if not isinstance(self.domain, Grid):
            return self.features(points)
        if self.table is None:
            return self.features(self.domain.unit_points[points])
        return self.table.index_select(0, points.flatten()).view(*points.shape, -1)

    def initial_state(self, ids: Tensor) -> AgentsState:
        hyper = hyperparameters.start(self.own_gp, len(ids), embedded_dimension(self.domain), ids.device)
        return AgentsState.empty(ids, self.domain, hyper, self.n_init + self.rounds)

    def initial_query(self, state: AgentsState) -> Query:
        """Return the queries of round 0 (Algo. 2 line 2), the `n_init` points of the design."""
        points = self.design.points(state.ids)
        return Query(points, torch.full(points.shape[:2], int(Source.initial), device=points.device))

    def query(self, state: AgentsState, broadcast: Broadcast | None, t: int, clock: PhaseClock) -> Query:
        """Return the queries of round t >= 1 (Algo. 2 lines 5 to 9).

        broadcast: the last broadcast. If it is None, every agent uses its own model (p_t = 1).
        """
        if self.averaged_gp is not None:
            with clock("acquisition"):
                return self._improving(self.averaged_gp, state, broadcast, t)
        coin = self.streams.uniform("follow", state.ids, t, 1)[:, 0]
        follow = coin < (0.0 if broadcast is None else FOLLOW_PROBABILITY[self.follow](t))
        u = torch.empty(len(state.ids), self.domain.dimension, dtype=torch.float64, device=follow.device)
        own, server = (
            rows[batches.filled(len(rows), batches.PRODUCTS, rows.device)]
            for rows in ((~follow).nonzero()[:, 0], follow.nonzero()[:, 0])
        )
        if len(own):
            with clock("own_draw"):
                u[own] = self._own_queries(state, own, t)
        if len(server):
            with clock("acquisition"):
                if broadcast is not None:  # always true here, because without a broadcast no agent follows
                    u[server] = self._server_queries(state.ids[server], broadcast, t)
        source = torch.where(follow, int(Source.server), int(Source.own))
        return self._new(state, u, source, t)

    def _improving(self, gp: AveragedGP, state: AgentsState, broadcast: Broadcast | None, t: int) -> Query:
        known = self._known_mean(state, broadcast)
        grid = self.domain if isinstance(self.domain, Grid) else None
        fast = None
        if grid is not None and state.index is not None and (known is None or self.table is not None):
            fast = gp.maximizers_on_grid(grid, state.index, state.y, known, self.table)
        u, shared = state.x[:, 0].clone(), state.y[:, 0].clone()
        left = torch.ones_like(shared, dtype=torch.bool)
        if fast is not None and grid is not None:
            left = fast[0] < 0
            u, shared = grid.unit_points[fast[0].clamp(min=0)], fast[1]
        if len(slow := left.nonzero()[:, 0]):
            slow = slow[batches.filled(len(slow), batches.PRODUCTS, slow.device)]
            u[slow], shared[slow] = self._slowly(gp, state.select(slow), known, t)
        return self._new(state, u, torch.where(shared > 0.5, int(Source.server), int(Source.own)), t)

    def _known_mean(self, state: AgentsState, broadcast: Broadcast | None) -> KnownMean | None:
        return known_mean(broadcast, self.n_init, state.count) if isinstance(broadcast, SharedPrior) else None

    def _fitted(self, gp: AveragedGP, state: AgentsState, known: KnownMean | None) -> tuple[Fitted, Locate]:
        def locate(u: Tensor) -> Places:
            return Places(embedded(self.domain, u), None if known is None else self.features(u))

        psi = None if known is None else self.features_at(state.points)
        return gp.fit(Places(embedded(self.domain, state.x), psi), state.y, known), locate

    def expected_gains(self, state: AgentsState, broadcast: Broadcast | None, t: int) -> Tensor:
        """Return the expected improvement at each agent's query of round t >= 1, n numbers.

        The numbers are in the units of the observations. Raises ValueError if `averaged_gp` is None.
        """
        if self.averaged_gp is None:
            raise ValueError("agents that draw from their own GPs compute no expected improvement")
        u = self._improving(self.averaged_gp, state, broadcast, t).u
        fitted, locate = self._fitted(self.averaged_gp, state, self._known_mean(state, broadcast))
        return fitted.log_expected_improvement(locate(u))[:, 0].exp() * state.y.std(1, correction=0)

    def _slowly(self, gp: AveragedGP, state: AgentsState, known: KnownMean | None, t: int) -> tuple[Tensor, Tensor]:
        fitted, locate = self._fitted(gp, state, known)
        shift = self.acquisition.shift(self.domain, self.streams, "acquisition", t, state.ids.device)
        if gp.acquisition == "ts":
            points = self.acquisition.candidates(self.domain, shift)
            coin = self.streams.uniform("averaged_gp/model", state.ids, t, 1)[:, 0]
            e = self.streams.normal("averaged_gp/draw", state.ids, t, len(points))
            at_once = max(batches.PRODUCTS, _BLOCK // len(points) ** 2)

            def best(r: Tensor) -> Tensor:
                return fitted.select(r).draw(locate(points[None]), coin[r], e[r]).argmax(1)

            return points[batches.in_blocks(best, len(coin), at_once, coin.device)], fitted.shared
        surface = ImprovementSurface(fitted, locate)
        return self.acquisition.maximize_improvement(surface, self.domain, shift, state.index), fitted.shared

    def fit_hyperparameters(self, state: AgentsState, clock: PhaseClock, last: int | None = None) -> None:
        """Refit the agents' own GPs if a fit is due; call this before `query`.

        last: in a replay of a history, the last round of the history; None otherwise. Of all fits that are
        due in a replay, only the last is computed.
        """
        later = () if last is None else range(state.count + 1, self.n_init + last)
        if self.averaged_gp is None and self.own_gp.due(state.count) and not any(map(self.own_gp.due, later)):
            with clock("fit"):
                whole = self.own_gp.fit == self.own_draw.method == "gpytorch"
                x = embedded(self.domain, state.x)
                state.hyper = hyperparameters.fit_own(x, self._outcomes(state), self.own_gp, whole)

    def messages(self, state: AgentsState, t: int) -> Tensor:
        """Return the agents' messages, n x M (eq. 2; Algo. 2 lines 3 and 11)."""
        Phi, y = self.features_at(state.points), self._outcomes(state)
        if self.message == "scores":
            return prior_messages(Phi, y)
        if self.message_center:
            y = y - y.mean(1, keepdim=True)
        if self.message not in _MESSAGES:
            return self._added_message(Phi, y)
        K = Phi @ Phi.mT
        K.diagonal(dim1=1, dim2=2).add_(self.message_noise)
        L = cholesky(K)
        if self.message == "mean":
            return mean_weights(Phi, L, y)
        w0 = self.streams.normal("message/weights", state.ids, t, Phi.shape[2])
        e = self.message_noise**0.5 * self.streams.normal("message/noise", state.ids, t, state.count)
        return sample_weights(Phi, L, y, w0, e)

    def _added_message(self, Phi: Tensor, y: Tensor) -> Tensor:
        added: extensions.Message = extensions.load(extensions.MESSAGES, self.message)

        def of_one(Phi: Tensor, y: Tensor) -> Tensor:  # one agent: no message can depend on another's observations
            return added(Phi[None], y[None], self.message_noise)[0]

        try:
            made = torch.vmap(of_one)(Phi, y)
        except RuntimeError:  # operations that cannot be batched
            made = torch.stack([of_one(*own) for own in zip(Phi, y, strict=True)])
        expected = (len(y), Phi.shape[2])
        if not isinstance(made, Tensor) or made.shape != expected or made.dtype != y.dtype:
            found = f"{tuple(made.shape)} of {made.dtype}" if isinstance(made, Tensor) else repr(made)
            raise ValueError(f"message {self.message!r} must return a tensor {expected} of {y.dtype}, got {found}")
        return made

    def _outcomes(self, state: AgentsState) -> Tensor:
        return standardised(state.y) if self.own_gp.standardize else state.y

    def _own_queries(self, state: AgentsState, rows: Tensor, t: int) -> Tensor:
        x, y, hyper = state.x[rows], self._outcomes(state)[rows], state.hyper.select(rows)
        index = None if state.index is None else state.index[rows]
        return self.own_draw.maximizers(
            state.ids[rows], x, y, hyper, self.domain, self.acquisition, self.streams, t, index
        )  # fmt: skip

    def _server_queries(self, ids: Tensor, broadcast: Broadcast, t: int) -> Tensor:
        if isinstance(broadcast, Points):
            return broadcast.values[ids]
        if isinstance(broadcast, AgentVectors):
            weights, regions = broadcast.values[ids][:, None], Regions(1, self.domain.dimension)
        elif isinstance(broadcast, RegionVectors):
            weights, regions = broadcast.values[None], self.regions
        return self._argmax(weights, regions, ids, t)

    def followed(self, broadcast: Broadcast, ids: Tensor, t: int) -> Broadcast:
        """Turn a broadcast of type `RegionVectors` into `Points`; return a broadcast of any other type unchanged.

        `RegionVectors` define one function on the whole domain. Every agent gets the same point, the maximiser of this
        function.
        """
        if not isinstance(broadcast, RegionVectors):
            return broadcast
        point = self._argmax(broadcast.values[None], self.regions, ids[:1], t)
        return Points(point.expand(int(ids.max()) + 1, -1))

    def _argmax(self, weights: Tensor, regions: Regions, ids: Tensor, t: int) -> Tensor:
        """Return the maximisers, B x D, of B functions. weights: B x P x M, a function's M weights for each region."""
        assert isinstance(self.features, RandomFeatures)  # Nystroem features come with a prior, which has no vectors
        shift = self.acquisition.shift(self.domain, self.streams, "acquisition", t, ids.device)
        return self.acquisition.maximize_shared(self.features, weights, regions, self.domain, shift)

    def _new(self, state: AgentsState, u: Tensor, source: Tensor, t: int) -> Query:
        """Return the points u as queries.

        On a grid, agents may repeat a query. On other domains, a uniform random point replaces a repeated query.
        """
        if isinstance(self.domain, Grid):
            return Query(u[:, None], source[:, None])
        repeats = ((state.x - u[:, None]).abs().amax(2) < _REPEAT).any(1)
        if not repeats.any():
            return Query(u[:, None], source[:, None])
        uniform = self.streams.uniform("repeat", state.ids, t, self.domain.dimension)
        uniform = self.domain.snap(uniform) if isinstance(self.domain, MixedBox) else uniform
        u, source = torch.where(repeats[:, None], uniform, u), torch.where(repeats, int(Source.random), source)
        return Query(u[:, None], source[:, None])
