"""The members of the federated family: settings of messages, broadcasts and of the agents' own models."""

from collections.abc import Iterator
from dataclasses import dataclass

from dpfbo import checks
from dpfbo.checks import SettingError
from dpfbo.federated.prior.model import PriorModel
from dpfbo.federated.prior_server import PriorServer
from dpfbo.federated.server import ServerKind
from dpfbo.federated.weights import Weighting
from dpfbo.federated.weights.uniform import Uniform
from dpfbo.gp.draws import OwnDraw
from dpfbo.gp.own_gp import OwnGP

_WITH_A_PRIOR = (  # the only value of some settings, and why
    ("P", 1, "all agents share one prior over the whole domain"),
    ("broadcasts", 1, "the prior is released once"),
    ("message_center", False, "statistics are of contrasts already"),
    ("message_normalize", False, "the release is inferred from sums of statistics as they are"),
)


@dataclass(frozen=True)
class Algorithm:
    """A member of the federated family; `dpfbo.algorithm_named` makes those that have a name.

    Args:
        name: The name for people and records.
        server: The class of the server; None for agents that work alone.
        private: True to clip, sample and add noise.
        P: Sub-regions of distributed exploration.
        local_initialisation: True for initial points in an agent's own sub-region.
        M: Shared random features.
        lengthscale: Length-scale of these features, in the unit cube.
        paired: True for cos, sin pairs in place of random phases.
        message: `sample`, a posterior draw (eq. 2); `mean`, nu; or `statistics`, of a private prior.
        message_noise: lam of eq. 2.
        message_center: True for messages of observations less the agent's mean.
        message_normalize: True to scale every message to the clip norm.
        momentum: The weight of the running average of earlier broadcasts that agents follow.
        broadcasts: The number of broadcasts, after which agents work alone; None for T.
        follow: The probability 1 - p_t, by its name in `FOLLOW_PROBABILITY`.
        own_gp: The agents' own Gaussian processes, for local Thompson sampling.
        own_draw: Draws from these.
        design: The design of the initial points, `uniform` or `sobol`.
        prior: The model of a private prior; None without one.

    Raises:
        SettingError: Settings contradict each other, or have no effect together.

    Example:
        >>> from dataclasses import replace
        >>> import dpfbo
        >>> means = replace(dpfbo.algorithm_named("dp_fts"), name="dp_fts_mean", message="mean")
        >>> means.aggregates, means.sends
        (True, True)
    """

    name: str
    server: type[ServerKind] | None
    private: bool
    P: int
    local_initialisation: bool
    M: int
    lengthscale: float
    paired: bool
    message: str
    message_noise: float
    message_center: bool
    message_normalize: bool
    momentum: float
    broadcasts: int | None
    follow: str
    own_gp: OwnGP
    own_draw: OwnDraw
    design: str = "uniform"
    prior: PriorModel | None = None

    def __post_init__(self) -> None:
        checks.one_of("private", self.private, (True, False))
        checks.momentum("momentum", self.momentum)
        if self.broadcasts is not None:
            checks.integer("broadcasts", self.broadcasts, minimum=1)
        for name, rule in self._contradictions():
            raise SettingError(name, rule)

    def _contradictions(self) -> Iterator[tuple[str, str]]:
        """Yield the name of each setting that contradicts others, or has no effect beside them, and the rule."""
        prior, found = self.prior is not None, "none" if self.server is None else self.server.__name__
        if prior != (self.server is PriorServer):
            if not prior:
                yield "prior", "must be given for a PriorServer, got None"
            yield "server", f"must be a PriorServer for a private prior, got {found}"
        if prior and self.message != "statistics":
            yield "message", f"must be 'statistics' for a private prior, got {self.message!r}"
        for name, only, why in _WITH_A_PRIOR if prior else ():
            if (value := getattr(self, name)) != only:
                yield name, f"must be {only} for algorithm={self.name}: {why}, got {value!r}"
        for name, default, effective in (
            ("message", "sample", self.sends),
            ("message_center", False, self.sends),
            ("message_normalize", False, self.aggregates),
            ("local_initialisation", True, self.P > 1),
            ("momentum", 0.0, self.aggregates and not prior),
            ("paired", False, not prior),
            ("follow", "always", not prior),
            ("broadcasts", None, self.server is not None),
        ):
            if (value := getattr(self, name)) != default and not effective:
                yield name, f"has no effect on algorithm={self.name}: leave it out, got {value!r}"
        if self.private and not self.aggregates:
            yield "private", f"needs a server that adds up messages, got {found}"
        if self.server is None and self.follow != "never":
            yield "follow", f"must be 'never' without a server, got {self.follow!r}"

    @property
    def aggregates(self) -> bool:
        """True if a server adds up the messages."""
        return self.server is not None and self.server.aggregates

    @property
    def sends(self) -> bool:
        """True if the agents send messages."""
        return self.server is not None and self.server.uses_messages

    def check_run(self, n_init: int, weights: Weighting, sampling_probability: float) -> None:
        """Raise SettingError for settings of a run with which a private prior's release is no plain sum with noise."""
        kind, q = type(weights), sampling_probability
        for wrong, name, rule, found in (
            (n_init < 2, "n_init", "at least 2 for {}: one point has no contrast", n_init),
            (kind is not Uniform, "weights", "uniform for {}: the release is a plain sum", kind.__name__),
            (self.private and q != 1, "sampling_probability",
             "1 for {}: the noise that sampling adds to a sum is not modelled", q),
        ):  # fmt: skip
            if self.prior is not None and wrong:
                raise SettingError(name, f"must be {rule.format(f'algorithm={self.name}')}, got {found}")
