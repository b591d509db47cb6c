"""Hostile messages, broadcasts and saved states of ask and tell: refused in one sentence, or counted once."""

import json
import math
import os
import tracemalloc

import pytest
import torch

from dpfbo import Agent, Coordinator, StateError, WireError
from dpfbo.checkpoint import Checkpoint
from dpfbo.federated.broadcast import AgentVectors, Points, RegionVectors, SharedPrior
from dpfbo.protocol import wire
from tests.hostile import files as hostile
from tests.hostile.studies import N_INIT, N, T, sent, study_of

SENTENCES = (WireError, StateError)


def told(study, n=0, folder=None):
    agent = Agent(study, n, folder)
    for _ in range(N_INIT):
        x = agent.ask()
        agent.tell(x, x["a"] - n * x["b"])
    return agent


def refused(call, *arguments):
    with pytest.raises(SENTENCES) as caught:
        call(*arguments)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


@pytest.mark.parametrize("algorithm", ["dp_fts_de", "dp_prior", "shared_prior", "fts_original"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e300, -1e300, 1e99, 5e-324, -1e-310])
def test_any_number_in_a_message_is_counted_once_and_everybody_goes_on(algorithm, value):
    study = study_of(algorithm)
    server, agents = Coordinator(study), [told(study, n) for n in range(N)]
    values = torch.zeros(study.agents.message_size, dtype=torch.float64)
    values[1] = value
    for _ in range(2):
        server.receive(0, sent(study, values=values))
    for n in (1, 2):
        server.receive(n, agents[n].message())
    broadcast = server.release()
    if study.algorithm.private:
        assert [c.round for c in server.ledger.charges] == [0]
    agents[0].message()
    for agent in agents:
        agent.receive(broadcast)
        x = agent.ask()
        assert 0 <= x["a"] <= 1 and 0 <= x["b"] <= 1
        agent.tell(x, 1.0)


def test_an_unusable_message_is_a_zero_vector():
    study = study_of()
    released = []
    for values in (torch.zeros(20), torch.full((20,), math.nan), torch.full((20,), 1e300, dtype=torch.float64)):
        server = Coordinator(study)
        server.receive(0, sent(study, values=values))
        released.append(server.release(missing_ok=True))
    assert released[0] == released[1] == released[2]


def test_messages_of_other_rounds_agents_and_studies_and_replayed_ones():
    study = study_of()
    server = Coordinator(study)
    good = sent(study)
    for data in (sent(study, agent=1), sent(study, round=1), sent(study, agent=99), sent(study_of(seed=1)), good[:-1]):
        refused(server.receive, 0, data)
    for who in (-1, N, 10**9, "0", None):
        refused(server.receive, who, good)
    for data in ("text", None, b"", [], memoryview(good)):
        refused(server.receive, 0, data)
    refused(server.receive, 0, sent(study, values=torch.zeros(19)))
    refused(server.receive, 0, sent(study, values=torch.zeros(21)))
    refused(server.receive, 0, sent(study, values=torch.zeros(4, 5)))
    assert server.received == []
    server.receive(0, good)
    server.receive(0, good)
    refused(server.receive, 0, sent(study, values=torch.ones(20)))
    assert server.received == [0]
    server.release(missing_ok=True)
    server.receive(0, good)  # of a round that has ended: nothing changes
    assert server.received == [] and server.round == 1
    refused(server.receive, 1, sent(study, agent=1))
    assert len(server.ledger.charges) == 1


@pytest.mark.parametrize(
    "header",
    [
        b"{}", b"[]", b"null", b"\xff", b"[" * 4000, b'{"kind": "message"}', b"1e999999", b"9" * 4000,
        b'{"kind": NaN, "study": 1, "round": 0, "agent": 0, "arrays": {}}',
    ],
)  # fmt: skip
def test_headers_that_cannot_be_read(header):
    server = Coordinator(study_of())
    for length in (len(header), 0, 5000, 2**32 - 1):
        refused(server.receive, 0, b"DPFBO001" + length.to_bytes(4, "big") + header)
    for version in (b"DPFBO002", b"DPFBO000", b"\x80\x04K\x01.", b"PK\3\4"):
        refused(server.receive, 0, version + len(header).to_bytes(4, "big") + header)


SHAPES = ([2**30], [2**30, 2**30], [2**31 - 1, 2**31 - 1], [20.0], [-20], [[20]], "20", [20, 1, 1], None)


@pytest.mark.parametrize("shape", SHAPES)
def test_declared_sizes_are_checked_before_anything_is_allocated(shape):
    study = study_of()
    entries = {"kind": "message", "study": study.digest, "round": 0, "agent": 0, "arrays": {"values": shape}}
    text = json.dumps(entries).encode()
    data = b"DPFBO001" + len(text).to_bytes(4, "big") + text + bytes(160)
    agent, server = Agent(study, 0), Coordinator(study)
    tracemalloc.start()
    try:
        refused(server.receive, 0, data)
        refused(agent.receive, data.replace(b'"message"', b'"nothing"'))
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def vectors(value, *shape):
    return RegionVectors(torch.full(shape, value, dtype=torch.float64))


@pytest.mark.parametrize(
    ("round", "broadcast"),
    [
        (0, vectors(math.nan, 1, 20)), (0, vectors(math.inf, 1, 20)), (0, vectors(1e300, 1, 20)),
        (0, vectors(0.0, 1, 19)), (0, vectors(0.0, 2, 20)), (0, vectors(0.0, 20)), (0, vectors(0.0, 0, 20)),
        (T, vectors(0.0, 1, 20)), (2**31 - 1, vectors(0.0, 1, 20)), (2**31 - 1, None),
        (0, AgentVectors(torch.zeros(N, 20))), (0, Points(torch.zeros(N, 2))),
    ],
)  # fmt: skip
def test_broadcasts_that_no_agent_can_follow_change_nothing(tmp_path, round, broadcast):
    study = study_of()
    agent = told(study, folder=tmp_path)
    agent.message()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    refused(agent.receive, wire.broadcast(study.digest, round, broadcast))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    agent.receive(wire.broadcast(study.digest, 0, vectors(0.5, 1, 20)))
    assert agent.round == 1 and agent.ask()


def test_points_outside_the_cube_and_priors_that_are_none():
    study = study_of("sobol_server")
    agent = told(study)
    for values in (torch.full((N, 2), 1.5), torch.full((N, 2), -1e-9), torch.zeros(N, 3), torch.zeros(N + 1, 2)):
        refused(agent.receive, wire.broadcast(study.digest, 0, Points(values)))
    study = study_of("dp_prior")
    agents, server = [told(study, n) for n in range(N)], Coordinator(study)
    for n in range(N):
        server.receive(n, agents[n].message())
    data = server.release()
    _, prior = wire.read_broadcast(data, study.digest, 10**6)
    for name, values in vars(prior).items():
        for changed in (values * math.nan, values[..., None] if values.ndim < 2 else values[:-1]):
            hostile_prior = type(prior)(**{**vars(prior), name: changed})
            refused(agents[0].receive, wire.broadcast(study.digest, 0, hostile_prior))
    M = len(prior.mean)
    negative = torch.zeros(M, M, dtype=torch.float64)
    negative[3, 3] = -0.1
    p = prior.evidence
    hostile_parts = {
        "evidence": [p[:1], p[:-1], p.repeat(2), -p, 2 + p],
        "covariance": [-1.0 - prior.covariance, prior.covariance[:-1], negative[*torch.tril_indices(M, M)]],
        "mean": [prior.mean[:1], 1e101 + prior.mean],
        "shared": [prior.shared - 2, prior.shared + 1.1, prior.shared[None]],
        "explained": [prior.explained - 2, prior.explained + 1.1, prior.explained[None]],
    }  # fmt: skip
    for name, parts in hostile_parts.items():
        for part in parts:
            hostile_prior = type(prior)(**{**vars(prior), name: part})
            refused(agents[0].receive, wire.broadcast(study.digest, 0, hostile_prior))
    agents[0].receive(data)


@pytest.mark.parametrize("size", [1e100, 1e-300, 0.0])
def test_agents_go_on_after_a_prior_of_any_size(size):
    """The largest means and covariances that a broadcast may hold, and the smallest, leave queries inside the box."""
    study = study_of("dp_prior")
    agent, M = told(study), study.agents.message_size
    agent.message()
    covariance = size * torch.eye(M, dtype=torch.float64)[*torch.tril_indices(M, M)]
    mean = size * (-1.0) ** torch.arange(M, dtype=torch.float64)
    L = len(study.algorithm.averaged_gp.lengthscales)
    shares = torch.full((L,), 1.0, dtype=torch.float64), *torch.ones(2, dtype=torch.float64)
    agent.receive(wire.broadcast(study.digest, 0, SharedPrior(torch.zeros(1, M), mean, covariance, *shares)))
    for _ in range(3):
        x = agent.ask()
        assert 0 <= x["a"] <= 1 and 0 <= x["b"] <= 1
        agent.tell(x, x["a"])


LINES = (
    '{"event": "ask"}', '{"event": "ask", "round": "x", "u": 3}', '{"event": "tell", "asked": 99, "y": 1.0}',
    '{"event": "tell", "asked": 0, "y": "one"}', '{"event": "found", "u": [1, 2, 3, 4], "y": 1.0}', '{"event": "new"}',
    '{"event": "receive", "round": 0}', '{"event": "receive", "round": "../../etc/passwd"}',
    '{"event": "ask", "round": 0, "u": null}',
)  # fmt: skip


@pytest.mark.parametrize("line", LINES)
def test_a_damaged_line_of_an_agents_journal_is_one_sentence(tmp_path, line):
    study = study_of()
    told(study, folder=tmp_path).close()
    journal = tmp_path / "agent.jsonl"
    whole = journal.read_bytes()
    journal.write_bytes(whole + line.encode() + b"\n")
    refused(Agent, study, 0, tmp_path)
    journal.write_bytes(whole)
    Agent(study, 0, tmp_path).close()  # the refusal has left the lock


@pytest.mark.parametrize(
    "line",
    [
        '{"event": "sent"}', '{"event": "sent", "round": 7, "sigma": 1.0}', '{"event": "arrived", "round": 0}',
        '{"event": "close", "round": 0, "agents": 3}', '{"event": "close", "round": 0, "agents": [99]}',
        '{"event": "arrived", "round": 0, "agent": "1"}', '{"event": "close", "round": [0], "agents": []}',
        '{"event": "sent", "round": 0, "sigma": "1"}',
    ],
)  # fmt: skip
def test_a_damaged_line_of_a_servers_journal_is_one_sentence(tmp_path, line):
    study = study_of()
    Coordinator(study, tmp_path).close()
    journal = tmp_path / "coordinator.jsonl"
    whole = journal.read_bytes()
    journal.write_bytes(whole + line.encode() + b"\n")
    refused(Coordinator, study, tmp_path)
    journal.write_bytes(whole)
    Coordinator(study, tmp_path).close()


def test_kept_bytes_that_are_pipes_folders_or_damaged(tmp_path):
    study = study_of()
    agent = told(study, folder=tmp_path)
    agent.message()
    agent.receive(wire.broadcast(study.digest, 0, vectors(0.5, 1, 20)))
    agent.close()
    kept = tmp_path / "broadcast-00000.bin"
    content = kept.read_bytes()
    for make in (lambda: kept.mkdir(), lambda: os.mkfifo(kept), lambda: kept.write_bytes(content[:-3])):
        kept.rmdir() if kept.is_dir() else kept.unlink()
        make()
        refused(Agent, study, 0, tmp_path)
    kept.write_bytes(content)
    Agent(study, 0, tmp_path).close()
    (tmp_path / "agent.jsonl").unlink()
    os.mkfifo(tmp_path / "agent.jsonl")
    refused(Agent, study, 0, tmp_path)


def test_a_round_file_that_is_a_bomb_or_would_be_unpickled_counts_as_absent(tmp_path):
    for content in (
        hostile.npz(meta=hostile.npy((10**13,), "<f8")), hostile.npz(meta=hostile.npy((), "|O")), b"", b"PK\3\4",
        hostile.npz(meta=torch.zeros(3).numpy()),
    ):  # fmt: skip
        (tmp_path / "round-00000.npz").write_bytes(content)
        assert list(Checkpoint(tmp_path).rounds()) == []
