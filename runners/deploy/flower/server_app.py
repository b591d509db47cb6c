"""The ServerApp of the Flower app: it runs the server's part of the protocol over Flower's grid."""

import json
import logging
import os
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

from dpfbo.formats.files import locked_file, make_folder, replace_text
from runners.deploy.exchange import Exchange, Pace
from runners.deploy.flower.client_app import CONTENT, NAME, VERB
from runners.deploy.parties import server_party
from runners.deploy.project import Project
from runners.study import json_text

SETTINGS = "DPFBO_DEPLOY_SERVER"  # environment variable of the ServerApp's process
_PAUSE = 0.5  # seconds between turns
_PATIENCE = 60.0  # seconds for which a ServerApp that was stopped may keep the folder

app = ServerApp()
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ServerSettings:
    """What the server's process tells its ServerApp.

    Args:
        project: The operator's folder.
        min_sites: The least number of sites with which a step may end.
        pace: How fast the server asks.
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
    """Flower's grid as the post. A site is known by the key with which its SuperNode is registered."""

    def __init__(self, grid: Grid, project: Project, lost: float) -> None:
        self._grid, self._project, self._lost = grid, project, lost
        self._nodes: dict[int, int] = {}  # Flower's node by the site's number
        self._sites: dict[int, int] = {}  # and the reverse, also of nodes that are away

    def connected(self) -> set[int]:
        numbers = self._project.shared.roster.by_supernode()
        self._nodes = {numbers[n.public_key]: n.node_id for n in self._grid.get_nodes() if n.public_key in numbers}
        self._sites |= {node: site for site, node in self._nodes.items()}
        return set(self._nodes)

    def send(self, site: int, data: bytes) -> str:
        content = RecordDict({CONTENT: ConfigRecord({NAME: data})})
        message = Message(content, dst_node_id=self._nodes[site], message_type=f"query.{VERB}", ttl=2 * self._lost)
        return str(next(iter(self._grid.push_messages([message]))))

    def collect(self, names: Iterable[str]) -> list[tuple[str, int, bytes | None]]:
        found: list[tuple[str, int, bytes | None]] = []
        for reply in self._replies(list(names)):
            site, name = self._sites.get(reply.metadata.src_node_id), reply.metadata.reply_to_message_id
            if site is not None:
                found.append((name, site, None if reply.has_error() else answer_in(reply)))
        return found

    def _replies(self, names: list[str]) -> list[Message]:
        """The replies to these requests. One that Flower cannot read is left out; the others come all the same."""
        if not names:
            return []
        try:
            return list(self._grid.pull_messages(names))
        except (ValueError, KeyError, TypeError, RuntimeError) as error:
            if len(names) > 1:
                return [reply for name in names for reply in self._replies([name])]
            logger.warning("a reply cannot be read: %s", error)
            return []


def answer_in(reply: Message) -> bytes | None:
    """The bytes in a reply; None if it holds something else."""
    try:
        data = reply.content[CONTENT][NAME]
    except (KeyError, TypeError):
        return None
    return data if isinstance(data, bytes) else None


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the exchange to its end. A failure is left in the server's folder, in one sentence."""
    settings = ServerSettings.decoded(os.environ[SETTINGS])
    project = Project.read(Path(settings.project))
    make_folder(project.server, private=True)
    logging.basicConfig(filename=project.log, format="%(asctime)s %(message)s", level=logging.WARNING)
    try:
        with locked_file(project.server / "lock", _PATIENCE):
            _run(grid, project, settings)
    except Exception as error:
        logger.exception("the server stops")
        replace_text(project.failure, f"{error}\n")
        raise


def _run(grid: Grid, project: Project, settings: ServerSettings) -> None:
    server = server_party(project, settings.min_sites)
    try:
        exchange = Exchange(server, FlowerPost(grid, project, settings.pace.lost), settings.pace)
        shown = None
        while True:
            finished = exchange.turn()
            if (state := {**exchange.state(), "finished": finished}) != shown:
                replace_text(project.state, json_text(state))
                shown = state
            if finished:
                return
            time.sleep(_PAUSE)
    finally:
        server.close()
