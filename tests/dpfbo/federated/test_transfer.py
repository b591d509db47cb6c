"""Agents with the private prior: their draws, the gate, what their own message told the server, and whole runs."""

import dataclasses
import math

import pytest
import torch
from torch.distributions import MultivariateNormal

from dpfbo.clock import PhaseClock
from dpfbo.federated import federation
from dpfbo.federated.broadcast import SharedPrior, averaged
from dpfbo.federated.mechanism import SubsampledGaussian, WeightedAverage
from dpfbo.federated.population.agents import Source
from dpfbo.federated.population.shard import Shard
from dpfbo.federated.prior.inference import Released, infer
from dpfbo.federated.prior.model import PriorModel
from dpfbo.federated.prior.received import Received
from dpfbo.federated.prior.statistics import centred
from dpfbo.federated.prior.transfer import Transfer, chosen_model, own_mean, restricted_likelihood
from dpfbo.gp import hyperparameters
from dpfbo.gp.own_gp import OwnGP
from dpfbo.gp.posterior import cholesky
from dpfbo.privacy.ledger import Ledger
from dpfbo.problems.branin import Branin
from dpfbo.problems.synthetic import Synthetic
from tests.helpers.federated_world import T, prior_server_for, prior_world, transfer_of
from tests.helpers.points import on_domain

MODEL = PriorModel(lengthscales=(0.1,), noise=0.01, leave_own_out=False)
SE = 5  # standard errors within which a simulated mean must lie


def normals(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def spd(M, seed):
    root = normals(M, M, seed=seed)
    return root @ root.T / M + 0.1 * torch.eye(M, dtype=torch.float64)


def a_prior(M, seed=0, noise=0.05):
    """A broadcast with arbitrary numbers."""
    Q = torch.linalg.qr(normals(M, M, seed=seed + 2))[0]
    rotation = torch.linspace(0.5, 1.5, M, dtype=torch.float64)[:, None] * Q
    return SharedPrior(
        normals(1, M + 1, seed=seed), normals(M, seed=seed + 1), rotation.contiguous(),
        normals(M, seed=seed + 3).square(), normals(M, M, seed=seed + 4), torch.tensor(noise, dtype=torch.float64),
        torch.tensor(3.5, dtype=torch.float64), torch.tensor(math.inf, dtype=torch.float64),
    )  # fmt: skip


class TestPosterior:
    def test_restricted_likelihood_is_the_density_of_contrasts(self):
        """Differences between covariances; the contrasts are an orthonormal basis of what is orthogonal to 1."""
        t = 6
        basis = torch.linalg.qr(torch.cat([torch.ones(t, 1, dtype=torch.float64), normals(t, t - 1)], 1))[0][:, 1:]
        r, K = normals(5, t, seed=1), torch.stack([(1 + k) * spd(t, k) for k in range(5)])
        expected = torch.stack(
            [MultivariateNormal(torch.zeros(t - 1).double(), basis.T @ k @ basis).log_prob(basis.T @ r[0]) for k in K]
        )
        found = restricted_likelihood(cholesky(K), r[:1].expand(5, -1))
        assert torch.allclose(found - found[0], expected - expected[0])
        shifted = restricted_likelihood(cholesky(K), r + 100)
        assert torch.allclose(shifted, restricted_likelihood(cholesky(K), r))

    @pytest.mark.parametrize("index", [0, 1, 2])
    def test_draws_have_the_moments_of_the_exact_posterior(self, index):
        """The model with noise and a constant of infinite variance.

        Prior of the weights: N(m, X (spectrum + factor) X'), or N(0, alone X X') without transfer.
        """
        n, t, M = 40_000, 4, 5
        prior = a_prior(M)
        model = dataclasses.replace(MODEL, residuals=(0.5, 4.0), no_transfer="features")
        Phi, y = normals(1, t, M, seed=20), normals(1, t, seed=21) + 7
        one = transfer_of(model, prior, Phi, y, 2)
        rows, models = torch.zeros(n, dtype=torch.long), torch.full((n,), index)
        draws = one.weights(one.draw(rows, models, normals(n, M, seed=22), normals(n, t, seed=23), normals(n, seed=24)))
        X, Phi = prior.rotation, Phi[0]
        S, m = X @ torch.diag(prior.spectrum + (0.5, 4.0, 0)[index]) @ X.T, X @ prior.mean
        if index == 2:
            S, m = prior.alone * X @ X.T, 0 * m
        K = Phi @ S @ Phi.T + prior.noise * torch.eye(t, dtype=torch.float64)
        ones = torch.ones(t, dtype=torch.float64)
        P = torch.linalg.inv(K)
        P = P - torch.outer(P @ ones, P @ ones) / (ones @ P @ ones)
        mean, C = m + S @ Phi.T @ P @ (y[0] - Phi @ m), S - S @ Phi.T @ P @ Phi @ S
        assert ((draws.mean(0) - mean).abs() < SE * (C.diagonal() / n).sqrt()).all()
        se = ((C.diagonal()[:, None] * C.diagonal() + C**2) / n).sqrt()
        assert ((draws.T.cov() - C).abs() < SE * se).all()
        assert (mean - m).norm() > 0.3  # the observations matter

    def test_likelihoods_are_those_of_the_models(self):
        prior, Phi, y = a_prior(5), normals(3, 4, 5, seed=20), normals(3, 4, seed=21)
        model = dataclasses.replace(MODEL, residuals=(0.5, 3.0), scale=2.0)
        found = transfer_of(model, prior, Phi, y, 2).log_likelihoods()
        for k, factor in enumerate(model.residuals):
            S = prior.rotation @ torch.diag(prior.spectrum + factor) @ prior.rotation.T
            K = Phi @ S @ Phi.mT + prior.noise * torch.eye(4, dtype=torch.float64)
            residual = y / 2 - Phi @ (prior.rotation @ prior.mean)
            assert torch.allclose(found[:, k], restricted_likelihood(cholesky(K), residual))
        K = prior.alone * Phi @ prior.rotation @ prior.rotation.T @ Phi.mT + prior.noise * torch.eye(4).double()
        assert torch.allclose(found[:, 2], restricted_likelihood(cholesky(K), y / 2))
        assert found.shape == (3, 3)

    def test_rows_that_come_one_by_one_are_those_that_come_together(self):
        """To the bit: a resumed run computes in one round what the others computed in many."""
        prior, Phi, y = a_prior(8), normals(4, 9, 8, seed=20), normals(4, 9, seed=21)
        received = Received(MODEL, prior, own_mean(MODEL, prior, Phi, y, 3), 12, 3, None)
        for t in range(3, 10):
            transfer = Transfer.to(MODEL, received, y[:, :t], lambda a, b: Phi[:, a:b])
        together = transfer_of(MODEL, prior, Phi, y, 3)
        assert torch.equal(transfer.log_likelihoods(), together.log_likelihoods())
        for name in ("psi", "common", "own"):
            assert torch.equal(getattr(transfer.points, name), getattr(together.points, name))

    def test_draws_do_not_depend_on_the_basis_of_equal_eigenvalues(self):
        """Nor on the signs of eigenvectors, which rounding decides."""
        prior, Phi, y, M = a_prior(6), normals(4, 5, 6, seed=20), normals(4, 5, seed=21), 6
        prior = dataclasses.replace(prior, spectrum=torch.tensor([0.1, 0.1, 0.1, 2, 2, 3], dtype=torch.float64))
        R = torch.block_diag(*(torch.linalg.qr(normals(k, k, seed=k))[0] for k in (3, 2)), -torch.eye(1).double())
        turned = dataclasses.replace(prior, mean=R.T @ prior.mean, rotation=prior.rotation @ R, gain=R.T @ prior.gain)
        numbers = (
            torch.arange(4),
            torch.zeros(4).long(),
            normals(4, M, seed=22),
            normals(4, 5, seed=23),
            normals(4, seed=24),
        )
        transfers = [transfer_of(dataclasses.replace(MODEL, leave_own_out=True), p, Phi, y, 3) for p in (prior, turned)]
        assert torch.allclose(*(transfer.weights(transfer.draw(*numbers)) for transfer in transfers))

    def test_numbers_of_an_agent_do_not_depend_on_its_batch(self):
        """To the bit, for any number of agents from two, the smallest batch."""
        prior, Phi, y, M = a_prior(40), normals(50, 4, 40, seed=20), normals(50, 4, seed=21), 40
        model = dataclasses.replace(MODEL, leave_own_out=True)
        w0, e, c = normals(50, M, seed=22), normals(50, 4, seed=23), normals(50, seed=24)
        index = torch.arange(50) % 3

        def numbers(rows):
            transfer = transfer_of(model, prior, Phi[rows], y[rows], 3)
            return (
                transfer.mean,
                transfer.log_likelihoods(),
                transfer.draw(torch.arange(len(rows)), index[rows], w0[rows], e[rows], c[rows]),
            )

        whole = numbers(torch.arange(50))
        for k in (2, 3, 4, 9, 16, 17):
            rows = torch.arange(5, 5 + k)
            assert all(torch.equal(a, b[rows]) for a, b in zip(numbers(rows), whole, strict=True))

    def test_models_are_chosen_with_their_probabilities(self):
        n = 10_000
        u = (torch.arange(n, dtype=torch.float64) + 0.5) / n
        weights = torch.tensor([0.2, 0.0, 0.5, 0.3], dtype=torch.float64)
        chosen = chosen_model(weights.log().expand(n, -1) - 5, u)
        assert torch.allclose(chosen.bincount(minlength=4) / n, weights.float(), atol=1e-3)


def known(N, seed=0, k=4, M=10):
    """Designs of N agents and observations of a function that they share, with small residuals."""
    Phi = normals(N, k, M, seed=seed)
    Phi = Phi / Phi.norm(dim=2, keepdim=True)
    g = normals(M, seed=seed + 1)
    h = 0.5 * normals(N, M, seed=seed + 2)
    return Phi, (Phi @ (g + h).unsqueeze(-1)).squeeze(-1) + 0.1 * normals(N, k, seed=seed + 3)


class TestOwnMessage:
    def corrections(self, N):
        """The correction of an agent's prior mean, and the exact one at the same hyper-parameters (N - 1 agents)."""
        model = dataclasses.replace(MODEL, leave_own_out=True)
        Phi, y = known(N)
        v, tau, lam = 1.0, 0.25, 0.01
        each = centred(Phi).mT @ centred(Phi)
        s = (centred(Phi).mT @ centred(y).unsqueeze(-1)).squeeze(-1)
        eye = torch.eye(10, dtype=torch.float64)

        def posterior(rows):
            A, b = each[rows].sum(0), s[rows].sum(0)
            V = v * A @ A + tau * (each[rows] @ each[rows]).sum(0) + lam * A
            gain = v * torch.linalg.solve(V, A).T
            return gain @ b, gain

        mean, gain = posterior(slice(0, N))
        prior = SharedPrior(
            mean[None],
            mean,
            eye,
            torch.ones(10).double(),
            gain,
            torch.tensor(lam).double(),
            torch.tensor(1.0).double(),
            torch.tensor(math.inf),
        )
        found = transfer_of(model, prior, Phi[:1], y[:1], 4).mean[0]
        return found - mean, posterior(slice(1, N))[0] - mean

    def test_leaving_it_out_is_exact_up_to_second_order(self):
        """The correction is O(1/N), its error O(1/N^2): four times as many agents, a quarter of the relative error."""
        errors = []
        for N in (20, 80, 320):
            found, exact = self.corrections(N)
            errors.append(float((found - exact).norm() / exact.norm()))
        assert errors[0] < 0.8 and errors[1] < 0.5 * errors[0] and errors[2] < 0.5 * errors[1]

    def test_a_clipped_message_leaves_with_the_size_it_came_with(self):
        Phi, y = known(3)
        model = dataclasses.replace(MODEL, leave_own_out=True)
        prior = a_prior(10)
        norm = model.statistics.messages(Phi, y).norm(dim=1)
        whole = transfer_of(model, prior, Phi, y, 4).mean - prior.mean
        half = dataclasses.replace(prior, clip_norm=norm[1] / 2)
        clipped = transfer_of(model, half, Phi, y, 4).mean - prior.mean
        assert torch.allclose(clipped[1], whole[1] / 2)
        assert torch.allclose(clipped[0], whole[0] * (norm[1] / 2 / norm[0]).clamp(max=1))
        kept = transfer_of(MODEL, prior, Phi, y, 4).mean
        assert torch.equal(kept, prior.mean.expand(3, -1))

    def test_only_the_design_was_in_the_message(self):
        Phi, y = known(3, k=7)
        model = dataclasses.replace(MODEL, leave_own_out=True)
        prior, other = a_prior(10), y.clone()
        other[:, 4:] = 0
        assert torch.equal(transfer_of(model, prior, Phi, y, 4).mean, transfer_of(model, prior, Phi, other, 4).mean)


def run(mechanism, seed=0, ledger=None, problem=None, **settings):
    problem, agents = prior_world(problem, seed=seed, **settings)
    server = prior_server_for(problem, agents, mechanism, ledger)
    return federation.run(federation.LocalPopulation.of(problem, agents), server, T, broadcasts=1)


def private(z=1.0):
    return SubsampledGaussian(1.0, z, 3.0)


class TestServer:
    def test_the_broadcast_is_the_posterior_in_coordinates_of_the_residual(self):
        model = PriorModel(lengthscales=(0.1, 0.3), noise=0.01, scale=0.5, optimism=2.0)
        problem, agents = prior_world(model=model)
        server = prior_server_for(problem, agents, private())
        shard = Shard(problem, agents, torch.arange(12))
        messages = shard.step(0, None, send=True).messages
        prior, record, _ = server.round(0, messages)
        kappa = model.statistics.kappa(4)
        release = 12 * prior.values[0]  # N times the average
        sd = 3.0  # z S, of the sum
        assert 12 * record.sigma == pytest.approx(sd)
        found = infer(Released(release[:-1], release[-1] / kappa, sd, sd / kappa), server.sums, 0.01 / 0.5**2)
        X, own = prior.rotation, found.own * (1 + 2.0 * found.own_share)
        assert torch.allclose(X @ X.T, torch.diag(own))
        assert torch.allclose(X @ torch.diag(prior.spectrum) @ X.T, model.caution * found.covariance)
        assert torch.allclose(prior.alone * X @ X.T, torch.diag((1 + 2.0) * found.own / found.own_share))
        assert torch.allclose(X @ prior.mean, found.mean)
        assert torch.allclose(X @ prior.gain, found.gain)
        assert (prior.noise, prior.clip_norm) == (0.01 / 0.5**2, 3.0)

    def test_without_privacy_it_is_inferred_from_the_plain_sum(self):
        problem, agents = prior_world()
        server = prior_server_for(problem, agents, WeightedAverage())
        messages = Shard(problem, agents, torch.arange(12)).step(0, None, send=True).messages
        prior, record, _ = server.round(0, messages)
        assert torch.allclose(12 * prior.values[0], messages.sum(0))
        assert record.sigma == 0 and prior.clip_norm == torch.inf
        assert prior.rotation.isfinite().all()

    def test_sums_do_not_depend_on_the_parts_they_are_made_in(self, monkeypatch):
        problem, agents = prior_world()
        whole = prior_server_for(problem, agents, private()).sums
        monkeypatch.setattr("dpfbo.federated.prior_server._BLOCK", 5 * 4 * 40)
        parts = prior_server_for(problem, agents, private()).sums
        assert torch.allclose(whole.A, parts.A) and torch.allclose(whole.squares, parts.squares)
        assert whole.contrasts == parts.contrasts == 36

    def test_lost_messages_shrink_the_mean(self):
        """By about the share that was lost, at given hyper-parameters."""
        problem, agents = prior_world(Synthetic(n_agents=60, grid_size=60, lengthscale=0.1))
        server = prior_server_for(problem, agents, WeightedAverage())
        messages = Shard(problem, agents, torch.arange(60)).step(0, None, send=True).messages
        release = messages.mean(0, keepdim=True)
        lost = list(messages)
        lost[::2] = [None] * 30
        heard, _, private = server.round(0, lost)
        assert private.n_rejected == 30
        gain = server.infer(release, 0.0).gain
        whole, half = (gain @ (60 * v[0, :-1]) for v in (release, heard.values))
        assert (half - whole / 2).norm() < 0.5 * whole.norm()

    def test_a_prior_stays_until_there_is_another(self):
        one, other = a_prior(3), a_prior(3, seed=9)
        assert averaged(one, None, 0.9) is one
        assert averaged(one, other, 0.9) is other


class TestRuns:
    def test_one_charge_and_the_prior_for_the_rest_of_the_run(self):
        ledger = Ledger()
        result = run(private(), ledger=ledger)
        assert [c.round for c in ledger.charges] == [0]
        assert isinstance(result.broadcast, SharedPrior)
        assert len(result.rounds) == T + 1
        for record in result.rounds[1:]:
            assert (record.source == Source.server).any()

    @pytest.mark.parametrize("problem", ["grid", "box"])
    def test_numbers_of_an_agent_do_not_depend_on_its_batch(self, problem):
        make = {"grid": lambda: None, "box": lambda: Branin(n_agents=6)}[problem]
        problem, agents = prior_world(make())
        server = prior_server_for(problem, agents, private(0.3))
        whole = Shard(problem, agents, torch.arange(problem.n_agents))
        first = whole.step(0, None, send=True)
        prior, _, _ = server.round(0, first.messages)
        rest = [whole.step(t, prior, send=False) for t in (1, 2, 3)]
        for ids in ([0], [4, 1], [2, 3, 5]):
            shard = Shard(problem, agents, torch.tensor(ids))
            part = shard.step(0, None, send=True)
            assert torch.equal(part.messages, first.messages[ids])
            for t, turn in zip((1, 2, 3), rest, strict=True):
                found = shard.step(t, prior, send=False).record
                assert torch.equal(found.x, turn.record.x[ids])
                assert torch.equal(found.source, turn.record.source[ids])

    def test_a_prior_of_what_all_share_helps(self):
        """Regret after each of rounds 1..T, against agents with the same designs that work alone, over 4 functions."""
        gaps, model = [], PriorModel(lengthscales=(0.05,), scale=0.25, noise=0.01)
        for seed in range(4):
            problem = Synthetic(n_agents=30, grid_size=100, lengthscale=0.05, function_seed=seed)
            shared = run(private(0.5), seed, problem=problem, M=80, model=model)
            _, agents = prior_world(problem, M=80, seed=seed, model=model)
            alone = federation.run(federation.LocalPopulation.of(problem, agents), None, T)
            assert torch.equal(alone.rounds[0].y, shared.rounds[0].y)
            a, b = (torch.stack([r.regret[:, -1] for r in x.rounds[1:]]) for x in (alone, shared))
            gaps.append(a - b)
        gap = torch.stack(gaps).mean(0)  # T x N
        assert (gap.mean(1) > 4 * gap.std(1) / gap.shape[1] ** 0.5).all()

    def test_noise_instead_of_a_release_does_no_harm(self):
        """Mean regret of all rounds at most 4 standard errors and 10 % above that of agents that work alone."""
        gaps, level = [], []
        for seed in range(4):
            problem = Synthetic(n_agents=30, grid_size=100, lengthscale=0.1, function_seed=seed)
            noise = run(private(1e4), seed, problem=problem, M=60)
            _, agents = prior_world(problem, M=60, seed=seed)  # the same designs
            alone = federation.run(federation.LocalPopulation.of(problem, agents), None, T)
            a, b = (torch.stack([r.regret[:, -1] for r in x.rounds[1:]]).mean(0) for x in (noise, alone))
            gaps.append(a - b)
            level.append(b)
        gap, level = torch.cat(gaps), torch.cat(level).mean()
        assert gap.mean() < 0.1 * level + 4 * gap.std() / len(gap) ** 0.5
        assert level > 0.01  # there was something to lose


class TestGate:
    """Agents whose observations follow what all share, or contradict it."""

    N = 40

    def sources(self, no_transfer):
        """Shares of queries with the prior, of agents that agree and of agents that contradict."""
        model = PriorModel(lengthscales=(0.1,), noise=0.01, no_transfer=no_transfer)
        problem = Synthetic(n_agents=self.N, grid_size=100, lengthscale=0.1)
        _, agents = prior_world(problem, model=model, rounds=20)
        server, ids = prior_server_for(problem, agents, private(0.1)), torch.arange(self.N)
        wave = lambda u: torch.sin(14 * u[..., 0])
        state, clock = agents.initial_state(ids), PhaseClock()
        u = agents.initial_query(state).u
        state.append(u, wave(u))
        prior, _, _ = server.round(0, agents.messages(state, 0))
        more = on_domain(agents.domain, agents.streams.uniform("test", ids, 0, 8)[..., None])
        y = wave(more)
        y[::2] = wave(1 - 0.5 * more[::2] ** 2)  # another function
        state.append(more, y)
        source = torch.cat([agents.query(state, prior, t, clock).source for t in range(1, 6)], 1)
        follows = (source == Source.server).double().mean(1)
        return follows[1::2].mean().item(), follows[::2].mean().item()

    @pytest.mark.parametrize("no_transfer", ["features", "own_gp", "both"])
    def test_an_agent_that_is_contradicted_leaves(self, no_transfer):
        agree, contradict = self.sources(no_transfer)
        assert agree > 0.9
        assert contradict < 0.25  # some have no observation where the functions differ

    @pytest.mark.parametrize("scale", [0.3, 1.0])
    def test_its_own_model_is_compared_in_the_same_unit(self, scale):
        """Log density of the contrasts of y / scale under the agent's own GP, k(x, x') + lam, over scale^2."""
        model = PriorModel(lengthscales=(0.1,), noise=0.01, scale=scale, no_transfer="own_gp")
        _, agents = prior_world(model=model)
        ids = torch.arange(5)
        state = agents.initial_state(ids)
        u, y = agents.initial_query(state).u, normals(5, 4)
        state.append(u, y)
        transfer = transfer_of(model, a_prior(40), agents.features_at(state.points), state.y, 4)
        found = agents._log_likelihoods(transfer, state)
        k = torch.exp(-0.5 * ((u - u.mT) / 0.1) ** 2) + 0.01 * torch.eye(4, dtype=torch.float64)
        assert torch.allclose(found[:, 2], restricted_likelihood(cholesky(k / scale**2), y / scale))
        assert torch.equal(found[:, :2], transfer.log_likelihoods())

    def test_its_own_model_takes_part_after_its_first_fit(self):
        """Beside the features' model, in the order in which queries are told apart."""
        model = PriorModel(lengthscales=(0.1,), noise=0.01, no_transfer="both")
        own = OwnGP("closed_form", every=5, lengthscale=0.1, variance=1.0, noise=0.01)
        _, agents = prior_world(model=model, own_gp=own)
        clock, prior = PhaseClock(), a_prior(40)
        state = agents.initial_state(torch.arange(5))
        state.append(agents.initial_query(state).u, normals(5, 4))
        found = agents._log_likelihoods(transfer_of(model, prior, agents.features_at(state.points), state.y, 4), state)
        assert found.shape == (5, 3)
        later = on_domain(agents.domain, normals(5, 1, 1, seed=3).abs() % 1)
        state.append(later, normals(5, 1, seed=4))
        agents.fit_hyperparameters(state, clock)
        transfer = transfer_of(model, prior, agents.features_at(state.points), state.y, 4)
        found = agents._log_likelihoods(transfer, state)
        assert torch.equal(found[:, :3], transfer.log_likelihoods())
        L = hyperparameters.gram_cholesky(state.x, state.hyper, state.hyper.noise)
        torch.testing.assert_close(found[:, 3], restricted_likelihood(L, transfer.z), rtol=1e-10, atol=1e-10)

    @pytest.mark.parametrize(("n_init", "first"), [(3, 5), (5, 5), (6, 10), (10, 10), (12, 15)])
    def test_the_first_fit(self, n_init, first):
        own = OwnGP("closed_form", every=5)
        assert [n for n in range(n_init, 20) if own.fitted(n_init, n)] == list(range(first, 20))
        assert OwnGP("given").fitted(n_init, n_init)

    def test_without_another_model_nobody_leaves(self):
        assert self.sources("none") == (1, 1)
