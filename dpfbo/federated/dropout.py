"""Messages that get lost: each with one probability, on its own.

A lost message is the zero vector. Division is by q and never by what arrived, and the noise is that of a round in which
everything did, so epsilon does not change.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from dpfbo.checks import SettingError
from dpfbo.rng import Streams


@dataclass(frozen=True)
class Dropout:
    """Each message of each round is lost with `probability`, in [0, 1].

    streams: which ones is a matter of the seed, not of who computes it, and has nothing to do with S_t.

    Raises ValueError for a probability outside [0, 1].
    """

    probability: float = 0.0
    streams: Streams = field(default=Streams(0))

    def __post_init__(self) -> None:
        p = self.probability
        if isinstance(p, bool) or not isinstance(p, int | float) or not 0 <= p <= 1:
            raise SettingError("probability", f"must lie in [0, 1], got {p!r}")

    def lost(self, n_agents: int, round: int) -> Tensor:
        """Which of the N messages of a round are lost, N booleans."""
        return self.streams.uniform("dropout", torch.arange(n_agents), round, 1)[:, 0] < self.probability
