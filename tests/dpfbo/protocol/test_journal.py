"""Durability: after a power cut a folder holds every call that returned, and an agent or a coordinator goes on."""

import pytest
import torch

import dpfbo
from dpfbo import Agent, Coordinator, Preset
from dpfbo.formats.journal import Journal
from dpfbo.gp import Acquisition
from dpfbo.privacy.ledger import Ledger
from dpfbo.space.domain import Grid
from tests.dpfbo.protocol.power_cut import Disk

LINE = Grid(torch.linspace(0, 1, 11, dtype=torch.float64)[:, None], (0.0,), (1.0,))
N, N_INIT = 2, 2
STUDY = dpfbo.create_study(
    LINE, n_agents=N, algorithm="dp_fts_de", noise_multiplier=1.0, rounds=2, n_init=N_INIT, preset=Preset(P=1, M=10),
    acquisition=Acquisition(n_candidates=30, n_starts=2),
)  # fmt: skip


@pytest.fixture
def disk(monkeypatch):
    return Disk.watched(monkeypatch)


FIRST = {"event": "first"}


def first_message(agent):
    """The message of round 0, whatever was done of it before."""
    for x in agent.pending.values():
        agent.tell(x, x[0])
    while len(agent._asked) < N_INIT:
        x = agent.ask()
        agent.tell(x, x[0])
    return agent.message(round=0)


def test_events_and_bytes_are_on_disk_when_a_call_returns(tmp_path, disk):
    journal = Journal(tmp_path / "a", "events.jsonl", FIRST)
    for t in range(3):
        journal.append({"event": "step", "t": t})
        journal.keep("data.bin", b"%d" % t * 100)
        left = Journal(disk.restored(tmp_path / "a", tmp_path / f"left-{t}"), "events.jsonl", FIRST)
        assert left.events == journal.events and left.kept("data.bin") == b"%d" % t * 100
        left.close()
    journal.close()


def test_a_new_folder_is_on_disk_with_its_parents(tmp_path, disk):
    Journal(tmp_path / "sites" / "a", "events.jsonl", FIRST).close()
    for folder, name in ((tmp_path, "sites"), (tmp_path / "sites", "a")):
        assert name in disk.entries[folder.stat().st_ino]


def test_kept_bytes_are_whole_or_not_there_at_any_time(tmp_path, disk):
    journal = Journal(tmp_path / "a", "events.jsonl", FIRST)
    contents = [b"a" * 100, b"b" * 50, b"c" * 200]
    for data in contents:
        journal.keep("data.bin", data)
    journal.close()
    assert not disk.renamed_early
    found = [cut.restored(tmp_path / "a", tmp_path / f"cut-{i}") / "data.bin" for i, cut in enumerate(disk.cuts)]
    assert {path.read_bytes() for path in found if path.exists()} == set(contents)


def test_an_agent_goes_on_after_a_power_cut(tmp_path, disk):
    """After each call in the state that it returned, and after each sync with the message that it would have sent."""
    agent, folder = Agent(STUDY, 0, folder=tmp_path / "a"), tmp_path / "a"

    def check(name):
        left = Agent(STUDY, 0, folder=disk.restored(folder, tmp_path / name))
        for what in ("pending", "round", "message_due"):
            assert getattr(left, what) == getattr(agent, what), name
        assert left.best() == agent.best() and left._messages == agent._messages
        left.close()

    for i in range(N_INIT):
        x = agent.ask()
        check(f"asked-{i}")
        agent.tell(x, x[0])
        check(f"told-{i}")
    message = agent.message()
    check("sent")
    agent.close()
    assert not disk.renamed_early
    for i, cut in enumerate(list(disk.cuts)):
        left = Agent(STUDY, 0, folder=cut.restored(folder, tmp_path / f"cut-{i}"))
        assert first_message(left) == message
        left.close()


def test_a_coordinator_goes_on_after_a_power_cut(tmp_path, disk):
    """Received messages are not asked for again, and a charged release is made once, in the same bytes."""
    messages, folder = [first_message(Agent(STUDY, n)) for n in range(N)], tmp_path / "server"
    server = Coordinator(STUDY, folder)
    for n, message in enumerate(messages):
        server.receive(n, message)
        left = Coordinator(STUDY, disk.restored(folder, tmp_path / f"received-{n}"))
        assert left.received == server.received == list(range(n + 1))
        left.close()
    before, data = len(disk.cuts), server.release()
    returned = len(disk.cuts)
    server.close()
    assert not disk.renamed_early
    for i, cut in enumerate(disk.cuts[:returned]):
        left = Coordinator(STUDY, copy := cut.restored(folder, tmp_path / f"cut-{i}"))
        if i < before:
            for n, message in enumerate(messages):
                left.receive(n, message)
        assert left.release(round=0) == data or i < returned - 1
        assert [charge.round for charge in Ledger(copy / "ledger.jsonl").charges] == [0]
        left.close()
