"""The federated algorithms, by name or with custom settings."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from dpfbo import checks
from dpfbo.checks import SettingError
from dpfbo.federated.controls import RandomServer, SobolServer
from dpfbo.federated.mechanism import SubsampledGaussian
from dpfbo.federated.messages import usual_norm
from dpfbo.federated.peer_exchange import PeerExchange
from dpfbo.federated.prior import FEATURES
from dpfbo.federated.prior_server import PriorServer
from dpfbo.federated.server import Server, ServerKind
from dpfbo.federated.weights import Weighting
from dpfbo.federated.weights.decay import Decay
from dpfbo.federated.weights.softmax import Softmax
from dpfbo.federated.weights.uniform import Uniform
from dpfbo.gp.averaged_gp import AveragedGP
from dpfbo.gp.draws import OwnDraw
from dpfbo.gp.own_gp import OwnGP

_WITH_A_PRIOR = (  # with a private or shared prior: a setting, its only permitted value, and the reason
    ("P", 1, "all agents share one prior over the whole domain"),
    ("broadcasts", 1, "the prior is released once"),
    ("message_center", False, "scores have no mean"),
    ("message_normalize", False, "messages have norm 1"),
)


@dataclass(frozen=True)
class Algorithm:
    """A federated algorithm; `dpfbo.algorithm_named` returns the named ones.

    Args:
        name: The name in records and error messages.
        server: The class of the server; None for agents that work alone.
        private: True for differential privacy: the server clips messages, samples agents and adds noise.
        P: The number of sub-regions of distributed exploration.
        local_initialisation: True to place an agent's initial points in its own sub-region.
        M: The number of shared random features.
        lengthscale: The length-scale of these features, in the unit cube.
        paired: True for features in pairs of cosine and sine; False for cosines with random phases.
        message: The vector that an agent sends: `sample`, a posterior draw (Dai et al. 2021, eq. 2); `mean`, the
            posterior mean nu; or `scores`, the normal scores from which the server infers a prior.
        message_noise: The noise variance lam of eq. 2.
        message_center: True to subtract an agent's mean observation before its message is computed.
        message_normalize: True to scale every message to the clip norm.
        momentum: The weight of earlier broadcasts in the running average that agents follow.
        broadcasts: The largest number of broadcasts; None for one per round. When no more broadcasts come, agents
            work alone, or keep the prior if the server infers one.
        follow: A name in `FOLLOW_PROBABILITY`; it sets the probability 1 - p_t that an agent follows the server.
        own_gp: The agents' own Gaussian processes.
        own_draw: The kind of draw from `own_gp` in local Thompson sampling.
        design: The design of the initial points, `uniform` or `sobol`.
        averaged_gp: The models by which agents choose their queries; None for draws from `own_gp`.

    Raises:
        SettingError: Settings contradict each other, or a setting has no effect because of another setting.

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
    averaged_gp: AveragedGP | None = None

    def __post_init__(self) -> None:
        checks.one_of("private", self.private, (True, False))
        checks.momentum("momentum", self.momentum)
        if self.broadcasts is not None:
            checks.integer("broadcasts", self.broadcasts, minimum=1)
        for name, rule in self._contradictions():
            raise SettingError(name, rule)

    def _contradictions(self) -> Iterator[tuple[str, str]]:
        """Yield the name and the error text of each setting that contradicts others or has no effect."""
        prior, found = self.has_prior, "none" if self.server is None else self.server.__name__
        if prior and self.averaged_gp is None:
            yield "averaged_gp", f"must be given for a {found}, got None"
        if not prior and self.server is not None and self.averaged_gp is not None:
            yield "averaged_gp", f"must be left out for a {found}, whose broadcasts such agents would not use"
        if prior != (self.message == "scores"):
            yield "message", f"must be 'scores' for a PriorServer and for no other, got {self.message!r}"
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
        if self.averaged_gp is not None:
            if self.own_draw.scale is not None:
                yield (
                    "own_draw.scale",
                    f"has no effect on algorithm={self.name}, whose agents use averaged_gp: leave it out",
                )
            for setting in self.own_gp.extensions:
                name, _, value = setting.partition("=")
                rule = f"has no effect on algorithm={self.name}, whose agents use averaged_gp: leave it out"
                yield f"own_gp.{name}", f"{rule}, got {value}"
            if not prior and self.averaged_gp.factors != AveragedGP.factors:
                rule = f"has no effect on algorithm={self.name}, which has no shared mean: leave it out"
                yield "averaged_gp.factors", f"{rule}, got {list(self.averaged_gp.factors)}"
        if self.private and not self.aggregates:
            yield "private", f"needs a server that adds up messages, got {found}"
        if self.server is None and self.follow != "never":
            yield "follow", f"must be 'never' without a server, got {self.follow!r}"

    @property
    def has_prior(self) -> bool:
        """True if the server infers one prior that all agents' objectives share."""
        return self.server is PriorServer

    @property
    def aggregates(self) -> bool:
        """True if a server adds up the messages."""
        return self.server is not None and self.server.aggregates

    @property
    def sends(self) -> bool:
        """True if the agents send messages."""
        return self.server is not None and self.server.uses_messages

    def check_run(self, n_init: int, weights: Weighting, sampling_probability: float) -> None:
        """Raise SettingError if the server infers a prior (`has_prior`) and these settings do not suit it.

        A prior needs at least 2 initial points, uniform weights and, if private, a sampling probability of 1.
        """
        kind, q = type(weights), sampling_probability
        for wrong, name, rule, found in (
            (n_init < 2, "n_init", "at least 2 for {}: one point has no contrast", n_init),
            (kind is not Uniform, "weights", "uniform for {}: the release is a plain sum", kind.__name__),
            (self.private and q != 1, "sampling_probability",
             "1 for {}: the noise that sampling adds to a sum is not modelled", q),
        ):  # fmt: skip
            if self.has_prior and wrong:
                raise SettingError(name, f"must be {rule.format(f'algorithm={self.name}')}, got {found}")


@dataclass(frozen=True)
class Preset:
    """The problem-dependent settings of the named algorithms; the defaults suit a custom objective.

    Args:
        M: The number of random features of the messages.
        lengthscale: The length-scale of these features, in the unit cube.
        message_noise: The noise variance lam of eq. 2 in Dai et al. 2021.
        follow: A name in `FOLLOW_PROBABILITY`; it sets the probability 1 - p_t that an agent follows the server.
        own_gp: The agents' own Gaussian processes.
        own_draw: The kind of draw from `own_gp`.
        P: The number of sub-regions, for algorithms that have them.
        sampling_probability: The probability q that a private mechanism samples an agent in a round.
        decay: The decay of the agents' softmax weights to equal weights.

    Example:
        >>> import dpfbo
        >>> dpfbo.algorithm_named("dp_fts_de", dpfbo.Preset(P=4)).P
        4
    """

    M: int = 100
    lengthscale: float = 0.2
    message_noise: float = 0.01
    follow: str = "inverse_sqrt"
    own_gp: OwnGP = OwnGP(lengthscale=0.5, variance=1.0, noise=1e-4, standardize=True)
    own_draw: OwnDraw = OwnDraw()
    P: int = 2
    sampling_probability: float = 0.35
    decay: Decay = Decay(5, 5)


# the settings in which each named algorithm differs from `fts`
_CHANGES: dict[str, Callable[[Preset], dict[str, Any]]] = {
    "ts": lambda preset: {"server": None, "follow": "never"},
    "local": lambda preset: {"server": None, "follow": "never", "design": "sobol", "averaged_gp": AveragedGP()},
    "fts": lambda preset: {},
    "fts_original": lambda preset: {"server": PeerExchange},
    "fts_de": lambda preset: {"P": preset.P},
    "dp_fts": lambda preset: {"private": True},
    "dp_fts_de": lambda preset: {"private": True, "P": preset.P},
    "dp_fts_de_plus": lambda preset: {
        "private": True, "P": preset.P, "message": "mean", "message_center": True, "message_normalize": True,
    },
    "dp_prior": lambda preset: {"private": True, **_CHANGES["shared_prior"](preset)},
    "shared_prior": lambda preset: {
        "server": PriorServer, "M": FEATURES, "message": "scores", "design": "sobol", "broadcasts": 1,
        "follow": "always", "averaged_gp": AveragedGP(),
    },
    "random_server": lambda preset: {"server": RandomServer},
    "sobol_server": lambda preset: {"server": SobolServer},
}  # fmt: skip
ALGORITHMS = tuple(_CHANGES)


def algorithm_named(name: str, preset: Preset = Preset()) -> Algorithm:
    """Return the algorithm with this name.

    Args:
        name: `ts`, `local` (agents work alone); `fts`, `fts_de`, `fts_original`, `shared_prior` (agents share without
            privacy); `dp_fts`, `dp_fts_de`, `dp_fts_de_plus`, `dp_prior` (private); `random_server`, `sobol_server`
            (the server sends random or Sobol points, as a control).
        preset: The settings that depend on the problem.

    Returns:
        The algorithm; use `dataclasses.replace` for variants.

    Raises:
        SettingError: There is no algorithm of this name.

    Example:
        >>> import dpfbo
        >>> dpfbo.algorithm_named("dp_fts_de").private
        True
        >>> dpfbo.algorithm_named("fts_ed")
        Traceback (most recent call last):
        ...
        dpfbo.checks.SettingError: algorithm must be one of 'ts', 'local', ..., got 'fts_ed' (did you mean 'fts_de'?)
    """
    checks.one_of("algorithm", name, ALGORITHMS)
    plain = Algorithm(
        name=name, server=Server, private=False, P=1, local_initialisation=True, M=preset.M,
        lengthscale=preset.lengthscale, paired=False, message="sample", message_noise=preset.message_noise,
        message_center=False, message_normalize=False, momentum=0.0, broadcasts=None, follow=preset.follow,
        own_gp=preset.own_gp, own_draw=preset.own_draw,
    )  # fmt: skip
    return replace(plain, **_CHANGES[name](preset))


def weights_for(algorithm: Algorithm, preset: Preset = Preset()) -> Weighting:
    """Return the agents' weights: equal if the server infers a prior, else softmax weights with `preset.decay`."""
    return Uniform() if algorithm.has_prior else Softmax(preset.decay)


def mechanism_for(algorithm: Algorithm, n_init: int, preset: Preset = Preset(), z: float = 1.0) -> SubsampledGaussian:
    """Return the private mechanism, with noise multiplier z and a clip norm that few messages exceed.

    If the algorithm's server infers a prior (`has_prior`), the sampling probability and the clip norm are 1.
    """
    if algorithm.has_prior:
        return SubsampledGaussian(1.0, z, 1.0)
    norm, q = usual_norm(algorithm.M, algorithm.P), preset.sampling_probability
    calibration = "tight" if algorithm.message_normalize else "paper"
    return SubsampledGaussian(q, z, norm, calibration, normalize=algorithm.message_normalize)
