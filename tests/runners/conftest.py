"""The stand-in for the W&B server, for tests that also take `own_wandb`."""

import pytest

from tests.helpers.wandb_records import FAKE_KEY
from tests.helpers.wandb_server import wandb_server


@pytest.fixture
def server(own_wandb, monkeypatch):
    """A server that the test's W&B talks to; in the end it has seen nothing that it does not know."""
    with wandb_server() as listening:
        monkeypatch.setenv("WANDB_BASE_URL", listening.address)
        monkeypatch.setenv("WANDB_API_KEY", FAKE_KEY)
        yield listening
        assert listening.unknown == []
