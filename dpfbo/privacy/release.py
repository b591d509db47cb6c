"""One release of a server or a curator, and the private numbers that a simulation records beside it."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True)
class Release:
    """Released numbers and the law of their noise, all of them public.

    values: P x M from a server; from a curator in the shape of its transform. sigma: standard deviation of the noise
    in each number. sensitivity: L2 bound that sigma was derived from.
    """

    values: Tensor
    sigma: float
    sensitivity: float


@dataclass(frozen=True)
class Diagnostics:
    """Private numbers of one release, not covered by epsilon; they are recorded because this is a simulation.

    signal, noise: L2 norms of the sum and of the noise. n_chosen: |S_t|. n_clipped: chosen messages longer than the
    clip norm. n_rejected: chosen messages that were missing, of a wrong shape, or not finite, and counted as zero.
    n_dropped: messages, of all agents, that were lost on the way or came too late.
    """

    signal: float
    noise: float
    n_chosen: int
    n_clipped: int
    n_rejected: int
    n_dropped: int = 0


class KeptRelease(Protocol):
    """Durable storage of a release and its diagnostics, from before the charge until the round is over.

    A server that is killed in between sends the same bytes after a restart, although its noise cannot be drawn again.
    """

    def load(self, round: int) -> tuple[Release, Diagnostics] | None: ...

    def save(self, round: int, release: Release, diagnostics: Diagnostics) -> None: ...
