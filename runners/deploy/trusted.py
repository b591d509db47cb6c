"""The protocol with a server that the sites trust: they send messages, and it sends noisy broadcasts."""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager

from dpfbo.checks import integer
from dpfbo.formats.journal import Journal, StateError
from dpfbo.protocol.agent import Agent
from dpfbo.protocol.coordinator import Coordinator
from dpfbo.protocol.wire import WireError
from dpfbo.study.study import Study

_MESSAGE, _BROADCAST = b"message ", b"broadcast "  # a request: one of these, round, newline, bytes of the broadcast
_NOT_READY, _RECEIVED = b"not ready", b"received "  # an answer: one of these, or the bytes of a message
_MOST_DIGITS = 6  # of a round's number


class TrustedSite:
    """A site's part: it sends the agent's message when the message is due, and acknowledges broadcasts.

    Args:
        opened: Returns a context manager that opens the agent's folder and yields the agent.
    """

    def __init__(self, opened: Callable[[], AbstractContextManager[Agent]]) -> None:
        self._opened = opened

    def respond(self, request: bytes) -> bytes:
        head, newline, rest = bytes(request).partition(b"\n")
        kind = next((kind for kind in (_MESSAGE, _BROADCAST) if head.startswith(kind)), None)
        if kind is None or not newline or (kind == _MESSAGE and rest):
            raise WireError(f"the request must ask for a message or carry a broadcast, got {head[:20]!r}")
        t = _round(head, kind)
        with self._opened() as agent:
            if kind == _BROADCAST:
                agent.receive(rest)
                return _RECEIVED + b"%d" % t
            if t > agent.round or (t == agent.round and not agent.message_due and agent.awaited != t):
                return _NOT_READY
            return agent.message(t)


class TrustedServer:
    """The server's part: it asks every site for its messages, and sends every site the broadcasts.

    A step is a round: each site first receives the broadcast of the round before, and then sends its message. In the
    last step, sites only receive the last broadcast.

    Args:
        study: A study whose algorithm sends messages.
        folder: The folder of the server's state.
        min_sites: The least number of messages with which `close_step` ends a round.

    Raises:
        SettingError: `min_sites` lies outside 1..N.
        StateError: As for `dpfbo.Coordinator`.
        LedgerError: As for `dpfbo.Coordinator`.
    """

    def __init__(self, study: Study, folder: str | os.PathLike[str], min_sites: int) -> None:
        integer("min_sites", min_sites, minimum=1, maximum=study.n_agents)
        self._study, self._min_sites = study, min_sites
        self._coordinator = Coordinator(study, folder)
        try:
            self._journal = Journal(folder, "deliveries.jsonl", {"event": "deliveries", "study": study.digest})
            events = self._journal.events[1:]
            self._ended = any(event["event"] == "ended" for event in events)
            self._delivered = {(event["round"], event["site"]) for event in events if event["event"] == "delivered"}
        except BaseException:
            self.close()
            raise
        self._release_if_complete()

    @property
    def finished(self) -> bool:
        return self._coordinator.finished and (self._ended or not self._lacking(self._coordinator.round - 1))

    def requests(self) -> dict[int, bytes]:
        if self.finished:
            return {}
        t = self._coordinator.round
        asked = (
            {} if self._coordinator.finished else dict.fromkeys(self._coordinator.missing, b"%s%d\n" % (_MESSAGE, t))
        )
        lacking = [n for n in self._lacking(t - 1) if n in asked or self._coordinator.finished]
        if lacking:
            broadcast = b"%s%d\n%s" % (_BROADCAST, t - 1, self._coordinator.release(t - 1))
            asked |= dict.fromkeys(lacking, broadcast)
        return asked

    def receive(self, site: int, data: bytes) -> None:
        if data == _NOT_READY:
            return
        if data.startswith(_RECEIVED):
            t = _round(data, _RECEIVED)
            if t >= self._coordinator.round:
                raise StateError(f"site {site} has received the broadcast of round {t}, which was not sent")
            if (t, site) not in self._delivered:
                self._journal.append({"event": "delivered", "round": t, "site": site})
                self._delivered.add((t, site))
            return
        self._coordinator.receive(site, data)
        self._release_if_complete()

    def close_step(self) -> None:
        if self._coordinator.finished:
            if not self.finished:
                self._journal.append({"event": "ended"})
                self._ended = True
            return
        arrived = len(self._coordinator.received)
        if arrived < self._min_sites:
            raise StateError(
                f"{arrived} of {self._study.n_agents} sites have sent their message of round "
                f"{self._coordinator.round}, and at least {self._min_sites} must: the server waits"
            )
        self._coordinator.release(self._coordinator.round, missing_ok=True)

    def close(self) -> None:
        """Unlock the server's folder for other processes."""
        self._coordinator.close()
        if hasattr(self, "_journal"):
            self._journal.close()

    def _lacking(self, t: int) -> list[int]:
        return [n for n in range(self._study.n_agents) if t >= 0 and (t, n) not in self._delivered]

    def _release_if_complete(self) -> None:
        if not self._coordinator.finished and not self._coordinator.missing:
            self._coordinator.release(self._coordinator.round)


def _round(head: bytes, kind: bytes) -> int:
    """Read the number of the round, which follows `kind` in `head`. Raises WireError if there is none."""
    digits = head.removeprefix(kind)
    if not digits.isdigit() or len(digits) > _MOST_DIGITS:
        raise WireError(f"{kind.decode().strip()} must be followed by the number of a round, got {digits[:20]!r}")
    return int(digits)
