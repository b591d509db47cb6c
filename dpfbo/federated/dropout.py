"""A simulated loss of messages."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from dpfbo.checks import SettingError
from dpfbo.rng import Streams


@dataclass(frozen=True)
class Dropout:
    """Simulates lost messages, which count as zero vectors; each message of each round is lost independently.

    Losses do not change epsilon: the noise and the divisor of the sum do not depend on the number of messages that
    arrive.

    Args:
        probability: The probability that a message is lost.
        streams: The random numbers that decide which messages are lost.

    Raises:
        SettingError: The probability lies outside [0, 1].

    Example:
        >>> Dropout(1.0).lost(n_agents=2, round=0)
        tensor([True, True])
    """

    probability: float = 0.0
    streams: Streams = field(default=Streams(0))

    def __post_init__(self) -> None:
        p = self.probability
        if isinstance(p, bool) or not isinstance(p, int | float) or not 0 <= p <= 1:
            raise SettingError("probability", f"must lie in [0, 1], got {p!r}")

    def lost(self, n_agents: int, round: int) -> Tensor:
        """Return N booleans, True for the messages lost in this round."""
        return self.streams.uniform("dropout", torch.arange(n_agents, device="cpu"), round, 1)[:, 0] < self.probability
