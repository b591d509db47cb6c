"""The rounds of a run, federated or outsourced, and what is known of it so far."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from dpfbo.privacy.release import Diagnostics
from dpfbo.records import RoundRecord, ServerRecord


class Sent(Protocol):
    """Public numbers that a server or a curator sent."""

    @property
    def values(self) -> Tensor: ...


@dataclass(frozen=True)
class Round:
    """One round of a run. broadcast: what the server or the curator sent, None for nothing; server, diagnostics: its
    public record and its private numbers, None where nothing was released.

    seconds: by phase; of shards that work at the same time, the slowest one's.
    """

    agents: RoundRecord
    broadcast: Sent | None
    server: ServerRecord | None
    diagnostics: Diagnostics | None
    seconds: dict[str, float]


OnRound = Callable[[Round], None]


@dataclass
class Result:
    """What a run knows so far: every round, and where the seconds went. server, diagnostics: one of each a release."""

    rounds: list[RoundRecord] = field(default_factory=list)
    server: list[ServerRecord] = field(default_factory=list)
    diagnostics: list[Diagnostics] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    def add(self, done: Round) -> None:
        self.rounds.append(done.agents)
        if done.server is not None and done.diagnostics is not None:
            self.server.append(done.server)
            self.diagnostics.append(done.diagnostics)
        for phase, seconds in done.seconds.items():
            self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds
