"""The exchange of requests and answers between a server party and its sites."""

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from dpfbo.formats.journal import StateError
from dpfbo.protocol.wire import WireError
from runners.deploy.parties import ServerParty

logger = logging.getLogger(__name__)


class Post(Protocol):
    """A transport to sites that are identified by their keys."""

    def connected(self) -> set[int]:
        """Return the numbers of the sites that can be reached now."""
        ...

    def send(self, site: int, data: bytes) -> str:
        """Send a request's bytes to a site; return the request's name."""
        ...

    def collect(self, names: Iterable[str]) -> list[tuple[str, int, bytes | None]]:
        """Return the new answers to the requests with these names.

        Each answer has the request's name, the sender's number, and the bytes (None after a failure). The sender is
        identified by its key.
        """
        ...


@dataclass(frozen=True)
class Pace:
    """The times after which the server repeats a request or ends a step of the protocol.

    Args:
        again: Seconds before a site that was not ready is asked again.
        lost: Seconds after which a request without an answer is sent again.
        step_timeout: Seconds without progress after which a step ends without the missing sites; None to wait for all.
    """

    again: float = 5.0
    lost: float = 60.0
    step_timeout: float | None = None


@dataclass
class _Request:
    """The last request to a site. at: the time of the answer if `answered`, else of the request."""

    data: bytes
    at: float
    answered: bool = False


class Exchange:
    """The link that carries the server's requests to the sites, and the sites' answers back to the server."""

    def __init__(
        self, server: ServerParty, post: Post, pace: Pace, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._server, self._post, self._pace, self._clock = server, post, pace, clock
        self._asked: dict[int, _Request] = {}
        self._open: dict[str, float] = {}  # the time at which each open request was sent, by name
        self._awaited: dict[int, bytes] = {}
        self._since = clock()
        self._connected: set[int] = set()

    def turn(self) -> bool:
        """Send all due requests, and receive the answers that have arrived. Returns True if the server has finished."""
        now = self._clock()
        requests = self._requests(now)
        self._connected = self._post.connected()
        for site in sorted(requests.keys() & self._connected):
            if self._may_ask(site, requests[site], now):
                self._open[self._post.send(site, requests[site])] = now
                self._asked[site] = _Request(requests[site], now)
        for name, site, data in self._post.collect(list(self._open)):
            self._open.pop(name, None)
            self._take(site, data)
        self._open = {name: at for name, at in self._open.items() if now - at < 2 * self._pace.lost}
        missing = sorted(self._requests(now))
        if missing and self._pace.step_timeout is not None and now - self._since > self._pace.step_timeout:
            self._since = now
            self._close_step(missing)
            self._requests(now)
        return self._server.finished

    def state(self) -> dict[str, Any]:
        """Return two lists of site numbers: `awaited` (without an answer in the current step) and `connected`."""
        return {"awaited": sorted(self._awaited), "connected": sorted(self._connected)}

    def _requests(self, now: float) -> dict[int, bytes]:
        """Return the server's request for each site. If any changed since the last call, restart the step's timeout."""
        if (requests := self._server.requests()) != self._awaited:
            self._awaited, self._since = requests, now
        return requests

    def _may_ask(self, site: int, data: bytes, now: float) -> bool:
        last = self._asked.get(site)
        if last is None or last.data != data:
            return True
        return now - last.at >= (self._pace.again if last.answered else self._pace.lost)

    def _take(self, site: int, data: bytes | None) -> None:
        if site in self._asked:
            self._asked[site].answered, self._asked[site].at = True, self._clock()
        if data is None:
            logger.warning("site %d could not answer: its own output says why", site)
            return
        try:
            self._server.receive(site, data)
        except (WireError, StateError) as error:
            logger.warning("an answer of site %d is refused: %s", site, error)

    def _close_step(self, missing: list[int]) -> None:
        try:
            self._server.close_step()
            logger.warning("the step ends without the sites %s", ", ".join(map(str, missing)))
        except StateError as error:
            logger.warning("%s", error)
