"""The board's HTTP server: read-only, for GET requests only, on loopback by default."""

import hmac
import ipaddress
import json
import secrets
import socket
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from runners.board import page
from runners.board.board_data import BoardData
from runners.board.content import MOST_DRAWN

_LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
_HEADERS = {
    "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
}  # fmt: skip


def is_loopback(host: str) -> bool:
    """Return True for an address that only this machine can reach."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class BoardServer(ThreadingHTTPServer):
    """A server of one board. If the board shows private records, its address contains a secret."""

    daemon_threads = True

    def __init__(self, data: BoardData, host: str, port: int, every: float) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), BoardRequest)
        self.data, self.host, self.every = data, host, every
        self.secret = secrets.token_urlsafe(16) if data.private else ""

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.server_address[1]}/{f'?token={self.secret}' if self.secret else ''}"

    def admits(self, host_header: str) -> bool:
        """Return False if the server is on loopback, but the request names another host (DNS rebinding)."""
        name = urlsplit(f"//{host_header}").hostname
        return not is_loopback(self.host) or name in (*_LOCAL_NAMES, self.host)


class BoardRequest(BaseHTTPRequestHandler):
    """Handler of one request to the board."""

    server: BoardServer
    server_version, sys_version = "dpfbo", ""
    protocol_version = "HTTP/1.1"
    timeout = 60

    def do_GET(self) -> None:
        try:
            self._send(*self._answer())
        except ValueError:  # the address or the host cannot be parsed
            self._send(HTTPStatus.BAD_REQUEST, "text/plain", "this is not an address of the board")

    def _answer(self) -> tuple[HTTPStatus, str, str]:
        parts, server = urlsplit(self.path), self.server
        asked = parse_qs(parts.query, max_num_fields=2 * MOST_DRAWN + 10)
        last = {key: values[-1] for key, values in asked.items()}
        if not server.admits(self.headers.get("Host", "")):
            return HTTPStatus.FORBIDDEN, "text/plain", "this board answers requests to localhost only"
        static: dict[str, tuple[str, Callable[[], str]]] = {
            "/board.css": ("text/css", page.style),
            "/board.js": ("text/javascript", page.board_script),
            "/plotly.js": ("text/javascript", page.plotly_script),
        }
        if parts.path in static:
            kind, read = static[parts.path]
            return HTTPStatus.OK, kind, read()
        if not hmac.compare_digest(last.get("token", "").encode(), server.secret.encode()):
            said = "this board shows private records: open the whole address it printed"
            return HTTPStatus.FORBIDDEN, "text/plain", said
        found: dict[str, Any] | None = None
        if parts.path == "/":
            return HTTPStatus.OK, "text/html", page.served_page({"every": server.every, "token": server.secret})
        if parts.path == "/content.json":
            found = server.data.content(asked.get("draw", [] if "none" in asked else None), last.get("find", ""))
        elif parts.path == "/best.json":
            found = server.data.best(last.get("experiment", ""), last.get("setting", ""))
        if found is None:
            return HTTPStatus.NOT_FOUND, "text/plain", "there is no such page on this board"
        return HTTPStatus.OK, "application/json", json.dumps(found, allow_nan=False)

    def _send(self, status: HTTPStatus, kind: str, text: str) -> None:
        content = text.encode()
        self.send_response(status)
        headers = {"Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(content)), **_HEADERS}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except ConnectionError:  # the browser closed the connection
            self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        """Do nothing: requests are not logged, since their address may hold a secret."""
