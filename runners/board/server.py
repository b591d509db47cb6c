"""The board's server, by the standard library: it reads, answers GET alone, and listens on loopback unless told."""

import hashlib
import hmac
import ipaddress
import json
import secrets
import socket
from collections.abc import Callable
from functools import cached_property
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from runners.board import page
from runners.board.board_data import BoardData
from runners.board.content import MOST_DRAWN

_LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")


def is_loopback(host: str) -> bool:
    """True for an address that this machine alone can reach."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class BoardServer(ThreadingHTTPServer):
    """A server of one board. With private records its address holds a secret, since other users reach loopback, too."""

    daemon_threads = True

    def __init__(self, data: BoardData, host: str, port: int, every: float) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), BoardRequest)
        self.data, self.host, self.every = data, host, every
        self.secret = secrets.token_urlsafe(16) if data.private else ""

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        secret = f"?token={self.secret}" if self.secret else ""
        return f"http://{host}:{self.server_address[1]}/{secret}"

    def admits(self, host_header: str) -> bool:
        """True unless a page of another site asks: its name may have been pointed to loopback."""
        name = urlsplit(f"//{host_header}").hostname
        return not is_loopback(self.host) or name in (*_LOCAL_NAMES, self.host)

    @cached_property
    def plotly(self) -> bytes:
        return page.plotly_script().encode()


class BoardRequest(BaseHTTPRequestHandler):
    """One request to the board."""

    server: BoardServer
    server_version, sys_version = "dpfbo", ""
    protocol_version = "HTTP/1.1"
    timeout = 60

    def do_GET(self) -> None:
        try:
            self._answer()
        except ValueError:  # of an address or a host that cannot be read
            self._refuse(HTTPStatus.BAD_REQUEST, "this is no address of the board")

    def _answer(self) -> None:
        parts = urlsplit(self.path)
        asked = parse_qs(parts.query, max_num_fields=2 * MOST_DRAWN + 10)
        answers: dict[str, Callable[[], tuple[str, bytes] | None]] = {
            "/": self._page,
            "/board.css": lambda: ("text/css", page.style().encode()),
            "/board.js": lambda: ("text/javascript", page.board_script().encode()),
            "/plotly.js": lambda: ("text/javascript", self.server.plotly),
            "/content.json": lambda: _as_json(self._content(asked)),
            "/best.json": lambda: _as_json(self._best(asked)),
        }
        needs_secret = parts.path in ("/", "/content.json", "/best.json")
        if not self.server.admits(self.headers.get("Host", "")):
            self._refuse(HTTPStatus.FORBIDDEN, "this board answers to localhost alone")
        elif needs_secret and not hmac.compare_digest(
            asked.get("token", [""])[-1].encode(), self.server.secret.encode()
        ):
            self._refuse(HTTPStatus.FORBIDDEN, "this board shows private records: open the whole address it printed")
        elif (answer := answers.get(parts.path, lambda: None)()) is None:
            self._refuse(HTTPStatus.NOT_FOUND, "there is no such page on this board")
        else:
            self._send(*answer)

    def do_HEAD(self) -> None:
        self.do_GET()

    def _page(self) -> tuple[str, bytes]:
        settings = {"every": self.server.every, "token": self.server.secret}
        return "text/html", page.served_page(settings).encode()

    def _content(self, asked: dict[str, list[str]]) -> dict[str, Any]:
        drawn = asked["draw"][: MOST_DRAWN * 10] if "draw" in asked else [] if "none" in asked else None
        return self.server.data.content(drawn, asked.get("find", [""])[-1])

    def _best(self, asked: dict[str, list[str]]) -> dict[str, Any] | None:
        return self.server.data.best(asked.get("experiment", [""])[-1], asked.get("setting", [""])[-1])

    def _send(self, kind: str, content: bytes) -> None:
        """Send the content, or that it is what the page has already."""
        tag = f'"{hashlib.sha256(content).hexdigest()[:20]}"'
        known = self.headers.get("If-None-Match") == tag
        self.send_response(HTTPStatus.NOT_MODIFIED if known else HTTPStatus.OK)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Cache-Control", "no-cache" if kind != "application/json" else "no-store")
        self.send_header("ETag", tag)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("X-Frame-Options", "DENY")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        if not known:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if not known and self.command != "HEAD":
            self.wfile.write(content)

    def _refuse(self, status: HTTPStatus, sentence: str) -> None:
        content = sentence.encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except ConnectionError:  # the browser left
            self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged: a secret is in their address."""


def _as_json(content: dict[str, Any] | None) -> tuple[str, bytes] | None:
    return None if content is None else ("application/json", json.dumps(content, allow_nan=False).encode())
