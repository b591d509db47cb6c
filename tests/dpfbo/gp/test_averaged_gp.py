"""Averages of Gaussian processes: direct formulas by numpy, improvements far below 0, and transformed observations."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import integrate, special, stats

from dpfbo.checks import SettingError
from dpfbo.gp import averaged_gp
from dpfbo.gp.averaged_gp import (
    AveragedGP,
    ImprovementSurface,
    KnownMean,
    Places,
    half_ranked,
    log_improvement,
    normal_scores,
    standardised,
)
from dpfbo.gp.compiled.loading import library
from dpfbo.space.domain import Grid

N, T, D, M, K = 5, 6, 2, 7, 9
GP = AveragedGP((0.2, 0.5), (0.01, 0.2), (1.0, 2.0))


def normals(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def uniforms(*shape, seed=0):
    return torch.rand(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def places(n=N, k=T, seed=0, psi=False):
    return Places(uniforms(n, k, D, seed=seed), normals(n, k, M, seed=seed + 50) / M**0.5 if psi else None)


def known_mean(weights=(-1.0, 0.5)):
    root = normals(M, M, seed=7) / M
    own = torch.tensor(0.4, dtype=torch.float64)
    return KnownMean(normals(M, seed=8), root @ root.T, own, torch.tensor(weights, dtype=torch.float64))


Y = normals(N, T, seed=3)


class Model:
    """One model of one agent, by numpy and direct solution."""

    def __init__(self, x, psi, z, at, at_psi, lengthscale, noise, factor, known):
        def kernel(a, b, pa, pb):
            squares = ((a[:, None] - b) ** 2).sum(2)
            k = np.exp(-squares / (2 * lengthscale**2 * a.shape[1] / 3))
            return k if factor == 0 else float(known.own) * k + pa @ known.covariance.numpy() @ pb.T

        mean = 0 * z if factor == 0 else factor * psi @ known.mean.numpy()
        at_mean = 0.0 if factor == 0 else factor * at_psi @ known.mean.numpy()
        t, one = len(z), np.ones(len(z))
        P = np.linalg.inv(kernel(x, x, psi, psi) + noise * np.eye(t))
        p = one @ P @ one
        c = one @ P @ (z - mean) / p
        residual = z - mean - c
        self.variance = (residual @ P @ residual + 1) / t  # nu = 1: t - 1 + nu = t
        self.log_likelihood = -0.5 * t * np.log(self.variance) + 0.5 * np.linalg.slogdet(P)[1] - 0.5 * np.log(p)
        k = kernel(x, at, psi, at_psi)
        self.mean = at_mean + c + k.T @ P @ residual
        prior = np.diag(kernel(at, at, at_psi, at_psi))
        unit = prior - (k * (P @ k)).sum(0) + (1 - one @ P @ k) ** 2 / p
        self.sd = np.sqrt(self.variance * unit)


def models_of(agent, observed, z, at, known, gp=GP):
    """(log weight, model) of every model of an agent."""
    psi, at_psi = (None, None) if known is None else (observed.psi[agent].numpy(), at.psi[agent].numpy())
    factors = (0.0, *gp.factors) if known is not None else (0.0,)
    for (l, lengthscale), noise, factor in itertools.product(enumerate(gp.lengthscales), gp.noises, factors):
        x, at_x = observed.x[agent].numpy(), at.x[agent].numpy()
        model = Model(x, psi, z[agent].numpy(), at_x, at_psi, lengthscale, noise, factor, known)
        prior = -0.5 * ((math.log(lengthscale) - math.log(0.4)) / 0.7) ** 2
        prior += float(known.log_weights[l]) if factor else 0.0
        yield prior + model.log_likelihood, model


class TestImprovement:
    @pytest.mark.parametrize("u", [5.0, 1.0, 0.0, -0.5, -1.0, -1.0001, -3.0, -10.0, -30.0])
    def test_it_is_the_integral(self, u):
        """`log E max(u + e, 0)`, by quadrature of `s phi(s - u)` over s > 0, less its exponent at s = 0."""
        value, _ = integrate.quad(lambda s: s * math.exp(-0.5 * s * s + s * u), 0, math.inf, epsrel=1e-12)
        if u < 0:  # phi(s - u) = phi(u) exp(-s^2 / 2 + s u)
            expected = math.log(value) + stats.norm.logpdf(u)
        else:
            expected = math.log(stats.norm.pdf(u) + u * stats.norm.cdf(u))
        assert log_improvement(torch.tensor(u, dtype=torch.float64)).item() == pytest.approx(
            expected, rel=1e-9, abs=1e-9
        )

    @pytest.mark.parametrize("u", [-50.0, -300.0, -999.0, -1001.0, -1e5, -1e10])
    def test_it_is_accurate_far_below_0(self, u):
        """`phi(u) / u^2 (1 - 3/u^2 + 15/u^4 - ...)`."""
        series = math.log1p(-3 / u**2 + 15 / u**4 - 105 / u**6)
        expected = -0.5 * u * u - 0.5 * math.log(2 * math.pi) - 2 * math.log(-u) + series
        found = log_improvement(torch.tensor(u, dtype=torch.float64)).item()
        assert abs(found - expected) < 1e-5 + 1e-15 * abs(expected)

    def test_it_grows_and_so_does_its_logarithm(self):
        u = torch.linspace(-2000, 20, 400_001, dtype=torch.float64)
        assert (log_improvement(u).diff() > 0).all()
        near = torch.linspace(-1 - 1e-6, -1 + 1e-6, 101, dtype=torch.float64)  # where the formulas meet
        assert log_improvement(near).diff().std() < 1e-13

    def test_its_derivative_is_that_of_the_formula(self):
        """`Phi(u) / (phi(u) + u Phi(u))`, on both sides of -1, and finite everywhere."""
        u = torch.tensor([-30.0, -5, -1.5, -1.0, -0.5, 0, 3]).double().requires_grad_()
        (slope,) = torch.autograd.grad(log_improvement(u).sum(), u)
        at = u.detach().numpy()
        mills = np.sqrt(np.pi / 2) * special.erfcx(-at / np.sqrt(2))  # Phi / phi
        assert np.allclose(slope.numpy(), mills / (1 + at * mills), rtol=1e-7)
        far = torch.tensor([-1e100, -1e10, -1e4, 1e10], dtype=torch.float64).requires_grad_()
        (slope,) = torch.autograd.grad(log_improvement(far).sum(), far)
        assert torch.isfinite(slope).all() and (slope > 0).all()


class TestObservations:
    def test_normal_scores_by_hand(self):
        """Quantiles at (rank - 1/2) / t, where equal values share their mean rank."""
        found = normal_scores(torch.tensor([[3.0, -1.0, 10.0, 3.0], [0.0, 1.0, 2.0, 3.0]]).double())
        expected = stats.norm.ppf([[0.5, 0.125, 0.875, 0.5], [0.125, 0.375, 0.625, 0.875]])
        assert np.allclose(found.numpy(), expected)

    def test_equal_values_have_scores_of_exactly_zero(self):
        assert torch.equal(normal_scores(torch.full((2, 5), 1e300, dtype=torch.float64)), torch.zeros(2, 5).double())

    def test_scores_are_those_of_ranks_alone(self):
        y = normals(4, 7)
        assert torch.equal(normal_scores(y), normal_scores(1e6 + 100 * y))
        assert torch.equal(normal_scores(y), normal_scores(y.exp()))
        assert torch.allclose(normal_scores(-y), -normal_scores(y))

    def test_half_ranked_by_hand(self):
        """The median is 2, and `d^2 = (0 + 1 + 9) / 3`; the values below it have ranks 1 and 2 of 5."""
        found = half_ranked(torch.tensor([[3.0, 2.0, -1000.0, 1.0, 5.0]]).double())
        d = (10 / 3) ** 0.5
        low, lower = 2 + d * stats.norm.ppf(2 / 6), 2 + d * stats.norm.ppf(1 / 6)
        assert np.allclose(found.numpy(), [[3.0, 2.0, lower, low, 5.0]])

    def test_half_ranked_with_ties(self):
        """Equal values stay equal: 0 twice below the median 1, with mean rank 1.5; nothing above spreads."""
        found = half_ranked(torch.tensor([[0.0, 0.0, 1.0, 1.0, 2.0]]).double())
        d = (1 / 3) ** 0.5
        low = 1 + d * stats.norm.ppf(1.5 / 6)
        assert np.allclose(found.numpy(), [[low, low, 1.0, 1.0, 2.0]])

    def test_half_ranked_keeps_the_order_and_the_upper_half(self):
        y = normals(30, 9)
        found = half_ranked(y)
        assert torch.equal(found.argsort(1), y.argsort(1))
        upper = y >= y.quantile(0.5, 1, keepdim=True)
        assert torch.equal(found[upper], y[upper])

    def test_standardised(self):
        y = torch.tensor([[1.0, 3.0], [5.0, 5.0], [1e100, 1e100]], dtype=torch.float64)
        assert torch.allclose(standardised(y), torch.tensor([[-1.0, 1.0], [0.0, 0.0], [0.0, 0.0]]).double())


def keep_all_models(monkeypatch):
    monkeypatch.setattr(averaged_gp, "MODELS", 10_000)
    monkeypatch.setattr(averaged_gp, "LEAST_WEIGHT", 1e-300)


class TestPredictions:
    @pytest.mark.parametrize("shared", [False, True])
    def test_they_are_universal_kriging_under_every_model(self, shared, monkeypatch):
        """Weights, means and standard deviations, with all models kept."""
        keep_all_models(monkeypatch)
        known = known_mean() if shared else None
        observed, at = places(psi=shared), places(k=K, seed=1, psi=shared)
        fitted = GP.fit(observed, Y, known)
        mean, sd = fitted.predict(at)
        z = GP.transformed(Y)
        for agent in range(N):
            made = list(models_of(agent, observed, z, at, known))
            logs = np.array([score for score, _ in made])
            assert mean.shape[1] == len(made)
            order = np.argsort(-logs, kind="stable")
            expected = logs[order] - special.logsumexp(logs)
            assert np.allclose(fitted.log_probability[agent].numpy(), expected)
            assert np.allclose(mean[agent].numpy(), [made[m][1].mean for m in order])
            assert np.allclose(sd[agent].numpy(), [made[m][1].sd for m in order])

    @pytest.mark.parametrize("shared", [False, True])
    def test_expected_improvement_is_the_average_over_models(self, shared, monkeypatch):
        keep_all_models(monkeypatch)
        known = known_mean() if shared else None
        observed, at = places(psi=shared), places(k=K, seed=1, psi=shared)
        found = GP.fit(observed, Y, known).log_expected_improvement(at)
        z = GP.transformed(Y)
        for agent in range(N):
            made = list(models_of(agent, observed, z, at, known))
            weights = special.softmax([score for score, _ in made])
            total = 0.0
            for weight, (_, model) in zip(weights, made, strict=True):
                u = (model.mean - float(z[agent].max())) / model.sd
                total = total + weight * model.sd * (stats.norm.pdf(u) + u * stats.norm.cdf(u))
            assert np.allclose(found[agent].numpy(), np.log(total), atol=1e-7)

    @pytest.mark.parametrize("shared", [False, True])
    def test_probabilities_sum_to_one(self, shared):
        fitted = AveragedGP().fit(places(psi=shared), Y, known_mean((0.0, -1.0, 1.0, 0.0, 0.0)) if shared else None)
        assert fitted.log_probability.shape == (N, averaged_gp.MODELS if shared else 10)
        assert torch.allclose(fitted.log_probability.exp().sum(1), torch.ones(N).double())
        p = fitted.log_probability.exp()
        assert (p.diff(dim=1) <= 0).all()  # best first
        assert ((p == 0) | (p >= averaged_gp.LEAST_WEIGHT * p[:, :1])).all()
        assert ((fitted.shared >= 0) & (fitted.shared <= 1)).all()
        assert shared or not fitted.shared.any()

    def test_the_most_probable_models_are_kept(self, monkeypatch):
        """With few of them, the improvement is that of the whole average of these, renormalised."""
        observed = places()
        whole = GP.fit(observed, Y)
        monkeypatch.setattr(averaged_gp, "MODELS", 2)
        few = GP.fit(observed, Y)
        assert torch.equal(few.kernel, whole.kernel[:, :2])
        assert torch.allclose(few.log_probability, whole.log_probability[:, :2].log_softmax(1))

    def test_weights_of_the_shared_mean_decide_whether_it_is_used(self):
        observed = places(psi=True)
        never, half, always = (GP.fit(observed, Y, known_mean((w, w))).shared for w in (-200.0, 0.0, 200.0))
        assert (never < 1e-60).all() and (always > 1 - 1e-12).all()
        assert ((half > 0) & (half < 1)).all()
        alone = GP.fit(Places(observed.x), Y)
        assert torch.allclose(
            GP.fit(observed, Y, known_mean((-200.0, -200.0))).log_expected_improvement(observed),
            alone.log_expected_improvement(Places(observed.x)), atol=1e-9,
        )  # fmt: skip

    def test_observations_that_follow_the_shared_mean_choose_it(self):
        observed = places(n=40, k=8, psi=True)
        known = known_mean((0.0, 0.0))
        gp = AveragedGP(GP.lengthscales, GP.noises, GP.factors, warp=False)
        follows = gp.fit(observed, observed.psi @ known.mean, known).shared
        opposite = gp.fit(observed, -observed.psi @ known.mean, known).shared
        assert follows.median() > 0.9 and opposite.median() < 0.5 and (follows > opposite).double().mean() > 0.9

    @pytest.mark.parametrize("shift", [(0.0, 1.0), (1e6, 1.0), (-5.0, 1e-3)])
    def test_units_of_observations_do_not_count(self, shift):
        observed, at = places(), places(k=K, seed=1)
        moved = GP.fit(observed, shift[0] + shift[1] * Y).log_expected_improvement(at)
        assert torch.allclose(moved, GP.fit(observed, Y).log_expected_improvement(at), atol=1e-6)

    def test_one_bad_value_changes_little_with_warp_alone(self):
        observed, at, bad = places(), places(k=K, seed=1), Y.clone()
        lowest = Y.argmin(1, keepdim=True)
        bad.scatter_(1, lowest, -1e6)
        for warp, close in ((True, True), (False, False)):
            gp = AveragedGP(GP.lengthscales, GP.noises, warp=warp)
            found, expected = (gp.fit(observed, y).log_expected_improvement(at) for y in (bad, Y))
            assert torch.allclose(found, expected, atol=1e-3) == close

    @pytest.mark.parametrize("shared", [False, True])
    def test_equal_values_are_no_error(self, shared):
        """Nothing was learnt but that there is nothing to see: improvements are largest away from the points."""
        known = known_mean() if shared else None
        observed, at = places(psi=shared), places(k=K, seed=1, psi=shared)
        fitted = GP.fit(observed, torch.full((N, T), -7.3).double(), known)
        mean, sd = fitted.predict(at)
        assert torch.isfinite(mean).all() and (sd > 0).all()
        assert torch.allclose(fitted.log_probability.exp().sum(1), torch.ones(N).double())
        if not shared:
            assert not mean.any()
            far = fitted.log_expected_improvement(at).amax(1)
            assert (fitted.log_expected_improvement(observed).amax(1) < far).all()

    @pytest.mark.parametrize("shared", [False, True])
    def test_a_single_observation(self, shared):
        known = known_mean() if shared else None
        observed, at = places(k=1, psi=shared), places(k=K, seed=1, psi=shared)
        fitted = GP.fit(observed, Y[:, :1], known)
        found = fitted.log_expected_improvement(at)
        assert found.shape == (N, K) and torch.isfinite(found).all()
        assert torch.allclose(fitted.log_probability.exp().sum(1), torch.ones(N).double())
        mean, _ = fitted.predict(at)
        if not shared:
            assert not mean.any()

    def test_repeated_points_are_no_error(self):
        observed = Places(uniforms(N, 1, D).expand(-1, T, -1))
        found = GP.fit(observed, Y).log_expected_improvement(places(k=K, seed=1))
        assert torch.isfinite(found).all()

    @pytest.mark.parametrize("shared", [False, True])
    @pytest.mark.parametrize("rows", [[0, 1], [4, 2, 3], [2, 2]])
    def test_selected_rows_are_fits_of_these_rows(self, shared, rows):
        """To the bit: an agent's result does not depend on the other agents."""
        known, rows = known_mean() if shared else None, torch.tensor(rows)
        observed, at = places(psi=shared), places(k=K, seed=1, psi=shared)
        whole, part = GP.fit(observed, Y, known), GP.fit(observed.select(rows), Y[rows], known)
        some = whole.select(rows)
        assert len(some) == len(rows)
        for name in ("log_probability", "kernel", "factor", "L", "residual", "variance", "best", "shared"):
            assert torch.equal(getattr(part, name), getattr(whole, name)[rows])
            assert torch.equal(getattr(some, name), getattr(whole, name)[rows])
        expected = whole.log_expected_improvement(at)[rows]
        assert torch.equal(part.log_expected_improvement(at.select(rows)), expected)
        assert torch.equal(some.log_expected_improvement(at.select(rows)), expected)

    def test_other_agents_observations_do_not_count(self):
        observed, at, other = places(), places(k=K, seed=1), Y.clone()
        other[1:] = 1e3 * normals(N - 1, T, seed=9)
        expected = GP.fit(observed, Y).log_expected_improvement(at)
        assert torch.equal(GP.fit(observed, other).log_expected_improvement(at)[0], expected[0])

    def test_points_that_all_agents_share(self):
        at = Places(uniforms(1, K, D, seed=4), normals(1, K, M, seed=5))
        fitted = GP.fit(places(psi=True), Y, known_mean())
        each = Places(at.x.expand(N, -1, -1), at.psi.expand(N, -1, -1))
        assert torch.allclose(fitted.log_expected_improvement(at), fitted.log_expected_improvement(each), rtol=1e-12)

    def test_gradients_at_points(self):
        """Central differences, with step 1e-6."""
        fitted, x = GP.fit(places(), Y), uniforms(N, 1, D, seed=6).requires_grad_()
        (slope,) = torch.autograd.grad(fitted.log_expected_improvement(Places(x)).sum(), x)
        for d in range(D):
            h = torch.zeros(D).double()
            h[d] = 1e-6
            up, down = (fitted.log_expected_improvement(Places(x.detach() + s * h)) for s in (1, -1))
            assert torch.allclose(slope[:, 0, d], (up - down)[:, 0] / 2e-6, rtol=1e-5, atol=1e-5)


def test_one_model_is_botorchs_log_expected_improvement():
    """With one length-scale and noise, BoTorch's analytic acquisition at the posterior of this model."""
    acquisition = pytest.importorskip("botorch.acquisition.analytic")
    model_module = pytest.importorskip("botorch.models.model")
    posterior_module = pytest.importorskip("botorch.posteriors")
    gpytorch = pytest.importorskip("gpytorch")
    gp = AveragedGP((0.3,), (0.01,))
    observed, at = places(n=1), places(n=1, k=200, seed=1)
    fitted = gp.fit(observed, Y[:1])

    class Fixed(model_module.Model):
        num_outputs = 1

        def posterior(self, X, **kwargs):
            mean, sd = fitted.predict(Places(X.squeeze(1)[None]))
            made = gpytorch.distributions.MultivariateNormal(mean[0, 0, :, None], sd[0, 0, :, None, None].square())
            return posterior_module.GPyTorchPosterior(made)

    reference = acquisition.LogExpectedImprovement(Fixed(), best_f=gp.transformed(Y[:1]).max())
    expected = reference(at.x[0][:, None])
    assert torch.allclose(fitted.log_expected_improvement(at)[0], expected, rtol=1e-9, atol=1e-9)
    assert expected.min() < -5  # the test reaches improbable improvements


class TestGrids:
    @pytest.mark.skipif(library() is None, reason="there is no C compiler")
    @pytest.mark.parametrize("G", [40, 700])
    @pytest.mark.parametrize("shared", [False, True])
    def test_compiled_maximisers_are_those_of_tensors(self, G, shared):
        n, t, known = 30, 5, known_mean() if shared else None
        grid = Grid(uniforms(G, D, seed=11), (0.0,) * D, (1.0,) * D)
        psi = torch.cos(3 * grid.unit_points @ normals(D, M, seed=12)) / M**0.5
        index, y = torch.randint(0, G, (n, t), generator=torch.Generator().manual_seed(2)), normals(n, t, seed=13)
        found, share = GP.maximizers_on_grid(grid, index, y, known, psi if shared else None)
        fitted = GP.fit(Places(grid.unit_points[index], psi[index] if shared else None), y, known)
        assert torch.allclose(share, fitted.shared)
        every = Places(grid.unit_points.expand(n, -1, -1), psi.expand(n, -1, -1) if shared else None)
        values = fitted.log_expected_improvement(every).scatter(1, index, -torch.inf)
        best, chosen = values.amax(1), values.gather(1, found.clamp(min=0)[:, None])[:, 0]
        decided = found >= 0  # others are left to tensors
        assert decided.double().mean() > 0.9
        screened = G > 512  # then the best of the clusters around good points, which nearly always holds the best
        assert (chosen[decided] > best[decided] - 1e-4).double().mean() >= (0.9 if screened else 1.0)
        assert (chosen[decided] > best[decided] - 0.7).all()


def test_a_surface_is_the_improvement_at_located_points():
    fitted = GP.fit(places(), Y)
    surface = ImprovementSurface(fitted, lambda u: Places(u / 2))
    at = uniforms(N, K, D, seed=4)
    assert (len(surface), surface.n_models) == (N, 4)
    assert torch.equal(surface(at), fitted.log_expected_improvement(Places(at / 2)))
    rows = torch.tensor([3, 1])
    assert torch.equal(surface.select(rows)(at[rows]), surface(at)[rows])


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"lengthscales": ()}, "lengthscales must name at least one number, got none"),
        ({"lengthscales": (0.1, -1)}, "lengthscales must be a finite number above 0, got -1"),
        ({"noises": (0.0,)}, "noises must be a finite number above 0, got 0.0"),
        ({"factors": ()}, "factors must name at least one number, got none"),
        ({"factors": (math.inf,)}, "factors must be a finite number above 0, got inf"),
        ({"warp": 2}, "warp must be one of True, False, got 2"),
    ],
)
def test_a_bad_setting_is_one_sentence(settings, says):
    with pytest.raises(SettingError, match=says):
        AveragedGP(**settings)


class TestDraw:
    """Thompson sampling from averaged GPs."""

    def test_draws_have_the_mean_and_the_deviations_of_the_prediction(self):
        gp = AveragedGP(lengthscales=(0.3,), noises=(0.01,), acquisition="ts")
        x = torch.tensor([0.1, 0.4, 0.9], dtype=torch.float64)[None, :, None]
        fitted = gp.fit(Places(x), torch.tensor([[0.0, 2.0, 1.0]], dtype=torch.float64))
        at = Places(torch.linspace(0, 1, 7, dtype=torch.float64)[None, :, None])
        mean, sd = (part[0, 0] for part in fitted.predict(at))
        g, n = torch.Generator().manual_seed(0), 4000
        many = fitted.select(torch.zeros(n, dtype=torch.long))
        e = torch.randn(n, 7, generator=g, dtype=torch.float64)
        drawn = many.draw(at, torch.rand(n, generator=g, dtype=torch.float64), e)
        assert ((drawn.mean(0) - mean).abs() < 4 * sd / n**0.5 + 1e-3).all()
        torch.testing.assert_close(drawn.std(0), sd, rtol=0.06, atol=2e-3)

    def test_models_are_drawn_by_their_probability(self):
        x = torch.tensor([0.1, 0.4, 0.5, 0.9], dtype=torch.float64)[None, :, None]
        fitted = AveragedGP().fit(Places(x), torch.tensor([[0.0, 2.0, 1.0, 0.5]], dtype=torch.float64))
        p, n = fitted.log_probability[0].exp(), 100
        at, e = Places(torch.tensor([[[0.7]]], dtype=torch.float64)), torch.zeros(n, 1, dtype=torch.float64)
        u = (torch.arange(n, dtype=torch.float64) + 0.5) / n
        drawn = fitted.select(torch.zeros(n, dtype=torch.long)).draw(at, u, e)[:, 0]
        mean = fitted.predict(at)[0][0, :, 0]
        assert float(drawn.mean()) == pytest.approx(float((p * mean).sum()), abs=0.02)
