"""Named random streams from a counter-based generator (Philox)."""

import hashlib
import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dpfbo import checks

_WORDS_PER_COUNT = 4  # one Philox counter value yields four 64-bit words, that is four uniforms


@dataclass(frozen=True)
class Streams:
    """The random streams of one run. Each number depends only on seed, purpose, agent and round.

    Args:
        seed: An integer from 0 to 2^256 - 1.

    Raises:
        SettingError: The seed is not in this range.

    Example:
        The numbers of agent 7 do not depend on the other agents.

        >>> import torch
        >>> from dpfbo import Streams
        >>> streams = Streams(0)
        >>> both = streams.uniform("demo", torch.tensor([3, 7]), round=0, size=2)
        >>> alone = streams.uniform("demo", torch.tensor([7]), round=0, size=2)
        >>> torch.equal(both[1:], alone)
        True
    """

    seed: int

    def __post_init__(self) -> None:
        checks.integer("seed", self.seed, minimum=0, maximum=2**256 - 1)

    def generator(self, purpose: str, round: int = 0) -> np.random.Generator:
        """Return a generator for numbers that belong to no agent, such as server noise."""
        return np.random.Generator(self._philox(purpose, round))

    def uniform(self, purpose: str, agents: Tensor, round: int, size: int) -> Tensor:
        """Draw U[0, 1) numbers, `n x size` float64, a row for each of the n ids in `agents`, on the device of `agents`.

        Use the same `size` for all draws of a purpose and round. Otherwise two agents may get the same numbers.
        """
        if len(agents) == 0 or size == 0:
            return torch.zeros(len(agents), size, dtype=torch.float64, device=agents.device)
        ids = agents.cpu()
        first, last = int(ids.min()), int(ids.max())
        counts = math.ceil(size / _WORDS_PER_COUNT)  # counter values for each agent
        philox = self._philox(purpose, round)
        philox.advance(first * counts)
        words = (last - first + 1) * counts * _WORDS_PER_COUNT
        span = torch.from_numpy(np.random.Generator(philox).random(words)).view(-1, counts * _WORDS_PER_COUNT)
        rows = span[:, :size]
        consecutive = len(ids) == len(rows) and torch.equal(ids, torch.arange(first, last + 1, device=ids.device))
        rows = rows.contiguous() if consecutive else rows[ids - first]  # indexing a million rows is slow
        return rows.to(agents.device)

    def normal(self, purpose: str, agents: Tensor, round: int, size: int) -> Tensor:
        """Draw N(0, 1) numbers, `n x size` float64, by Box-Muller on the device of `agents`.

        The numbers drawn on two devices may differ by rounding.
        """
        return box_muller(self.uniform(purpose, agents, round, 2 * math.ceil(size / 2)))[:, :size]

    def _philox(self, purpose: str, round: int) -> np.random.Philox:
        digest = hashlib.blake2b(f"{self.seed}/{purpose}/{round}".encode(), digest_size=16).digest()
        return np.random.Philox(key=np.frombuffer(digest, dtype=np.uint64))


def box_muller(u: Tensor) -> Tensor:
    """Transform uniforms in [0, 1) to standard normals, `... x 2k -> ... x 2k` (Box and Muller 1958)."""
    first, second = u.chunk(2, -1)
    radius = torch.sqrt(-2 * torch.log1p(-first))  # 1 - u lies in (0, 1]
    angle = 2 * math.pi * second
    return torch.cat([radius * torch.cos(angle), radius * torch.sin(angle)], -1)
