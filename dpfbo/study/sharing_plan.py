"""Estimate how much of a private prior's signal survives the noise of its release, from public settings alone."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from dpfbo import checks
from dpfbo.federated.prior import FEATURES, DesignSums, expected_signal
from dpfbo.gp.averaged_gp import AveragedGP
from dpfbo.gp.design import Design
from dpfbo.gp.nystrom import NystromFeatures
from dpfbo.privacy.accounting import check_delta, default_delta
from dpfbo.privacy.accounting.analytic_gaussian import noise_multiplier
from dpfbo.rng import Streams
from dpfbo.space.domain import Domain
from dpfbo.space.parameters import Space
from dpfbo.space.regions import Regions

WEAK = 0.3  # a release with less signal is not worth its epsilon
_HALF = 0.5  # a release with this signal keeps most of the gain of sharing
_EPSILONS = (0.1, 0.25, 0.5, 1, 2, 4, 8)
_AGENTS = (8, 12, 16, 25, 32, 50, 64, 100, 128, 200, 256, 400, 512)
_MOST = 512  # the maximum number of agents whose designs are summed; for more agents the noise is scaled instead


@dataclass(frozen=True)
class SharingPlan:
    """The expected signal of a private prior's release; see `dpfbo.plan`.

    Args:
        n_agents: The number of agents, N.
        epsilon: The epsilon of the release, at user level.
        delta: The delta of the release.
        noise_multiplier: The noise multiplier z of the release.
        signal: The expected correlation, from 0 to 1, between the private prior's mean function and the mean function
            that this prior would have without noise.
        enough_epsilon: The smallest of .1, .25, .5, 1, 2, 4, 8 that exceeds `epsilon` and gives N agents a signal of .5
            or more. None if there is no such epsilon, or if `signal` is .5 or more.
        enough_agents: The smallest number of agents, in a list from 8 to 512, that exceeds N and gives a signal of .5
            or more at `epsilon`. None if there is no such number, or if `signal` is .5 or more.
    """

    n_agents: int
    epsilon: float
    delta: float
    noise_multiplier: float
    signal: float
    enough_epsilon: float | None
    enough_agents: int | None

    @property
    def weak(self) -> bool:
        """True if the signal is below .3, too small to be worth the epsilon."""
        return self.signal < WEAK

    def __str__(self) -> str:
        words = (
            f"the release of {self.n_agents} agents at epsilon {self.epsilon:.3g}, delta {self.delta:.2g}, is expected "
            f"to keep {self.signal:.0%} of its signal"
        )
        if self.signal >= _HALF:
            return words
        found = [] if self.enough_epsilon is None else [f"epsilon {self.enough_epsilon:g}"]
        found += [] if self.enough_agents is None else [f"{self.enough_agents} agents"]
        return f"{words}; {' or '.join(found) or 'no usual epsilon or number of agents'} would keep half of it"


def plan(
    space: Space | Mapping[str, Any] | Domain,
    n_agents: int,
    epsilon: float = 1.0,
    *,
    n_init: int = 5,
    delta: float | None = None,
    seed: int = 0,
) -> SharingPlan:
    """Estimate the signal of the release of `dp_prior`, from public settings alone.

    The signal is the correlation, from 0 to 1, between the private prior's mean function and the mean function that
    this prior would have without noise.

    Args:
        space: Named parameters, or a domain such as `Box`.
        n_agents: The number of agents, N.
        epsilon: The epsilon of the whole run, at user level.
        n_init: The number of initial points of each agent.
        delta: The delta of epsilon; None for N^-1.1.
        seed: The seed of the initial points, which are public.

    Returns:
        The expected signal and, if it is below .5, an epsilon or a number of agents that would reach .5.

    Raises:
        SettingError: A setting is out of range.

    Example:
        >>> import dpfbo
        >>> print(dpfbo.plan({"x": dpfbo.Float(0, 1), "y": dpfbo.Float(0, 1)}, n_agents=6, epsilon=0.25, delta=1e-3))
        the release of 6 agents at epsilon 0.25, delta 0.001, is expected to keep ...% of its signal; ... would ...
    """
    named = Space(space) if isinstance(space, Mapping) else space
    domain: Any = named.domain if isinstance(named, Space) else named
    checks.integer("n_agents", n_agents, minimum=1, maximum=checks.MOST_AGENTS)
    checks.integer("n_init", n_init, minimum=2, maximum=checks.MOST_INITIAL)
    checks.positive("epsilon", epsilon)
    if delta is not None:
        check_delta(delta)
    of = _signals(domain, n_init, seed)
    delta_of = default_delta if delta is None else (lambda n: delta)
    z = noise_multiplier(epsilon, delta_of(n_agents))
    signal = of(n_agents, z)
    enough_epsilon = enough_agents = None
    if signal < _HALF:
        larger = (e for e in _EPSILONS if e > epsilon)
        enough_epsilon = next(
            (e for e in larger if of(n_agents, noise_multiplier(e, delta_of(n_agents))) >= _HALF), None
        )
        more = (n for n in _AGENTS if n > n_agents)
        enough_agents = next((n for n in more if of(n, noise_multiplier(epsilon, delta_of(n))) >= _HALF), None)
    return SharingPlan(n_agents, epsilon, delta_of(n_agents), z, signal, enough_epsilon, enough_agents)


def _signals(domain: Domain, n_init: int, seed: int) -> Callable[[int, float], float]:
    features = NystromFeatures.of(domain, FEATURES, AveragedGP().lengthscales)
    design = Design(domain, Regions(1, domain.dimension), Streams(seed), n_init, "sobol")
    sums_of = cache(lambda n: DesignSums.of(design, features, n))

    def signal(n_agents: int, z: float) -> float:
        n = min(n_agents, _MOST)
        return expected_signal(sums_of(n), features, z * n / n_agents)

    return signal
