"""Parameters with conditions: configurations leave inactive ones out, and points do not depend on them."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfbo import Categorical, Fixed, Float, Integer, Ordinal, SettingError, Space
from dpfbo.gp.acquisition import Acquisition, BoxCandidates
from dpfbo.gp.averaged_gp import AveragedGP, ImprovementSurface, Places
from dpfbo.gp.features import FeatureFunction, derivatives, shared_features
from dpfbo.gp.nystrom import NystromFeatures
from dpfbo.space.domain import embedded_dimension
from dpfbo.space.regions import Regions
from dpfbo.study.study import _canonical

SPACE = Space(
    {
        "scale": Float(0, 1, step=0.1, when={"degree": [3, 4]}),  # before its parent and its grandparent
        "kernel": Categorical(["linear", "rbf", "poly"]),
        "gamma": Float(1e-3, 1, log=True, when={"kernel": ["rbf", "poly"]}),
        "degree": Integer(2, 6, when={"kernel": "poly"}),
        "size": Ordinal([32, 64, 128], when={"kernel": "rbf", "deep": True}),
        "deep": Categorical([True, False]),
        "c": Float(0, 1),
        "tolerance": Fixed(1e-3, when={"kernel": "rbf"}),
        "jobs": 4,
    }
)
BOX = SPACE.domain
D = BOX.dimension
U = torch.from_numpy(np.random.default_rng(0).uniform(size=(400, D)))
EXAMPLES = settings(max_examples=200, deadline=None)
FEATURES = shared_features(40, embedded_dimension(BOX), 0.4, np.random.default_rng(1)).on(BOX)


def expected_names(c):
    """The parameters of a configuration, by the conditions as written above."""
    names = {"kernel", "deep", "c", "jobs"}
    names |= {"gamma"} if c["kernel"] != "linear" else set()
    names |= {"degree"} if c["kernel"] == "poly" else set()
    names |= {"scale"} if c["kernel"] == "poly" and c["degree"] in (3, 4) else set()
    names |= {"tolerance"} if c["kernel"] == "rbf" else set()
    return names | ({"size"} if c["kernel"] == "rbf" and c["deep"] else set())


def moved(u, seed=2):
    """The points with other coordinates on their inactive axes."""
    other = torch.from_numpy(np.random.default_rng(seed).uniform(size=u.shape))
    return torch.where(BOX.active(u), u, other)


@given(st.lists(st.floats(0, 1), min_size=D, max_size=D))
@EXAMPLES
def test_configurations_leave_inactive_parameters_out_and_come_back(u):
    x = BOX.to_natural(torch.tensor(u, dtype=torch.float64))
    configuration = SPACE.configuration(x)
    assert set(configuration) == expected_names(configuration)
    assert list(configuration) == [name for name in SPACE.parameters if name in configuration]
    assert torch.equal(SPACE.natural(configuration), x)
    assert torch.equal(SPACE.natural(json.loads(json.dumps(configuration))), x)
    assert torch.equal(BOX.to_natural(BOX.to_unit(x)), x)


def test_points_that_differ_in_inactive_coordinates_are_one_point():
    other = moved(U)
    assert not torch.equal(other, U)
    for of in (BOX.snap, BOX.embed, BOX.to_natural, BOX.imputed, lambda u: BOX.active(u).double()):
        assert torch.equal(of(U), of(other))
    assert torch.equal(BOX.to_unit(BOX.to_natural(U))[:, :2], BOX.snap(U)[:, :2])
    assert torch.equal(FEATURES(U[None]), FEATURES(other[None]))
    psi = NystromFeatures.of(BOX, 30, (0.2, 0.5))
    assert torch.equal(psi(U[None]), psi(other[None]))


def test_an_inactive_axis_has_its_middle_and_an_active_one_keeps_its_place():
    snapped, active = BOX.snap(U), BOX.active(U)
    assert active[:, [1, 5, 6]].all() and 0 < active.double().mean() < 1
    assert (snapped[:, 2][~active[:, 2]] == 0.5).all()
    assert (BOX.to_natural(snapped)[:, 3][~active[:, 3]] == 4).all()
    assert torch.equal(snapped[:, 2][active[:, 2]], U[:, 2][active[:, 2]])
    assert torch.equal(BOX.snap(snapped), snapped)
    features = FEATURES(U[None])[0]
    changed = U.clone()
    changed[:, 2] = (changed[:, 2] + 0.3) % 1
    same = (FEATURES(changed[None])[0] - features).norm(dim=1) == 0
    assert torch.equal(same, ~active[:, 2])


def test_derivatives_by_inactive_coordinates_are_zero_and_others_are_right():
    w = torch.from_numpy(np.random.default_rng(3).standard_normal((1, 1, 40)))
    function = FeatureFunction(FEATURES, w, Regions(1, D), torch.tensor([0.4]).double())
    u, rows = BOX.snap(U[:60]), torch.zeros(60, dtype=torch.long)
    value, gradient, hessian = derivatives(u, *function.around(u, rows, rows))
    torch.testing.assert_close(value, function(u[None])[0])
    active = BOX.active(u)
    assert (gradient[~active] == 0).all() and (hessian[~active] == 0).all() and (hessian.mT[~active] == 0).all()
    for axis in (2, 6):  # the continuous ones
        step = torch.zeros(D, dtype=torch.float64)
        step[axis] = 1e-6
        difference = (function((u + step)[None]) - function((u - step)[None]))[0] / 2e-6
        torch.testing.assert_close(gradient[:, axis], difference, rtol=1e-5, atol=1e-6)
    lower, upper = BOX.fixed(u, torch.zeros_like(u), torch.ones_like(u))
    free = upper > lower
    assert torch.equal(free, active & torch.tensor([i in (2, 6) for i in range(D)]))
    assert torch.equal(lower[~free], u[~free])


def test_gradients_of_the_expected_improvement_vanish_too():
    x, y = BOX.snap(U[None, :12]), torch.from_numpy(np.random.default_rng(4).standard_normal((1, 12)))
    surface = ImprovementSurface(AveragedGP().fit(Places(BOX.embed(x)), y), lambda u: Places(BOX.embed(u)))
    u = BOX.snap(U[100:130])[None].requires_grad_()
    (gradient,) = torch.autograd.grad(surface(u).sum(), u)
    assert (gradient[~BOX.active(u)] == 0).all() and (gradient[..., 6] != 0).any()


def test_other_values_of_a_parent_impute_its_children():
    u = BOX.snap(U[:50])
    for axis in BOX.discrete:
        neighbours = BOX.neighbours(u, axis)
        assert torch.equal(BOX.snap(neighbours), neighbours)
        assert (neighbours == u[:, None]).all(2).any(1).all()  # its own value is among them


@pytest.mark.parametrize("B", [1, 3])
def test_a_search_finds_the_best_of_all_configurations(B):
    """One map for all, and a map for each function."""
    box = Space({"kind": Categorical(["a", "b"]), "x": Float(0, 1, when={"kind": "b"}), "y": Float(0, 1)}).domain
    generator = np.random.default_rng(5)
    maps = [shared_features(50, embedded_dimension(box), 0.3, generator) for _ in range(B)]
    features = type(maps[0])(torch.cat([m.frequencies for m in maps]), torch.cat([m.phases for m in maps]), box)
    w = torch.from_numpy(generator.standard_normal((12 if B == 1 else B, 1, 50)))
    function = FeatureFunction(features, w, Regions(1, 3), torch.full((len(w),), 0.3).double())
    shift = torch.from_numpy(generator.uniform(size=3))
    found = Acquisition(n_candidates=300, n_starts=15).maximize(function, box, shift)
    assert torch.equal(box.snap(found), found)
    axis = torch.linspace(0, 1, 81, dtype=torch.float64)
    points = torch.cartesian_prod(torch.tensor([0.25, 0.75]).double(), axis, axis)
    best = function(points[None]).amax(1)
    assert (function(found[:, None])[:, 0] >= best - 1e-3 * best.abs()).all()


def test_candidates_are_points_of_the_space_and_values_on_products_are_those_of_the_points():
    candidates = BoxCandidates.of(BOX, 200, U[0])
    assert torch.equal(BOX.snap(candidates.points), candidates.points)
    generator = np.random.default_rng(6)
    maps = [shared_features(20, embedded_dimension(BOX), 0.4, generator) for _ in range(3)]
    features = type(maps[0])(torch.cat([m.frequencies for m in maps]), torch.cat([m.phases for m in maps]), BOX)
    w = torch.from_numpy(generator.standard_normal((3, 1, 20)))
    function = FeatureFunction(features, w, Regions(1, D), torch.full((3,), 0.4).double())
    values = function.on_product(candidates.left, candidates.right)
    torch.testing.assert_close(values, function(candidates.points[None]))


def test_spaces_without_conditions_have_the_names_that_they_had():
    """The digest of a study is made of them."""
    axes = "dpfbo.space.axes"
    assert _canonical(Float(0, 1)) == f"{axes}.Float(lower=0, upper=1, log=False)"
    box = Space({"k": Categorical(["a", 2])}).domain
    assert _canonical(box) == f"dpfbo.space.mixed.MixedBox(axes=[{axes}.Categorical(choices=['a', 2])])"
    assert repr(Fixed(4)) == "Fixed(constant=4)" and repr(Ordinal([1, 2])) == "Ordinal(values=(1, 2))"
    assert _canonical(SPACE) != _canonical(Space({**SPACE.parameters, "gamma": Float(1e-3, 1, log=True)}))


def test_plain_data_make_the_same_space():
    again = Space(json.loads(json.dumps(SPACE.to_dict())))
    assert again.domain == BOX and set(again.configuration(BOX.to_natural(U)[0])) == set(
        SPACE.configuration(BOX.to_natural(U)[0])
    )
    assert Space(SPACE.to_dict()) == SPACE and hash(Space(SPACE.to_dict())) == hash(SPACE)
    yaml = {"kernel": {"type": "categorical", "choices": ["a", "b"]}, "c": {"type": "float", "lower": 0, "upper": 1}}
    space = Space({**yaml, "d": {"type": "fixed", "constant": 2, "when": {"kernel": "b"}}})
    assert [space.configuration([k, 0.5]) for k in (0, 1)] == [
        {"kernel": "a", "c": 0.5},
        {"kernel": "b", "c": 0.5, "d": 2},
    ]


def test_a_choice_that_is_a_list_is_named_in_a_list():
    layers = Categorical([(64, 64), (32,)])
    space = Space({"layers": layers, "rate": Float(0, 1, when={"layers": [[64, 64]]})})
    assert [list(space.configuration([k, 0.5])) for k in (0, 1)] == [["layers", "rate"], ["layers"]]


def test_regions_are_refused():
    Regions(1, D).check_against(BOX, 4)
    with pytest.raises(SettingError, match=r"P must be 1 for a space with conditions \(when\), got 2"):
        Regions(2, D).check_against(BOX, 4)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"gamma": 0.1}, "gamma must be left out where kernel is 'linear', got 0.1"),
        ({"scale": 0.1}, "scale must be left out where kernel is 'linear', got 0.1"),
        ({"tolerance": 1e-3}, "tolerance must be left out where kernel is 'linear', got 0.001"),
        ({"kernel": "rbf"}, "gamma must be in the configuration"),
        ({"kernel": "poly", "gamma": 0.1, "degree": 5, "scale": 0.1}, "scale must be left out where degree is 5"),
        ({"kernel": "rbf", "gamma": 0.1, "size": 32, "tolerance": 2}, "tolerance is fixed at 0.001, got 2"),
    ],
)
def test_a_configuration_with_other_parameters_than_the_active_ones_is_refused(change, sentence):
    with pytest.raises(SettingError, match=sentence):
        SPACE.natural({"kernel": "linear", "deep": True, "c": 0.5, **change})


KIND, LEVEL = Categorical(["x", "y"]), Integer(1, 3)


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        (lambda: {"k": KIND, "a": Float(0, 1, when="k")}, "when must map a parameter's name to one value or a list"),
        (lambda: {"k": KIND, "a": Float(0, 1, when={})}, "when must map a parameter's name to one value or a list"),
        (lambda: {"k": KIND, "a": Float(0, 1, when={"k": []})}, "when.k must hold at least one value, got none"),
        (
            lambda: {"k": KIND, "a": Float(0, 1, when={"kind": "x"})},
            r"space.a.when must name categorical, ordinal or integer parameters \(k\), got 'kind'",
        ),
        (lambda: {"k": KIND, "f": 3, "a": Float(0, 1, when={"f": 3})}, r"space.a.when must name .* \(k\), got 'f'"),
        (lambda: {"b": Float(0, 1), "a": Float(0, 1, when={"b": 1})}, r"space.a.when must name .* \(none\), got 'b'"),
        (lambda: {"k": KIND, "a": Float(0, 1, when={"k": "z"})}, "space.a.when.k must be one of 'x', 'y', got 'z'"),
        (lambda: {"k": LEVEL, "a": Float(0, 1, when={"k": [1, 4]})}, "space.a.when.k must be a whole number from 1"),
        (lambda: {"k": LEVEL, "a": Float(0, 1, when={"k": True})}, "space.a.when.k must be a whole .*, got True"),
        (
            lambda: {"k": Integer(1, 3, when={"k": 2}), "a": KIND},
            "space.k.when must not form a circle, got k -> k",
        ),
        (
            lambda: {
                "f": Float(0, 1, when={"a": 1}),
                "a": Integer(1, 3, when={"b": 2}),
                "b": Integer(1, 3, when={"a": 2}),
            },
            "space.a.when must not form a circle, got a -> b -> a",
        ),
        (
            lambda: {"k": KIND, "b": Integer(1, 3, when={"k": "x"}), "c": Float(0, 1, when={"b": 1, "k": "y"})},
            "space.c.when can never hold: no value of k meets the conditions of c and of its parents",
        ),
        (
            lambda: {"k": KIND, "a": {"type": "float", "lower": 0, "upper": 1, "active_if": "k == x"}},
            "space.a.active_if is unknown: a condition reads `when: {PARAMETER: VALUE}`",
        ),
    ],
)  # fmt: skip
def test_wrong_conditions_are_refused(parameters, sentence):
    with pytest.raises(SettingError, match=sentence):
        Space(parameters())
