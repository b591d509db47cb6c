"""The ClientApp of the Flower app: it answers requests with the site's part of the protocol."""

from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from dpfbo.protocol.wire import WireError
from runners.deploy.parties import site_party
from runners.deploy.site_folder import SiteFolder

VERB, CONTENT, NAME = "ask", "dpfbo", "data"  # of a message: its type query.ask, its record, the record's entry
END = b""  # the request that ends the study, and the answer to it

app = ClientApp()


@app.query(VERB)
def answer(message: Message, context: Context) -> Message:
    """Answer a request of the server. `context.node_config` contains the site's folder."""
    data = bytes_in(message)
    if data is None:
        raise WireError("the message holds no bytes")
    if data != END:
        data = site_party(SiteFolder.read(Path(str(context.node_config["folder"])))).respond(data)
    return Message(record_of(data), reply_to=message)


def record_of(data: bytes) -> RecordDict:
    """Return message content that holds these bytes."""
    return RecordDict({CONTENT: ConfigRecord({NAME: data})})


def bytes_in(message: Message) -> bytes | None:
    """Return the bytes that a message carries; None if it carries something else."""
    try:
        data = message.content[CONTENT][NAME]
    except (KeyError, TypeError):
        return None
    return data if isinstance(data, bytes) else None
