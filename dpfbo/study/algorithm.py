"""The members of the federated family: settings of messages, broadcasts and of the agents' own models."""

from dataclasses import dataclass

from dpfbo import checks
from dpfbo.checks import SettingError
from dpfbo.federated.prior.model import PriorModel
from dpfbo.federated.prior_server import PriorServer
from dpfbo.federated.server_parts import ServerKind
from dpfbo.federated.weights import Weighting
from dpfbo.federated.weights.uniform import Uniform
from dpfbo.gp.draws import OwnDraw
from dpfbo.gp.own_gp import OwnGP


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
        if self.prior is not None or self.server is PriorServer:
            self._check_prior()
        for name in self._without_effect():
            value = getattr(self, name)
            raise SettingError(name, f"has no effect on algorithm={self.name}: leave it out, got {value!r}")
        if self.private and not self.aggregates:
            raise SettingError("private", f"needs a server that adds up messages, got {self.server_name}")
        if self.server is None and self.follow != "never":
            raise SettingError("follow", f"must be 'never' without a server, got {self.follow!r}")

    def _check_prior(self) -> None:
        """Raise SettingError for a setting of messages and broadcasts that contradicts the private prior's model."""
        if self.prior is None:
            raise SettingError("prior", "must be given for a PriorServer, got None")
        if self.server is not PriorServer:
            raise SettingError("server", f"must be a PriorServer for a private prior, got {self.server_name}")
        if self.message != "statistics":
            raise SettingError("message", f"must be 'statistics' for a private prior, got {self.message!r}")
        for name, only, why in (
            ("P", 1, "all agents share one prior over the whole domain"),
            ("broadcasts", self.prior.releases, "every broadcast is a release, whose public points come before it"),
            ("message_center", False, "statistics are of contrasts already"),
            ("message_normalize", False, "the release is inferred from sums of statistics as they are"),
        ):
            if (value := getattr(self, name)) != only:
                raise SettingError(name, f"must be {only} for algorithm={self.name}: {why}, got {value!r}")

    @property
    def aggregates(self) -> bool:
        """True if a server adds up the messages."""
        return self.server is not None and self.server.aggregates

    @property
    def sends(self) -> bool:
        """True if the agents send messages."""
        return self.server is not None and self.server.uses_messages

    @property
    def server_name(self) -> str:
        return "none" if self.server is None else self.server.__name__

    def _without_effect(self) -> list[str]:
        """The settings of messages and broadcasts that differ from their defaults and that this algorithm ignores."""
        return [
            *(["message"] if self.message != "sample" and not self.sends else []),
            *(["message_center"] if self.message_center is True and not self.sends else []),
            *(["message_normalize"] if self.message_normalize is True and not self.aggregates else []),
            *(["local_initialisation"] if self.local_initialisation is False and self.P == 1 else []),
            *(["momentum"] if self.momentum and (not self.aggregates or self.prior is not None) else []),
            *(["paired"] if self.paired is True and self.prior is not None else []),
            *(["follow"] if self.follow != "always" and self.prior is not None else []),
            *(["broadcasts"] if self.broadcasts is not None and self.server is None else []),
        ]

    def check_run(self, rounds: int, n_init: int, weights: Weighting, sampling_probability: float) -> None:
        """Raise SettingError for settings of a run with which a private prior's release is no plain sum with noise."""
        if self.prior is None:
            return
        if n_init < 2:
            raise SettingError(
                "n_init", f"must be at least 2 for algorithm={self.name}: one point has no contrast, got 1"
            )
        if type(weights) is not Uniform:
            found = type(weights).__name__
            raise SettingError(
                "weights", f"must be uniform for algorithm={self.name}: the release is a plain sum, got {found}"
            )
        if self.prior.releases > rounds:
            raise SettingError(
                "broadcasts", f"must be at most the number of rounds, {rounds}, got {self.prior.releases!r}"
            )
        if self.private and sampling_probability != 1:
            raise SettingError(
                "sampling_probability",
                f"must be 1 for algorithm={self.name}: the noise that sampling adds to a sum is not modelled, "
                f"got {sampling_probability!r}",
            )
