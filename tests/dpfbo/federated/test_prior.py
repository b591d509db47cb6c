"""The private prior: messages of norm 1, inference against dense formulas, and runs of agents that receive it."""

import dataclasses
import math

import pytest
import torch
from scipy import stats
from torch.distributions import MultivariateNormal

from dpfbo import Agent, Coordinator, create_study
from dpfbo.clock import PhaseClock
from dpfbo.federated import federation
from dpfbo.federated import prior as prior_module
from dpfbo.federated.broadcast import SharedPrior, averaged
from dpfbo.federated.mechanism import SubsampledGaussian, WeightedAverage
from dpfbo.federated.population.agents import Source
from dpfbo.federated.population.shard import Shard
from dpfbo.federated.prior import DesignSums, centred, expected_signal, infer, known_mean, messages, symmetric
from dpfbo.gp.nystrom import NystromFeatures
from dpfbo.privacy.ledger import Ledger
from dpfbo.problems.branin import Branin
from dpfbo.problems.synthetic import Synthetic
from dpfbo.protocol import wire
from dpfbo.space.axes import Float
from dpfbo.space.domain import Box
from tests.helpers.federated_world import T, prior_server_for, prior_world
from tests.helpers.points import Listed, on_domain

LENGTHSCALES = (0.1, 0.3, 0.8)
LINE = Box((0.0,), (1.0,))
FEATURES = NystromFeatures.of(LINE, 12, LENGTHSCALES)


def normals(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def uniforms(*shape, seed=0):
    return torch.rand(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def private(z=1.0):
    return SubsampledGaussian(1.0, z, 1.0)


def a_prior(M=40, L=2, seed=0):
    root = normals(M, M, seed=seed) / M
    triangle = (root @ root.T)[*torch.tril_indices(M, M)]
    shares = torch.tensor([0.6, 0.4], dtype=torch.float64)
    return SharedPrior(
        normals(1, M, seed=seed + 1), normals(M, seed=seed + 2), triangle, torch.full((L,), 1 / L).double(), *shares
    )


def simulated(n, k=4, shared=1.0, seed=0, features=FEATURES, lengthscale=1):
    """Designs, n x k x 1, and observations of `sqrt(shared) g + sqrt(1 - shared) h_n`, n x k; and the weights of g."""
    D = features.coefficients[lengthscale]
    S, Q = torch.linalg.eigh(D)
    w = normals(n + 1, features.size, seed=seed) * S.clamp(min=0).sqrt() @ Q.T
    u = uniforms(n, k, 1, seed=seed + 1)
    weights = shared**0.5 * w[0] + (1 - shared) ** 0.5 * w[1:]
    return u, (features(u) @ weights.unsqueeze(-1))[..., 0], w[0]


def sums_of(u, features=FEATURES):
    return DesignSums.of(Listed(u), features, len(u))


def inferred(u, y, noise, seed=5, features=FEATURES):
    """The prior from the sum of the messages of all agents with noise."""
    b = messages(features(u), y).sum(0) + noise * normals(features.size, seed=seed)
    return infer(b[None] / len(u), b, noise, sums_of(u, features), features)


class TestMessages:
    def test_they_are_the_formula(self):
        psi, y = normals(3, 4, 6), normals(3, 4, seed=1)
        found = messages(psi, y)
        H = torch.eye(4, dtype=torch.float64) - 0.25
        for n in range(3):
            ranks = torch.tensor(stats.rankdata(y[n]))
            q = torch.tensor(stats.norm.ppf((ranks - 0.5) / 4))
            s = psi[n].T @ H @ q
            assert torch.allclose(found[n], s / s.norm())

    @pytest.mark.parametrize("y", ["normal", "ties", "huge", "tiny", "infinite"])
    def test_their_norm_is_one(self, y):
        """Whatever was observed, so that the sum has sensitivity 1; less 1e-12, so that rounding makes none longer."""
        psi = FEATURES(uniforms(50, 5, 1))
        values = normals(50, 5, seed=1)
        values = {
            "normal": values, "ties": values.round() + torch.arange(5), "huge": 1e300 * values, "tiny": 1e-300 * values,
            "infinite": torch.where(values > 0.5, math.inf, values - torch.arange(5)),
        }[y]  # fmt: skip
        norms = messages(psi, values).norm(dim=1)
        assert (norms < 1).all() and (norms > 1 - 2e-12).all()

    def test_equal_observations_are_a_zero_vector(self):
        psi = FEATURES(uniforms(4, 5, 1))
        y = torch.tensor([0.0, 1e300, -3.7, math.inf], dtype=torch.float64)[:, None].expand(4, 5)
        assert torch.equal(messages(psi, y), torch.zeros(4, 12).double())

    def test_designs_of_one_place_are_a_zero_vector(self):
        """Features without contrasts: no message, and no division by zero; rounding has norm 1 at most."""
        psi = torch.full((2, 4, 6), 0.5).double()
        assert torch.equal(messages(psi, normals(2, 4)), torch.zeros(2, 6).double())

    def test_unit_and_origin_of_observations_do_not_count(self):
        psi, y = FEATURES(uniforms(20, 5, 1)), normals(20, 5, seed=1)
        plain = messages(psi, y)
        for moved in (y + 1e3, 1e-6 * y, 1e200 * y, y.exp()):  # ranks are all that counts
            assert torch.equal(messages(psi, moved), plain)
        assert torch.allclose(messages(psi, -y), -plain)

    def test_one_agent_moves_the_sum_by_one(self):
        """Zero-out neighbours: 1; replaced observations: at most 2, and nearly so for the opposite values."""
        psi, y = FEATURES(uniforms(20, 5, 1)), normals(20, 5, seed=1)
        whole, moved = messages(psi, y), 0.0
        for seed in range(50):
            other = y.clone()
            other[3] = normals(5, seed=seed) * 10.0**seed
            changed = messages(psi, other)
            assert torch.equal(changed[torch.arange(20) != 3], whole[torch.arange(20) != 3])
            moved = max(moved, float((changed.sum(0) - whole.sum(0)).norm()))
        assert 1 < moved <= 2 + 1e-12
        assert (whole.sum(0) - whole[torch.arange(20) != 3].sum(0)).norm().item() == pytest.approx(1)

    def test_a_typical_message_is_as_long_as_the_model_says(self):
        """`kappa` makes the mean square of a modelled message 1: `kappa tr(sum_n A_n D_l A_n) = N`, by simulation."""
        u, _, _ = simulated(4000)
        kappa = sums_of(u).kappa
        for l in range(3):
            _, y, _ = simulated(4000, shared=0.0, lengthscale=l)
            s = (centred(FEATURES(u)).mT @ y.unsqueeze(-1))[..., 0] * kappa[l].sqrt()
            squares = s.square().sum(1)
            assert abs(squares.mean() - 1) < 4 * squares.std() / 4000**0.5


class TestDesignSums:
    @pytest.mark.parametrize("at_once", [1, 3, 100])
    def test_they_are_those_of_a_loop(self, at_once, monkeypatch):
        monkeypatch.setattr(prior_module, "_BLOCK", at_once * 4 * 12)
        u, D = uniforms(7, 4, 1), FEATURES.coefficients
        sums = sums_of(u)
        A, Q = torch.zeros(12, 12).double(), torch.zeros(3, 12, 12).double()
        H = torch.eye(4, dtype=torch.float64) - 0.25
        for psi in FEATURES(u):
            A_n = psi.T @ H @ psi
            A += A_n
            Q += A_n @ D @ A_n
        assert sums.n_agents == 7
        assert torch.allclose(sums.A, A) and torch.allclose(sums.Q, Q)
        assert torch.allclose(sums.kappa, 7 / torch.stack([q.trace() for q in Q]))


class TestInference:
    @pytest.mark.parametrize("noise", [0.0, 0.3, 5.0])
    @pytest.mark.parametrize("shared", [1.0, 0.5])
    def test_it_is_the_posterior_of_the_joint_gaussian(self, noise, shared):
        """All weights, g and each h_n, as one Gaussian vector; every length-scale and share; averaged by density."""
        N, M = 3, 5
        features = NystromFeatures.of(LINE, M, LENGTHSCALES)
        u, y, _ = simulated(N, shared=shared, features=features)
        found, psi = inferred(u, y, noise, features=features), features(u)
        b = N * found.values[0]
        H = torch.eye(4, dtype=torch.float64) - 0.25
        A_n = psi.mT @ H @ psi  # N x M x M
        B = torch.cat([A_n.sum(0), *A_n], 1)  # M x (N + 1) M: b = B (g, h_1, ..., h_N) + noise
        s = max(noise, 0.01) * torch.eye(M, dtype=torch.float64)
        U = features.root.T  # psi(U)'
        logs, means, covariances, explained, rhos = [], [], [], [], []
        for D in features.coefficients:
            kappa = N / sum(torch.trace(a @ D @ a) for a in A_n)
            values = U.T @ D @ U  # covariance at the M inducing points
            unit = values.diagonal().mean() - values.mean()
            for rho in (r / 10 for r in range(10)):
                blocks = [rho * kappa * D] + [(1 - rho) * kappa * D] * N
                prior = torch.block_diag(*blocks)
                V = B @ prior @ B.T + s @ s
                logs.append(MultivariateNormal(torch.zeros(M).double(), V).log_prob(b))
                gain = torch.linalg.solve(V, B @ prior).T[:M]
                to_unit = (kappa * unit).rsqrt()  # weights in units of an objective
                means.append(gain @ b * to_unit)
                covariances.append((prior[:M, :M] - gain @ B @ prior[:, :M]) * to_unit**2)
                explained.append(gain @ B @ prior[:, :M] * to_unit**2)
                rhos.append(rho)
        p = torch.softmax(torch.stack(logs), 0)
        average = lambda parts: torch.einsum("j,j...->...", p, torch.stack(parts))
        assert torch.allclose(found.mean, average(means), atol=1e-9)
        assert torch.allclose(symmetric(found.covariance, M), average(covariances), atol=1e-8)
        assert torch.allclose(found.evidence, p.view(3, 10).sum(1), atol=1e-9)
        assert found.shared.item() == pytest.approx(float(p @ torch.tensor(rhos).double()))
        values = U.T @ average(explained) @ U
        assert found.explained.item() == pytest.approx(float(values.diagonal().mean() - values.mean()), abs=1e-9)

    def test_the_posterior_is_calibrated(self):
        """Over 200 worlds the mean squared error of g at U is its variance, if messages are not normalised.

        The truth is one of the averaged models, so the mixture's variance misses the spread of the models' means alone.
        """
        N, D, u = 30, FEATURES.coefficients, uniforms(30, 4, 1, seed=1)
        psi, sums = FEATURES(u), sums_of(u)
        kappa = sums.kappa
        unit = FEATURES.mean_variance(D)
        S, Q = torch.linalg.eigh(D[1])
        root = Q * S.clamp(min=0).sqrt()
        errors, expected = [], []
        A_n = centred(psi).mT @ centred(psi)
        for seed in range(200):
            w = normals(N + 1, 12, seed=seed) @ root.T * (kappa[1] * 0.5) ** 0.5  # rho = 1/2
            b = (A_n @ (w[0] + w[1:]).unsqueeze(-1)).sum(0)[:, 0] + normals(12, seed=seed + 1000)
            found = infer(b[None] / N, b, 1.0, sums, FEATURES)
            gap = FEATURES.root @ (found.mean - w[0] / (kappa[1] * unit[1]).sqrt())
            errors.append((gap - gap.mean()).square().mean())
            expected.append(FEATURES.mean_variance(symmetric(found.covariance, 12)[None])[0])
        ratio = torch.stack(errors).mean() / torch.stack(expected).mean()
        assert 0.8 < ratio < 1.4

    @pytest.mark.parametrize("noise", [0.0, 1e-3, 1.0, 1e3, 1e30])
    @pytest.mark.parametrize("size", [0.0, 1.0, 1e6, 1e100])
    def test_every_field_is_finite_and_shares_are_shares(self, noise, size):
        b = size * normals(12)
        found = infer(b[None] / 10, b, noise, sums_of(uniforms(10, 3, 1)), FEATURES)
        for field in dataclasses.fields(found):
            assert torch.isfinite(getattr(found, field.name)).all(), field.name
        for share in (found.evidence, found.shared, found.explained):
            assert ((share >= 0) & (share <= 1)).all()
        assert found.evidence.sum().item() == pytest.approx(1)
        wire.check_fits(found, 12, 10, 1, 1, 3)

    @pytest.mark.parametrize("domain", [LINE, Box((0.0,) * 4, (1.0,) * 4)], ids=["line", "four axes"])
    @pytest.mark.parametrize("noise", [0.0, 1.0, 20.0])
    def test_covariances_have_no_negative_variances(self, domain, noise):
        """Beyond rounding, else agents would refuse the broadcast."""
        features = NystromFeatures.of(domain, 80, (0.05, 0.1, 0.2, 0.4, 0.8))
        for seed in range(3):
            u = uniforms(40, 3, domain.dimension, seed=seed)
            found = inferred(u, normals(40, 3, seed=seed) + u[..., 0], noise, seed, features)
            wire.check_fits(found, 80, 40, 1, domain.dimension, 5)

    @pytest.mark.parametrize("seed", range(5))
    def test_a_release_of_noise_explains_nothing(self, seed):
        u, y, _ = simulated(25, seed=seed)
        found = inferred(u, y, 1e4, seed)
        assert found.explained < 1e-6
        assert found.mean.norm() < 1e-2
        assert torch.allclose(found.evidence, torch.full((3,), 1 / 3).double(), atol=1e-6)

    def test_more_agents_explain_more(self):
        """Mean over 8 functions, at the same noise."""
        explained, errors = [], []
        for N in (6, 25, 100, 400):
            made = []
            for seed in range(8):
                u, y, w = simulated(N, shared=0.9, seed=10 * seed)
                found = inferred(u, y, 2.0, seed)
                g, mean = FEATURES.root @ w, FEATURES.root @ found.mean
                made.append([float(found.explained), float(torch.corrcoef(torch.stack([g, mean]))[0, 1])])
            share, right = torch.tensor(made).mean(0)
            explained.append(share)
            errors.append(1 - right)
        assert explained == sorted(explained) and explained[0] < 0.3 < 0.6 < explained[-1]
        assert errors == sorted(errors, reverse=True) and errors[-1] < 0.1

    def test_agents_alike_are_told_from_agents_apart(self):
        """The inferred share of variance grows with the true one, and is none for agents that share nothing.

        Messages of norm 1 hide how large an agent's contrasts were, so that the largest share is underestimated.
        """
        share = []
        for true in (0.0, 0.3, 1.0):
            found = [inferred(*simulated(400, shared=true, seed=9 * seed)[:2], 0.5).shared for seed in range(6)]
            share.append(float(torch.stack(found).mean()))
        assert share[0] < 0.05 and share == sorted(share) and share[2] > 0.4

    def test_the_evidence_follows_the_length_scale(self):
        """The mean logarithm under the evidence of 400 agents grows with the true one, over 6 functions each."""
        logs, means = torch.tensor(LENGTHSCALES, dtype=torch.float64).log(), []
        for true in range(3):
            worlds = (simulated(400, k=5, seed=7 * seed, lengthscale=true) for seed in range(6))
            means.append(float(torch.stack([inferred(u, y, 0.5).evidence @ logs for u, y, _ in worlds]).mean()))
        assert means == sorted(means) and means[2] - means[0] > 0.5

    def test_the_sign_of_the_release_is_that_of_the_mean(self):
        u, y, _ = simulated(25)
        one, other = inferred(u, y, 0.0), inferred(u, -y, 0.0)
        assert torch.allclose(one.mean, -other.mean) and torch.allclose(one.covariance, other.covariance)


class TestExpectedSignal:
    def test_it_is_the_correlation_of_means_with_and_without_noise(self):
        """Of the posterior means of g at U under one model, by simulation; the length-scale is the middle one."""
        N, u, D = 20, uniforms(20, 4, 1, seed=1), FEATURES.coefficients[1]
        sums = sums_of(u)
        A_n, kappa = centred(FEATURES(u)).mT @ centred(FEATURES(u)), sums.kappa[1]
        S, Q = torch.linalg.eigh(D)
        root = Q * (kappa * S.clamp(min=0)).sqrt()
        w = normals(1000, N + 1, 12) @ root.T
        b = torch.einsum("nij,rnj->ri", A_n, 0.7**0.5 * w[:, :1] + 0.3**0.5 * w[:, 1:])
        means = []
        for sd in (2.0, 0.01):
            V = kappa * (0.7 * sums.A @ D @ sums.A + 0.3 * sums.Q[1]) + sd**2 * torch.eye(12, dtype=torch.float64)
            gain = torch.linalg.solve(V, sums.A @ D).T
            mean = (b + sd * normals(1000, 12, seed=2)) @ gain.T @ FEATURES.root.T
            means.append(mean - mean.mean(1, keepdim=True))
        squares = [m.square().sum(1).mean() for m in means]
        assert expected_signal(sums, FEATURES, 2.0) == pytest.approx(float(squares[0] / squares[1]) ** 0.5, rel=0.05)

    def test_less_noise_and_more_agents_leave_more(self):
        by_noise = [expected_signal(sums_of(uniforms(20, 4, 1)), FEATURES, s) for s in (0.0, 1.0, 5.0, 1e4)]
        assert by_noise == sorted(by_noise, reverse=True)
        assert by_noise[0] == 1 and 0 <= by_noise[-1] < 0.01
        by_agents = [expected_signal(sums_of(uniforms(N, 4, 1)), FEATURES, 5.0) for N in (5, 20, 80, 320)]
        assert by_agents == sorted(by_agents)


class TestKnownMean:
    def test_weights_and_covariance(self):
        prior = dataclasses.replace(a_prior(6), evidence=torch.tensor([0.9, 0.1], dtype=torch.float64))
        known = known_mean(prior, 4, 4)
        assert torch.equal(known.mean, prior.mean) and known.own.item() == pytest.approx(0.4)
        expected = prior_module._TRUST * 2 * prior.evidence * 0.4
        assert torch.allclose(known.log_weights.exp(), expected)
        S = known.covariance
        assert torch.equal(S, S.T) and torch.equal(S[*torch.tril_indices(6, 6)], prior.covariance)

    def test_trust_falls_with_observations_and_with_noise(self):
        prior = a_prior(6)
        by_t = [float(known_mean(prior, 4, t).log_weights[0]) for t in (4, 5, 8, 40)]
        assert by_t == sorted(by_t, reverse=True) and by_t[0] - by_t[-1] > 2 * math.log(10)
        by_n_init = [known_mean(prior, n, 2 * n).log_weights for n in (2, 10)]  # the ratio is what counts
        assert torch.allclose(*by_n_init)
        less = dataclasses.replace(prior, explained=prior.explained / 4)
        gap = known_mean(prior, 4, 4).log_weights - known_mean(less, 4, 4).log_weights
        assert torch.allclose(gap, torch.full((2,), math.log(4), dtype=torch.float64))

    def test_a_prior_that_explains_nothing_is_not_used(self):
        zero = dataclasses.replace(a_prior(6), explained=torch.tensor(0.0).double())
        assert (known_mean(zero, 4, 4).log_weights < -60).all()


class TestServer:
    def first(self, N=12, **settings):
        problem, agents = prior_world(Synthetic(n_agents=N, grid_size=60, lengthscale=0.1), **settings)
        return problem, agents, Shard(problem, agents, torch.arange(N)).step(0, None, send=True).messages

    def test_a_round_is_the_inference_from_N_times_the_release(self):
        problem, agents, sent = self.first()
        server = prior_server_for(problem, agents, private(2.0))
        prior, record, _ = server.round(0, sent)
        assert 12 * record.sigma == pytest.approx(2.0)  # z S, of the sum
        found = infer(prior.values, 12 * prior.values[0], 2.0, server.sums, agents.features)
        for field in dataclasses.fields(prior):
            assert torch.allclose(getattr(found, field.name), getattr(prior, field.name)), field.name

    def test_without_privacy_it_is_inferred_from_the_plain_sum(self):
        problem, agents, sent = self.first()
        prior, record, _ = prior_server_for(problem, agents, WeightedAverage()).round(0, sent)
        assert torch.allclose(12 * prior.values[0], sent.sum(0)) and record.sigma == 0

    def test_nothing_is_clipped(self):
        """Messages of norm 1 pass a clip norm of 1 as they are."""
        _, _, sent = self.first(200)
        bounded, n_clipped = private().bounded(sent, 1)
        assert torch.equal(bounded, sent) and n_clipped == 0

    def test_sums_do_not_depend_on_the_parts_they_are_made_in(self, monkeypatch):
        problem, agents, _ = self.first()
        whole = prior_server_for(problem, agents, private()).sums
        monkeypatch.setattr(prior_module, "_BLOCK", 5 * 4 * 40)
        parts = prior_server_for(problem, agents, private()).sums
        assert torch.allclose(whole.A, parts.A) and torch.allclose(whole.Q, parts.Q)
        assert whole.n_agents == parts.n_agents == 12

    def test_lost_messages_shrink_the_mean(self):
        """Half of the messages: the mean keeps its direction, and is shorter."""
        problem, agents, sent = self.first(60)
        server = prior_server_for(problem, agents, WeightedAverage())
        whole = server.round(0, sent)[0].mean
        lost = list(sent)
        lost[::2] = [None] * 30
        heard, _, private = server.round(0, lost)
        assert private.n_rejected == 30
        R = agents.features.root
        both = torch.stack([R @ whole, R @ heard.mean])
        assert torch.corrcoef(both)[0, 1] > 0.7
        assert both[1].std() < 0.95 * both[0].std()

    def test_a_prior_stays_until_there_is_another(self):
        one, other = a_prior(3), a_prior(3, seed=9)
        assert averaged(one, None, 0.9) is one
        assert averaged(one, other, 0.9) is other

    def test_a_broadcast_takes_at_most_30_kB(self):
        """With the default of 80 features; and agents accept it."""
        study = create_study(
            {"x": Float(0, 1)}, n_agents=3, algorithm="dp_prior", epsilon=1.0, delta=1e-3, rounds=2, n_init=3,
            rng="seeded",
        )  # fmt: skip
        assert study.agents.message_size == 80
        agents, server = [Agent(study, n) for n in range(3)], Coordinator(study)
        for n, agent in enumerate(agents):
            for y in (1.0, 2.0, 0.5):
                agent.tell(agent.ask(), y)
            data = agent.message()
            assert len(data) < 900  # 80 numbers and a header
            server.receive(n, data)
        data = server.release()
        assert len(data) <= 30_000
        for agent in agents:
            agent.receive(data)
            assert 0 <= agent.ask()["x"] <= 1


def run(mechanism, seed=0, ledger=None, problem=None, **settings):
    problem, agents = prior_world(problem, seed=seed, **settings)
    server = prior_server_for(problem, agents, mechanism, ledger)
    return federation.run(federation.LocalPopulation.of(problem, agents), server, T, broadcasts=1)


def alone(seed=0, problem=None, **settings):
    """The same agents without a server, which is the algorithm `local`."""
    problem, agents = prior_world(problem, seed=seed, **settings)
    return federation.run(federation.LocalPopulation.of(problem, agents), None, T)


class TestRuns:
    def test_one_charge_and_the_prior_for_the_rest_of_the_run(self):
        ledger = Ledger()
        result = run(private(), ledger=ledger)
        assert [c.round for c in ledger.charges] == [0]
        assert isinstance(result.broadcast, SharedPrior)
        assert len(result.rounds) == T + 1

    @pytest.mark.parametrize("domain", ["grid", "box"])
    def test_numbers_of_an_agent_do_not_depend_on_its_batch(self, domain):
        problem, agents = prior_world({"grid": None, "box": Branin(n_agents=6)}[domain])
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

    def test_no_point_of_a_grid_is_queried_twice(self):
        for result in (run(private()), alone()):
            x = torch.cat([r.x for r in result.rounds[1:]], 1)[..., 0]
            first = result.rounds[0].x[..., 0]
            for agent in range(12):
                later = x[agent].tolist()
                assert len(set(later)) == T and not set(later) & set(first[agent].tolist())

    def test_a_prior_of_what_all_share_helps(self):
        """Mean regret of rounds 1..T against agents with the same designs that work alone, over 4 functions."""
        gaps = []
        for seed in range(4):
            problem = Synthetic(n_agents=30, grid_size=100, lengthscale=0.05, function_seed=seed)
            settings = {"problem": problem, "M": 60, "lengthscales": (0.05, 0.1, 0.2)}
            shared, single = run(private(0.5), seed, **settings), alone(seed, **settings)
            assert torch.equal(single.rounds[0].y, shared.rounds[0].y)
            a, b = (torch.stack([r.metric[:, -1] for r in x.rounds[1:]]) for x in (single, shared))
            gaps.append((a - b).mean(0))
        gap = torch.cat(gaps)
        assert gap.mean() > 4 * gap.std() / len(gap) ** 0.5

    def test_noise_in_place_of_a_release_changes_hardly_a_query(self):
        """At z = 10^4, against agents that work alone: queries of the first round with a prior, over 3 functions."""
        same = []
        for seed in range(3):
            problem = Synthetic(n_agents=40, grid_size=100, lengthscale=0.1, function_seed=seed)
            noise, single = run(private(1e4), seed, problem=problem), alone(seed, problem=problem)
            assert noise.broadcast.explained < 1e-4
            same.append((noise.rounds[1].x == single.rounds[1].x).double().mean())
        assert sum(same) / 3 > 0.95

    def test_less_noise_changes_more_queries(self):
        problem = Synthetic(n_agents=40, grid_size=100, lengthscale=0.1)
        single = alone(problem=problem).rounds[1].x
        same = [(run(private(z), problem=problem).rounds[1].x == single).double().mean() for z in (0.1, 3.0, 1e4)]
        assert same[0] < same[2] and same[1] < same[2]

    def test_an_agent_that_is_contradicted_leaves(self):
        """Sources of queries of agents that observe what all share, and of those that observe something else."""
        N = 40
        problem, agents = prior_world(Synthetic(n_agents=N, grid_size=100, lengthscale=0.1), rounds=20)
        server, ids, clock = prior_server_for(problem, agents, private(0.1)), torch.arange(N), PhaseClock()
        wave = lambda u: torch.sin(14 * u[..., 0])
        state = agents.initial_state(ids)
        u = agents.initial_query(state).u
        state.append(u, wave(u))
        prior, _, _ = server.round(0, agents.messages(state, 0))
        more = on_domain(agents.domain, agents.streams.uniform("test", ids, 0, 6)[..., None])
        y = wave(more)
        y[::2] = -wave(more[::2])
        state.append(more, y)
        follows = (agents.query(state, prior, 1, clock).source == Source.server).double()[:, 0]
        assert follows[1::2].mean() > 0.8
        assert follows[::2].mean() < 0.4
