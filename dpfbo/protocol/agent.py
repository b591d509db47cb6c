"""An agent with an ask-and-tell interface."""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, overload

import torch

from dpfbo import checks
from dpfbo.federated.broadcast import AgentVectors, Broadcast, Points, RegionVectors, SharedPrior, averaged
from dpfbo.federated.controls import RandomServer, SobolServer
from dpfbo.federated.peer_exchange import PeerExchange
from dpfbo.federated.population.shard import Block
from dpfbo.federated.prior_server import PriorServer
from dpfbo.federated.server import Server
from dpfbo.formats.journal import Journal, StateError, broadcast_file
from dpfbo.protocol import wire
from dpfbo.space.domain import Grid
from dpfbo.study.study import Study

Configuration = dict[str, Any] | list[float]
_DAMAGED = (KeyError, IndexError, TypeError, ValueError, RuntimeError, AttributeError)  # raised by invalid events
_SENT: dict[type | None, type] = {  # the class of the broadcasts of each server
    Server: RegionVectors, PriorServer: SharedPrior, PeerExchange: AgentVectors, RandomServer: Points,
    SobolServer: Points,
}  # fmt: skip


@dataclass
class _Asked:
    round: int
    u: list[float]
    configuration: Configuration
    y: float | None = None
    failed: bool = False

    @property
    def pending(self) -> bool:
        return self.y is None and not self.failed


class Agent:
    """One agent of a study: `ask` returns a configuration to evaluate, `tell` takes its value.

    Round 0 has `n_init` initial points, which do not depend on data. A later round can have several points, which can
    be evaluated in parallel. If `message_due` is True, a call of `message` ends the round.

    The points equal those of `dpfbo.run_study` bit for bit under three conditions: each round t >= 1 has one point,
    `receive` gets each broadcast before the next `ask`, and `tell` gets only points that `ask` returned.

    With expected improvement, a pending point counts as if it had returned the mean of the observed values (constant
    liar, Ginsbourger, Le Riche, Carraro 2010).

    Keep state and messages secret: messages carry no noise, and are only for a server that the agents trust. Epsilon
    covers only the broadcasts.

    Args:
        study: The study, the same for all agents and the server. If it names no parameters, a configuration is a list
            of numbers in natural units.
        agent: The agent's number, 0..N-1.
        folder: The folder of the state, from which a new `Agent` can continue; None to keep the state in memory. A
            call's effect is on disk when the call returns.
        maximize: False if small values are better.

    Raises:
        SettingError: The number lies outside 0..N-1.
        StateError: The folder belongs to another study or agent, or its files are damaged.

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
        >>> agent.ask()["depth"] in range(1, 13)  # without a broadcast, it uses only its own observations
        True
    """

    def __init__(
        self, study: Study, agent: int, folder: str | os.PathLike[str] | None = None, maximize: bool = True
    ) -> None:
        checks.integer("agent", agent, minimum=0, maximum=study.n_agents - 1)
        checks.one_of("maximize", maximize, (True, False))
        self.study, self.agent, self.maximize = study, int(agent), bool(maximize)
        self._sign = 1.0 if maximize else -1.0
        self._model = Block(study.agents, torch.tensor([self.agent], device="cpu"))
        self._fitted = 0  # the number of observations at the last fit
        self._asked: list[_Asked] = []
        self._told: list[tuple[Configuration, float]] = []
        self._found: dict[tuple[float, ...], float | None] = {}  # values at points that `ask` did not return
        self._held: list[tuple[list[float], float | None]] = []  # such values, held until the message of round 0
        self._broadcast: Broadcast | None = None
        self._received, self._round, self._messages = -1, 0, set[int]()
        who = {"event": "agent", "study": study.digest, "agent": self.agent, "maximize": maximize}
        self._journal = Journal(folder, "agent.jsonl", who)
        for number, event in enumerate(self._journal.events[1:], start=2):
            try:
                self._apply(event)
            except (StateError, wire.WireError):
                self._journal.close()
                raise
            except _DAMAGED as error:
                self._journal.close()
                raise StateError(
                    f"agent.jsonl line {number} in {folder} cannot be applied: restore the file"
                ) from error

    @property
    def round(self) -> int:
        """The round in progress."""
        return self._round

    @property
    def asked(self) -> int:
        """The number of configurations that `ask` has returned."""
        return len(self._asked)

    @property
    def pending(self) -> dict[int, Configuration]:
        """The configurations that `ask` returned and `tell` has not received, numbered in the order of `ask`."""
        return {number: a.configuration for number, a in enumerate(self._asked) if a.pending}

    @property
    def message_due(self) -> bool:
        """True if the message of the round in progress can be made and was not made yet."""
        return self._sends(self._round) and self._round not in self._messages and self._ready(self._round)

    @property
    def awaited(self) -> int | None:
        """The round of the agent's last message, while the agent waits for a broadcast; otherwise None.

        The wait ends when the agent receives the broadcast of this round or of a later round.
        """
        last = max(self._messages, default=-1)
        return last if last > self._received else None

    def best(self) -> tuple[Configuration, float] | None:
        """Return the configuration with the best value so far, and this value; None without any value."""
        if not self._told:
            return None
        x, y = max(self._told, key=lambda told: told[1])
        return x, self._sign * y

    @overload
    def ask(self, n: None = None) -> Configuration: ...

    @overload
    def ask(self, n: int) -> list[Configuration]: ...

    def ask(self, n: int | None = None) -> Configuration | list[Configuration]:
        """Return the next configuration to evaluate, or a list of the next n.

        Args:
            n: The length of the list, for evaluation in parallel. None returns one configuration instead of a list.

        Raises:
            StateError: `ask` has not returned all initial points yet, and fewer than n of them are left. Or `ask` has
                returned all initial points, and some of them have no value yet. Or the message of round 0 is due.
        """
        if n is None:
            return self._ask()
        checks.integer("n", n, minimum=1, maximum=checks.MOST_INITIAL)
        left = self.study.n_init - len(self._asked_in(0))
        if 0 < left < n:
            raise StateError(f"the initial points come first, and {left} of them are left: ask({left})")
        return [self._ask() for _ in range(n)]

    def _ask(self) -> Configuration:
        t, earlier = self._next()
        if t == 0:
            u = self.study.agents.design.points(self._model.ids)[0, earlier].tolist()
        else:
            self._fit()
            streams_round = t + earlier * (self.study.rounds + 1)  # each point of a round gets its own random numbers
            over = t > self.study.broadcasts and not isinstance(self._broadcast, SharedPrior)
            model = self._model.believing([a.u for a in self._asked if a.pending])
            u = model.query(streams_round, None if over else self._broadcast).u[0, 0].tolist()
        self._record({"event": "ask", "round": t, "u": u})
        return self._asked[-1].configuration

    def tell(self, x: int | Mapping[str, Any] | Sequence[float], y: float | None = None, failed: bool = False) -> None:
        """Record the value of the objective at a configuration, or that its evaluation failed.

        A repeated call changes nothing. A failed evaluation counts as the worst value so far.

        Configurations that `ask` did not return, such as those of an earlier study, are accepted too. Their values
        reach the agent's model once all initial points have values and the message of round 0, if any, is made.

        Args:
            x: A configuration, or its number in `pending`.
            y: The value; None if `failed` is True.
            failed: True if the evaluation failed.

        Raises:
            StateError: y is not a number from -1e100 to 1e100, or x already has another value.
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
        index = self._numbered(x) if isinstance(x, int) else self._index(x)
        if index is not None and self._asked[index].pending:
            self._record({"event": "tell", "asked": index, "y": value})
        if index is not None:
            if self._asked[index].y != value:
                raise StateError(f"another value was told already for {x!r}")
            return
        assert not isinstance(x, int)
        natural, u = self._point(x)
        if tuple(natural) in self._found:
            if self._found[tuple(natural)] != value:
                raise StateError(f"another value was told already for {x!r}")
            return
        self._record({"event": "found", "x": natural, "u": u, "y": value})

    def message(self, round: int | None = None) -> bytes:
        """Make the message that ends the round in progress, or return it again.

        Args:
            round: An earlier round whose message was lost; None for the round in progress.

        Raises:
            StateError: No message is due, values are missing, or the study has no trusted server.
        """
        if self.study.trust == "nobody":
            raise StateError(
                "messages of a study without a trusted server must be masked: dpfbo.secure.SecureSite sends them"
            )
        return self.unmasked_message(round)

    def unmasked_message(self, round: int | None = None) -> bytes:
        """Return the message for a `dpfbo.secure.SecureSite` to mask; it must not leave this process."""
        t = self._round if round is None else round
        if t in self._messages:
            return self._journal.need(_message_file(t))
        if t != self._round or not self._sends(t):
            raise StateError(f"no message is due in round {t}")
        if not self._ready(t):
            wanted = (self.study.n_init if t == 0 else 1) - sum(not a.pending for a in self._asked_in(t))
            raise StateError(f"the message of round {t} needs the values of {wanted} more points")
        data = wire.message(self.study.digest, t, self.agent, self._model.messages(t)[0])
        self._journal.keep(_message_file(t), data)
        self._record({"event": "message", "round": t})
        return data

    def receive(self, data: bytes) -> None:
        """Receive a broadcast for later calls of `ask`. A broadcast not newer than the last one changes nothing.

        Args:
            data: The bytes from the server.

        Raises:
            WireError: The bytes are not a valid broadcast of this study.
        """
        M, N, P = self.study.agents.message_size, self.study.n_agents, self.study.algorithm.P
        t, sent = wire.read_broadcast(data, self.study.digest, 4 * M * M * P + 8 * M + N * max(M, 8))
        if t >= self.study.broadcasts:
            raise wire.WireError(f"the broadcast is of round {t}, and the study has {self.study.broadcasts} of them")
        if sent is not None:
            gp = self.study.algorithm.averaged_gp
            L = 0 if gp is None else len(gp.lengthscales)
            wire.check_fits(sent, M, N, P, self.study.domain.dimension, L)
            kind = _SENT.get(self.study.algorithm.server, type(sent))
            if not isinstance(sent, kind):
                raise wire.WireError(f"the study's server sends {kind.__name__}, got {type(sent).__name__}")
        if t > self._received:
            self._journal.keep(broadcast_file(t), data)
            self._record({"event": "receive", "round": t})

    def close(self) -> None:
        """Unlock the folder for other processes."""
        self._journal.close()

    def _record(self, event: dict[str, Any]) -> None:
        self._journal.append(event)
        self._apply(event)

    def _apply(self, event: dict[str, Any]) -> None:
        kind = event["event"]
        if kind == "ask":
            self._round = max(self._round, event["round"])
            if event["round"]:
                self._fit()
            self._asked.append(_Asked(event["round"], event["u"], self._configuration(event["u"])))
        elif kind == "tell":
            asked = self._asked[event["asked"]]
            asked.y, asked.failed = event["y"], event["y"] is None
            initial = self._asked_in(0)
            if asked.round > 0:
                self._observe([asked.u], [asked.y])
            elif len(initial) == self.study.n_init and not any(a.pending for a in initial):
                self._observe([a.u for a in initial], [a.y for a in initial])  # together, in the order of the design
            if asked.y is not None:
                self._told.append((asked.configuration, asked.y))
        elif kind == "found":
            self._found[tuple(event["x"])] = event["y"]
            self._held.append((event["u"], event["y"]))
            if event["y"] is not None:
                self._told.append((self._named(event["x"]), event["y"]))
        elif kind == "message":
            self._messages.add(event["round"])
        elif kind == "receive":
            data = self._journal.need(broadcast_file(event["round"]))
            _, sent = wire.read_broadcast(data, self.study.digest, len(data) // 8)
            self._broadcast = averaged(self._broadcast, sent, self.study.algorithm.momentum)
            self._received = event["round"]
            self._round = max(self._round, event["round"] + 1)
        else:
            raise StateError(f"the journal has an unknown event {kind!r}: was it written by a later version?")
        first = 0 in self._messages or self._round > 0 or not self._sends(0)
        if self._model.state.count >= self.study.n_init and first:
            for u, y in self._held:
                self._observe([u], [y])
            self._held.clear()

    def _fit(self) -> None:
        if self._fitted != self._model.state.count:
            self._model.fit()
            self._fitted = self._model.state.count

    def _observe(self, u: Sequence[list[float]], y: Sequence[float | None]) -> None:
        values = [math.nan if value is None else value for value in y]
        self._model.observe(*(torch.tensor([x], dtype=torch.float64, device="cpu") for x in (u, values)))

    def _next(self) -> tuple[int, int]:
        """Return the next point's round, and the number of earlier points in this round."""
        t, initial = self._round, self._asked_in(0)
        if len(initial) < self.study.n_init:
            return 0, len(initial)
        if self._model.state.count < self.study.n_init:
            raise StateError(f"{len(self.pending)} initial points have no value yet: tell their values first")
        if t == 0 and self.message_due:
            raise StateError("round 0 ends with a message: call message() before the next point")
        own = self._asked_in(t)
        told = bool(own) and not any(a.pending for a in own)
        if t == 0 or t in self._messages or (told and not self._sends(t)):
            return t + 1, 0
        return t, len(own)

    def _asked_in(self, t: int) -> list[_Asked]:
        return [a for a in self._asked if a.round == t]

    def _ready(self, t: int) -> bool:
        if t == 0:
            return self._model.state.count >= self.study.n_init
        return any(not a.pending for a in self._asked_in(t))

    def _sends(self, t: int) -> bool:
        return self.study.algorithm.sends and t < self.study.broadcasts

    def _numbered(self, number: int) -> int:
        if not isinstance(number, bool) and 0 <= number < len(self._asked):
            return number
        raise StateError(f"x must be a configuration or the number of one that `ask` returned, got {number!r}")

    def _index(self, x: Mapping[str, Any] | Sequence[float]) -> int | None:
        given = self._configuration(self._point(x)[1])
        said = dict(x) if isinstance(x, Mapping) else list(x)  # a list, because `==` of arrays gives no single bool
        found = [i for i, a in enumerate(self._asked) if a.configuration in (given, said)]
        return next((i for i in found if self._asked[i].pending), found[-1] if found else None)

    def _configuration(self, u: list[float]) -> Configuration:
        return self._named(self.study.domain.to_natural(torch.tensor(u, dtype=torch.float64, device="cpu")).tolist())

    def _named(self, natural: list[float]) -> Configuration:
        return natural if self.study.space is None else self.study.space.configuration(natural)

    def _point(self, x: Mapping[str, Any] | Sequence[float]) -> tuple[list[float], list[float]]:
        """Return x in natural units and in the unit cube. Raises SettingError or StateError for an invalid x."""
        space, domain = self.study.space, self.study.domain
        wanted = "a configuration" if space is not None else f"a list of {domain.dimension} numbers"
        try:
            if isinstance(x, Mapping) and space is not None:
                natural = space.natural(x)
            else:
                natural = torch.tensor(x, dtype=torch.float64, device="cpu")
        except checks.SettingError:
            raise
        except (TypeError, ValueError, OverflowError, RuntimeError) as error:
            raise StateError(f"x must be {wanted}, got {checks.shown(x)}") from error
        if natural.shape != (domain.dimension,):
            raise StateError(f"x must have {domain.dimension} numbers, got {x!r}")
        u = domain.to_unit(natural)
        if not ((u >= 0) & (u <= 1)).all():
            raise StateError(f"x must lie in the study's space, got {natural.tolist()}")
        if isinstance(domain, Grid) and not (domain.unit_points == u).all(1).any():
            raise StateError(f"x must be a point of the study's grid, got {natural.tolist()}")
        return natural.tolist(), u.tolist()


def _message_file(round: int) -> str:
    return f"message-{round:05d}.bin"
