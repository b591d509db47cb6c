"""A shard on a GPU does what it does on the CPU, up to rounding: piece by piece, and over a whole run.

Without CUDA both sides are the CPU, which keeps the tests themselves sound; `test_device` finds a forgotten device.
Rounding may decide between two nearly equal maxima, so a small share of the queries may differ.
"""

import math
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest
import torch
from torch import Tensor

from dpfbo.federated import federation
from dpfbo.federated.broadcast import RegionVectors
from dpfbo.federated.mechanism import SubsampledGaussian
from dpfbo.federated.population.agents import Agents, Query
from dpfbo.federated.population.shard import Shard
from dpfbo.gp import gpytorch_fit, hyperparameters
from dpfbo.gp.acquisition import Acquisition
from dpfbo.gp.draws import OwnDraw
from dpfbo.gp.features import FeatureFunction, shared_features
from dpfbo.gp.gpytorch_model import Models
from dpfbo.gp.own_gp import Hyperparameters, KernelParameters, OwnGP
from dpfbo.gp.posterior import cholesky
from dpfbo.privacy.ledger import Ledger
from dpfbo.problems.branin import Branin
from dpfbo.problems.custom import Custom
from dpfbo.problems.problem import Problem
from dpfbo.problems.synthetic import Synthetic
from dpfbo.rng import Streams
from dpfbo.space.axes import Categorical, Float, Integer
from dpfbo.space.domain import Box, Grid
from dpfbo.space.mixed import MixedBox
from dpfbo.space.parameters import Space
from dpfbo.space.regions import Regions
from dpfbo.study.create import create_study
from tests.dpfbo.gp.likelihoods import closed_form, logarithms
from tests.helpers.federated_world import T, prior_server_for, prior_world, server_for, world

CUDA = torch.device("cuda" if torch.cuda.is_available() else "cpu")
STREAMS = Streams(11)
LINE = Grid(torch.linspace(0, 1, 500, dtype=torch.float64)[:, None], (0.0,), (1.0,))
SQUARE = Box((-5.0, 0.0), (10.0, 15.0))
N = 400
IDS = torch.arange(N)


def uniforms(*shape: int, seed: int) -> Tensor:
    return torch.rand(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def normals(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def there(value: Any) -> Any:
    """A value's tensors on the GPU."""
    if isinstance(value, KernelParameters):
        return KernelParameters(value.own, value.raw.to(CUDA))
    if isinstance(value, Hyperparameters):
        return Hyperparameters(*(getattr(value, f.name).to(CUDA) for f in fields(value)))
    return value.to(CUDA)


def back(value: Tensor) -> Tensor:
    assert value.device.type == CUDA.type
    return value.cpu()


def share(equal: Tensor) -> float:
    """The share of agents for which a comparison holds on every axis."""
    return float(equal.flatten(1).all(1).double().mean())


def history(n: int, t: int, D: int) -> tuple[Tensor, Tensor]:
    """Observations of a smooth function: a fit has something to find."""
    x = uniforms(n, t, D, seed=1)
    shift = uniforms(n, 1, seed=2)
    return x, torch.sin(7 * x.sum(-1) + 6 * shift) + 0.1 * normals(n, t, seed=3)


def on_grid(domain: Grid | Box, x: Tensor) -> Tensor:
    """Points of the unit interval, each replaced by a point of a grid."""
    return domain.unit_points[(x[..., 0] * len(domain.points)).long()] if isinstance(domain, Grid) else x


def test_uniforms_are_the_same_to_the_bit_and_normals_to_rounding() -> None:
    for ids in (IDS, torch.tensor([7, 300, 2]), IDS[:0]):
        for size in (1, 4, 9):
            assert torch.equal(back(STREAMS.uniform("a", there(ids), 3, size)), STREAMS.uniform("a", ids, 3, size))
            on_gpu, on_cpu = STREAMS.normal("b", there(ids), 3, size), STREAMS.normal("b", ids, 3, size)
            assert torch.allclose(back(on_gpu), on_cpu, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("P", [6, 49])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_regions_are_the_same_to_the_bit(dtype: torch.dtype, P: int) -> None:
    r, faces = Regions(P, 2), torch.arange(8) / torch.tensor(7.0, dtype=dtype)
    u = torch.cat([uniforms(1000, 2, seed=4).to(dtype), torch.cartesian_prod(faces, faces)])
    region = r.region_of(u)
    assert torch.equal(back(r.region_of(there(u))), region)
    for a, b in zip(r.bounds(there(region), dtype), r.bounds(region, dtype), strict=True):
        assert torch.equal(back(a), b)


def test_features_agree() -> None:
    shared = shared_features(100, 2, 0.2, STREAMS.generator("features"))
    u = uniforms(N, 5, 2, seed=5)
    assert torch.allclose(back(shared.to(CUDA)(there(u))), shared(u), rtol=0, atol=1e-12)


def test_factors_agree_with_and_without_jitter() -> None:
    A = normals(N, 12, 12, seed=6)
    K = A @ A.mT + 0.1 * torch.eye(12, dtype=torch.float64)
    assert torch.allclose(back(cholesky(there(K))), cholesky(K), rtol=1e-10, atol=1e-10)
    K[::3] = 1.0  # singular
    L = back(cholesky(there(K.clone())))
    assert torch.allclose(L @ L.mT, K, rtol=0, atol=1e-6)


@pytest.mark.parametrize("objective", ["closed_form", "gpytorch"])
@pytest.mark.parametrize("D", [1, 2])
def test_fits_agree(objective: str, D: int) -> None:
    """In likelihood for 99 % of the agents, in every hyper-parameter that matters to it for 95 %."""
    x, y = history(N, 15, D)
    on_cpu = hyperparameters.fit_own(x, y, OwnGP(objective))
    on_gpu = hyperparameters.fit_own(there(x), there(y), OwnGP(objective))
    found, expected = logarithms(on_gpu).cpu(), logarithms(on_cpu)
    assert on_gpu.noise.device.type == CUDA.type
    gap = (closed_form(found, x, y)[0] - closed_form(expected, x, y)[0]).abs()
    assert share(gap[:, None] < 1e-5) >= 0.99
    assert share((found - expected).abs()[:, :2] < 1e-3) >= 0.95


WARPED = OwnGP("gpytorch", lengthscale=0.3, noise=0.01, kernel="matern52", ard=True, warp=True, priors=True)


@pytest.mark.parametrize("own", [WARPED], ids=["warped matern52"])
@pytest.mark.parametrize("domain", [LINE, SQUARE], ids=["grid", "box"])
def test_fits_and_draws_of_other_kernels_agree(own: OwnGP, domain: Grid | Box) -> None:
    """Fits in likelihood for all but one of 40 agents, and the queries of draws from one fit for 90 %."""
    x, y = history(40, 15, domain.dimension)
    on_cpu, on_gpu = gpytorch_fit.fit(x, y, own), gpytorch_fit.fit(there(x), there(y), own)
    found, expected = (
        gpytorch_fit.log_likelihood(h, x, y, Models())[0] for h in (KernelParameters(own, back(on_gpu.raw)), on_cpu)
    )
    assert share((found - expected).abs()[:, None] < 1e-5) >= 0.97
    draw, ids, search = OwnDraw("gpytorch", 100), IDS[:40], Acquisition(300, 10)
    expected = draw.maximizers(ids, x, y, on_cpu, domain, search, STREAMS, 2)
    found = draw.maximizers(there(ids), there(x), there(y), there(on_cpu), domain.to(CUDA), search, STREAMS, 2)
    assert_queries_agree(domain, back(found), expected, smallest=0.9)


DRAWS = pytest.mark.parametrize(
    ("method", "domain"), [("exact", LINE), ("rff", LINE), ("rff", SQUARE)], ids=["exact", "rff", "rff in a box"]
)


@DRAWS
def test_queries_of_own_draws_agree(method: str, domain: Grid | Box) -> None:
    x, y = history(N, 12, domain.dimension)
    x = on_grid(domain, x)
    hyper = Hyperparameters(*(torch.tensor([0.02, 0.5, 1e-3]) + uniforms(N, 3, seed=7)).unbind(1))
    draw, search = OwnDraw(method, 100), Acquisition()
    expected = draw.maximizers(IDS, x, y, hyper, domain, search, STREAMS, 2)
    found = draw.maximizers(there(IDS), there(x), there(y), there(hyper), domain.to(CUDA), search, STREAMS, 2)
    assert_queries_agree(domain, back(found), expected)


@pytest.mark.parametrize("domain", [LINE, SQUARE], ids=["grid", "box"])
@pytest.mark.parametrize("P", [1, 4])
def test_queries_of_a_broadcast_agree(domain: Grid | Box, P: int) -> None:
    D, search = domain.dimension, Acquisition()
    features = shared_features(100, D, 0.2, STREAMS.generator("features"))
    w, length = normals(1, P, 100, seed=8), torch.full((N,), 0.2, dtype=torch.float64)
    u = search.shift(domain, STREAMS, "starts", 0, IDS.device)
    expected = search.maximize(FeatureFunction(features, w, Regions(P, D), length), domain, u)
    function = FeatureFunction(features.to(CUDA), there(w), Regions(P, D), there(length))
    assert_queries_agree(domain, back(search.maximize(function, domain.to(CUDA), there(u))), expected)


def assert_queries_agree(domain: Grid | Box, found: Tensor, expected: Tensor, smallest: float | None = None) -> None:
    if isinstance(domain, Grid):
        assert share(found == expected) >= (smallest or 0.99)
    else:
        assert share((found - expected).abs() < 1e-6) >= (smallest or 0.95)


def bowl(agent: int, x: Any) -> float:
    return -float(((x - 0.1 * agent) ** 2).sum())


PROBLEMS: dict[str, Callable[[], Problem]] = {
    "synthetic": lambda: Synthetic(n_agents=N, grid_size=200),
    "branin": lambda: Branin(n_agents=N),
    "custom": lambda: Custom("tests.dpfbo.test_gpu:bowl", (0, 0), (1, 1), N),
}


@pytest.mark.parametrize("make", PROBLEMS.values(), ids=PROBLEMS)
def test_problems_agree(make: Callable[[], Problem]) -> None:
    problem = make()
    u = uniforms(N, 3, problem.domain.dimension, seed=9)
    x, x_there = problem.domain.to_natural(u), problem.domain.to_natural(there(u))
    assert torch.equal(back(x_there), x)
    y = problem.evaluate(IDS, x, STREAMS, 1)
    y_there = problem.evaluate(there(IDS), x_there, STREAMS, 1)
    assert torch.allclose(back(y_there), y, rtol=1e-12, atol=1e-12)
    true, true_there = problem.true_value(IDS, x, y), problem.true_value(there(IDS), x_there, y_there)
    assert torch.allclose(back(true_there), true, rtol=1e-12, atol=1e-12)


def agents_of(domain: Grid | Box) -> Agents:
    D = domain.dimension
    features = shared_features(100, D, 0.2, STREAMS.generator("features"))
    return Agents(domain, Regions(4, D), features, STREAMS, 10, 5, 0.01, "inverse_sqrt")


@pytest.mark.parametrize("domain", [LINE, SQUARE], ids=["grid", "box"])
def test_messages_of_the_same_history_agree(domain: Grid | Box) -> None:
    """Within 1e-6 of a message's length; the first query is the same to the bit."""
    x, y = history(N, 9, domain.dimension)
    x = on_grid(domain, x)

    def messages(agents: Agents, ids: Tensor) -> tuple[Query, Tensor]:
        state = agents.initial_state(ids)
        query = agents.initial_query(state)
        for a, b in ((0, 5), (5, 6), (6, 9)):
            state.append(x[:, a:b].to(ids.device), y[:, a:b].to(ids.device))
        return query, agents.messages(state, 4)

    agents = agents_of(domain)
    (query, expected), (query_there, found) = messages(agents, IDS), messages(agents.to(CUDA), there(IDS))
    assert torch.equal(back(query_there.u), query.u)
    assert torch.equal(back(query_there.source), query.source)
    assert float(((back(found) - expected).norm(dim=1) / expected.norm(dim=1)).max()) < 1e-6


RUNS = pytest.mark.parametrize(
    ("make", "method"),
    [
        (lambda: Synthetic(n_agents=120, grid_size=300), "exact"),
        (lambda: Synthetic(n_agents=120, grid_size=300), "rff"),
        (lambda: Branin(n_agents=60), "rff"),
    ],
    ids=["synthetic exact", "synthetic rff", "branin"],
)


@RUNS
def test_whole_runs_agree(make: Callable[[], Problem], method: str) -> None:
    """Same initial points, and regret curves (means over agents) within 3 SE of each other in every round."""
    curves, firsts = [], []
    for device in (torch.device("cpu"), CUDA):
        problem, agents, _ = world(make(), P=4, method=method, own_gp=OwnGP(), M=60)
        shard = Shard(problem, agents, torch.arange(problem.n_agents, device=device))
        server = server_for(problem, agents, SubsampledGaussian(0.35, 1.0, 11.0))
        result = federation.run(federation.LocalPopulation(shard), server, T)
        curves.append(torch.stack([record.metric[:, -1] for record in result.rounds]))  # rounds x N
        firsts.append(result.rounds[0].u)
    assert torch.equal(*firsts)
    on_cpu, on_gpu = curves
    se = torch.sqrt((on_cpu.var(1) + on_gpu.var(1)) / on_cpu.shape[1])
    assert torch.all((on_cpu.mean(1) - on_gpu.mean(1)).abs() <= 3 * se)


# a choice and a whole number cut the cube into cells: rounding must not move a point into another one
MIXED = Space(
    {"rate": Float(1e-4, 1, log=True), "depth": Integer(1, 12), "kind": Categorical(["a", "b", "c"]), "w": Float(0, 1)}
)


def tuned(agent: int, x: dict[str, Any]) -> float:
    base = {"a": 0.0, "b": 0.3, "c": -0.2}[x["kind"]]
    return base - (math.log10(x["rate"]) + 2) ** 2 / 4 - abs(x["depth"] - 5) / 10 - (x["w"] - 0.01 * agent) ** 2


def test_mixed_spaces_agree() -> None:
    """Snapped points to the bit, and everything that is computed from them up to rounding."""
    box = MIXED.domain
    assert isinstance(box, MixedBox)
    u = uniforms(N, 50, box.dimension, seed=20)
    snapped = box.snap(u)
    assert torch.equal(back(box.snap(there(u))), snapped)
    assert torch.equal(back(box.embed(there(snapped))), box.embed(snapped))
    x, x_there = box.to_natural(snapped), back(box.to_natural(there(snapped)))
    assert torch.allclose(x_there, x, rtol=1e-12, atol=0) and torch.equal(x_there[..., 1:3], x[..., 1:3])
    features = shared_features(100, box.embedded_dimension, 0.2, STREAMS.generator("features")).on(box)
    assert torch.allclose(back(features.to(CUDA)(there(snapped))), features(snapped), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("algorithm", ["dp_fts_de", "dp_prior"])
def test_whole_runs_in_a_mixed_space_agree(algorithm: str) -> None:
    """Same initial points, queries that are values of the parameters, and curves within 3 SE in every round."""
    problem = Custom(tuned, n_agents=40, space=MIXED)
    study = create_study(MIXED, n_agents=40, algorithm=algorithm, epsilon=4.0, rounds=6, n_init=4, rng="seeded")
    curves, firsts = [], []
    for device in (torch.device("cpu"), CUDA):
        shard = Shard(problem, study.agents, torch.arange(40, device=device))
        server = study.server(Ledger())
        result = federation.run(federation.LocalPopulation(shard), server, study.rounds, broadcasts=study.broadcasts)
        u = torch.cat([record.u for record in result.rounds], 1)
        assert torch.equal(MIXED.domain.snap(u), u)
        curves.append(torch.stack([record.best[:, -1] for record in result.rounds]))  # rounds x N
        firsts.append(result.rounds[0].u)
    assert torch.equal(*firsts)
    on_cpu, on_gpu = curves
    se = torch.sqrt((on_cpu.var(1) + on_gpu.var(1)) / on_cpu.shape[1])
    assert torch.all((on_cpu.mean(1) - on_gpu.mean(1)).abs() <= 3 * se)


@pytest.mark.parametrize("name", ["synthetic", "branin"])
def test_whole_runs_with_a_prior_agree(name: str) -> None:
    """As above; the release is made on the CPU, from messages that agree up to rounding."""
    curves, releases = [], []
    for device in (torch.device("cpu"), CUDA):
        problem: Problem = Synthetic(n_agents=200) if name == "synthetic" else Branin(n_agents=200)
        problem, agents = prior_world(problem, M=60)
        shard = Shard(problem, agents, torch.arange(200, device=device))
        server = prior_server_for(problem, agents, SubsampledGaussian(1.0, 1.0, 1.0))
        result = federation.run(federation.LocalPopulation(shard), server, T, broadcasts=1)
        curves.append(torch.stack([record.metric[:, -1] for record in result.rounds]))  # rounds x N
        releases.append(result.broadcast.values)  # type: ignore[union-attr]
    assert torch.allclose(*releases, rtol=0, atol=1e-10)
    on_cpu, on_gpu = curves
    se = torch.sqrt((on_cpu.var(1) + on_gpu.var(1)) / on_cpu.shape[1])
    assert torch.all((on_cpu.mean(1) - on_gpu.mean(1)).abs() <= 3 * se)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@RUNS
def test_everything_that_a_shard_keeps_is_on_its_device(make: Callable[[], Problem], method: str) -> None:
    """Its memory holds at least the buffers; the records, which leave it, are on the CPU."""
    problem, agents, _ = world(make(), P=4, method=method, own_gp=OwnGP(), M=60)
    before = torch.cuda.memory_allocated()
    shard = Shard(problem, agents, torch.arange(problem.n_agents, device=CUDA))
    turn = shard.step(0, None, send=True)
    turn = shard.step(1, RegionVectors(normals(4, 60, seed=10)), send=True)
    (block,) = shard._blocks
    state, hyper = block.state, block.state.hyper
    buffers = [state.ids, state.all_x, state.all_y, hyper.lengthscale, hyper.variance, hyper.noise]
    assert turn.messages is not None
    assert all(tensor.device.type == CUDA.type for tensor in (*buffers, turn.messages))
    assert torch.cuda.memory_allocated() - before >= sum(tensor.nbytes for tensor in buffers)
    record = turn.record
    assert all(getattr(record, f.name).device.type == "cpu" for f in fields(record)[1:])
