"""The ClientApp of the Flower app: it hands a request to the site's part of the protocol, and returns the answer."""

from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from runners.deploy.parties import site_party
from runners.deploy.site_folder import SiteFolder

VERB, CONTENT, NAME = "ask", "dpfbo", "data"  # of a message: its type is query.ask

app = ClientApp()


@app.query(VERB)
def answer(message: Message, context: Context) -> Message:
    """The reply to a request. `context.node_config` has the site's folder."""
    site = SiteFolder.read(Path(str(context.node_config["folder"])))
    data = site_party(site).respond(message.content[CONTENT][NAME])
    return Message(RecordDict({CONTENT: ConfigRecord({NAME: data})}), reply_to=message)
