"""A SuperLink that exposes only its Fleet API to the network. Written for flwr 1.42.0.

Flower's own `flower-superlink` also serves its Control and Runtime APIs at the public port. Without Flower's enterprise
edition, anybody who reaches that port may take the messages of sites, or submit an app that the SuperLink executes.
Here, both APIs are served only at a port of the loopback interface.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dpfbo.formats.bounded import read_plain
from dpfbo.formats.files import make_folder
from dpfbo.formats.journal import StateError
from runners.deploy.certificates import AUTHORITY, CERTIFICATE, KEY, make_certificates
from runners.deploy.project import Project

_LOOPBACK = "127.0.0.1"
_START = 60.0  # seconds until the ports must be open
_FLEET = "/v1/fleet/"
_MOST_BYTES = 2**26  # the maximum size of a request

logger = logging.getLogger(__name__)
Application = Callable[..., Any]  # an ASGI application


def set_environment(home: Path) -> None:
    """Set the environment variables that Flower reads; call this before Flower is imported.

    Flower then sends no telemetry, does not check for updates, and looks for programs first in the folder of the
    running Python interpreter.

    Args:
        home: The folder for Flower's files.
    """
    os.environ.setdefault("FLWR_LOG_LEVEL", "WARNING")
    os.environ |= {
        "FLWR_HOME": str(home), "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
    }  # fmt: skip


class SuperLink:
    """The SuperLink of a project, which accepts the SuperNodes of the project's sites. Start it once, and close it.

    Args:
        project: The operator's project.
        bind: The address at which the SuperLink listens; all addresses by default.
    """

    def __init__(self, project: Project, bind: str = "0.0.0.0") -> None:
        import uvicorn
        from flwr.superlink.cli.flower_superlink import SuperLinkLifespan
        from flwr.superlink.main import create_app

        make_folder(project.server, private=True)
        self._project, local = project, project.server / "loopback"
        try:
            family = socket.AF_INET6 if ":" in bind else socket.AF_INET
            self._outer = socket.create_server((bind, project.shared.port), family=family)
        except OSError as error:
            raise StateError(f"port {project.shared.port} of {bind} cannot be opened: {error.strerror}") from error
        make_folder(local, private=True)
        make_certificates(local, [_LOOPBACK])
        self._inner = socket.create_server((_LOOPBACK, 0))
        config = _config(local, self._inner.getsockname()[1])
        self._app = create_app(config, SuperLinkLifespan)
        self._state = self._app.state.linkstate_factory.state()
        self._account = config.authn_plugin.validate_tokens_in_metadata([])[1]
        _guard_handlers()
        certificate, key = project.certificate
        settings = {"log_level": "warning", "access_log": False, "timeout_graceful_shutdown": 2}
        self._servers = [
            uvicorn.Server(uvicorn.Config(
                self._app, ssl_certfile=str(local / CERTIFICATE), ssl_keyfile=str(local / KEY), **settings,
            )),
            uvicorn.Server(uvicorn.Config(
                fleet_only(self._app), ssl_certfile=str(certificate), ssl_keyfile=str(key), lifespan="off", **settings,
            )),
        ]  # fmt: skip
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Serve the APIs at their ports. Raises StateError if this fails or takes too long."""
        for server, sock in zip(self._servers, (self._inner, self._outer), strict=True):
            thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
            thread.start()
            self._threads.append(thread)
            end = time.monotonic() + _START
            while not server.started:
                if not thread.is_alive() or time.monotonic() > end:
                    raise StateError("the SuperLink does not start: its output says why")
                time.sleep(0.05)

    def register(self) -> None:
        """Register the sites' keys that are not registered yet."""
        from flwr.proto.control_pb2 import RegisterNodeRequest
        from flwr.superlink.servicer.control import control_handlers

        for key in self._project.shared.roster.by_supernode():
            if self._state.get_node_id_by_public_key(key) is None:
                control_handlers.register_node(RegisterNodeRequest(public_key=key), self._account, self._state)

    def submit(self) -> int:
        """Start the ServerApp, and return the number of the run."""
        from flwr.cli.build import build_fab_from_disk
        from flwr.proto.control_pb2 import StartRunRequest
        from flwr.proto.fab_pb2 import Fab
        from flwr.superlink.servicer.control import control_handlers

        request = StartRunRequest(fab=Fab(content=build_fab_from_disk(self._project.app)))
        kind = self._app.state.fleet_api_type
        run = control_handlers.start_run(request, self._account, self._state, kind).run_id
        if not run:
            raise StateError(f"Flower does not accept the app in {self._project.app}: its output says why")
        return int(run)

    def running(self, run: int) -> bool:
        """Return True until the ServerApp has ended. It counts as ended after a minute without a heartbeat."""
        return bool(self._state.get_run_status({run})[run].status != "finished")

    def close(self) -> None:
        """Stop the ServerApp, and close the ports."""
        launcher = self._app.state.superlink_lifespan.superexec_process  # the ServerApp ends with it
        for server in reversed(self._servers):
            server.should_exit = True
        for thread in reversed(self._threads):
            thread.join(timeout=10)
        for sock in (self._inner, self._outer):
            sock.close()
        if launcher is not None and launcher.poll() is None:
            launcher.kill()
            launcher.wait()


def fleet_only(app: Application) -> Application:
    """Restrict an application to the Fleet API, and to requests whose Content-Length is at most 64 MiB."""

    async def guarded(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        length = dict(scope["headers"]).get(b"content-length", b"")
        known, short = scope["path"].startswith(_FLEET), length.isdigit() and int(length) <= _MOST_BYTES
        if known and short:
            await app(scope, receive, send)
            return
        status = 413 if known else 404
        await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    return guarded


def _config(local: Path, port: int) -> Any:
    from flwr.common.constant import ISOLATION_MODE_SUBPROCESS, TRANSPORT_TYPE_GRPC_RERE
    from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME
    from flwr.superlink.auth_plugin import NoOpControlAuthnPlugin
    from flwr.superlink.config_loader import SuperLinkLifespanConfig

    files = [local / AUTHORITY, local / CERTIFICATE, local / KEY]
    return SuperLinkLifespanConfig(
        control_address="", health_server_address=None, host=_LOOPBACK, port=port, insecure=False,
        certificates=tuple(map(read_plain, files)), superexec_auth_secret=None,  # type: ignore[arg-type]
        authn_plugin=NoOpControlAuthnPlugin(), event_log_plugin=None, fleet_event_log_plugin=None,
        enable_event_log=False, artifact_provider=None, enable_supernode_auth=True,
        fleet_api_type=TRANSPORT_TYPE_GRPC_RERE, fleet_api_address=None, simulation=False,
        ssl_ca_certfile=str(files[0]), ssl_certfile=str(files[1]), ssl_keyfile=str(files[2]),
        database=FLWR_IN_MEMORY_DB_NAME, isolation=ISOLATION_MODE_SUBPROCESS, runtime_dependency_install=False,
    )  # fmt: skip


def _guard_handlers() -> None:
    """Refuse replies in another SuperNode's name, and let a SuperNode reconnect at once.

    A SuperNode delivers replies in a signed call, and each reply names a sender. Flower verifies the signature, but
    does not check that the sender is the SuperNode that signed. Flower also refuses a SuperNode that connects again
    before its old connection has timed out.
    """
    from flwr.superlink.servicer.fleet import fleet_handlers

    push, activate = fleet_handlers.push_messages, fleet_handlers.activate_node
    if getattr(push, "guarded", False):
        return

    def push_messages(request: Any, state: Any) -> Any:
        if any(message.metadata.src_node_id != request.node.node_id for message in request.messages_list):
            raise PermissionError("a SuperNode answers for another one")
        return push(request=request, state=state)

    def activate_node(request: Any, state: Any) -> Any:
        node = state.get_node_id_by_public_key(request.public_key)
        if node is not None:
            state.deactivate_node(node)
        return activate(request=request, state=state)

    push_messages.guarded = True  # type: ignore[attr-defined]
    fleet_handlers.push_messages, fleet_handlers.activate_node = push_messages, activate_node


@contextmanager
def running_superlink(project: Project, bind: str) -> Iterator[SuperLink]:
    """Start a SuperLink, and close it at the end of the block."""
    link = SuperLink(project, bind)
    try:
        link.register()
        link.start()
        yield link
    finally:
        link.close()
