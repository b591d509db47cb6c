"""The compiled search of a box: the maxima of the tensor code, and every function on its own."""

import dataclasses
import math
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from dpfbo.gp import acquisition, newton
from dpfbo.gp.acquisition import Acquisition
from dpfbo.gp.compiled import calls
from dpfbo.gp.compiled.loading import SWITCH, library
from dpfbo.gp.features import FeatureFunction, RandomFeatures
from dpfbo.space.axes import Float, Integer
from dpfbo.space.domain import Box
from dpfbo.space.mixed import MixedBox
from dpfbo.space.regions import Regions

pytestmark = pytest.mark.skipif(library() is None, reason="there is no C compiler")


def functions(B, P=1, D=2, M=60, length=0.3, seed=0, maps=None, weighted=None):
    g = torch.Generator().manual_seed(seed)
    S = torch.randn(maps or B, M, D, dtype=torch.float64, generator=g) / length
    b = 2 * torch.pi * torch.rand(maps or B, M, dtype=torch.float64, generator=g)
    w = torch.randn(weighted or B, P, M, dtype=torch.float64, generator=g)
    lengths = torch.full((B,), length, dtype=torch.float64)
    return FeatureFunction(RandomFeatures(S, b), w, Regions(P, D), lengths)


def shift(D, seed=1):
    return torch.rand(D, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def cube(D):
    return Box((0.0,) * D, (1.0,) * D)


@pytest.fixture
def searches(monkeypatch):
    """The numbers of functions of all compiled searches; `by_tensors` searches without one."""
    called, compiled = [], calls.box_maximizers
    monkeypatch.setenv(SWITCH, "1")
    monkeypatch.setattr(calls, "box_maximizers", lambda f, *rest: (called.append(len(f)), compiled(f, *rest))[1])
    return called


@pytest.fixture
def by_tensors(monkeypatch):
    def searched(f, *arguments, search=Acquisition()):
        with monkeypatch.context() as patch:
            patch.setenv(SWITCH, "0")
            return search.maximize(f, *arguments)

    return searched


@pytest.mark.parametrize("P", [1, 2, 4])
@pytest.mark.parametrize("D", [1, 2, 3, 4, 5, 6])
def test_finds_the_maxima_of_the_tensor_code(searches, by_tensors, D, P):
    """240 functions of several length-scales and sizes, with maps of their own and with a shared one."""
    for k, (length, M) in enumerate([(0.1, 50), (0.3, 100), (0.8, 33), (2.0, 7)]):
        for maps in (1, None):
            f = functions(30, P, D, M, length, seed=10 * D + k, maps=maps)
            x, other = Acquisition().maximize(f, cube(D), shift(D, k)), by_tensors(f, cube(D), shift(D, k))
            assert ((x >= 0) & (x <= 1)).all()
            reached, wanted = (f.normalised()(u[:, None])[:, 0] for u in (x, other))
            assert torch.allclose(reached, wanted, rtol=0, atol=1e-9)
    assert searches == [30] * 8


def test_maxima_on_the_border_are_those_of_the_tensor_code(searches, by_tensors):
    """Functions without an optimum inside of most regions: their maximisers agree, too."""
    f = functions(50, 4, length=4.0, seed=3)
    x, other = Acquisition().maximize(f, cube(2), shift(2)), by_tensors(f, cube(2), shift(2))
    assert torch.allclose(x, other, rtol=0, atol=1e-6)
    faces = torch.tensor([0.0, 0.5 - 1e-9, 0.5, 1.0], dtype=torch.float64)
    at_border = (x[..., None] == faces).any(2).any(1)
    assert int(at_border.sum()) > 40


@pytest.mark.parametrize("sizes", [(1, 0), (1, 4), (2, 3), (30, 100), (5000, 20)])
@pytest.mark.parametrize("D", [1, 2, 3])
def test_any_number_of_candidates_and_starts(searches, by_tensors, D, sizes):
    f, search = functions(20, 2, D, seed=4), Acquisition(*sizes)
    x, other = search.maximize(f, cube(D), shift(D)), by_tensors(f, cube(D), shift(D), search=search)
    assert torch.allclose(f(x[:, None]), f(other[:, None]), rtol=0, atol=1e-8)
    assert searches == [20]


@pytest.mark.parametrize(
    ("module", "constants"),
    [
        (acquisition, {"_APART": 5.0}),
        (acquisition, {"_GAIN": 0.0, "_BORDER": 0.0}),
        (acquisition, {"_GAIN": 0.0, "_BORDER": 0.02}),
        (acquisition, {"_PROMISE": 1e-3}),
        (newton, {"HOPE": 0.01}),
        (newton, {"NEAR": 0.5}),
        (newton, {"SHORTER": 0.9}),
        (newton, {"ARMIJO": 0.9}),
        (newton, {"FLATTEST": 0.9}),
    ],
)
def test_constants_are_those_of_the_tensor_code(monkeypatch, searches, by_tensors, module, constants):
    """With values at which the search of some functions ends elsewhere, both codes end there."""
    f, few = functions(100, 2, 3, length=0.15, seed=5), Acquisition(50, 20, 5)
    before = few.maximize(f, cube(3), shift(3))
    for name, value in constants.items():
        monkeypatch.setattr(module, name, value)
    x, other = few.maximize(f, cube(3), shift(3)), by_tensors(f, cube(3), shift(3), search=few)
    assert torch.allclose(f(x[:, None]), f(other[:, None]), rtol=0, atol=1e-7)
    assert not torch.equal(x, before)


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", ["weights", "phases", "frequencies", "length"])
def test_functions_that_are_not_finite_leave_the_others_alone(searches, where, poison):
    f = functions(9, 2, seed=6)
    healthy = Acquisition().maximize(f, cube(2), shift(2))
    owner = f.features if where in ("phases", "frequencies") else f
    getattr(owner, where)[::3] = poison
    x, well = Acquisition().maximize(f, cube(2), shift(2)), torch.arange(9) % 3 > 0
    assert torch.equal(x[well], healthy[well])
    assert ((x >= 0) & (x <= 1)).all()


@pytest.mark.parametrize("maps", [1, None])
def test_a_function_is_searched_as_if_it_were_alone(searches, maps):
    f = functions(20, 4, seed=7, maps=maps)
    whole = Acquisition().maximize(f, cube(2), shift(2))
    for rows in (torch.tensor([3]), torch.tensor([19, 0]), torch.arange(5, 18)):
        part = dataclasses.replace(
            f, features=f.features.select(rows), weights=f.weights[rows], length=f.length[rows].clone()
        )
        assert torch.equal(Acquisition().maximize(part, cube(2), shift(2)), whole[rows])


def test_threads_at_once_find_what_one_finds(searches):
    parts = [functions(15, 2, 3, seed=k) for k in range(8)]
    alone = [Acquisition().maximize(f, cube(3), shift(3)) for f in parts]
    with ThreadPoolExecutor(4) as pool:
        at_once = list(pool.map(lambda f: Acquisition().maximize(f, cube(3), shift(3)), parts))
    assert all(torch.equal(a, b) for a, b in zip(alone, at_once, strict=True))


def test_shared_weights_and_inputs_in_any_layout(searches):
    """One set of weights for all maps; strided, expanded and inference tensors; none of them is changed."""
    f = functions(6, 2, seed=8, weighted=1)
    with torch.inference_mode():
        strided = FeatureFunction(
            RandomFeatures(f.features.frequencies.mT.contiguous().mT, f.features.phases.T.contiguous().T),
            f.weights.expand(6, -1, -1), f.regions, f.length[:1].expand(6),
        )  # fmt: skip
    before = [part.clone() for part in (f.features.frequencies, f.features.phases, f.weights, f.length)]
    x = Acquisition().maximize(f, cube(2), shift(2))
    assert torch.equal(x, Acquisition().maximize(strided, cube(2), shift(2))) and not x.is_inference()
    after = (f.features.frequencies, f.features.phases, f.weights, f.length)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_one_function_for_all_rows_has_one_maximiser(searches):
    f = functions(6, 2, seed=9, maps=1, weighted=1)
    assert Acquisition().maximize(f, cube(2), shift(2)).shape == (1, 2)
    assert searches == [1]


@pytest.mark.parametrize("part", ["weights", "length", "phases", "frequencies", "regions"])
def test_tensors_that_do_not_belong_together_are_not_read(searches, part):
    """The tensor code refuses them, or takes what it needs."""
    f = functions(4, 2, seed=9)
    wrong = {
        "weights": {"weights": f.weights[:, :, :7]},
        "length": {"length": f.length[:3]},
        "phases": {"features": RandomFeatures(f.features.frequencies, f.features.phases[:, :7])},
        "frequencies": {"features": RandomFeatures(f.features.frequencies[:, :, :1], f.features.phases)},
        "regions": {"regions": Regions(4, 2)},
    }[part]
    with pytest.raises((RuntimeError, IndexError)):
        Acquisition().maximize(dataclasses.replace(f, **wrong), cube(2), shift(2))
    assert searches == []


def test_other_functions_are_left_to_the_tensor_code(searches):
    """More axes than the library has room for, discrete axes, and no ascents."""
    many = functions(2, D=17, seed=1)
    assert Acquisition(50, 2).maximize(many, cube(17), shift(17)).shape == (2, 17)
    f, mixed = functions(3, seed=2), MixedBox((Float(0, 1), Integer(1, 4)))
    on_mixed = dataclasses.replace(f, features=f.features.on(mixed))
    x = Acquisition(50, 2).maximize(on_mixed, mixed, shift(2))
    assert torch.equal(x[:, 1], mixed.snap(x)[:, 1])
    assert Acquisition(50, 2, 0).maximize(f, cube(2), shift(2)).shape == (3, 2)
    assert searches == []
