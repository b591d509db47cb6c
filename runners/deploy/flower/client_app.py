"""The ClientApp of the Flower app: it hands a request to the site's part of the protocol, and returns the answer."""

from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from dpfbo.protocol.wire import WireError
from runners.deploy.parties import site_party
from runners.deploy.site_folder import SiteFolder

VERB, CONTENT, NAME = "ask", "dpfbo", "data"  # of a message: its type is query.ask
END = b""  # the request, and its answer, that ends the study

app = ClientApp()


@app.query(VERB)
def answer(message: Message, context: Context) -> Message:
    """The reply to a request. `context.node_config` has the site's folder."""
    data = bytes_in(message)
    if data is None:
        raise WireError("the message holds no bytes")
    if data != END:
        data = site_party(SiteFolder.read(Path(str(context.node_config["folder"])))).respond(data)
    return Message(record_of(data), reply_to=message)


def record_of(data: bytes) -> RecordDict:
    """The content of a message with these bytes."""
    return RecordDict({CONTENT: ConfigRecord({NAME: data})})


def bytes_in(message: Message) -> bytes | None:
    """The bytes in a message; None if it holds something else."""
    try:
        data = message.content[CONTENT][NAME]
    except (KeyError, TypeError):
        return None
    return data if isinstance(data, bytes) else None
