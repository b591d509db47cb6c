"""Messages that are lost or late count as zero vectors, and do not change epsilon."""

import json
import math
import re

import numpy as np
import pandas as pd
import pytest
import ray
import torch

from dpfbo.federated.dropout import Dropout
from dpfbo.federated.mechanism import SubsampledGaussian, WeightedAverage
from dpfbo.federated.peer_exchange import PeerExchange
from dpfbo.federated.server import Server
from dpfbo.federated.weights.uniform import Uniform
from dpfbo.privacy.accounting.pld import Pld
from dpfbo.privacy.budget import EpsilonCurve
from dpfbo.privacy.entropy import SeededEntropy
from dpfbo.privacy.ledger import Ledger
from dpfbo.rng import Streams
from dpfbo.space.regions import Regions
from tests.helpers.ray_runs import BOX, GRID, Reused, frames, records, run, same
from tests.helpers.small_runs import call

N, M, T = 16, 10, 6
PRIVATE = SubsampledGaussian(0.5, 1.0, 2.0**20)


def server(mechanism=PRIVATE, dropout=Dropout(), seed=0):
    curve = EpsilonCurve(Pld(), [mechanism.dp_event(torch.ones(1, N), 0)] * T, 1e-2)
    entropy = SeededEntropy(Streams(seed))
    return Server(N, M, Regions(2, 1), Uniform(), mechanism, entropy, Ledger(), curve, dropout)


def whole_messages():
    """N x M integers: their sums with weights 1/16 and q = 1/2 are exact in any order."""
    return torch.randint(-8, 9, (N, M), generator=torch.Generator().manual_seed(0)).double()


def zeroed(messages, lost):
    return torch.where(lost[:, None], 0.0, messages)


# The lost messages


def test_lost_messages_are_those_of_the_named_stream():
    dropout = Dropout(0.3, Streams(7))
    u = Streams(7).uniform("dropout", torch.arange(N), 4, 1)[:, 0]
    assert torch.equal(dropout.lost(N, 4), u < 0.3)
    assert torch.equal(dropout.lost(N + 5, 4)[:N], dropout.lost(N, 4))  # whoever else there is
    assert not torch.equal(dropout.lost(N, 4), dropout.lost(N, 5))
    assert not torch.equal(dropout.lost(N, 4), Dropout(0.3, Streams(8)).lost(N, 4))


@pytest.mark.parametrize("p", [0.02, 0.3, 0.9])
def test_share_of_lost_messages(p):
    n, rounds = 1000, 20
    lost = torch.stack([Dropout(p, Streams(0)).lost(n, t) for t in range(rounds)]).double()
    se = math.sqrt(p * (1 - p))
    assert abs(float(lost.mean()) - p) < 4 * se / math.sqrt(n * rounds)
    # independent over rounds and over agents: neighbours agree as often as strangers
    for first, second in ((lost[1:], lost[:-1]), (lost[:, 1:], lost[:, :-1])):
        covariance = float(((first - p) * (second - p)).mean())
        assert abs(covariance) < 4 * se**2 / math.sqrt(first.numel())


@pytest.mark.parametrize(("p", "expected"), [(0, False), (0.0, False), (1, True), (1.0, True)])
def test_nothing_or_all_is_lost(p, expected):
    assert (torch.stack([Dropout(p).lost(500, t) for t in range(20)]) == expected).all()


def test_what_is_lost_has_nothing_to_do_with_the_subset():
    """Chosen and lost: a share q p of all, within four standard errors."""
    q, p, n, rounds = 0.4, 0.3, 1000, 40
    streams = Streams(3)
    mechanism, dropout = SubsampledGaussian(q, 1.0, 1.0), Dropout(p, streams)
    both = [mechanism.choose(n, SeededEntropy(streams), t) & dropout.lost(n, t) for t in range(rounds)]
    share = float(torch.stack(both).double().mean())
    assert abs(share - q * p) < 4 * math.sqrt(q * p * (1 - q * p) / (n * rounds))


# Lost messages at the server


@pytest.mark.parametrize("mechanism", [PRIVATE, WeightedAverage()], ids=["private", "public"])
@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_lost_messages_count_as_zero_vectors(mechanism, p):
    dropout, messages = Dropout(p, Streams(2)), whole_messages()
    with_losses, by_hand = server(mechanism, dropout), server(mechanism)
    for t in range(T):
        lost = dropout.lost(N, t)
        broadcast, record, private = with_losses.round(t, messages)
        expected, other, other_private = by_hand.round(t, zeroed(messages, lost))
        assert torch.equal(broadcast.values, expected.values)
        assert private.n_dropped == int(lost.sum())
        assert record == other
        for name in ("signal", "noise", "n_chosen"):
            assert getattr(private, name) == getattr(other_private, name)
    assert with_losses.ledger.charges == by_hand.ledger.charges


def test_chosen_messages_that_were_lost_are_among_the_rejected():
    streams = Streams(2)
    dropout, t = Dropout(0.5, streams), 1
    _, _, private = server(dropout=dropout, seed=2).round(t, whole_messages())
    chosen, lost = PRIVATE.choose(N, SeededEntropy(streams), t), dropout.lost(N, t)
    assert private.n_chosen == int(chosen.sum())
    assert private.n_rejected == int((chosen & lost).sum())
    assert private.n_dropped == int(lost.sum()) > private.n_rejected > 0


def test_late_messages_are_lost_ones():
    late = torch.arange(N) % 5 == 0
    dropout, messages = Dropout(0.3, Streams(2)), whole_messages()
    lost = dropout.lost(N, 1)
    assert (lost & late).any()
    assert (lost ^ late).any()
    broadcast, _, private = server(dropout=dropout).round(1, messages, late)
    expected, _, _ = server().round(1, zeroed(messages, lost | late))
    assert torch.equal(broadcast.values, expected.values)
    assert private.n_dropped == int((lost | late).sum())


def test_noise_is_released_when_everything_is_lost():
    broadcast, record, private = server(dropout=Dropout(1.0)).round(0, whole_messages())
    assert private.signal == 0
    assert private.noise == pytest.approx(float(broadcast.values.norm()))
    assert private.noise > 0
    assert record.sigma == PRIVATE.sigma(Uniform()(0, torch.arange(N) % 2, 2)) > 0
    other, _, _ = server(dropout=Dropout(1.0)).round(0, 100 * whole_messages())
    assert torch.equal(broadcast.values, other.values)


def test_lost_message_cannot_spoil_the_sum():
    """Not even one that is not finite, or longer than the clip norm, or of a wrong shape."""
    dropout, messages = Dropout(0.3, Streams(2)), whole_messages()
    lost = dropout.lost(N, 0)
    expected, _, _ = server(dropout=dropout).round(0, messages)
    for content in (math.nan, math.inf, 1e300):
        spoilt = torch.where(lost[:, None], content, messages)
        broadcast, _, private = server(dropout=dropout).round(0, spoilt)
        assert torch.equal(broadcast.values, expected.values)
        assert private.n_clipped == 0
    rows = [torch.ones(3) if gone else m for gone, m in zip(lost.tolist(), messages, strict=True)]
    assert torch.equal(server(dropout=dropout).round(0, rows)[0].values, expected.values)


@pytest.mark.parametrize("late", [None, torch.arange(N) < 3], ids=["lost", "late"])
def test_peer_passes_a_lost_message_on_as_zeros(late):
    dropout, messages = Dropout(0.4, Streams(2)), whole_messages() + 100
    lost = dropout.lost(N, 1) | (False if late is None else late)
    received, record, _ = PeerExchange(N, Streams(5), dropout).round(1, messages, late)
    everything, _, _ = PeerExchange(N, Streams(5)).round(1, messages)
    assert record is None
    picked = (everything.values[:, None] == messages).all(2).int().argmax(1)
    assert torch.equal(received.values, zeroed(messages, lost)[picked])
    assert lost[picked].any()
    assert not lost[picked].all()


# Whole runs


@pytest.mark.parametrize("problem", [GRID, BOX], ids=["grid", "box"])
def test_epsilon_does_not_change(tmp_path, problem):
    summaries, servers, charges, digests = {}, {}, {}, {}
    for p in (0, 0.4, 1):
        summary, folder = run(tmp_path, *problem, f"dropout.probability={p}")
        server = frames(folder)[1]
        dropped = [int(Dropout(float(p), Streams(0)).lost(6, t).sum()) for t in range(6)]
        assert server["n_dropped"].tolist() == dropped
        assert summary["n_dropped"] == sum(dropped)
        assert "n_dropped" in summary["simulation_only"]
        covers, *ledger = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]
        assert covers.keys() & {"setting", "seed"} == {"setting", "seed"}
        charges[p] = [{k: v for k, v in c.items() if k not in ("digest", "chain")} for c in ledger]
        digests[p] = [c["digest"] for c in ledger]
        summaries[p], servers[p] = summary, server
    assert summaries[0]["n_dropped"] == 0
    assert 0 < summaries[0.4]["n_dropped"] < summaries[1]["n_dropped"] == 6 * 6
    for p in (0.4, 1):
        for key in ("epsilon", "n_charges", "delta"):
            assert summaries[p][key] == summaries[0][key]
        columns = ["round", "epsilon", "sigma", "sensitivity", "n_chosen"]
        pd.testing.assert_frame_equal(servers[p][columns], servers[0][columns], check_exact=True)
        assert charges[p] == charges[0]
        assert digests[p] != digests[0]
    assert (servers[1]["snr"] == 0).all()


def test_nothing_lost_is_the_run_without_dropout(tmp_path):
    _, folder = run(tmp_path / "default", *GRID)
    _, zero = run(tmp_path / "zero", *GRID, "dropout.probability=0")
    assert folder.name == zero.name
    assert same(folder, zero)


@pytest.mark.parametrize("algorithm", ["fts_de", "fts_original", "ts", "random_server"])
def test_everything_lost_without_privacy(tmp_path, algorithm):
    summary, folder = run(tmp_path, *BOX, f"algorithm={algorithm}", "dropout.probability=1")
    rounds, server = frames(folder)
    assert np.isfinite(rounds["y"]).all()
    assert summary["n_dropped"] == (6 * 6 if algorithm == "fts_de" else 0)
    assert (server["sigma"] == 0).all()


REFUSED = [
    *(
        (f"dropout.probability={p}", r"dropout.probability must lie in \[0, 1\], got ")
        for p in ("-0.1", "1.4", "often", "null", "true", ".nan", "[0.1]")
    ),
    *(
        (f"dropout.deadline={s}", "dropout.deadline must be a finite number above 0, got ")
        for s in ("0", "-1", "soon", "true", ".inf", ".nan")
    ),
    ("dropout.deadline=5", "dropout.deadline needs executor=ray, whose agents can be late, got 5"),
    ("dropout.chance=1", "unknown override 'dropout.chance'"),
]


@pytest.mark.parametrize(("override", "says"), REFUSED, ids=[o for o, _ in REFUSED])
def test_bad_settings_are_one_sentence_and_leave_nothing(monkeypatch, capsys, tmp_path, override, says):
    executor = [] if override == "dropout.deadline=5" else ["executor=ray"]
    assert call(monkeypatch, *GRID, *executor, override, f"results_dir={tmp_path / 'r'}") in (1, 2)
    error = capsys.readouterr().err
    assert re.match(f"error: .*{says}", error)
    assert error.count("\n") == 1
    assert not (tmp_path / "r").exists()


# Runs on Ray


@pytest.fixture(scope="module")
def reused():
    ray.init(address="local", num_cpus=16, include_dashboard=False, log_to_driver=False)
    with pytest.MonkeyPatch.context() as monkeypatch:
        yield Reused(monkeypatch)
    ray.shutdown()


TWO = ["executor=ray", "executor.agents_per_actor=3"]


@pytest.mark.parametrize("algorithm", ["dp_fts_de", "fts_original"])
def test_same_messages_are_lost_everywhere(reused, tmp_path, algorithm):
    settings = [*BOX, f"algorithm={algorithm}", "dropout.probability=0.4"]
    expected, local = run(tmp_path / "local", *settings)
    summary, folder = run(tmp_path / "ray", *settings, *TWO)
    assert same(local, folder)
    assert summary["n_dropped"] == expected["n_dropped"]


@pytest.mark.parametrize("p", [0.4, 1])
def test_same_messages_are_lost_when_shards_add_up(reused, tmp_path, p):
    settings = [*GRID, f"dropout.probability={p}"]
    _, local = run(tmp_path / "local", *settings)
    summary, folder = run(tmp_path / "ray", *settings, *TWO, "executor.aggregation=tree")
    assert summary["executor"]["tree"]
    (rounds, server), (other, other_server) = frames(local), frames(folder)
    pd.testing.assert_frame_equal(rounds, other, check_exact=True)
    exact = [c for c in server if c != "snr"]
    pd.testing.assert_frame_equal(server[exact], other_server[exact], check_exact=True)
    assert np.allclose(server["snr"], other_server["snr"], rtol=1e-9)


SLOW = '''
import time
from pathlib import Path

calls = {}


def quick(agent, x):
    return -float(((x - 0.1 * agent) ** 2).sum())


def slow(agent, x):
    """Of agents 3, 4, 5: only when the server has made the broadcast of the round."""
    calls[agent] = t = calls.get(agent, -1) + 1
    waited = 0.0
    while agent >= 3 and t < 3 and not charged(t):
        time.sleep(0.02)
        waited += 0.02
        if waited > 30:
            raise RuntimeError("the server waits for everybody")
    return quick(agent, x)


def charged(t):
    (ledger,) = Path("ray").rglob("ledger.jsonl")
    return ledger.read_text().count('"digest"') > t
'''


@pytest.mark.parametrize("aggregation", ["messages", pytest.param("tree", marks=pytest.mark.slow)])
def test_shard_that_misses_the_deadline(reused, monkeypatch, tmp_path, aggregation):
    """Its records are those of a run in one process that loses the messages of its agents in every round."""
    module = f"slow_{aggregation}"
    (tmp_path / f"{module}.py").write_text(SLOW)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    settings = ["problem=custom", "problem.lower=[0,0]", "problem.upper=[1,1]", "problem.n_agents=6", "rounds=3"]
    settings += ["n_init=1", "acquisition.n_candidates=50"]
    deadline = [*TWO, "dropout.deadline=1.5", f"executor.aggregation={aggregation}"]
    summary, folder = run(tmp_path / "ray", *settings, f"problem.function={module}:slow", *deadline)
    rounds, server = frames(folder)
    assert server["n_dropped"].tolist() == [3, 3, 3]
    assert summary["n_dropped"] == 9

    monkeypatch.setattr(Dropout, "lost", lambda self, n, t: torch.arange(n) >= 3)
    expected, local = run(tmp_path / "local", *settings, f"problem.function={module}:quick")
    assert records(folder)[0] == records(local)[0]  # all queries, those of the slow shard too
    exact = [c for c in server if c != "snr" or aggregation == "messages"]
    pd.testing.assert_frame_equal(server[exact], frames(local)[1][exact], check_exact=True)
    assert summary["epsilon"] == expected["epsilon"]
