"""Objects of other packages: a message is of one agent, whatever its function does."""

from dataclasses import replace

import pytest
import torch

from dpfbo import extensions
from dpfbo.checks import SettingError
from dpfbo.privacy.accounting import accountant_named, accountant_names
from tests.helpers.federated_world import world
from tests.helpers.points import on_domain

MADE = {
    "centred": lambda Phi, y, noise: ((y - y.mean())[:, :, None] * Phi).sum(1),  # over all agents, if it could
    "branching": lambda Phi, y, noise: Phi.sum(1) if float(y.sum()) > 0 else -Phi.sum(1),  # no vmap can do that
    "short": lambda Phi, y, noise: Phi.sum(1)[:, :3],
    "text": lambda Phi, y, noise: "hello",
}


@pytest.fixture
def added(monkeypatch):
    monkeypatch.setattr(extensions, "entries", lambda group: MADE)
    monkeypatch.setattr(extensions, "load", lambda group, name: MADE[name])


def messages(name, y):
    _, agents, _ = world()
    agents = replace(agents, message=name)
    state = agents.initial_state(torch.arange(4))
    x = on_domain(agents.domain, torch.linspace(0, 1, 20, dtype=torch.float64).reshape(4, 5, 1))
    state.append(x, y)
    return agents.messages(state, 0)


@pytest.mark.parametrize("name", ["centred", "branching"])
def test_a_message_depends_on_its_own_agent_alone(added, name):
    y = torch.linspace(-1, 1, 20, dtype=torch.float64).reshape(4, 5)
    other = y.clone()
    other[1] += 100
    before, after = messages(name, y), messages(name, other)
    changed = ~torch.isclose(before, after, atol=1e-9).all(1)
    assert changed.tolist() == [False, name == "branching", False, False]  # a constant goes with an agent's own mean


@pytest.mark.parametrize("name", ["short", "text"])
def test_a_message_of_another_shape_is_refused(added, name):
    with pytest.raises((ValueError, TypeError), match=r"must return a tensor \(4, 30\)|str"):
        messages(name, torch.zeros(4, 5, dtype=torch.float64))


def test_what_cannot_be_imported_is_one_sentence(monkeypatch):
    class Entry:
        value = "nowhere:Accountant"

        def load(self):
            raise ModuleNotFoundError("No module named 'nowhere'")

    monkeypatch.setattr(
        extensions, "entries", lambda group: {"mine": Entry()} if group == extensions.ACCOUNTANTS else {}
    )
    assert accountant_names()[-1] == "mine"
    with pytest.raises(SettingError, match="mine of dpfbo.accountants .nowhere:Accountant. cannot be imported"):
        accountant_named("mine")
