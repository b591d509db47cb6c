"""The server of a study whose agents run in other processes."""

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dpfbo.checkpoint import ReleaseFile
from dpfbo.checks import SettingError
from dpfbo.formats.journal import Journal, StateError, broadcast_file
from dpfbo.privacy.accounting import finite_or_none
from dpfbo.privacy.ledger import Ledger, LedgerError
from dpfbo.privacy.mechanism_code import changed, code_digests
from dpfbo.protocol import wire
from dpfbo.study.study import Study

_SHOWN = 5  # most missing agents that an error names
_JOURNAL = "coordinator.jsonl"


class Coordinator:
    """The server of a study in its own process: it receives the agents' messages and returns broadcasts.

    Args:
        study: The study, the same for all agents.
        folder: The folder of the ledger, the state and the agents' secret messages. A round's messages are deleted
            after the round's release. A call's effect is on disk when the call returns. If the folder is None,
            everything stays in memory; a private study with rng `os` needs a folder.
        any_code: True to accept a folder of the same study that was begun with another version of the mechanism's code.
            Only for simulations (rng `seeded`).

    Guarantee:
        Each broadcast is post-processing of one noisy output of the mechanism. This output is charged to the ledger
        on disk before `release` returns the broadcast. `SubsampledGaussian` states the neighbouring relation, the
        event and the sensitivity. The list of the messages in a release is on disk before the noise is drawn. A
        process that is killed in `release` and started again returns the same bytes and charges them once.

    Raises:
        SettingError: The study has rng `os`, and `any_code` is True. Or a private study has rng `os`, and `folder` is
            None.
        StateError: The folder belongs to another study, or its files are damaged. Or the folder was begun with another
            version of the mechanism's code, and `any_code` is False.
        LedgerError: The ledger was modified, belongs to another study, or lacks a broadcast that was sent.

    Example:
        >>> import dpfbo
        >>> study = dpfbo.create_study(
        ...     {"x": dpfbo.Float(0, 1)}, n_agents=2, epsilon=8.0, delta=1e-3, rounds=3, n_init=2, rng="seeded"
        ... )
        >>> server, agents = dpfbo.Coordinator(study), [dpfbo.Agent(study, n) for n in range(2)]
        >>> for n, agent in enumerate(agents):
        ...     for _ in range(study.n_init):
        ...         x = agent.ask()
        ...         agent.tell(x, -x["x"])
        ...     server.receive(n, agent.message())
        >>> broadcast = server.release()  # noise is added and charged first
        >>> for agent in agents:
        ...     agent.receive(broadcast)
        >>> round(server.epsilon, 2), len(server.ledger.charges), [agent.round for agent in agents]
        (8.0, 1, [1, 1])
    """

    def __init__(self, study: Study, folder: str | os.PathLike[str] | None = None, any_code: bool = False) -> None:
        folder = None if folder is None else Path(folder).absolute()
        if folder is None and study.rng == "os" and study.algorithm.private:
            raise SettingError("folder", "must be given where releases are real (rng os): the ledger must not be lost")
        if any_code and study.rng == "os":
            raise SettingError("any_code", "must be False where releases are real (rng os)")
        self.study, self._size = study, study.agents.message_size
        self._journal = Journal(folder, _JOURNAL, {"event": "coordinator", "study": study.digest})
        try:
            self._take_over_events()
            check_same_code(self._journal, any_code)
            self.ledger = Ledger(None if folder is None else folder / "ledger.jsonl")
            self.ledger.check_covers(study.coverage())
            self._check_charged()
            self.ledger.bind(study.coverage())
        except BaseException:
            self._journal.close()
            raise
        self._server = study.server(self.ledger, None if folder is None else ReleaseFile(folder / "release.npz"))

    def _take_over_events(self) -> None:
        try:
            sent = [(e["round"], e["sigma"]) for e in self._events("sent")]
            self._sent = [t for t, _ in sent]
            self._closed = {e["round"]: e["agents"] for e in self._events("close")}
            self._arrived = {e["agent"] for e in self._events("arrived") if e["round"] == self.round}
            agents = [n for some in (*self._closed.values(), self._arrived) for n in some]
            sound = (
                self._sent == list(range(len(sent)))
                and all(type(n) is int and 0 <= n < self.study.n_agents for n in agents)
                and all(isinstance(sigma, float | int | None) for _, sigma in sent)
                and all(isinstance(e["digests"], dict) for e in self._events("code"))
            )
        except (KeyError, TypeError, ValueError, AttributeError):
            sound = False
        if not sound:
            raise StateError(f"{_JOURNAL} in {self._journal.folder} has invalid events: restore the file")

    def _check_charged(self) -> None:
        for event in self._events("sent"):
            t = event["round"]
            data = self._journal.need(broadcast_file(t))
            _, sent = wire.read_broadcast(data, self.study.digest, len(data) // 8)
            if sent is not None and event["sigma"] is not None and not self.ledger.holds(t, sent.values):
                raise LedgerError(
                    f"ledger {self.ledger.path} lacks the broadcast of round {t}, which was sent: restore the ledger"
                )

    @property
    def round(self) -> int:
        """The round in progress, which equals the number of broadcasts so far."""
        return len(self._sent)

    @property
    def received(self) -> list[int]:
        """The agents whose messages of this round have arrived."""
        return sorted(self._arrived)

    @property
    def missing(self) -> list[int]:
        """The agents whose messages of this round have not arrived."""
        return [agent for agent in range(self.study.n_agents) if agent not in self._arrived]

    @property
    def finished(self) -> bool:
        """True after the last planned broadcast."""
        return self._server is None or self.round >= self.study.broadcasts

    @property
    def epsilon(self) -> float | None:
        """Epsilon of all charges so far, by the study's accountant; None if it is not finite."""
        plan = self.study.plan
        charged = self.ledger.events()
        return finite_or_none(plan.epsilon(charged)) if charged else plan.epsilon_of_nothing

    def receive(self, agent: int, data: bytes) -> None:
        """Receive an agent's message of the round in progress. Repeating a message changes nothing.

        A message counts as a zero vector if one of its numbers is not finite or exceeds 1e100 in absolute value.

        Args:
            agent: The sender's number, known from the connection, not from the bytes.
            data: The message.

        Raises:
            WireError: The bytes are not a message of this study.
            StateError: The message is of another agent or round, or a different message has arrived already.
        """
        round, claimed, _ = wire.read_message(data, self.study.digest, self._size)
        if claimed != agent or not 0 <= agent < self.study.n_agents:
            raise StateError(
                f"the message is of agent {claimed}, and agent {agent!r} of 0..{self.study.n_agents - 1} sent it"
            )
        name = _message_file(round, agent)
        known = self._journal.kept(name)
        if round == self.round and round not in self._closed and not self.finished:
            if known is not None and known != data:
                raise StateError(f"agent {agent} has already sent a different message for round {round}")
            if agent not in self._arrived:
                self._journal.keep(name, data)
                self._journal.append({"event": "arrived", "round": round, "agent": agent})
                self._arrived.add(agent)
            return
        if known != data and agent not in self._closed.get(round, []):
            raise StateError(
                f"the message is of round {round}, and round {self.round} is in progress: it counts as lost"
            )

    def release(self, round: int | None = None, missing_ok: bool = False) -> bytes:
        """Return the broadcast of a round, after the ledger is charged for it.

        Args:
            round: The round in progress, or an earlier round to get the same bytes again. None means the round in
                progress, with one exception: as long as the server waits for the first message of a round t > 0, None
                means round t - 1, and `release` returns the last broadcast again.
            missing_ok: True to release without the messages that have not arrived. They count as zero vectors and
                cannot be added later.

        Raises:
            StateError: Messages of the round in progress are missing, and `missing_ok` is False. Or the round is in the
                future. Or the study plans no broadcast for this round.
        """
        waits = round is None and self._uses_messages and not self._arrived and self.round not in self._closed
        t = self.round - 1 if waits and self._sent else self.round if round is None else round
        if t < self.round and (known := self._journal.kept(broadcast_file(t))) is not None:
            return known
        if t != self.round or self.finished or self._server is None:
            raise StateError(
                f"round {t} cannot be released: {self.round} of {self.study.broadcasts} broadcasts are made"
            )
        missing = self.missing if t not in self._closed and self._uses_messages else []
        if missing and not missing_ok:
            n, shown = self.study.n_agents, ", ".join(map(str, missing[:_SHOWN])) + ", .." * (len(missing) > _SHOWN)
            raise StateError(
                f"{n - len(missing)} of {n} messages of round {t} have arrived, agents {shown} are missing: "
                "missing_ok releases without them, which is charged like any release and cannot be undone"
            )
        if t not in self._closed:
            self._journal.append({"event": "close", "round": t, "agents": self.received})
            self._closed[t] = self.received
        sent, record, _ = self._server.round(t, self._messages(t))
        data = wire.broadcast(self.study.digest, t, sent)
        self._journal.keep(broadcast_file(t), data)
        self._journal.append({"event": "sent", "round": t, "sigma": None if record is None else record.sigma})
        for agent in self._closed[t]:
            self._journal.forget(_message_file(t, agent))
        self._sent.append(t)
        self._arrived = set()
        return data

    def close(self) -> None:
        """Unlock the folder for other processes."""
        self._journal.close()

    @property
    def _uses_messages(self) -> bool:
        return self._server is not None and self._server.uses_messages

    def _messages(self, t: int) -> list[Tensor | None] | None:
        """Return the agents' vectors, with None for a lost message. Return None if the server uses no messages."""
        if not self._uses_messages:
            return None
        messages: list[Tensor | None] = [None] * self.study.n_agents
        for agent in self._closed[t]:
            data = self._journal.need(_message_file(t, agent))
            values = wire.read_message(data, self.study.digest, self._size)[2]
            messages[agent] = torch.where(values.abs() <= wire.LARGEST, values, torch.nan)
        if all(m is not None for m in messages):
            return torch.stack(messages)  # type: ignore[return-value, arg-type]
        return messages

    def _events(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self._journal.events if event["event"] == kind]


def _message_file(round: int, agent: int) -> str:
    return f"message-{round:05d}-{agent:07d}.bin"


def check_same_code(journal: Journal, any_code: bool = False) -> None:
    """Write the digests of the mechanism's code to a new journal, or compare them with those in an old one.

    Raises StateError if they differ, unless `any_code` is True.
    """
    now, noted = code_digests(), [event for event in journal.events if event["event"] == "code"]
    for event in noted:
        files = changed(event["digests"], now)
        if files and not any_code:
            raise StateError(
                f"{journal.folder} was begun with other code of the mechanism ({files}): finish the study with that "
                "version, or start a new one in another folder"
            )
    if now is not None and not noted:
        journal.append({"event": "code", "digests": now})
