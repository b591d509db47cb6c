"""The ServerApp of the Flower app: it runs the server's part of the protocol over Flower's grid."""

import json
import logging
import os
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp

from dpfbo.formats.files import locked_file, make_folder, replace_text
from dpfbo.formats.journal import StateError
from runners.deploy.exchange import Exchange, Pace
from runners.deploy.flower.client_app import END, VERB, bytes_in, record_of
from runners.deploy.parties import server_party
from runners.deploy.project import Project
from runners.study import json_text

SETTINGS = "DPFBO_DEPLOY_SERVER"  # environment variable of the ServerApp's process
_PAUSE = 0.5  # seconds between turns of the exchange
_FAREWELL = 15.0  # the most seconds to tell the sites that the study has ended
_PATIENCE = 60.0  # seconds to wait until a stopped ServerApp releases the folder

app = ServerApp()
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ServerSettings:
    """The settings that the command `dpfbo deploy server` passes to Flower's ServerApp.

    project: the operator's folder. min_sites: the least number of sites that must answer before a step can end; None
    for the default.
    """

    project: str
    min_sites: int | None
    pace: Pace

    def encoded(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def decoded(text: str) -> "ServerSettings":
        entries = json.loads(text)
        return ServerSettings(entries["project"], entries["min_sites"], Pace(**entries["pace"]))


class FlowerPost:
    """The transport (`Post`) over Flower's `Grid`; a site is identified by the key of its registered SuperNode."""

    def __init__(self, grid: Grid, project: Project, lost: float) -> None:
        self._grid, self._project, self._lost = grid, project, lost
        self._nodes: dict[int, int] = {}  # Flower's node of each connected site, by the site's number
        self._sites: dict[int, int] = {}  # the site's number by Flower's node; nodes that have gone remain in it

    def connected(self) -> set[int]:
        numbers = self._project.shared.roster.by_supernode()
        self._nodes = {numbers[n.public_key]: n.node_id for n in self._grid.get_nodes() if n.public_key in numbers}
        self._sites |= {node: site for site, node in self._nodes.items()}
        return set(self._nodes)

    def send(self, site: int, data: bytes) -> str:
        node, kind = self._nodes[site], f"query.{VERB}"
        message = Message(record_of(data), dst_node_id=node, message_type=kind, ttl=2 * self._lost)
        return str(next(iter(self._grid.push_messages([message]))))

    def collect(self, names: Iterable[str]) -> list[tuple[str, int, bytes | None]]:
        found: list[tuple[str, int, bytes | None]] = []
        for reply in self._replies(list(names)):
            site, name = self._sites.get(reply.metadata.src_node_id), reply.metadata.reply_to_message_id
            if site is not None:
                found.append((name, site, None if reply.has_error() else bytes_in(reply)))
        return found

    def end(self, patience: float) -> None:
        """Tell the connected sites that the study has ended. Other sites end minutes later by themselves."""
        names = [self.send(site, END) for site in sorted(self.connected())]
        give_up = time.monotonic() + patience
        while names and time.monotonic() < give_up:
            answered = {name for name, _, _ in self.collect(names)}
            names = [name for name in names if name not in answered]
            time.sleep(_PAUSE)

    def _replies(self, names: list[str]) -> list[Message]:
        """Return the replies to the requests with these names. Replies that Flower cannot read are left out."""
        if not names:
            return []
        try:
            return list(self._grid.pull_messages(names))
        except (ValueError, KeyError, TypeError, RuntimeError) as error:
            if len(names) > 1:
                return [reply for name in names for reply in self._replies([name])]
            logger.warning("a reply cannot be read: %s", error)
            return []


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the exchange to its end. An error is written to the server's folder, in one sentence."""
    settings = ServerSettings.decoded(os.environ[SETTINGS])
    project = Project.read(Path(settings.project))
    make_folder(project.server, private=True)
    logging.basicConfig(filename=project.log, format="%(asctime)s %(message)s", level=logging.WARNING)
    threading.Thread(target=_end_with_the_server, args=[project], daemon=True).start()
    try:
        try:
            lock = locked_file(project.server / "lock", _PATIENCE)
        except BlockingIOError as error:
            raise StateError(f"another ServerApp works in {project.server}: stop it") from error
        with lock:
            _run(grid, project, settings)
    except Exception as error:
        logger.exception("the server stops")
        replace_text(project.failure, f"{error}\n")
        raise


def _end_with_the_server(project: Project) -> None:
    """End this process, the ServerApp, when the process of the command `dpfbo deploy server` has ended.

    The command's process keeps the file `project.running` locked as long as it lives. Flower itself may take minutes to
    end the ServerApp. The ServerApp can be killed at any moment without damage to the server's folder.
    """
    while True:
        time.sleep(_PAUSE)
        with suppress(BlockingIOError), locked_file(project.running, 0.0):
            os._exit(1)


def _run(grid: Grid, project: Project, settings: ServerSettings) -> None:
    server = server_party(project, settings.min_sites)
    try:
        post = FlowerPost(grid, project, settings.pace.lost)
        exchange = Exchange(server, post, settings.pace)
        shown = None
        while True:
            finished = exchange.turn()
            if (state := {**exchange.state(), "finished": finished}) != shown:
                replace_text(project.state, json_text(state))
                shown = state
            if finished:
                post.end(_FAREWELL)
                return
            time.sleep(_PAUSE)
    finally:
        server.close()
