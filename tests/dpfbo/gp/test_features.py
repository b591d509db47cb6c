"""Random features: unit length, one map for all, an approximation of the kernel that improves with M."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dpfbo.gp.features import FeatureFunction, RandomFeatures, product, shared_features
from dpfbo.space.axes import Categorical, Float, Integer
from dpfbo.space.domain import Box
from dpfbo.space.mixed import MixedBox
from dpfbo.space.regions import Regions


def make(M: int, D: int, lengthscale: float, seed: int = 0, paired: bool = False) -> RandomFeatures:
    return shared_features(M, D, lengthscale, np.random.default_rng(seed), paired)


def uniforms(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def kernel_errors(M: int, n_maps: int, paired: bool, lengthscale: float = 0.4) -> torch.Tensor:
    """`phi(a) . phi(b) - k(a, b)` for independent maps and 40 pairs of points, n_maps x 40."""
    a, b = uniforms(1, 40, 2, seed=1), uniforms(1, 40, 2, seed=2)
    k = torch.exp(-0.5 * (a - b).pow(2).sum(-1) / lengthscale**2)
    maps = [make(M, 2, lengthscale, seed, paired) for seed in range(n_maps)]
    return torch.cat([(phi(a) * phi(b)).sum(-1) - k for phi in maps])


@given(
    M=st.integers(1, 60),
    D=st.integers(1, 4),
    lengthscale=st.floats(0.01, 10),
    paired=st.booleans(),
    seed=st.integers(0, 1000),
)
@settings(max_examples=100, deadline=None, derandomize=True)
def test_every_feature_vector_has_unit_length(M: int, D: int, lengthscale: float, paired: bool, seed: int) -> None:
    M = 2 * M if paired else M
    phi = make(M, D, lengthscale, seed, paired)(uniforms(3, 7, D, seed=seed))
    assert phi.shape == (3, 7, M) and phi.dtype == torch.float64
    assert torch.allclose(phi.norm(dim=-1), torch.ones(3, 7, dtype=torch.float64), rtol=0, atol=1e-12)


def test_features_are_the_cosines_of_the_paper() -> None:
    """`phi_j(x) ∝ cos(s_j . x + b_j)`, point by point in plain numpy."""
    features, u = make(6, 3, 0.5), uniforms(2, 4, 3)
    S, b = features.frequencies[0].numpy(), features.phases[0].numpy()
    for n in range(2):
        for i in range(4):
            c = np.array([math.cos(S[j] @ u[n, i].numpy() + b[j]) for j in range(6)])
            assert np.allclose(features(u)[n, i], c / np.linalg.norm(c), rtol=0, atol=1e-13)


def test_frequencies_are_normal_with_the_inverse_lengthscale_and_phases_uniform() -> None:
    M, D, l = 6000, 2, 0.25
    features = make(M, D, l)
    assert features.frequencies.shape == (1, M, D) and features.phases.shape == (1, M)
    s = (features.frequencies * l).flatten()
    assert abs(s.mean()) < 4 / math.sqrt(len(s))
    assert abs(s.var() - 1) < 4 * math.sqrt(2 / len(s))
    assert abs(torch.corrcoef(features.frequencies[0].T)[0, 1]) < 4 / math.sqrt(M)
    turns = features.phases[0] / (2 * math.pi)
    assert stats.kstest(turns.numpy(), "uniform").statistic < 1.95 / math.sqrt(M)  # p = .001


@pytest.mark.parametrize("paired", [False, True])
def test_the_kernel_error_falls_like_one_over_the_root_of_m(paired: bool) -> None:
    """16 times the features, a sixteenth of the mean squared error; 60 maps each, 5 standard errors."""
    few, many = kernel_errors(64, 60, paired) ** 2, kernel_errors(1024, 60, paired) ** 2
    ratio = few.mean() / many.mean()
    # one map is one observation: relative standard error of each mean
    relative = [e.mean(1).std() / e.mean() / math.sqrt(60) for e in (few, many)]
    error = 16 * math.hypot(*relative)
    assert abs(ratio - 16) < 5 * error
    assert error < 4, "too few maps to tell 16 from 1"
    assert many.mean().sqrt() < 0.04


def test_paired_features_are_unbiased_with_the_variance_of_the_theory() -> None:
    """Sutherland and Schneider (2015): `Var = (1 + k(2 delta) - 2 k(delta)^2) / M` for M / 2 frequencies."""
    M, n, l = 20, 3000, 0.4
    delta = torch.tensor([0.0, 0.2, 0.4, 0.8], dtype=torch.float64)
    k, k2 = torch.exp(-0.5 * (delta / l) ** 2), torch.exp(-0.5 * (2 * delta / l) ** 2)
    a, b = torch.full((1, 4, 1), 0.1, dtype=torch.float64), (0.1 + delta)[None, :, None]
    estimates = []
    for seed in range(n):
        phi = make(M, 1, l, seed, paired=True)
        estimates.append((phi(a) * phi(b)).sum(-1)[0])
    estimate = torch.stack(estimates)
    variance = (1 + k2 - 2 * k**2) / M
    assert torch.all((estimate.mean(0) - k).abs() <= 4 * (variance / n).sqrt() + 1e-12)
    error = (estimate - k).pow(2)
    assert torch.all((error.mean(0) - variance).abs() <= 4 * error.std(0) / math.sqrt(n) + 1e-12)


def test_paired_features_have_the_lower_variance() -> None:
    """Up to a length-scale apart, where the kernel matters: a smaller squared error by 3 of its standard errors."""
    M, n, l = 20, 8000, 0.4
    a, b = torch.zeros(1, 3, 1, dtype=torch.float64), l * torch.tensor([0.25, 0.5, 1.0], dtype=torch.float64)
    k = torch.exp(-0.5 * (b / l) ** 2)
    error = {}
    for paired in (False, True):
        maps = [make(M, 1, l, seed, paired) for seed in range(n)]
        error[paired] = torch.cat([(phi(a) * phi(b[None, :, None])).sum(-1) - k for phi in maps]) ** 2  # n x 3
    difference = error[False].mean(0) - error[True].mean(0)
    assert torch.all(difference > 3 * ((error[False].var(0) + error[True].var(0)) / n).sqrt())


def test_all_agents_share_one_map() -> None:
    features, u = make(20, 2, 0.3), uniforms(5, 6, 2)
    batch = features(u)
    for n in range(5):
        assert torch.allclose(features(u[n : n + 1])[0], batch[n], rtol=0, atol=1e-13)
    same_point = features(u[:1].expand(5, -1, -1))
    assert torch.allclose(same_point, same_point[:1].expand(5, -1, -1), rtol=0, atol=1e-13)
    assert features.select(torch.tensor([3, 1])) is features


def test_maps_of_their_own_stay_with_their_agents() -> None:
    maps = [make(20, 2, 0.3, seed) for seed in range(4)]
    own = RandomFeatures(torch.cat([m.frequencies for m in maps]), torch.cat([m.phases for m in maps]))
    u, rows = uniforms(4, 6, 2), torch.tensor([2, 0, 2])
    for n in range(4):
        assert torch.allclose(own(u)[n], maps[n](u[n : n + 1])[0], rtol=0, atol=1e-13)
    assert torch.allclose(own.select(rows)(u[rows]), own(u)[rows], rtol=0, atol=1e-13)


def test_same_generator_same_map_and_points_are_not_changed() -> None:
    u = uniforms(2, 3, 2)
    before = u.clone()
    assert torch.equal(make(9, 2, 0.3)(u), make(9, 2, 0.3)(u))
    assert not torch.equal(make(9, 2, 0.3)(u), make(9, 2, 0.3, seed=1)(u))
    assert torch.equal(u, before)


@pytest.mark.parametrize("M", [0, -3, 2.5, 10.0, True, "50", None])
def test_a_number_of_features_is_a_positive_integer(M: object) -> None:
    with pytest.raises(ValueError, match=r"n_features must be an integer of at least 1, got"):
        make(M, 2, 0.3)  # type: ignore[arg-type]


@pytest.mark.parametrize("lengthscale", [0, -0.1, math.nan, math.inf, "a", None])
def test_a_lengthscale_is_positive_and_finite(lengthscale: object) -> None:
    with pytest.raises(ValueError, match=r"lengthscale.* must be a finite number above 0, got"):
        make(10, 2, lengthscale)  # type: ignore[arg-type]


def test_pairs_need_an_even_number_of_features() -> None:
    assert make(7, 2, 0.3).frequencies.shape == (1, 7, 2)
    with pytest.raises(ValueError, match="must be even for paired features, got 7"):
        make(7, 2, 0.3, paired=True)


SPACES = {
    "line": Box((0.0,), (1.0,)),
    "square": Box((0.0, 0.0), (1.0, 1.0)),
    "five axes": Box((0.0,) * 5, (1.0,) * 5),
    "mixed": MixedBox((Float(0, 1), Categorical(range(3)), Integer(1, 5))),
    "one discrete axis": MixedBox((Categorical(range(3)),)),
}


def own_functions(space: Box | MixedBox, B: int, P: int) -> FeatureFunction:
    M, D = 40, space.embedded_dimension if isinstance(space, MixedBox) else space.dimension
    generator = torch.Generator().manual_seed(3)
    s, b, w = (torch.randn(B, *shape, dtype=torch.float64, generator=generator) for shape in ((M, D), (M,), (P, M)))
    regions = Regions(P, space.dimension)
    return FeatureFunction(RandomFeatures(4 * s, b).on(space), w, regions, torch.ones(B, dtype=torch.float64))


@pytest.mark.parametrize("P", [1, 4])
@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_values_on_a_product_are_those_at_its_points(space: Box | MixedBox, P: int) -> None:
    f, k = own_functions(space, 5, P), -(-space.dimension // 2)
    left, right = uniforms(7, k, seed=4), uniforms(6 if space.dimension > 1 else 1, space.dimension - k, seed=5)
    points = product(left, right)
    assert points.shape == (len(left) * len(right), space.dimension)
    assert torch.allclose(f.on_product(left, right), f(points[None]), rtol=0, atol=1e-12)
    single = f.to(torch.float32).on_product(left.float(), right.float()).double()
    assert torch.allclose(single, f(points[None]), rtol=0, atol=1e-3)


@pytest.mark.parametrize("rows", [2, 3, 9])
def test_blocks_of_a_product_give_the_same_values(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    f = own_functions(SPACES["square"], rows, 1)
    left, right = uniforms(8, 1, seed=4), uniforms(8, 1, seed=5)
    whole = f.on_product(left, right)
    monkeypatch.setattr("dpfbo.gp.features._BLOCK", 8 * 40 * 8 * 4)  # four agents a block
    assert torch.equal(f.on_product(left, right), whole)
    assert torch.equal(f.select(torch.arange(2)).on_product(left, right), whole[:2])
