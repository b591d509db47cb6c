"""The private prior: statistics of public designs, and the server's inference from their noisy sum."""

import math

import pytest
import torch
from dpfbo.federated.prior.inference import Evidence, Released, infer
from dpfbo.federated.prior.model import PriorModel
from dpfbo.federated.prior.statistics import Statistics, centred, design_sums
from torch.distributions import MultivariateNormal

from dpfbo.checks import SettingError

V, TAU, LAM = 0.7, 0.3, 0.05  # variances of the common weights, of an agent's own, and of the noise
THETA = torch.tensor([[math.log(V / TAU), math.log(V + TAU)]], dtype=torch.float64)  # the same, with lam given
SE = 5  # standard errors within which a simulated mean must lie


def normals(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def unit_features(n, k, M, seed=1):
    """Features of designs, n x k x M, each of norm 1 and of smoothly decaying size."""
    Phi = normals(n, k, M, seed=seed) * torch.linspace(1, 0.5, M, dtype=torch.float64)
    return Phi / Phi.norm(dim=2, keepdim=True)


def simulated(Phi, seed=0, v=V, tau=TAU, lam=LAM):
    """The hierarchical model's g (M) and observations y (n x k), with a large constant of each agent's own."""
    n, k, M = Phi.shape
    z = normals(M + n * M + n * k + n, seed=seed)
    g, h, e, c = z.split([M, n * M, n * k, n])
    g = v**0.5 * g
    f = (Phi @ (g + tau**0.5 * h.view(n, M)).unsqueeze(-1)).squeeze(-1)
    return g, f + lam**0.5 * e.view(n, k) + 10 * c[:, None]


def released(Phi, y, sd=1.0, scalar_sd=1.0, seed=9):
    s = Statistics()
    message = s.messages(Phi, y).sum(0)
    noise = normals(len(message), seed=seed)
    return Released(
        message[:-1] + sd * noise[:-1], message[-1] / s.kappa(y.shape[1]) + scalar_sd * noise[-1], sd, scalar_sd
    )


class TestStatistics:
    def test_moments_are_those_of_the_model(self):
        """Given g: E[s] = A g, Cov[s] = A tau A + lam A, E[y'Hy] = g'A g + tau tr A + lam (n_init - 1)."""
        n, k, M = 40_000, 5, 6
        Phi = unit_features(1, k, M)[0]
        g, h, e, c = normals(M), normals(n, M, seed=1), normals(n, k, seed=2), normals(n, seed=3)
        y = (g + TAU**0.5 * h) @ Phi.T + LAM**0.5 * e + 3 * c[:, None]
        s = Statistics()
        messages = s.messages(Phi.expand(n, -1, -1), y)
        linear, scalar = messages[:, :-1], messages[:, -1] / s.kappa(k)
        H = torch.eye(k, dtype=torch.float64) - 1 / k
        A = Phi.T @ H @ Phi
        C = TAU * A @ A + LAM * A
        assert ((linear.mean(0) - A @ g).abs() < SE * (C.diagonal() / n).sqrt()).all()
        se = ((C.diagonal()[:, None] * C.diagonal() + C**2) / n).sqrt()
        assert ((linear.T.cov() - C).abs() < SE * se).all()
        expected = g @ A @ g + TAU * A.trace() + LAM * (k - 1)
        assert abs(scalar.mean() - expected) < SE * scalar.std() / n**0.5

    def test_a_message_does_not_depend_on_the_unit_or_on_a_constant(self):
        Phi, y = unit_features(4, 5, 6), normals(4, 5)
        plain = Statistics().messages(Phi, y)
        assert torch.allclose(Statistics(scale=100.0).messages(Phi, 100 * y), plain)
        assert torch.allclose(Statistics().messages(Phi, y + 1e3 * torch.arange(4)[:, None]), plain, atol=1e-9)
        assert not torch.allclose(Statistics().messages(Phi, 2 * y), plain)

    @pytest.mark.parametrize("weight", [0.25, 1.0])
    def test_the_scalar_is_a_share_of_the_norm_whatever_the_length_of_the_design(self, weight):
        """Its mean is scalar_weight sqrt(n_init - 1) for observations of variance 1."""
        for k in (2, 10):
            y = normals(20_000, k, seed=k)
            scalar = Statistics(scalar_weight=weight).messages(torch.zeros(20_000, k, 1, dtype=torch.float64), y)[:, 1]
            assert abs(scalar.mean() - weight * (k - 1) ** 0.5) < SE * scalar.std() / 20_000**0.5

    def test_one_point_has_no_contrast(self):
        with pytest.raises(SettingError, match="n_init must be an integer of at least 2, got 1"):
            Statistics().kappa(1)

    @pytest.mark.parametrize("split", [[7], [3, 4], [1] * 7])
    @pytest.mark.parametrize("blocks", [1, 3])
    def test_sums_over_designs_are_those_of_a_loop(self, blocks, split):
        Phi = unit_features(7, 4, 6)
        sums = design_sums(Phi.split(split), blocks)
        A, squares = torch.zeros(6, 6, dtype=torch.float64), torch.zeros(blocks, 6, 6, dtype=torch.float64)
        for features in Phi:
            Z = features - features.mean(0)
            A += Z.T @ Z
            for j in range(blocks):
                E = torch.zeros(6, 6, dtype=torch.float64)
                for m in range(j * 6 // blocks, (j + 1) * 6 // blocks):
                    E[m, m] = 1
                squares[j] += Z.T @ Z @ E @ Z.T @ Z
        assert torch.allclose(sums.A, A)
        assert torch.allclose(sums.squares, squares)
        assert sums.contrasts == 21

    def test_no_agents_no_sums(self):
        with pytest.raises(ValueError, match="at least one agent"):
            design_sums([], 1)


def dense(Phi, h, sd, blocks=1):
    """A (M x M), D_v and V as spec'd, from full matrices."""
    M = Phi.shape[2]
    v, tau = (x[0].repeat_interleave(M // blocks) for x in (h.common, h.own))
    each = centred(Phi).mT @ centred(Phi)  # A_n
    A = each.sum(0)
    D = torch.diag(v)
    own = (each * tau) @ each
    V = A @ D @ A + own.sum(0) + h.noise[0] * A + sd**2 * torch.eye(M, dtype=torch.float64)
    return A, D, tau, V


SHAPES = {"every direction reached": (20, 5, 8), "few directions reached": (3, 4, 24)}  # N, n_init, M


class TestInference:
    @pytest.mark.parametrize("noise", [LAM, None])
    @pytest.mark.parametrize("blocks", [1, 2])
    @pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
    def test_evidence_is_the_full_density(self, shape, blocks, noise):
        """Differences between hyper-parameters: a constant, and the density where no design reaches, are left out."""
        Phi = unit_features(*shape)
        _, y = simulated(Phi)
        r, sums = released(Phi, y, 1.0, 2.0), design_sums([Phi], blocks)
        evidence = Evidence(r, sums, noise)
        thetas = normals(6, len(evidence.centre), seed=4)

        def density(theta):
            h = evidence.variances(theta[None])
            A, D, tau, V = dense(Phi, h, r.sd, blocks)
            mu = D @ A @ torch.linalg.solve(V, r.linear)
            S = D - D @ A @ torch.linalg.solve(V, A @ D)
            expected = mu @ A @ mu + (A @ S).trace() + (A * tau).trace() + h.noise[0] * sums.contrasts
            scalar = torch.distributions.Normal(expected, (r.scalar_sd**2 + 2 * expected**2 / sums.contrasts).sqrt())
            priors = torch.distributions.Normal(evidence.centre, evidence.sd).log_prob(theta).sum()
            b = MultivariateNormal(torch.zeros_like(r.linear), V).log_prob(r.linear)
            return b + scalar.log_prob(r.scalar) + priors

        expected = torch.stack([density(theta) for theta in thetas])
        found = evidence.log_density(thetas)
        assert torch.allclose(found - found[0], expected - expected[0], atol=1e-5)
        assert expected.std() > 0.1  # there is something to compare

    @pytest.mark.parametrize("sd", [1.0, 1e-3, 0.0])
    @pytest.mark.parametrize("blocks", [1, 2])
    @pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
    def test_the_posterior_is_that_of_the_full_matrices(self, shape, blocks, sd):
        Phi = unit_features(*shape)
        _, y = simulated(Phi)
        r = released(Phi, y, sd)
        evidence = Evidence(r, design_sums([Phi], blocks), LAM)
        theta = normals(len(evidence.centre), seed=4)
        found = evidence.posterior(theta)
        A, D, tau, V = dense(Phi, evidence.variances(theta[None]), sd, blocks)
        gain = (torch.linalg.pinv(V, rtol=1e-10, hermitian=True) @ A @ D).T  # singular without noise
        assert torch.allclose(found.mean, gain @ r.linear, atol=1e-6)
        assert torch.allclose(found.covariance, D - gain @ A @ D, atol=1e-6)
        assert torch.allclose(found.gain @ (A @ D), gain @ (A @ D), atol=1e-6)
        assert torch.equal(found.own, tau)
        assert found.own_share == pytest.approx(float(torch.sigmoid(-theta[0])))

    def test_hyper_parameters_of_theta(self):
        evidence = Evidence(Released(normals(6), torch.tensor(1.0), 1.0, 1.0), design_sums([DESIGN], 3), None)
        h = evidence.variances(torch.tensor([[0.4, 0.2, 1.0, -1.0, -3.0]], dtype=torch.float64))
        share, whole = 1 / (1 + math.exp(-0.4)), math.exp(0.2)
        split = torch.tensor([[1.0, math.e, 1 / math.e]], dtype=torch.float64)
        split = split / split.sum() * 3
        assert torch.allclose(h.common, share * whole * split)
        assert torch.allclose(h.own, (1 - share) * whole * split)
        assert h.noise.item() == pytest.approx(math.exp(-3))

    def test_the_posterior_is_calibrated(self):
        """`(g - mu)' S^-1 (g - mu)` has mean M over many data sets of the model with its hyper-parameters."""
        R, M, sd = 300, 8, 2.0
        Phi = unit_features(15, 5, M)
        sums, found = design_sums([Phi], 1), []
        for seed in range(R):
            g, y = simulated(Phi, seed)
            posterior = Evidence(released(Phi, y, sd, 0.0, seed=seed + 10_000), sums, LAM).posterior(THETA[0])
            gap = torch.linalg.solve_triangular(
                torch.linalg.cholesky(posterior.covariance), (g - posterior.mean)[:, None], upper=False
            )
            found.append(gap.square().sum())
        se = (2 * M / R) ** 0.5
        assert abs(torch.stack(found).mean() - M) < 4 * se
        assert posterior.covariance.trace() < 0.7 * V * M  # something was learnt

    @pytest.mark.parametrize("given", [True, False])
    def test_variances_are_recovered_from_many_agents(self, given):
        """Both variances are inferred: v, of which there are M = 24 draws, and tau.

        v: by the mean of its logarithm in 8 sets within 4 standard errors. tau: within 12 %, and without lam, which the
        sums hardly tell apart from it, the spread of agents that both cause.
        """
        M, found = 24, []
        Phi = unit_features(400, 6, M)
        sums = design_sums([Phi], 1)
        for seed in range(8):
            _, y = simulated(Phi, seed)
            r = released(Phi, y, 1.0, 1.0, seed=seed + 10_000)
            found.append(infer(r, sums, LAM if given else None))
        for p in found:
            spread = p.own[0] * sums.A.trace() + p.noise * sums.contrasts
            assert spread.item() == pytest.approx(float(TAU * sums.A.trace() + LAM * sums.contrasts), rel=0.12)
            if given:
                assert p.own[0].item() == pytest.approx(TAU, rel=0.12)
        v = torch.stack([p.own[0] * (1 / p.own_share - 1) for p in found]).log()
        assert abs(v.mean() - math.log(V)) < 4 * (2 / M / len(found)) ** 0.5

    @pytest.mark.parametrize("sd", [1e-2, 1.0, 100.0])
    @pytest.mark.parametrize("seed", range(3))
    def test_a_release_of_noise_alone_tells_nothing(self, sd, seed):
        """Its mean is small beside what the posterior leaves open."""
        Phi = unit_features(15, 5, 8)
        noise = normals(9, seed=seed)
        found = infer(Released(sd * noise[:-1], sd * noise[-1], sd, sd), design_sums([Phi], 1), None)
        assert found.mean.norm() < 2 * found.covariance.trace().sqrt()
        assert torch.isfinite(found.covariance).all() and (found.own > 0).all()

    def test_without_noise_agents_alike_are_known_exactly(self):
        Phi = unit_features(20, 5, 8)
        g, y = simulated(Phi, v=1.0, tau=1e-6, lam=1e-6)
        found = infer(released(Phi, y, 0.0, 0.0), design_sums([Phi], 1))
        A = (centred(Phi).mT @ centred(Phi)).sum(0)
        assert (A @ (found.mean - g)).norm() < 0.05 * (A @ g).norm()

    def test_nothing_that_is_given_is_inferred(self):
        Phi = unit_features(15, 5, 8)
        _, y = simulated(Phi)
        found = infer(released(Phi, y), design_sums([Phi], 1), 0.123)
        assert found.noise.item() == 0.123


DESIGN = unit_features(3, 4, 6)


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ({"lengthscales": ()}, "lengthscales must name at least one number"),
        ({"lengthscales": (0.1, -1)}, "lengthscales must be a finite number above 0, got -1"),
        ({"residuals": (0.0,)}, "residuals must be a finite number above 0, got 0.0"),
        ({"scale": 0}, "scale must be a finite number above 0, got 0"),
        ({"scalar_weight": -1}, "scalar_weight must be a finite number above 0, got -1"),
        ({"noise": 0}, "noise must be a finite number above 0, got 0"),
        ({"optimism": -1}, "optimism must be a finite number of at least 0, got -1"),
        ({"no_transfer": 2}, "no_transfer must be one of features, own_gp, both, none, got 2"),
        ({"leave_own_out": None}, "leave_own_out must be one of True, False, got None"),
    ],
)
def test_a_bad_setting_of_the_model_is_one_sentence(setting, says):
    with pytest.raises(SettingError, match=says):
        PriorModel(**setting)
