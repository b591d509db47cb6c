"""The named algorithms, and the settings that suit a problem of which nothing else is known."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from dpfbo import checks
from dpfbo.federated.controls import RandomServer, SobolServer
from dpfbo.federated.mechanism import SubsampledGaussian
from dpfbo.federated.messages import usual_norm
from dpfbo.federated.peer_exchange import PeerExchange
from dpfbo.federated.prior.model import PriorModel
from dpfbo.federated.prior_server import PriorServer
from dpfbo.federated.server import Server
from dpfbo.federated.weights import Weighting
from dpfbo.federated.weights.decay import Decay
from dpfbo.federated.weights.softmax import Softmax
from dpfbo.federated.weights.uniform import Uniform
from dpfbo.gp.draws import OwnDraw
from dpfbo.gp.own_gp import OwnGP
from dpfbo.study.algorithm import Algorithm


@dataclass(frozen=True)
class Preset:
    """The settings of a problem that the named algorithms take; the defaults are those of `problem=custom`.

    Args:
        M: Random features of the messages.
        lengthscale: Length-scale of these features, in the unit cube.
        message_noise: The noise variance lam of eq. 2.
        follow: The probability 1 - p_t with which agents follow the server, by its name in `FOLLOW_PROBABILITY`.
        own_gp: The agents' own Gaussian processes.
        own_draw: Draws from these.
        prior: The model of a private prior.
        prior_features: Random features of a private prior.
        P: Sub-regions of the algorithms that explore in them.
        sampling_probability: q.
        noise_multiplier: z, where no epsilon is given.
        decay: The decay of the weights of the sub-regions.

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
    prior: PriorModel = PriorModel()
    prior_features: int = 200
    P: int = 2
    sampling_probability: float = 0.35
    noise_multiplier: float = 1.0
    decay: Decay = Decay(5, 5)


def _base(name: str, preset: Preset) -> Algorithm:
    return Algorithm(
        name=name, server=Server, private=False, P=1, local_initialisation=True, M=preset.M,
        lengthscale=preset.lengthscale, paired=False, message="sample", message_noise=preset.message_noise,
        message_center=False, message_normalize=False, momentum=0.0, broadcasts=None, follow=preset.follow,
        own_gp=preset.own_gp, own_draw=preset.own_draw,
    )  # fmt: skip


def _prior(preset: Preset) -> dict[str, Any]:
    return {
        "server": PriorServer, "M": preset.prior_features, "message": "statistics", "design": "sobol",
        "broadcasts": 1, "follow": "always", "prior": preset.prior,
    }  # fmt: skip


# what each algorithm changes
_CHANGES: dict[str, Callable[[Preset], dict[str, Any]]] = {
    "ts": lambda preset: {"server": None, "follow": "never"},
    "fts": lambda preset: {},
    "fts_original": lambda preset: {"server": PeerExchange},
    "fts_de": lambda preset: {"P": preset.P},
    "dp_fts": lambda preset: {"private": True},
    "dp_fts_de": lambda preset: {"private": True, "P": preset.P},
    "dp_fts_de_plus": lambda preset: {
        "private": True, "P": preset.P, "message": "mean", "message_center": True, "message_normalize": True,
    },
    "dp_prior": lambda preset: {"private": True, **_prior(preset)},
    "shared_prior": _prior,
    "random_server": lambda preset: {"server": RandomServer},
    "sobol_server": lambda preset: {"server": SobolServer},
}  # fmt: skip
ALGORITHMS = tuple(_CHANGES)


def algorithm_named(name: str, preset: Preset = Preset()) -> Algorithm:
    """The algorithm of this name.

    Args:
        name: `ts`, agents alone; `fts`, `fts_de`, `fts_original` or `shared_prior`, sharing without privacy; `dp_fts`,
            `dp_fts_de`, `dp_fts_de_plus` or `dp_prior`, private; `random_server` or `sobol_server`, controls.
        preset: Its settings.

    Raises:
        SettingError: There is no algorithm of this name.

    Example:
        >>> import dpfbo
        >>> dpfbo.algorithm_named("dp_fts_de").private
        True
        >>> dpfbo.algorithm_named("fts_ed")
        Traceback (most recent call last):
        ...
        dpfbo.checks.SettingError: algorithm must be one of ts, fts, fts_original, ..., got 'fts_ed'
    """
    checks.one_of("algorithm", name, ALGORITHMS)
    return replace(_base(name, preset), **_CHANGES[name](preset))


def weights_for(algorithm: Algorithm, preset: Preset = Preset()) -> Weighting:
    """The weights of the agents in each sub-region."""
    return Softmax(preset.decay) if algorithm.prior is None else Uniform()


def mechanism_for(algorithm: Algorithm, n_init: int, preset: Preset = Preset()) -> SubsampledGaussian:
    """The private step, with a clip norm that few messages exceed; q = 1 for a private prior."""
    if algorithm.prior is not None:
        return SubsampledGaussian(1.0, preset.noise_multiplier, algorithm.prior.statistics.usual_norm(n_init))
    norm, q, z = usual_norm(algorithm.M, algorithm.P), preset.sampling_probability, preset.noise_multiplier
    calibration = "tight" if algorithm.message_normalize else "paper"
    return SubsampledGaussian(q, z, norm, calibration, normalize=algorithm.message_normalize)
