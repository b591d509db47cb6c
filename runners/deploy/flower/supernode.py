"""A SuperNode that runs only the installed code, whatever app the SuperLink offers. Written for flwr 1.42.0.

Flower's own `flower-supernode` executes the code that the operator ships with the app (the FAB). This SuperNode uses
the same Fleet API and authentication, but never fetches a FAB, and opens no port.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import httpx
from flwr.app import Context, Message, RecordDict
from flwr.app.error import Error
from flwr.app.message import remove_content_from_message
from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL, ErrorCode
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
)  # fmt: skip
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree, no_object_id_recompute
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_confirm_message_received_fn_protobuf,
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
)  # fmt: skip
from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree, push_objects
from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from runners.deploy.flower.client_app import END, app, bytes_in
from runners.deploy.keys import read_supernode
from runners.deploy.site_folder import SiteFolder

_GONE = 600.0  # seconds without a connection after which a finished site assumes that the study has ended
_PAUSE = 2.0  # seconds between checks for a message
_LONGEST_PAUSE = 30.0  # the most seconds between attempts to connect

logger = logging.getLogger(__name__)


@contextmanager
def running_supernode(site: SiteFolder) -> Iterator[SuperNode]:
    """Run a SuperNode in its own thread until the block ends. Then wait up to 30 seconds for the thread to end."""
    node, stop = SuperNode(site), threading.Event()
    thread = threading.Thread(target=node.run, args=[stop], name="supernode", daemon=True)
    thread.start()
    try:
        yield node
    finally:
        stop.set()
        thread.join(timeout=_LONGEST_PAUSE)


class SuperNode:
    """A SuperNode that answers the server's requests, and connects again after a lost connection."""

    def __init__(self, site: SiteFolder) -> None:
        self._site = site
        self._ended, self._lost_at = threading.Event(), time.monotonic()  # infinite while it is connected
        self._context: dict[str, Any] = {"folder": str(site.folder)}

    def wait_for_the_end(self) -> None:
        """Return when the server says that the study has ended, or after ten minutes without a connection.

        Until then the site must stay connected, because a restarted server may ask again.
        """
        while not self._ended.wait(_PAUSE) and time.monotonic() - self._lost_at < _GONE:
            pass

    def run(self, stop: threading.Event) -> None:
        """Answer requests until `stop` is set, then disconnect."""
        pause, told = _PAUSE, ""
        while not stop.is_set():
            try:
                with self._connected() as (client, node):
                    logger.info("connected to %s", self._site.shared.address)
                    pause, told, self._lost_at = _PAUSE, "", math.inf
                    while not stop.wait(_PAUSE):
                        while self._answer_next(client, node):
                            pass
            except Exception as error:  # of the network, of Flower, or of the site's folder: connect again
                if (said := _sentence(error)) != told:
                    logger.warning("%s: %s; the site tries again", self._site.shared.address, said)
                told, self._lost_at = said, min(self._lost_at, time.monotonic())
                stop.wait(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)

    @contextmanager
    def _connected(self) -> Iterator[tuple[FleetHttpClient, Node]]:
        key = read_supernode(self._site.folder)
        shared, authority = self._site.shared, self._site.shared.authority
        signing = NodeAuthHttpInterceptor(key, key.public_key())
        version = RuntimeVersionHttpInterceptor(component_name="SuperNode")
        with FleetHttpClient.from_server_address(
            shared.address, False, None if authority is None else str(authority), interceptors=[version, signing]
        ) as client:
            public, interval = public_key_to_bytes(key.public_key()), HEARTBEAT_DEFAULT_INTERVAL
            reply = client.ActivateNode(ActivateNodeRequest(public_key=public, heartbeat_interval=interval))
            node = Node(node_id=reply.node_id)

            def beat() -> bool:
                try:
                    request = SendNodeHeartbeatRequest(node=node, heartbeat_interval=interval)
                    return client.SendNodeHeartbeat(request).success
                except Exception as error:  # in Flower's thread; `run` sees the failure, too, and connects again
                    logger.debug("heartbeat: %r", error)
                    return False

            heart = HeartbeatSender(beat)
            heart.start()
            try:
                yield client, node
            finally:
                heart.stop()
                with suppress(httpx.HTTPError):  # the server may be gone
                    client.DeactivateNode(DeactivateNodeRequest(node_id=node.node_id))

    def _answer_next(self, client: FleetHttpClient, node: Node) -> bool:
        """Answer one message. Returns False if there is none."""
        found = client.PullMessages(PullMessagesRequest(node=node))
        if not found.messages_list:
            return False
        began, tree, run = time.monotonic(), found.message_object_trees[0], found.messages_list[0].metadata.run_id
        message = pull_and_inflate_object_from_tree(
            tree, make_pull_object_fn_protobuf(client.PullObject, node, run),
            make_confirm_message_received_fn_protobuf(client.ConfirmMessageReceived, node, run), return_type=Message,
        )  # fmt: skip
        message.metadata.__dict__["_message_id"] = tree.object_id
        reply = self._reply(message, node, run)
        reply.metadata.__dict__["_message_id"] = reply.object_id
        with no_object_id_recompute():
            tree, objects = get_object_tree(reply), get_all_nested_objects(reply)
            pushed = client.PushMessages(
                PushMessagesRequest(
                    node=node, messages_list=[message_to_proto(remove_content_from_message(reply))],
                    message_object_trees=[tree], clientapp_runtime_list=[time.monotonic() - began],
                )
            )  # fmt: skip
            push = make_push_object_fn_protobuf(client.PushObject, node, run, pushed.session_id)
            push_objects(objects, push, object_ids_to_push=set(pushed.objects_to_push))
        if bytes_in(message) == END:
            self._ended.set()
        return True

    def _reply(self, message: Message, node: Node, run: int) -> Message:
        """Return the answer of the installed ClientApp, or an error message without any detail."""
        context = Context(
            run_id=run, node_id=node.node_id, node_config=self._context, state=RecordDict(), run_config={}
        )  # fmt: skip
        try:
            return app(message, context)
        except Exception as error:
            logger.warning("a request is not answered: %s", error)
            return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "the site cannot answer"), reply_to=message)


def _sentence(error: Exception) -> str:
    if isinstance(error, httpx.HTTPStatusError):
        status, signing_on = error.response.status_code, error.request.url.path.endswith("/activate-node")
        if signing_on and status == httpx.codes.UNAUTHORIZED:
            return "the server refuses the signature of this site: its clock may be a few seconds fast"
        if signing_on and error.response.is_client_error:
            return "the server does not know this site's key: the operator adds it to the roster"
        return "the server was restarted" if status == httpx.codes.UNAUTHORIZED else f"the server answers {status}"
    if isinstance(error, httpx.ConnectError) and "CERTIFICATE" in str(error).upper():
        return f"its certificate is not the operator's ({error})"
    return str(error) or type(error).__name__
