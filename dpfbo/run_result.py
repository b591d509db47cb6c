"""One round of a run, and the result that collects all rounds."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from dpfbo.privacy.release import Diagnostics
from dpfbo.records import RoundRecord, ServerRecord
from dpfbo.round_log import RoundLog


class Sent(Protocol):
    """The public numbers that a server or a curator sent."""

    @property
    def values(self) -> Tensor: ...


@dataclass(frozen=True)
class Round:
    """One round of a run, as `on_round` receives it.

    Args:
        agents: All queries of the round.
        broadcast: The public numbers that the server or the curator sent; None if nothing was sent.
        server: The public record of the release; None if there was none.
        diagnostics: Secret numbers about the release in a simulation; else None.
        seconds: Seconds by phase. If the agents are in shards, each phase has the slowest shard's seconds.

    Example:
        >>> import dpfbo
        >>> def show(done: dpfbo.Round) -> None:
        ...     print(done.agents.round, done.server is not None)
        >>> result = dpfbo.optimize(
        ...     lambda agent, x: -x["x"], {"x": dpfbo.Float(0, 1)}, n_agents=4, delta=1e-3, rounds=2, on_round=show
        ... )
        0 True
        1 False
        2 False
    """

    agents: RoundRecord
    broadcast: Sent | None
    server: ServerRecord | None
    diagnostics: Diagnostics | None
    seconds: dict[str, float]


OnRound = Callable[[Round], None]


@dataclass
class Result:
    """The finished rounds of a run.

    Attributes:
        rounds: The queries of each round.
        server: The public record of each release.
        diagnostics: Secret numbers about each release; empty if the noise is not seeded.
        seconds: Seconds by phase, added up over the rounds.
        observed: The queries of the next round if they are evaluated already; else None.
    """

    rounds: RoundLog = field(default_factory=RoundLog)
    server: list[ServerRecord] = field(default_factory=list)
    diagnostics: list[Diagnostics] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    observed: RoundRecord | None = None

    def add(self, done: Round) -> None:
        self.rounds.append(done.agents)
        if done.server is not None:
            self.server.append(done.server)
        if done.diagnostics is not None:
            self.diagnostics.append(done.diagnostics)
        for phase, seconds in done.seconds.items():
            self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds
