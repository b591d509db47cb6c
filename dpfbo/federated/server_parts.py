"""The parts of a server. The `for_run` of each kind of server takes the parts that it needs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from torch import Tensor

from dpfbo.federated.dropout import Dropout
from dpfbo.federated.mechanism import Mechanism
from dpfbo.federated.prior.model import PriorModel
from dpfbo.federated.weights import Weighting
from dpfbo.gp.acquisition import Acquisition
from dpfbo.gp.design import Design
from dpfbo.gp.features import RandomFeatures
from dpfbo.privacy.budget import Budget, EpsilonCurve
from dpfbo.privacy.entropy import Entropy
from dpfbo.privacy.ledger import Ledger
from dpfbo.privacy.release import KeptRelease
from dpfbo.rng import Streams
from dpfbo.space.domain import Domain
from dpfbo.space.regions import Regions


@dataclass(frozen=True)
class ServerParts:
    """The parts of a run's server.

    n_agents: N. rounds: T. message_size: numbers in a message. prior: None without a private prior. kept: None if noise
    can be drawn again. earlier: values and noise of the releases of an interrupted run, in order.
    """

    n_agents: int
    rounds: int
    message_size: int
    features: RandomFeatures
    design: Design
    prior: PriorModel | None
    domain: Domain
    acquisition: Acquisition
    regions: Regions
    weighting: Weighting
    mechanism: Mechanism
    dropout: Dropout
    streams: Streams
    entropy: Entropy
    ledger: Ledger
    epsilon: EpsilonCurve
    budget: Budget | None
    kept: KeptRelease | None
    earlier: Sequence[tuple[Tensor, float]] = ()


class ServerKind(Protocol):
    """A class of servers.

    uses_messages: the agents send it messages. aggregates: it adds them up by a mechanism, which may be a private one.
    bare_messages: agents receive the messages of others unchanged, so that no epsilon is finite even where nothing was
    charged.
    """

    uses_messages: ClassVar[bool]
    aggregates: ClassVar[bool]
    bare_messages: ClassVar[bool]

    @classmethod
    def for_run(cls, parts: ServerParts) -> Any:
        """The server of one run."""
