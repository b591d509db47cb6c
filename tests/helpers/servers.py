"""A local web server that drops connections, ignores ranges and sends wrong bytes."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from runners.fetch import download

CONTENT = random.Random(0).randbytes(400_000)
ATTEMPTS = 3


def hasten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let downloads give up soon."""
    for name, value in {"ATTEMPTS": ATTEMPTS, "BACKOFF_SECONDS": 0.001, "TIMEOUT_SECONDS": 2.0}.items():
        monkeypatch.setattr(download, name, value)


@dataclass
class Behaviour:
    """The answers of the server, and a record of its requests."""

    content: bytes = CONTENT
    drop_after: list[int] = field(default_factory=list)  # body bytes of the first answers; later answers are whole
    statuses: list[int] = field(default_factory=list)  # statuses of the first answers, then success
    ranges: bool = True
    range_shift: int = 0  # bytes between the range asked for and the range sent
    declare_length: bool = True
    asked: list[str | None] = field(default_factory=list)  # Range header of every request
    sent_bytes: int = 0


class _Handler(BaseHTTPRequestHandler):
    behaviour: Behaviour

    def do_GET(self) -> None:
        behaviour, asked = self.behaviour, self.headers.get("Range")
        behaviour.asked.append(asked)
        if behaviour.statuses:
            return self._empty(behaviour.statuses.pop(0))
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and behaviour.ranges else None
        if start is not None and start >= len(behaviour.content):
            return self._empty(416)
        self._send(start)

    def _empty(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _send(self, start: int | None) -> None:
        behaviour = self.behaviour
        first = (start or 0) + (behaviour.range_shift if start is not None else 0)
        body = behaviour.content[first:]
        self.send_response(200 if start is None else 206)
        if start is not None:
            last = len(behaviour.content) - 1
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(behaviour.content)}")
        if behaviour.declare_length:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        body = body[: behaviour.drop_after.pop(0)] if behaviour.drop_after else body
        behaviour.sent_bytes += len(body)
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Keep the test output quiet."""


@contextmanager
def serving(behaviour: Behaviour) -> Iterator[str]:
    """Run a local server with this behaviour; yields its address."""
    handler = type("Handler", (_Handler,), {"behaviour": behaviour})
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{httpd.server_address[1]}"
    httpd.shutdown()
    thread.join()
    httpd.server_close()
