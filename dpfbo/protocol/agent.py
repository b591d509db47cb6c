"""An agent that asks what to evaluate next and is told the result, for objectives that no program can call."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from dpfbo import checks
from dpfbo.clock import PhaseClock
from dpfbo.federated.broadcast import AgentVectors, Broadcast, Points, RegionVectors, SharedPrior, averaged
from dpfbo.federated.controls import RandomServer, SobolServer
from dpfbo.federated.peer_exchange import PeerExchange
from dpfbo.federated.population.agents import Agents, AgentsState
from dpfbo.federated.prior_server import PriorServer
from dpfbo.federated.server import Server
from dpfbo.gp import batches
from dpfbo.protocol import wire
from dpfbo.protocol.journal import Journal, StateError
from dpfbo.space.domain import Grid
from dpfbo.space.parameters import Space
from dpfbo.study.study import Study

Configuration = dict[str, Any] | list[float]
_JOURNAL = "agent.jsonl"
_DAMAGED = (KeyError, IndexError, TypeError, ValueError, RuntimeError, AttributeError)  # by a line with other values
_SENT: dict[type | None, type] = {  # servers, and the class of their broadcasts
    Server: RegionVectors, PriorServer: SharedPrior, PeerExchange: AgentVectors, RandomServer: Points,
    SobolServer: Points,
}  # fmt: skip


@dataclass
class _Asked:
    """A point that was asked for. y: None until it is told; larger is better."""

    round: int
    u: list[float]
    configuration: Configuration
    y: float | None = None
    failed: bool = False

    @property
    def pending(self) -> bool:
        return self.y is None and not self.failed


class Agent:
    """One agent of a study, which asks what to evaluate and is told the result.

    Round 0 asks for the `n_init` points of the public design. Round t >= 1 asks for one point, or for more, which may
    be evaluated side by side. A round whose broadcast is planned ends with a message. With one point a round, told
    before the message, and each broadcast received before the next point is asked for, the points are those of the
    simulation (`dpfbo.run_study`) with the same study, to the bit.

    All that it holds is private. Its messages are not noised: they are for a server that the agents trust (the server's
    broadcasts are what epsilon covers).

    Args:
        study: The study, the same for all agents and the server.
        agent: The agent's number, 0..N-1.
        space: Named parameters; None for the study's. If it has none either, a configuration is a list of numbers in
            natural units.
        folder: Where every call is on disk when it returns, so that a new `Agent` on it goes on; None for memory.
        maximize: False if small values are better.

    Raises:
        SettingError: The number lies outside 0..N-1, or the space is another one.
        StateError: The folder is of another study or agent, or was damaged.

    Example:
        >>> import dpfbo
        >>> study = dpfbo.create_study(
        ...     {"depth": dpfbo.Integer(1, 12)}, n_agents=2, algorithm="dp_prior", epsilon=8.0, delta=1e-3, rounds=3,
        ...     n_init=2, rng="seeded",
        ... )
        >>> agent = dpfbo.Agent(study, 0)
        >>> for _ in range(study.n_init):
        ...     x = agent.ask()
        ...     agent.tell(x, -((x["depth"] - 4) ** 2))
        >>> agent.message_due
        True
        >>> data = agent.message()  # bytes for the server
        >>> agent.ask()["depth"] in range(1, 13)  # without a broadcast it goes on alone
        True
    """

    def __init__(
        self, study: Study, agent: int, space: Space | Mapping[str, Any] | None = None,
        folder: str | os.PathLike[str] | None = None,
        maximize: bool = True,
    ) -> None:  # fmt: skip
        checks.integer("agent", agent, minimum=0, maximum=study.n_agents - 1)
        checks.one_of("maximize", maximize, (True, False))
        self.study, self.agent = study, int(agent)
        given = space if isinstance(space, Space) or space is None else Space(space)
        self.space = study.space if given is None else given
        if self.space is not None and self.space != (study.space or self.space):
            raise checks.SettingError("space", "must be that of the study: the same parameters in the same order")
        if self.space is not None and self.space.domain != study.domain:
            raise checks.SettingError("space", "must have the domain of the study")
        self._sign = 1.0 if maximize else -1.0
        self._agents: Agents = study.agents
        self._ids = torch.full((batches.PRODUCTS,), self.agent, device="cpu")
        self._state: AgentsState = self._agents.initial_state(self._ids)
        self._asked: list[_Asked] = []
        self._told: list[tuple[list[float], float]] = []  # values as they came
        self._seen: list[tuple[list[float], float]] = []  # observations in the model, in their order, failed ones too
        self._valued = False  # True if one of them is a value
        self._fitted = 0  # observations at the last fit
        self._broadcast: Broadcast | None = None
        self._received, self._round, self._messages = -1, 0, set[int]()
        self._journal = Journal(folder, _JOURNAL)
        who = {"event": "agent", "study": study.digest, "agent": self.agent, "maximize": maximize}
        if not self._journal.events:
            self._journal.append(who)
        if self._journal.events[0] != who:
            self._journal.close()
            raise StateError(f"{folder} is of {self._journal.events[0]}, and this is {who}")
        for number, event in enumerate(self._journal.events[1:], start=2):
            try:
                self._apply(event)
            except (StateError, wire.WireError):
                self._journal.close()
                raise
            except _DAMAGED as error:
                self._journal.close()
                raise StateError(f"{_JOURNAL} line {number} in {folder} cannot be applied: restore the file") from error

    @property
    def round(self) -> int:
        """The round in progress; after the study's rounds 1..T `ask` goes on with the last broadcast."""
        return self._round

    @property
    def pending(self) -> list[Configuration]:
        """The points that were asked for and not told yet."""
        return [a.configuration for a in self._asked if a.pending]

    @property
    def message_due(self) -> bool:
        """True if the round in progress ends with a message that was not made yet, and can be made."""
        return self._sends(self._round) and self._round not in self._messages and self._ready(self._round)

    def _ready(self, t: int) -> bool:
        """True if what the message of round t tells of is known: the initial points, then a point of the round.

        Points of DP-FTS-DE that are pending beside it may be late; the public ones of a private prior may not.
        """
        if self._agents.prior is not None or t == 0:
            return len(self._seen) >= self.study.n_init and not self._waiting(t)
        return any(asked.round == t and not asked.pending for asked in self._asked)

    def best(self) -> tuple[Configuration, float] | None:
        """The best told point and its value; None if none was told."""
        if not self._told:
            return None
        u, y = max(self._told, key=lambda told: told[1])
        return self._configuration(u), self._sign * y

    def ask(self) -> Configuration:
        """The next point to evaluate.

        Raises:
            StateError: This round's message, or the value of an initial point, comes first.
        """
        t, earlier = self._next()
        if t == 0:
            u = self._agents.design.points(self._ids)[0, earlier].tolist()
        else:
            self._fit()
            streams_round = t + earlier * (self.study.rounds + 1)  # other random numbers for each point of a round
            over = t > self.study.broadcasts and not isinstance(self._broadcast, SharedPrior)
            broadcast = None if over else self._broadcast
            u = self._agents.query(self._state, broadcast, streams_round, PhaseClock()).u[0, 0].tolist()
        self._record({"event": "ask", "round": t, "u": u})
        return self._asked[-1].configuration

    def tell(self, x: Mapping[str, Any] | Sequence[float], y: float | None = None, failed: bool = False) -> None:
        """Take over the value of the objective at a point, or that its evaluation failed.

        Telling the same again changes nothing. A failed evaluation counts as the worst value so far.

        Args:
            x: A point that was asked for, in any order and however late; after the initial points any other one, too.
            y: The value.
            failed: True, without a value, for an evaluation that failed.

        Raises:
            StateError: Another value was told at this point, or the value is no finite number.
        """
        if failed == (y is not None):
            raise StateError(f"tell needs a value or failed=True, got y={checks.shown(y)} and failed={failed!r}")
        if y is not None and (isinstance(y, bool) or not isinstance(y, Real) or not abs(y) <= checks.LARGEST_VALUE):
            large = isinstance(y, Real) and abs(y) > checks.LARGEST_VALUE and abs(y) != float("inf")
            wanted = f"number up to {checks.LARGEST_VALUE:g}" if large else "finite number"
            raise StateError(
                f"y must be a {wanted}, got {checks.shown(y)}: tell(x, failed=True) is for failed evaluations"
            )
        value = None if y is None else self._sign * float(y)
        index = self._index(x)
        if index is not None and self._asked[index].pending:
            self._record({"event": "tell", "asked": index, "y": value})
        if index is not None:
            if self._asked[index].y != value:
                raise StateError(f"another value was told already at {x!r}")
            return
        if len(self._seen) < self.study.n_init:
            raise StateError(
                "the initial points are public and come first: tell the values of those that were asked for"
            )
        if self._agents.prior is not None and self._round < self._agents.prior.releases:
            raise StateError("before the last release of a private prior an agent has values at public points alone")
        self._record({"event": "found", "u": self._unit(x), "y": value})

    def message(self, round: int | None = None) -> bytes:
        """The message that ends the round in progress; again the same until the next round begins.

        Args:
            round: An earlier round, whose message was lost; None for the round in progress.

        Returns:
            Bytes for the server.

        Raises:
            StateError: No message is due, or values are missing.
        """
        t = self._round if round is None else round
        if t in self._messages:
            return self._journal.need(_message_file(t))
        if t != self._round or not self._sends(t):
            raise StateError(f"no message is due in round {t}")
        if not self._ready(t):
            known = sum(not a.pending for a in self._asked if a.round == t)
            wanted = self.study.n_init if t == 0 else 1
            raise StateError(f"the message of round {t} needs the values of {wanted - known} more points")
        values = self._agents.messages(self._state, t, PhaseClock())[0]
        data = wire.message(self.study.digest, t, self.agent, values)
        self._journal.keep(_message_file(t), data)
        self._record({"event": "message", "round": t})
        return data

    def receive(self, data: bytes) -> None:
        """Take over a broadcast. One that is known already, or older than the last, changes nothing.

        Args:
            data: The bytes that the server sent.

        Raises:
            WireError: The bytes are no broadcast of this study, or have other shapes or numbers that are not finite.
        """
        M, N, P = self._agents.message_size, self.study.n_agents, self._agents.regions.P
        t, sent = wire.read_broadcast(data, self.study.digest, 4 * M * M * max(P, 1) + 8 * M + N * max(M, 8))
        if t >= self.study.broadcasts:
            raise wire.WireError(f"the broadcast is of round {t}, and the study has {self.study.broadcasts} of them")
        if sent is not None:
            wire.check_fits(sent, M, N, P, self.study.domain.dimension)
            kind = _SENT.get(self.study.algorithm.server, type(sent))
            if not isinstance(sent, kind):
                raise wire.WireError(f"the study's server sends {kind.__name__}, got {type(sent).__name__}")
        if t > self._received:
            self._journal.keep(_broadcast_file(t), data)
            self._record({"event": "receive", "round": t})

    def close(self) -> None:
        """Let another process have the folder."""
        self._journal.close()

    def _record(self, event: dict[str, Any]) -> None:
        self._journal.append(event)
        self._apply(event)

    def _apply(self, event: dict[str, Any]) -> None:
        """The change of state by an event, of this process or, at the start, of earlier ones."""
        kind = event["event"]
        if kind == "ask":
            self._begin(event["round"])
            if event["round"]:
                self._fit()
            self._asked.append(_Asked(event["round"], event["u"], self._configuration(event["u"])))
        elif kind == "tell":
            asked = self._asked[event["asked"]]
            asked.y, asked.failed = event["y"], event["y"] is None
            self._tell(asked.u, asked.y)
            self._take(asked)
        elif kind == "found":
            self._tell(event["u"], event["y"])
            self._observe([(event["u"], event["y"])])
        elif kind == "message":
            self._messages.add(event["round"])
        elif kind == "receive":
            data = self._journal.need(_broadcast_file(event["round"]))
            _, sent = wire.read_broadcast(data, self.study.digest, len(data) // 8)
            self._broadcast = averaged(self._broadcast, sent, self.study.algorithm.momentum)
            self._received = event["round"]
            self._begin(event["round"] + 1)
        else:
            raise StateError(f"the journal has an unknown event {kind!r}: it is of a later version")

    def _fit(self) -> None:
        """Fit the agent's own GP if that is due."""
        if self._fitted != self._state.count:
            self._state = self._agents.fit_hyperparameters(self._state, PhaseClock())
            self._fitted = self._state.count

    def _tell(self, u: list[float], y: float | None) -> None:
        if y is not None:
            self._told.append((u, y))

    def _take(self, asked: _Asked) -> None:
        """Put a told point into the model; the initial points together, in the order of the design."""
        if asked.round > 0:
            self._observe([(asked.u, asked.y)])
            return
        initial = [a for a in self._asked if a.round == 0]
        if len(initial) == self.study.n_init and not any(a.pending for a in initial):
            self._observe([(a.u, a.y) for a in initial])

    def _observe(self, points: list[tuple[list[float], float | None]]) -> None:
        """Append observations to the state; failed ones (None) with the worst value so far, as `Shard` does."""
        new = [y for _, y in points if y is not None]
        worst = min(([y for _, y in self._seen] if self._valued else []) + new, default=0.0)
        if new and not self._valued:  # earlier failures stood at 0
            every = torch.ones(len(self._ids), dtype=torch.bool, device="cpu")
            self._state.history.replace_values(every, torch.full_like(every, worst, dtype=torch.float64))
            self._seen = [(u, worst) for u, _ in self._seen]
        self._valued = self._valued or bool(new)
        filled = [(u, worst if y is None else y) for u, y in points]
        if self._state.count + len(filled) > self._state.history.y.shape[1]:
            self._enlarge()
        self._append(filled)
        self._seen += filled

    def _append(self, points: Sequence[tuple[list[float], float]]) -> None:
        u = torch.tensor([[point for point, _ in points]] * len(self._ids), dtype=torch.float64, device="cpu")
        y = torch.tensor([[value for _, value in points]] * len(self._ids), dtype=torch.float64, device="cpu")
        self._state = self._agents.observe(self._state, u, y, PhaseClock())

    def _enlarge(self) -> None:
        """Make the buffers longer: more values were told than the study has rounds."""
        larger = replace(self._agents, rounds=2 * self._agents.rounds + 1)
        self._agents, hyper = larger, self._state.hyper
        self._state = larger.initial_state(self._ids)
        n_init = self.study.n_init
        self._append(self._seen[:n_init])
        for seen in self._seen[n_init:]:
            self._append([seen])
        self._state = replace(self._state, hyper=hyper)

    def _begin(self, round: int) -> None:
        self._round = max(self._round, round)

    def _next(self) -> tuple[int, int]:
        """The round of the next point, and the number of points asked for in it before."""
        t = self._round
        earlier = sum(a.round == t for a in self._asked)
        if t == 0 and earlier < self.study.n_init:
            return 0, earlier
        if len(self._seen) < self.study.n_init:
            raise StateError(f"{len(self.pending)} initial points have no value yet: tell them first")
        public = self._agents.prior is not None and t < self._agents.prior.releases
        if self.message_due and (t == 0 or (public and earlier)):
            raise StateError(f"round {t} ends with a message: call message() before the next point")
        if t == 0 or t in self._messages or (earlier and not self._sends(t) and not self._waiting(t)):
            return t + 1, 0
        return t, earlier

    def _waiting(self, t: int) -> bool:
        """True if no point of round t was told yet, or one is missing."""
        own = [a for a in self._asked if a.round == t]
        return not own or any(a.pending for a in own)

    def _sends(self, t: int) -> bool:
        """True if round t ends with a message."""
        return self.study.algorithm.sends and t < self.study.broadcasts

    def _index(self, x: Mapping[str, Any] | Sequence[float]) -> int | None:
        """The point that was asked for at x, the first one that waits; None if there is none."""
        given = self._configuration(self._unit(x))
        said = dict(x) if isinstance(x, Mapping) else list(x)  # an array's `==` is no truth value
        found = [i for i, a in enumerate(self._asked) if a.configuration in (given, said)]
        return next((i for i in found if self._asked[i].pending), found[-1] if found else None)

    def _configuration(self, u: list[float]) -> Configuration:
        x = self.study.domain.to_natural(torch.tensor(u, dtype=torch.float64, device="cpu"))
        return x.tolist() if self.space is None else self.space.configuration(x)

    def _unit(self, x: Mapping[str, Any] | Sequence[float]) -> list[float]:
        """The unit-cube point of a configuration. Raises SettingError for one outside the space."""
        if isinstance(x, Mapping):
            if self.space is None:
                raise StateError(f"x must be a list of {self.study.domain.dimension} numbers, got {x!r}")
            natural = self.space.natural(x)
        else:
            try:
                natural = torch.tensor(x, dtype=torch.float64, device="cpu")
            except (TypeError, ValueError, OverflowError, RuntimeError) as error:
                wanted = f"a list of {self.study.domain.dimension} numbers" if self.space is None else "a configuration"
                raise StateError(f"x must be {wanted}, got {checks.shown(x)}") from error
        if natural.shape != (self.study.domain.dimension,):
            raise StateError(f"x must have {self.study.domain.dimension} numbers, got {x!r}")
        return self._in_cube(natural).tolist()

    def _in_cube(self, natural: Tensor) -> Tensor:
        domain = self.study.domain
        u = domain.to_unit(natural)
        if not ((u >= 0) & (u <= 1)).all():
            raise StateError(f"x must lie in the study's space, got {natural.tolist()}")
        if isinstance(domain, Grid) and not (domain.unit_points == u).all(1).any():
            raise StateError(f"x must be a point of the study's grid, got {natural.tolist()}")
        return u


def _message_file(round: int) -> str:
    return f"message-{round:05d}.bin"


def _broadcast_file(round: int) -> str:
    return f"broadcast-{round:05d}.bin"
