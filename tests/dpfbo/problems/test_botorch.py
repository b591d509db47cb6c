"""BoTorch's test functions as a problem: properties of each of them, and refusals."""

import re
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfbo.extras import MissingPackage
from dpfbo.problems.botorch_function import BotorchFunction
from dpfbo.rng import Streams
from runners.compose.composition import build
from tests.helpers.compose import compose
from tests.helpers.devices import same_elsewhere

pytest.importorskip("botorch")

KNOWN = [
    *[(name, 2) for name in ("Beale", "Branin", "Bukin", "DropWave", "EggHolder", "HolderTable")],
    *[(name, 2) for name in ("SixHumpCamel", "ThreeHumpCamel", "Michalewicz")],
    *[(name, 10) for name in ("Ackley", "DixonPrice", "Griewank", "Levy", "Powell", "Rastrigin", "Rosenbrock")],
    *[("Cosine8", 8), ("Shekel", 4), ("Hartmann", 3), ("Hartmann", 6), ("StyblinskiTang", 5)],
]
UNKNOWN = [("Hartmann", 4), ("Michalewicz", 10)]
SHIFTED = {"n_agents": 4, "shift": 0.3, "perturbation": 0.3, "function_seed": 1}


def points(problem, n, k, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return problem.domain.to_natural(torch.rand(n, k, problem.domain.dimension, generator=generator).double())


def at_optimum(problem, n):
    """Noiseless values at the agents' own maximisers, n."""
    agents = torch.arange(n)
    places = problem.domain.to_natural(problem._maximiser + problem._shifts(agents))[:, None]
    return problem.true_value(agents, places, places[..., 0])[:, 0]


@pytest.mark.parametrize(("name", "dim"), KNOWN)
def test_every_agents_optimum_is_the_reference_and_attained(name, dim):
    problem, agents = BotorchFunction(name, dim, **SHIFTED), torch.arange(4)
    f = problem._botorch
    assert [list(problem.domain.lower), list(problem.domain.upper)] == f.bounds.tolist()
    assert problem.metric == "simple_regret"
    assert problem.lower_is_better
    mean, sd = problem._unit
    sign = -1 if f.is_minimization_problem else 1
    assert float(problem.reference[0]) * sd + mean == pytest.approx(sign * f.optimal_value, rel=1e-4, abs=1e-9)
    assert torch.allclose(at_optimum(problem, 4), problem.reference, atol=1e-6)  # Bukin's optimum is a cusp
    x = points(problem, 4, 2000)
    y = problem.true_value(agents, x, x[..., 0])
    assert y.dtype == torch.float64
    assert torch.isfinite(y).all()
    assert (y <= problem.reference[:, None]).all()
    assert 0.3 < float(y.std()) < 3  # the standard deviation is of order 1


@pytest.mark.parametrize(("name", "dim"), UNKNOWN)
def test_without_a_stated_optimum_the_best_value_is_reported(name, dim):
    problem = BotorchFunction(name, dim, n_agents=2)
    x = points(problem, 2, 20)
    assert problem.metric == "best_value"
    assert not problem.lower_is_better
    assert problem.reference is None
    assert torch.isfinite(problem.true_value(torch.arange(2), x, x[..., 0])).all()


@pytest.mark.parametrize(("name", "dim"), [("Hartmann", 6), ("Powell", 5), ("Michalewicz", 3), ("Shekel", None)])
def test_an_agent_sees_the_same_in_any_company(name, dim):
    problem, agents, streams = BotorchFunction(name, dim, n_agents=9, shift=0.3), torch.arange(9), Streams(3)
    x = points(problem, 9, 5)
    y = problem.evaluate(agents, x, streams, 2)
    more = BotorchFunction(name, dim, n_agents=30, shift=0.3)
    assert torch.equal(more.true_value(agents, x, y), problem.true_value(agents, x, y))
    for some in ([0], [8], [5, 2], [7, 1, 3], list(range(1, 9))):
        ids = torch.tensor(some)
        assert torch.equal(problem.evaluate(ids, x[some], streams, 2), y[some])
        one = problem.true_value(ids, x[some, :1], y)
        assert torch.equal(one, problem.true_value(agents, x, y)[some, :1])


@settings(max_examples=20, deadline=None)
@given(st.floats(0, 1), st.floats(0, 2), st.integers(0, 10**6), st.sampled_from([("Hartmann", 3), ("EggHolder", 2)]))
def test_no_shift_or_perturbation_moves_the_optimum_value(shift, perturbation, seed, of):
    problem = BotorchFunction(*of, 5, shift, perturbation, function_seed=seed)
    x = points(problem, 5, 200, seed)
    assert torch.allclose(at_optimum(problem, 5), problem.reference, atol=1e-9)
    assert (problem.true_value(torch.arange(5), x, x[..., 0]) <= problem.reference[:, None]).all()


def test_agents_have_the_function_moved_by_their_shifts():
    plain, moved = (BotorchFunction("Branin", n_agents=50, shift=s, perturbation=0) for s in (0.0, 0.2))
    agents, shift = torch.arange(50), moved._shifts(torch.arange(50))[:, None]
    assert shift.abs().max() <= 0.2
    assert shift.std() > 0.07
    u = 0.25 + 0.5 * torch.rand(50, 4, 2, generator=torch.Generator().manual_seed(0)).double()
    x, y = moved.domain.to_natural(u + shift), torch.zeros(50, 4)
    original = plain.domain.to_natural(u)
    assert torch.allclose(moved.true_value(agents, x, y), plain.true_value(agents, original, y), atol=1e-9)
    mean, sd = plain._unit
    expected = (-plain._botorch(original) - mean) / sd
    assert torch.allclose(plain.true_value(agents, original, y), expected, atol=1e-12)


def test_the_perturbation_is_standard_normal_at_a_point_and_smooth():
    N = 2000
    problem, agents = BotorchFunction("Hartmann", 3, N, shift=0.0, perturbation=0.5), torch.arange(N)
    plain = BotorchFunction("Hartmann", 3, N, shift=0.0, perturbation=0.0)
    u = torch.tensor([[0.3, 0.4, 0.5], [0.3, 0.4, 0.8]]).double().expand(N, -1, -1)  # a length-scale apart
    top, y = float(plain.reference[0]), torch.zeros(N, 2)
    gaps = [top - p.true_value(agents, u, y) for p in (problem, plain)]
    g = (gaps[0] / gaps[1]).log() * top / 0.5
    assert (g.mean(0).abs() < 4 / N**0.5).all()
    assert ((g.var(0) - 1).abs() < 4 * (2 / N) ** 0.5).all()
    assert abs(float((g[:, 0] * g[:, 1]).mean()) - 0.6065) < 4 * (1.37 / N) ** 0.5  # exp(-1/2)


def test_noise_and_seeds():
    problem, agents = BotorchFunction("Ackley", 2, 50, noise_variance=0.04), torch.arange(50)
    x = points(problem, 50, 40)
    y = problem.evaluate(agents, x, Streams(0), 1)
    noise = y - problem.true_value(agents, x, y)
    assert float(noise.var()) == pytest.approx(0.04, rel=4 * (2 / 2000) ** 0.5)
    assert torch.equal(problem.evaluate(agents, x, Streams(0), 1), y)
    assert not torch.equal(problem.evaluate(agents, x, Streams(1), 1), y)
    other = BotorchFunction("Ackley", 2, 50, noise_variance=0.04, function_seed=1)
    assert not torch.equal(other.true_value(agents, x, y), problem.true_value(agents, x, y))


@pytest.mark.parametrize("ids", [[0, 1, 2], [2]])
def test_stays_on_the_device_of_its_tensors(ids):
    ids = torch.tensor(ids)

    def evaluated():
        problem = BotorchFunction("Hartmann", 6, n_agents=3)
        x = problem.domain.to_natural(torch.full((len(ids), 2, 6), 0.3, dtype=torch.float64, device="cpu"))
        return problem.reference, problem.evaluate(ids, x, Streams(0), 1)

    same_elsewhere(evaluated)


def test_its_preset_builds():
    experiment = build(compose("problem=botorch", "problem.function=Levy", "problem.dim=10"))
    assert experiment.problem.domain.dimension == 10


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"function": "Hartman"}, "such as Hartmann, got 'Hartman'"),
        ({"function": "xyz"}, "such as Ackley, AckleyMixed, Beale"),
        ({"function": "ConstrainedHartmann"}, "must be an unconstrained synthetic test function"),
        ({"function": "BraninCurrin"}, "must be an unconstrained synthetic test function"),
        ({"function": "SyntheticTestFunction"}, "must be an unconstrained synthetic test function"),
        ({"function": "Labs", "dim": 10}, "continuous inputs only, got 'Labs'"),
        ({"function": "Ackley", "dim": 11}, "dim must be at most 10, got 11 for Ackley"),
        ({"function": "TrajectoryPlanning"}, "dim must be at most 10, got 30"),
        ({"function": "Hartmann", "dim": 5}, "dim is not one that BoTorch's Hartmann takes, got 5"),
        ({"function": "Branin", "dim": 3}, "dim must be 2 for Branin, got 3"),
        ({"function": "Powell", "dim": 3}, "dim must be larger for Powell, which is constant for 3"),
        ({"dim": 2.5}, "dim must be an integer"),
        ({"shift": 1.5}, "shift must be at most 1, got 1.5"),
        ({"perturbation": -1}, "perturbation"),
        ({"noise_variance": -1}, "noise_variance"),
        ({"n_agents": 0}, "n_agents"),
        ({"function_seed": -1}, "function_seed"),
    ],
)
def test_bad_settings_are_refused(given, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        BotorchFunction(**{"function": "Ackley", **given})


def test_without_botorch_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "botorch.test_functions", None)
    with pytest.raises(MissingPackage, match=r"BotorchFunction needs botorch: pip install 'dpfbo\[botorch\]'"):
        BotorchFunction("Ackley")


def test_every_observation_has_noise_of_its_own():
    problem, agents = BotorchFunction("Branin", n_agents=4), torch.arange(4)
    x = points(problem, 4, 2)
    value = problem.true_value(agents, x, x[..., 0])
    noise = torch.stack([problem.evaluate(agents, x, Streams(0), t) - value for t in range(8)])
    assert len((noise.abs() * 1e10).round().unique()) == 8 * 4 * 2
