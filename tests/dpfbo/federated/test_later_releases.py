"""Releases of a private prior after the first: public points, increments of statistics, and inference from all."""

import dataclasses
from functools import cache

import pytest
import torch

from dpfbo.clock import PhaseClock
from dpfbo.federated import federation
from dpfbo.federated.mechanism import SubsampledGaussian
from dpfbo.federated.population.shard import Shard
from dpfbo.federated.prior.inference import CommonPosterior, Released
from dpfbo.federated.prior.later import JointSums, LaterDesign, joint_posterior
from dpfbo.federated.prior.model import PriorModel
from dpfbo.federated.prior.statistics import Statistics, added, centred
from dpfbo.federated.prior.transfer import Transfer
from dpfbo.gp.own_gp import OwnGP
from dpfbo.privacy.ledger import Ledger
from dpfbo.problems.branin import Branin
from dpfbo.problems.synthetic import Synthetic
from tests.dpfbo.recorded_streams import RecordedStreams
from tests.helpers.federated_world import T, prior_server_for, prior_world

N, N_INIT, K, M, LAM = 7, 4, 3, 6, 0.05  # K releases
MODEL = PriorModel(lengthscales=(0.1,), noise=0.01, releases=K)


def normals(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def unit_features(n=N):
    Phi = normals(n, N_INIT + K - 1, M, seed=1)
    return Phi / Phi.norm(dim=2, keepdim=True)


def linear_parts(Phi, y):
    """The linear parts of all messages in the units of the first, K x n x M."""
    s = Statistics()
    later = [
        s.later_messages(Phi[:, : N_INIT + i], y[:, : N_INIT + i], N_INIT) / s.later_gain(N_INIT) for i in range(1, K)
    ]
    return torch.stack([s.messages(Phi[:, :N_INIT], y[:, :N_INIT]), *later])[..., :-1]


def rows(Phi):
    return [centred(Phi[:, :N_INIT]), *(added(Phi[:, : N_INIT + i])[:, None] for i in range(1, K))]


def test_messages_add_up_to_the_statistics_of_all_observations():
    Phi, y = unit_features(), normals(N, N_INIT + K - 1, seed=2)
    assert torch.allclose(linear_parts(Phi, y).sum(0), Statistics().messages(Phi, y)[:, :-1])
    A = JointSums.of([rows(Phi)], torch.ones(M, dtype=torch.float64)).A
    Z = centred(Phi).flatten(0, 1)
    assert torch.allclose(A.sum(0), Z.T @ Z)


def test_a_constant_and_the_unit_do_not_count():
    Phi, y = unit_features(), normals(N, N_INIT + 1, seed=2)
    plain = Statistics().later_messages(Phi[:, :-1], y, N_INIT)
    moved = Statistics(scale=10.0).later_messages(Phi[:, :-1], 10 * (y + 1e3 * torch.arange(N)[:, None]), N_INIT)
    assert torch.allclose(plain, moved, atol=1e-9)
    assert (plain[:, -1] == 0).all()


@pytest.mark.parametrize("parts", [[7], [3, 4]])
def test_posterior_is_that_of_the_model(parts):
    """Against plain conditioning in the joint normal law of g, h_1 .. h_N and all noise, through the messages' map."""
    Phi, sd = unit_features(), (0.3, 0.2, 0.1)
    v, tau = torch.rand(2, M, dtype=torch.float64, generator=torch.Generator().manual_seed(3)) + 0.2
    t = N_INIT + K - 1
    # the messages are linear in y: their matrix, by the messages of unit observations, K x N x M x t
    G = torch.stack([linear_parts(Phi, e.expand(N, -1)) for e in torch.eye(t, dtype=torch.float64)], -1)
    own = torch.einsum("ntm,m,nsm->nts", Phi, tau, Phi) + LAM * torch.eye(t, dtype=torch.float64)
    to_g = torch.einsum("knmt,ntp->kmp", G, Phi).reshape(K * M, M)  # b = to_g g + ..
    V = to_g * v @ to_g.T + torch.einsum("kimt,its,jiqs->kmjq", G, own, G).reshape(K * M, K * M)
    V += torch.diag(torch.tensor(sd, dtype=torch.float64).square().repeat_interleave(M))
    b = normals(K * M, seed=4)
    gain = v[:, None] * to_g.T @ torch.linalg.inv(V)
    first = CommonPosterior(
        torch.zeros(M), torch.zeros(M, M), torch.zeros(M, M), v, tau, torch.tensor(LAM, dtype=torch.float64), 0.5
    )
    releases = [Released(x, torch.tensor(0.0), s, 1.0) for x, s in zip(b.view(K, M), sd, strict=True)]
    sums = JointSums.of([list(part) for part in zip(*(Z.split(parts) for Z in rows(Phi)), strict=True)], tau)
    found = joint_posterior(first, releases, sums)
    assert torch.allclose(found.gain, gain, atol=1e-5)
    assert torch.allclose(found.mean, gain @ b, atol=1e-5)
    assert torch.allclose(found.covariance, torch.diag(v) - gain @ (to_g * v), atol=1e-5)
    assert torch.equal(found.common, v) and torch.equal(found.own, tau)


def private(z=0.5):
    return SubsampledGaussian(1.0, z, 3.0, "tight")


@cache
def ran(kind="grid", releases=K):
    """(problem, agents, server, result, ledger) of a run."""
    made = {"grid": None, "box": Branin(n_agents=6)}[kind]
    problem, agents = prior_world(made, model=dataclasses.replace(MODEL, releases=releases))
    ledger = Ledger()
    server = prior_server_for(problem, agents, private(), ledger)
    sent = []
    result = federation.run(
        federation.LocalPopulation.of(problem, agents), server, T, lambda done: sent.append(done.broadcast),
        broadcasts=releases,
    )  # fmt: skip
    return problem, agents, server, result, ledger, sent


@pytest.mark.parametrize("kind", ["grid", "box"])
def test_points_before_a_release_are_what_everybody_can_compute(kind):
    problem, agents, server, result, ledger, sent = ran(kind)
    assert [c.round for c in ledger.charges] == list(range(K))
    ids = torch.arange(problem.n_agents)
    for t in range(1, K):
        assert torch.equal(result.rounds[t].u[:, 0], server.later_points(sent[t - 1], ids, t))
    assert not torch.equal(result.rounds[K].u[:, 0], server.later_points(sent[K - 1], ids, K))
    assert result.broadcast is sent[K - 1] and sent[K] is None


def test_what_agents_observe_does_not_move_their_points():
    problem, agents, _, result, _, sent = ran()
    other = Synthetic(n_agents=12, grid_size=60, lengthscale=0.1, function_seed=99)
    shard = Shard(other, agents, torch.arange(12))
    shard.step(0, None, send=False)
    for t in range(1, K + 1):
        found = shard.step(t, sent[t - 1], send=False).record
        assert torch.equal(found.u, result.rounds[t].u) == (t < K)
        assert not torch.equal(found.y, result.rounds[t].y)


def test_a_server_that_is_started_again_infers_the_same():
    problem, agents, server, _, _, sent = ran()
    for t in range(K):
        again = prior_server_for(problem, agents, private())
        again.past.update({i: server.past[i] for i in range(t)})
        found = again.infer(*server.past[t], t)
        for field in dataclasses.fields(found):
            assert torch.equal(getattr(found, field.name), getattr(sent[t], field.name))


def test_the_first_release_is_inferred_as_if_it_were_the_only_one():
    (*_, several), (*_, one) = ran(), ran(releases=1)
    for field in ("mean", "rotation", "spectrum", "noise"):
        assert torch.equal(getattr(several[0], field), getattr(one[0], field))


def test_each_release_tells_more():
    """The variance of what is shared falls at every release."""
    *_, sent = ran()
    left = [float((p.rotation.square() * p.spectrum).sum()) for p in sent[:K]]
    assert left[0] > left[1] > left[2]


@pytest.mark.parametrize("n", [20, 160])
def test_to_leave_an_agent_out_is_right_to_first_order(n):
    """Against the posterior without its messages and its design, over what these had moved."""
    Phi = unit_features(n)
    t, one = N_INIT + K - 1, torch.ones(M, dtype=torch.float64)
    g, h = normals(M, seed=5), 0.5 * normals(n, M, seed=6)
    y = (Phi @ (g + h).unsqueeze(-1)).squeeze(-1) + LAM**0.5 * normals(n, t, seed=7)
    parts, Z = linear_parts(Phi, y), rows(Phi)
    first = CommonPosterior(g, g, g, one, 0.25 * one, torch.tensor(LAM, dtype=torch.float64), 0.5)

    def posterior(kept):
        releases = [Released(b, torch.tensor(0.0), 0.1, 1.0) for b in parts[:, kept].sum(1)]
        return joint_posterior(first, releases, JointSums.of([[rows[kept] for rows in Z]], first.own))

    whole, without = posterior(slice(0, n)), posterior(slice(1, n))
    expected = torch.cat([rows[0].T @ rows[0] @ whole.mean for rows in Z])
    found = whole.mean - whole.gain @ (parts[:, 0].flatten() - expected)
    assert (found - without.mean).norm() < 0.2 * (whole.mean - without.mean).norm()


def test_an_agent_leaves_its_own_messages_out():
    """All of them, clipped as the server clipped them; a message that is not finite counted as zeros there."""
    problem, agents, server, *_, sent = ran()
    shard = Shard(problem, agents, torch.arange(12))
    for t in range(K):
        shard.step(t, sent[t - 1] if t else None, send=False)
    prior, state = dataclasses.replace(sent[K - 1], clip_norm=torch.tensor(0.7)), shard._blocks[0].state
    y = state.y.clone()
    y[3, 4] = torch.inf  # the second message
    found = Transfer.of(MODEL, prior, agents.features_at(state.points), y, N_INIT)
    s, told = MODEL.statistics, []
    for n in range(12):
        mine = []
        for i in range(K):
            Phi, seen = agents.features_at(state.points)[n : n + 1, : N_INIT + i], y[n : n + 1, : N_INIT + i]
            message = s.later_messages(Phi, seen, N_INIT) if i else s.messages(Phi, seen)
            Z = added(Phi) if i else centred(Phi)[0]
            kept = float((0.7 / message.norm()).clamp(max=1)) if message.isfinite().all() else 0.0
            heard = message[0, :-1].nan_to_num(0, 0, 0) / (s.later_gain(N_INIT) if i else 1)
            mine.append(kept * (heard - Z.T @ Z @ prior.rotation @ prior.mean))
        told.append(torch.cat(mine))
    assert torch.allclose(found.mean, prior.mean - torch.stack(told) @ prior.gain.T, atol=1e-8)


def test_messages_of_a_shard_are_increments():
    problem, agents, *_, sent = ran()
    shard = Shard(problem, agents, torch.arange(12))
    first = shard.step(0, None, send=True)
    later = shard.step(1, sent[0], send=True)
    s, state = MODEL.statistics, shard._blocks[0].state
    assert torch.allclose(first.messages, s.messages(agents.features_at(state.points)[:, :4], state.y[:, :4]))
    assert torch.allclose(later.messages, s.later_messages(agents.features_at(state.points), state.y, 4))
    assert torch.equal(agents.messages(state, 1, PhaseClock())[:12], later.messages)


def test_later_points_are_new_draws_in_every_round():
    """One broadcast gives other points for each agent and round, from random numbers of that round alone."""
    problem, agents = prior_world(Branin(n_agents=6), model=MODEL)
    server = prior_server_for(problem, agents, private())
    flat = torch.zeros(1, agents.message_size, dtype=torch.float64)
    prior, streams = server.infer(flat, 0.5), RecordedStreams(0)
    design = LaterDesign(agents.features, problem.domain, agents.acquisition, streams)
    found = torch.stack([design.points(prior, torch.arange(6), t) for t in (1, 2, 3)])
    assert streams.asked == [(purpose, t) for t in (1, 2, 3) for purpose in ("design/weights", "acquisition")]
    apart = torch.cdist(found.flatten(0, 1), found.flatten(0, 1)) + torch.eye(18)
    assert apart.min() > 1e-3


def test_later_values_leave_the_units_of_sent_ones():
    """Values are standardised by the initial ones alone, however large a later one is."""
    own_gp = OwnGP("given", lengthscale=0.1, variance=1.0, noise=0.01, standardize=True)
    problem, agents = prior_world(model=MODEL, own_gp=own_gp)
    ids, clock, s = torch.arange(12), PhaseClock(), MODEL.statistics
    first, later = normals(12, N_INIT, seed=8), normals(12, 1, seed=9)

    def observed(second):
        state = agents.initial_state(ids)
        state = agents.observe(state, agents.design.points(ids), first, clock)
        state = agents.observe(state, agents.design.points(ids + 12)[:, :1], later, clock)
        return agents.observe(state, agents.design.points(ids + 24)[:, :1], second, clock)

    low, high = (observed(torch.full((12, 1), y, dtype=torch.float64)) for y in (0.0, 1e3))
    mean, sd = first.mean(1, keepdim=True), first.std(1, correction=0, keepdim=True)
    for state in (low, high):
        Phi, y = agents.features_at(state.points), (state.y - mean) / sd
        assert torch.allclose(agents.messages(state, 2, clock), s.later_messages(Phi, y, N_INIT))
        assert torch.allclose(agents._outcomes(state)[:, : N_INIT + 1], y[:, : N_INIT + 1])
