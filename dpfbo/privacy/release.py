"""One release of a server or a curator, and the private numbers that a simulation records beside it."""

from collections.abc import Sequence
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
    """Private numbers of one release, not covered by epsilon.

    The norms of sum and noise together with the public broadcast tell the sum. So servers and curators hand them out
    in a simulation only, never beside noise of the operating system.

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
    """Durable storage of a release, from before the charge until the round is over: a restart sends the same bytes.

    order: of a curator's rows, which is secret; None for a server.
    """

    def load(self, round: int) -> tuple[Release, Sequence[int] | None] | None: ...

    def save(self, round: int, release: Release, order: Sequence[int] | None = None) -> None: ...
