"""Streams that note which numbers are drawn from them."""

from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from dpfbo.rng import Streams


@dataclass(frozen=True)
class RecordedStreams(Streams):
    """`Streams` with a list of the (purpose, round) of each draw, in order."""

    asked: list[tuple[str, int]] = field(default_factory=list, compare=False)

    def generator(self, purpose: str, round: int = 0) -> np.random.Generator:
        self.asked.append((purpose, round))
        return super().generator(purpose, round)

    def uniform(self, purpose: str, agents: Tensor, round: int, size: int) -> Tensor:
        self.asked.append((purpose, round))
        return super().uniform(purpose, agents, round, size)
