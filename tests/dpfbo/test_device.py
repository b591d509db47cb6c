"""All tensors of a shard of agents are on the device of its ids: no code of the agents uses the default device.

No GPU is needed. Each piece runs on CPU tensors twice: once as it is, and once with the default device `meta`, which
holds no numbers. Code that forgets a device then mixes the two, which raises, or returns a tensor off the CPU.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import dpfbo
from dpfbo.federated.broadcast import AgentVectors, Points, RegionVectors, SharedPrior, moved
from dpfbo.federated.population.agents import Agents, Source
from dpfbo.federated.population.shard import Shard
from dpfbo.federated.prior import DesignSums, infer, known_mean
from dpfbo.federated.prior import messages as prior_messages
from dpfbo.federated.weights.decay import Decay
from dpfbo.federated.weights.power import Power
from dpfbo.federated.weights.softmax import Softmax
from dpfbo.federated.weights.uniform import Uniform
from dpfbo.gp import acquisition, hyperparameters, newton, optimize, posterior
from dpfbo.gp import features as gp_features
from dpfbo.gp.acquisition import Acquisition
from dpfbo.gp.averaged_gp import AveragedGP, ImprovementSurface, Places
from dpfbo.gp.compiled.loading import SWITCH
from dpfbo.gp.design import Design
from dpfbo.gp.draws import OwnDraw
from dpfbo.gp.features import FeatureFunction, RandomFeatures, shared_features
from dpfbo.gp.nystrom import NystromFeatures
from dpfbo.gp.own_gp import Hyperparameters, OwnGP
from dpfbo.problems.branin import Branin
from dpfbo.problems.custom import Custom
from dpfbo.problems.landmine import Landmine
from dpfbo.problems.problem import Problem
from dpfbo.problems.synthetic import Synthetic
from dpfbo.problems.synthetic_heterogeneous import SyntheticHeterogeneous
from dpfbo.rng import Streams
from dpfbo.space.domain import Box, Domain, Grid, embedded
from dpfbo.space.regions import Regions
from tests.helpers.data_files import write_mini_landmine
from tests.helpers.devices import CPU, Piece, same_elsewhere, tensors_of
from tests.helpers.points import Listed, on_domain

STREAMS = Streams(5)
LINE = Grid(torch.linspace(0, 1, 40, dtype=torch.float64)[:, None], (0.0,), (1.0,))
SQUARE = Box((0.0, -5.0), (2.0, 10.0))


def uniforms(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, dtype=torch.float64, device=CPU, generator=torch.Generator(CPU).manual_seed(seed))


def normals(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, device=CPU, generator=torch.Generator(CPU).manual_seed(seed))


X = uniforms(3, seed=1)
FORGETFUL: dict[str, Piece] = {
    "zeros": lambda: X + torch.zeros(3, dtype=X.dtype),
    "eye": lambda: X + 0.1 * torch.eye(3, dtype=X.dtype),
    "as an index": lambda: X[torch.arange(2)],
    "as a mask": lambda: torch.where(torch.ones(3, dtype=torch.bool), X, 0.0),
    "as a constant": lambda: X.clamp(torch.tensor([0.0, 0.1, 0.2], dtype=X.dtype)),
    "of one number": lambda: X * torch.tensor(2.0, dtype=X.dtype),
    "in a product": lambda: X @ torch.ones(3, dtype=X.dtype),
    "written to": lambda: torch.empty(3, dtype=X.dtype).copy_(X),
    "read as a number": lambda: X * float(torch.tensor(2.0)),
    "returned": lambda: torch.linspace(0, 1, 5),
}


@pytest.fixture(autouse=True)
def tensor_code(monkeypatch: Any) -> None:
    """Compiled code would take the place of some tensor operations on this device alone."""
    monkeypatch.setenv(SWITCH, "0")


@pytest.mark.parametrize("piece", FORGETFUL.values(), ids=FORGETFUL)
def test_a_forgotten_device_is_caught(piece: Piece) -> None:
    piece()  # it is right where the default device is the right one
    with pytest.raises((RuntimeError, NotImplementedError, AssertionError)):
        same_elsewhere(piece)


@pytest.mark.parametrize(
    ("module", "forgotten"),
    [
        (posterior, "eye"),
        (hyperparameters, "tensor"),
        (optimize, "arange"),
        (newton, "arange"),
        (acquisition, "arange"),
    ],
    ids=lambda v: v if isinstance(v, str) else v.__name__,
)
def test_a_device_forgotten_in_the_library_is_caught(module: Any, forgotten: str, monkeypatch: Any) -> None:
    """Each of these modules calls a factory that, made to ignore its device, fails the piece that reaches it."""

    class Forgetful:
        def __getattr__(self, name: str) -> Any:
            return getattr(torch, name)

    factory = getattr(torch, forgotten)
    library = Forgetful()
    setattr(library, forgotten, lambda *args, device=None, **kwargs: factory(*args, **kwargs))
    reached = {
        posterior: lambda: posterior.cholesky(SINGULAR.clone()),
        hyperparameters: lambda: hyperparameters.fit(HISTORY[0], HISTORY[1], START),
        optimize: lambda: minimised(False, groups=False),
        newton: lambda: hyperparameters.fit(HISTORY[0], HISTORY[1], START),
        acquisition: lambda: Acquisition(50, 3).maximize(function(2, 1), SQUARE, uniforms(2)),
    }[module]
    monkeypatch.setattr(module, "torch", library)
    reached()
    with pytest.raises((RuntimeError, NotImplementedError, AssertionError)):
        same_elsewhere(reached)


N, T = 7, 6
IDS = torch.arange(N)
SOME = torch.tensor([5, 1, 4])
HISTORY = uniforms(N, T, 2, seed=2), normals(N, T, seed=3)
HYPER = Hyperparameters(*(0.05 + uniforms(N, 3, seed=4)).unbind(1))
START = OwnGP().start(N)
WARPED = OwnGP("gpytorch", every=2, kernel="matern52", ard=True, warp=True, priors=True)
SINGULAR = torch.ones(4, 5, 5, dtype=torch.float64)  # positive definite with a jitter only


def function(D: int, P: int, own: bool = False) -> FeatureFunction:
    """A function for each row, of shared features or of its own."""
    B = N if own else 1
    features = RandomFeatures(3 * normals(B, 20, D, seed=6), 6 * uniforms(B, 20, seed=7))
    return FeatureFunction(features, normals(N, P, 20, seed=8), Regions(P, D), HYPER.lengthscale)


def features() -> Any:
    u, own = HISTORY[0], function(2, 1, own=True).features
    shared = shared_features(20, 2, 0.3, STREAMS.generator("features"))
    paired = shared_features(20, 2, 0.3, STREAMS.generator("features"), paired=True)
    few = shared(u[:1, :3])  # fewer points than a product is filled up to
    return [shared(u), paired(u), few, own(u), own.select(SOME)(u[SOME]), shared.to(torch.float32)(u.float())]


def posterior_draws() -> Any:
    Phi, eye = normals(N, T, 20, seed=9), torch.eye(T, dtype=torch.float64, device=CPU)
    L = posterior.cholesky(Phi @ Phi.mT + 0.1 * eye)
    w = posterior.sample_weights(Phi, L, HISTORY[1], normals(N, 20, seed=11), normals(N, T, seed=12))
    return L, w, posterior.cholesky(SINGULAR.clone())


def minimised(newton: bool, groups: bool = True) -> Any:
    """Rosenbrock's function, whose line searches fail now and then, from starts of which the best is wanted."""

    def rosenbrock(x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        a, b = x.unbind(1)
        gap = b - a**2
        gradient = torch.stack([-2 * (1 - a) - 400 * a * gap, 200 * gap], 1)
        H = torch.stack([2 - 400 * gap + 800 * a**2, -400 * a, -400 * a, 0 * a + 200], 1).view(-1, 2, 2)
        return (1 - a) ** 2 + 100 * gap**2, gradient, H if newton else None

    x0 = 4 * uniforms(24, 2, seed=13) - 2
    bound = torch.full_like(x0, 1.5)
    group = torch.arange(24, device=CPU) // 6
    alone = optimize.minimize(rosenbrock, x0, -bound, bound, bound[:, 0])
    return alone, optimize.minimize(rosenbrock, x0, -bound, bound, bound[:, 0], group=group) if groups else None


def maximised(domain: Domain, P: int, own: bool, refine: bool = True) -> Any:
    search = Acquisition(60, 4, 30 if refine else 0)
    f = function(domain.dimension, P, own)
    return search.maximize(f, domain.to(CPU), search.shift(domain, STREAMS, "shift", 3, CPU))


def own_draw(method: str, domain: Domain, own: OwnGP | None = None) -> Any:
    x, y = on_domain(domain.to(CPU), HISTORY[0][..., : domain.dimension]), HISTORY[1]
    hyper = HYPER if own is None else hyperparameters.fit_own(x, y, own, True)
    draw, search = OwnDraw(method, 25), Acquisition(60, 4)
    return [
        draw.maximizers(ids, x[ids], y[ids], hyper.select(ids), domain.to(CPU), search, STREAMS, 3)
        for ids in (IDS, SOME)
    ]


def regions(dtype: torch.dtype) -> Any:
    u, three = uniforms(N, 9, 2, seed=15).to(dtype), Regions(3, 1)
    r = Regions(6, 2)
    inside = r.uniform_points(r.assign(IDS), u.double(), SQUARE)
    on_line = three.uniform_points(three.assign(IDS), u[..., :1].double(), LINE.to(CPU))
    return r.region_of(u), r.bounds(r.region_of(u), dtype), r.assign(IDS), inside, on_line


def domains() -> Any:
    again = LINE.to(CPU)
    return again.unit_points, again.to_natural(uniforms(4, 1)), SQUARE.to(CPU).to_natural(uniforms(4, 2))


def streams() -> Any:
    nobody = IDS[:0]
    draws = [STREAMS.uniform("a", ids, 1, k) for ids in (IDS, SOME, nobody) for k in (1, 4, 6)]
    return draws, [STREAMS.normal("b", ids, 2, 5) for ids in (IDS, SOME, nobody)]


def weights() -> Any:
    assignment = IDS % 3
    return [weigh(2, assignment, 3) for weigh in (Uniform(), Softmax(Decay(1, 9)), Power(Decay(1, 9)))]


LENGTHSCALES = (0.1, 0.4)
GP = AveragedGP(LENGTHSCALES)
BROADCAST = SharedPrior(
    normals(1, 20, seed=19), normals(20, seed=20), torch.eye(20, dtype=torch.float64)[*torch.tril_indices(20, 20)],
    torch.full((2,), 0.5, dtype=torch.float64), *torch.tensor([0.6, 0.4], dtype=torch.float64),
)  # fmt: skip
MIXED = dpfbo.Space({"a": dpfbo.Float(0, 1), "b": dpfbo.Integer(1, 4)}).domain


def nystrom(domain: Domain) -> NystromFeatures:
    return NystromFeatures.of(domain, 20, LENGTHSCALES).to(CPU)


def nystrom_features() -> Any:
    f = nystrom(SQUARE)
    return f(HISTORY[0]), f.coefficients, f.mean_variance(f.coefficients), nystrom(MIXED)(HISTORY[0])


def inferred() -> Any:
    """The messages, the server's inference, and what agents take from it."""
    f, design = nystrom(SQUARE), uniforms(N, 4, 2, seed=24)
    sent = prior_messages(f(design), normals(N, 4, seed=25))
    found = infer(sent.mean(0, keepdim=True), sent.sum(0), 0.5, DesignSums.of(Listed(design), f, N), f)
    known = known_mean(found, 4, 6)
    return [sent, *vars(found).values(), *vars(known).values()]


def improvements(domain: Domain, shared: bool) -> Any:
    f, search = nystrom(domain), Acquisition(60, 4)
    known = known_mean(moved(BROADCAST, CPU), 3, T) if shared else None
    u, y = on_domain(domain.to(CPU), HISTORY[0][..., : domain.dimension]), HISTORY[1]

    def locate(u: Tensor) -> Places:
        return Places(embedded(domain, u), f(u) if shared else None)

    fitted = GP.fit(locate(u), y, known)
    surface = ImprovementSurface(fitted, locate)
    shift = search.shift(domain, STREAMS, "shift", 3, CPU)
    at = search.maximize_improvement(surface, domain.to(CPU), shift)
    return fitted.select(SOME).shared, fitted.log_probability, *fitted.predict(locate(at[:, None])), at


def designs() -> Any:
    pairs = [(domain.to(CPU), kind) for domain in (LINE, SQUARE) for kind in ("uniform", "sobol")]
    made = [Design(domain, Regions(1, domain.dimension), STREAMS, 4, kind) for domain, kind in pairs]
    return [design.points(ids) for design in made for ids in (IDS, SOME, IDS[:0])]


PIECES: dict[str, Piece] = {
    "designs": designs,
    "Nystroem features": nystrom_features,
    "inference of a prior": inferred,
    **{
        f"improvements {name}{', with a shared mean' if shared else ''}": (
            lambda domain=domain, shared=shared: improvements(domain, shared)
        )
        for name, domain in (("on a grid", LINE), ("in a box", SQUARE), ("in a mixed box", MIXED))
        for shared in (False, True)
    },
    "streams": streams,
    "domains": domains,
    "regions": lambda: regions(torch.float64),
    "regions in single precision": lambda: regions(torch.float32),
    "weights": weights,
    "features": features,
    "posterior": posterior_draws,
    "start of the own GPs": lambda: OwnGP().start(N, IDS.device),
    "fit closed_form": lambda: hyperparameters.fit(*HISTORY, START),
    # GPyTorch makes its parameters on the default device
    "fit gpytorch": lambda: hyperparameters.fit_own(*HISTORY, OwnGP("gpytorch")),
    "minimize by Newton": lambda: minimised(newton=True),
    "minimize by BFGS": lambda: minimised(newton=False),
    **{
        f"maximize on a {name}, P = {P}, {'own' if own else 'shared'} features": (
            lambda domain=domain, P=P, own=own: maximised(domain, P, own)
        )
        for name, domain in (("grid", LINE), ("box", SQUARE))
        for P in (1, 4)
        for own in (False, True)
    },
    "maximize without refinement": lambda: maximised(SQUARE, 4, False, refine=False),
    "own draw rff on a grid": lambda: own_draw("rff", LINE),
    "own draw rff in a box": lambda: own_draw("rff", SQUARE),
    "own draw exact": lambda: own_draw("exact", LINE),
    "start of any kernel": lambda: hyperparameters.start(WARPED, N, 2, CPU),
    "own draw gpytorch on a grid": lambda: own_draw("gpytorch", LINE),
    "own draw gpytorch in a box": lambda: own_draw("gpytorch", SQUARE, WARPED),
}


@pytest.mark.parametrize("piece", PIECES.values(), ids=PIECES)
def test_a_piece_stays_on_the_device_of_its_tensors(piece: Piece) -> None:
    same_elsewhere(piece)


def test_a_map_for_each_of_many_agents_is_evaluated_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gp_features, "_BLOCK", 2000)
    same_elsewhere(lambda: maximised(LINE, 4, own=True))


def test_many_matrices_are_decomposed_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is for CUDA's solver; where it lies does not change a number."""
    whole = hyperparameters.fit(*HISTORY, START)
    monkeypatch.setattr(optimize, "_MATRICES", 3)
    assert all(
        torch.equal(a, b)
        for a, b in zip(tensors_of(hyperparameters.fit(*HISTORY, START)), tensors_of(whole), strict=True)
    )


def bowl(agent: int, x: Any) -> float:
    return -float(((x - 0.1 * agent) ** 2).sum())


PROBLEMS: dict[str, Callable[[Path], Problem]] = {
    "synthetic": lambda data: Synthetic(n_agents=N, grid_size=50),
    "synthetic_heterogeneous": lambda data: SyntheticHeterogeneous(n_agents=N, grid_size=50),
    "branin": lambda data: Branin(n_agents=N),
    "custom": lambda data: Custom("tests.dpfbo.test_device:bowl", (0, 0), (1, 1), N),
    "custom to be minimised": lambda data: Custom("tests.dpfbo.test_device:bowl", (0, 0), (1, 1), N, maximize=False),
    "custom with its optimum": lambda data: Custom("tests.dpfbo.test_device:bowl", (0, 0), (1, 1), N, optimum=0.0),
    "landmine": lambda data: Landmine("platt", n_agents=N, data_dir=str(data), n_jobs=1),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_mini_landmine(tmp_path_factory.mktemp("data"))


@pytest.mark.parametrize("make", PROBLEMS.values(), ids=PROBLEMS)
def test_a_problem_is_built_on_the_cpu(make: Callable[[Path], Problem], data: Path) -> None:
    def built() -> Any:
        problem = make(data)
        return problem.reference, problem.domain, IDS  # a box has no tensors

    same_elsewhere(built)


@pytest.mark.parametrize("make", PROBLEMS.values(), ids=PROBLEMS)
@pytest.mark.parametrize("ids", [IDS, SOME], ids=["everyone", "some"])
def test_a_problem_answers_where_it_was_asked(make: Callable[[Path], Problem], ids: Tensor, data: Path) -> None:
    problem = make(data)
    u = uniforms(len(ids), 3, problem.domain.dimension, seed=16)

    def evaluated() -> Any:
        x = problem.domain.to_natural(u)
        y = problem.evaluate(ids, x, STREAMS, 2)
        return x, y, problem.true_value(ids, x, y)

    same_elsewhere(evaluated)


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("synthetic", "exact"),
        ("synthetic", "rff"),
        ("branin", "rff"),
        ("synthetic", "gpytorch"),
        ("branin", "gpytorch"),
    ],
)
@pytest.mark.parametrize("ids", [IDS, SOME[:1]], ids=["everyone", "one agent"])
def test_a_shard_stays_on_the_device_of_its_ids(name: str, method: str, ids: Tensor, data: Path) -> None:
    """Its rounds, with every kind of broadcast, refits and messages; and once more from its records."""
    problem, rounds = PROBLEMS[name](data), 5
    D, own_gp = problem.domain.dimension, WARPED if method == "gpytorch" else OwnGP(every=2)
    agents = Agents(
        problem.domain, Regions(2, D), shared_features(20, D, 0.2, STREAMS.generator("features")), STREAMS, rounds, 5,
        0.01, "inverse_sqrt", own_gp, OwnDraw(method, 25), Acquisition(60, 4),
    )  # fmt: skip
    broadcasts = [
        RegionVectors(normals(2, 20, seed=17)),
        AgentVectors(normals(N, 20, seed=18)),
        Points(on_domain(problem.domain, uniforms(N, D))),
    ]

    def run() -> Any:
        shard = Shard(problem, agents, ids)
        turns = [shard.step(t, broadcasts[t % 3] if t else None, send=True) for t in range(rounds)]
        again = Shard(problem, agents, ids)
        again.restore([turn.record for turn in turns[:-1]])
        return turns, again.step(rounds - 1, broadcasts[(rounds - 1) % 3], send=True)

    same_elsewhere(run)


@pytest.mark.parametrize("name", ["synthetic", "branin"])
@pytest.mark.parametrize("design", ["uniform", "sobol"])
@pytest.mark.parametrize("ids", [IDS, SOME[:1]], ids=["everyone", "one agent"])
def test_a_shard_with_a_prior_stays_on_the_device_of_its_ids(name: str, design: str, ids: Tensor, data: Path) -> None:
    problem, rounds = PROBLEMS[name](data), 4
    D = problem.domain.dimension
    agents = Agents(
        problem.domain, Regions(1, D), NystromFeatures.of(problem.domain, 20, LENGTHSCALES), STREAMS, rounds, 3, 0.01,
        "always", acquisition=Acquisition(60, 4), message="scores", design_kind=design, averaged_gp=GP,
    )  # fmt: skip
    sources = set()

    def run() -> Any:
        shard = Shard(problem, agents, ids)
        turns = [shard.step(t, BROADCAST if t else None, send=t == 0) for t in range(rounds)]
        again = Shard(problem, agents, ids)
        again.restore([turn.record for turn in turns[:-1]])
        sources.update(int(s) for turn in turns[1:] for s in turn.record.source.flatten())
        return turns, again.step(rounds - 1, BROADCAST, send=False)

    same_elsewhere(run)
    if len(ids) > 1 and name == "branin":
        assert sources >= {Source.own, Source.server}  # both kinds of query were tried


@pytest.mark.parametrize("name", ["local", "dp_prior", "dp_fts_de", "fts_original", "sobol_server"])
def test_a_whole_run_stays_on_the_cpu(name: str) -> None:
    """With the default device of a notebook on another device, as after `torch.set_default_device("cuda")`."""

    def run() -> Any:
        done = dpfbo.optimize(
            lambda agent, x: -((x["x"] - 0.3) ** 2), {"x": dpfbo.Float(0, 1)}, 3, name, rounds=2, n_init=2,
            acquisition=Acquisition(20, 2),
        )  # fmt: skip
        assert len(done.to_pandas()) == 12
        return [(r.x, r.y, r.best) for r in done.result.rounds]

    same_elsewhere(run)


def test_agents_and_coordinator_stay_on_the_cpu() -> None:
    def run() -> Any:
        study = dpfbo.create_study(
            {"x": dpfbo.Float(0, 1)}, n_agents=2, algorithm="dp_fts_de_plus", rounds=1, n_init=2, rng="seeded",
            acquisition=Acquisition(20, 2),
        )  # fmt: skip
        agents, coordinator = [dpfbo.Agent(study, n) for n in range(2)], dpfbo.Coordinator(study)
        for n, agent in enumerate(agents):
            for y in (1.0, 2.0):
                agent.tell(agent.ask(), y)
            coordinator.receive(n, agent.message())
        sent = coordinator.release()
        for agent in agents:
            agent.receive(sent)
        return torch.tensor([agent.ask()["x"] for agent in agents], device="cpu")  # type: ignore[call-overload]

    same_elsewhere(run)
