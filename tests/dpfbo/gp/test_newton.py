"""The batched Newton minimiser: as good as L-BFGS-B on every problem, and every problem on its own."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.optimize import minimize as scipy_minimize
from torch import Tensor

from dpfbo.gp.newton import Limits, minimize, solved

TIGHT = Limits(1e-14, 500)
Derivatives = tuple[Tensor, Tensor, Tensor]


def random(B: int, *shape: int, seed: int) -> Tensor:
    return torch.rand(B, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def lengths(B: int, length: float = 0.5) -> Tensor:
    return torch.full((B,), length, dtype=torch.float64)


def quadratic(x: Tensor, Q: Tensor, b: Tensor) -> Derivatives:
    Qx = (Q @ x[:, :, None])[:, :, 0]
    return (x * Qx).sum(1) / 2 + (b * x).sum(1), Qx + b, Q


class Quadratics:
    """`x^T Q x / 2 + b^T x` in random boxes; for most of them the minimum lies on the border."""

    def __init__(self, B: int, D: int, seed: int = 0) -> None:
        A = torch.special.ndtri(random(B, D, D, seed=seed).clamp(1e-9))
        self.data = (A @ A.mT + 0.1 * torch.eye(D, dtype=torch.float64), 6 * random(B, D, seed=seed + 1) - 3)
        self.lower, self.upper = -random(B, D, seed=seed + 2), random(B, D, seed=seed + 3)
        self.x0 = self.lower + (self.upper - self.lower) * random(B, D, seed=seed + 4)

    def rows(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, tuple[Tensor, ...]]:
        B = len(rows)
        return self.x0[rows], self.lower[rows], self.upper[rows], lengths(B), tuple(d[rows] for d in self.data)


def found(
    problems: Quadratics,
    rows: Tensor,
    limits: Limits = TIGHT,
    function: Callable[..., Derivatives] = quadratic,
    group: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    x0, lower, upper, longest, data = problems.rows(rows)
    return minimize(function, x0, lower, upper, longest, limits, data, group)


def rosenbrock(x: Tensor) -> Derivatives:
    a, b = x.unbind(1)
    gap = b - a**2
    gradient = torch.stack([-2 * (1 - a) - 400 * a * gap, 200 * gap], 1)
    H = torch.stack([2 - 400 * gap + 800 * a**2, -400 * a, -400 * a, torch.full_like(a, 200)], 1).view(-1, 2, 2)
    return (1 - a) ** 2 + 100 * gap**2, gradient, H


@pytest.mark.parametrize("D", [1, 2, 3, 6, 10])
def test_bounded_quadratics_against_lbfgsb(D: int) -> None:
    problems = Quadratics(100, D, seed=10 * D)
    x, f = found(problems, torch.arange(100))
    assert torch.all(x >= problems.lower) and torch.all(x <= problems.upper)
    assert torch.equal(f, quadratic(x, *problems.data)[0]), "values are not those of the points"
    for n in range(100):
        Q, b = (part[n].numpy() for part in problems.data)
        bounds = list(zip(problems.lower[n].tolist(), problems.upper[n].tolist(), strict=True))
        reference = scipy_minimize(
            lambda z, Q=Q, b=b: (z @ Q @ z / 2 + b @ z, Q @ z + b), problems.x0[n].numpy(), jac=True,
            method="L-BFGS-B", bounds=bounds, options={"maxiter": 2000, "ftol": 1e-15, "gtol": 1e-10},
        )  # fmt: skip
        assert float(f[n]) < reference.fun + 1e-6


@pytest.mark.parametrize("corner", [(2.0, 2.0), (0.5, 2.0), (-0.5, 2.0), (2.0, -0.5), (0.9, -0.1)])
def test_rosenbrock_in_boxes(corner: tuple[float, float]) -> None:
    """[-1.5, a] x [-1, b]: the best point is unique, and for all but the first box on the border."""
    upper = torch.tensor([corner], dtype=torch.float64).expand(30, 2)
    lower = torch.tensor([[-1.5, -1.0]], dtype=torch.float64).expand(30, 2)
    x0 = lower + (upper - lower) * random(30, 2, seed=1)
    x, f = minimize(rosenbrock, x0, lower, upper, lengths(30), TIGHT, ())
    assert torch.all(x >= lower) and torch.all(x <= upper)
    axes = [
        torch.linspace(low, high, 2001, dtype=torch.float64) for low, high in zip((-1.5, -1.0), corner, strict=True)
    ]
    best = rosenbrock(torch.cartesian_prod(*axes))[0].min()
    assert torch.all(f <= best + 1e-9)
    assert float(f.max() - f.min()) < 1e-8


@pytest.mark.parametrize("D", [1, 2, 5])
def test_a_problem_takes_the_path_that_it_takes_in_another_batch(D: int) -> None:
    """A few iterations alone, with a second one, and among 40: the same bits."""
    problems, limits = Quadratics(40, D, seed=7), Limits(1e-14, 4)
    x, f = found(problems, torch.arange(40), limits)
    for rows in (torch.tensor([3]), torch.tensor([39, 0]), torch.arange(5, 30)):
        part = found(problems, rows, limits)
        assert torch.equal(part[0], x[rows]) and torch.equal(part[1], f[rows])


@pytest.mark.parametrize("where", ["value", "gradient", "Hessian"])
@pytest.mark.parametrize("poison", [math.nan, math.inf])
@pytest.mark.parametrize("everywhere", [True, False])
def test_problems_that_are_not_finite_leave_the_others_alone(where: str, poison: float, everywhere: bool) -> None:
    problems, rows = Quadratics(30, 3, seed=5), torch.arange(30)
    sick = rows % 3 == 0
    middle = (problems.lower + problems.upper) / 2

    def poisoned(x: Tensor, Q: Tensor, b: Tensor, sick: Tensor, middle: Tensor) -> Derivatives:
        bad = sick if everywhere else sick & (x < middle).all(1)
        f, g, H = quadratic(x, Q, b)
        f = torch.where(bad, poison, f) if where == "value" else f
        g = torch.where(bad[:, None], poison, g) if where == "gradient" else g
        return f, g, torch.where(bad[:, None, None], poison, H) if where == "Hessian" else H

    healthy = found(problems, rows)
    problems.data = (*problems.data, sick, middle)  # type: ignore[assignment]
    x, f = found(problems, rows, function=poisoned)
    assert torch.equal(x[~sick], healthy[0][~sick]) and torch.equal(f[~sick], healthy[1][~sick])
    assert torch.all(x >= problems.lower) and torch.all(x <= problems.upper)
    at_start = sick if everywhere else sick & (problems.x0 < middle).all(1)
    assert torch.equal(x[at_start], problems.x0[at_start]) and torch.equal(f.isinf(), at_start)


def test_a_saddle_and_a_maximum_are_left_behind() -> None:
    """`-x^2 + y^2 + x^4` and `-x^2 - y^2`: descent where the Hessian is indefinite or negative."""

    def function(z: Tensor, s: Tensor, quartic: Tensor) -> Derivatives:
        x, y = z.unbind(1)
        g = torch.stack([-2 * x + 4 * quartic * x**3, 2 * s * y], 1)
        H = torch.diag_embed(torch.stack([-2 + 12 * quartic * x**2, 2 * s], 1))
        return -(x**2) + s * y**2 + quartic * x**4, g, H

    x0 = torch.tensor([[1e-3, 0.5], [1e-3, -2e-3]], dtype=torch.float64)
    bound, signs = torch.ones(2, 2, dtype=torch.float64), torch.tensor([1.0, -1.0], dtype=torch.float64)
    x, f = minimize(function, x0, -bound, bound, lengths(2), TIGHT, (signs, (signs + 1) / 2))
    assert float(f[0]) == pytest.approx(-0.25, abs=1e-6)
    assert x[1].tolist() == [1, -1]


@pytest.mark.parametrize("iterations", [0, 1, 2, 5])
def test_more_iterations_are_never_worse(iterations: int) -> None:
    problems, rows = Quadratics(20, 3, seed=2), torch.arange(20)
    x, f = found(problems, rows, Limits(1e-14, iterations))
    assert torch.equal(f, quadratic(x, *problems.data)[0])
    start = quadratic(problems.x0, *problems.data)[0]
    assert torch.all(f <= start) and int((f < start).sum()) >= (15 if iterations else 0)
    assert iterations or torch.equal(x, problems.x0)
    assert torch.all(found(problems, rows, Limits(1e-14, iterations + 1))[1] <= f)


def test_starts_outside_the_box_are_brought_in_and_inputs_are_not_changed() -> None:
    problems = Quadratics(10, 3)
    problems.x0 = problems.x0 + 10
    before = [a.clone() for a in (problems.x0, problems.lower, problems.upper, *problems.data)]
    x, _ = found(problems, torch.arange(10))
    assert torch.all(x >= problems.lower) and torch.all(x <= problems.upper)
    after = (problems.x0, problems.lower, problems.upper, *problems.data)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_a_box_without_width_and_a_batch_without_problems() -> None:
    problems = Quadratics(6, 2)
    problems.lower[:3, 0] = problems.upper[:3, 0] = problems.x0[:3, 0]  # one axis fixed
    problems.lower[3:] = problems.upper[3:] = problems.x0[3:]  # both
    x, _ = found(problems, torch.arange(6))
    assert torch.equal(x[3:], problems.x0[3:]) and torch.equal(x[:3, 0], problems.x0[:3, 0])
    Q, b = (part[:3] for part in problems.data)
    best = (-(b[:, 1] + Q[:, 0, 1] * x[:3, 0]) / Q[:, 1, 1]).clamp(problems.lower[:3, 1], problems.upper[:3, 1])
    assert torch.allclose(x[:3, 1], best, rtol=0, atol=1e-6)
    none = found(problems, torch.arange(0))
    assert none[0].shape == (0, 2) and none[1].shape == (0,)


def waves(x: Tensor, S: Tensor, phase: Tensor) -> Derivatives:
    """`sum_j cos(s_j . x + b_j)`."""
    angle = (S @ x[:, :, None])[:, :, 0] + phase
    gradient = -(torch.sin(angle)[:, None] @ S)[:, 0]
    return torch.cos(angle).sum(1), gradient, -(S.mT * torch.cos(angle)[:, None]) @ S


def test_dropping_hopeless_starts_loses_hardly_any_winner() -> None:
    """60 functions with many optima, 20 starts each: the best of a group is lost in at most 2 of them."""
    B, k, M = 60, 20, 40
    owner = torch.arange(B).repeat_interleave(k)
    data = (8 * (2 * random(B, M, 2, seed=1) - 1)[owner], 2 * math.pi * random(B, M, seed=2)[owner])
    x0, zero = random(B * k, 2, seed=3), torch.zeros(B * k, 2, dtype=torch.float64)
    arguments = (waves, x0, zero, zero + 1, lengths(B * k), Limits(1e-10, 50), data)
    everyone = minimize(*arguments)[1].view(B, k).amin(1)
    x, f = minimize(*arguments, owner)
    assert torch.allclose(f, waves(x, *data)[0], rtol=0, atol=1e-12)
    assert int((f.view(B, k).amin(1) > everyone + 1e-6).sum()) <= 2


def test_groups_do_not_see_each_other() -> None:
    """A group finds the same in company of a far better one."""
    problems, rows = Quadratics(12, 2, seed=4), torch.arange(12)
    group = rows // 4

    def shifted(x: Tensor, Q: Tensor, b: Tensor, by: Tensor) -> Derivatives:
        f, g, H = quadratic(x, Q, b)
        return f - by, g, H

    plain = found(problems, rows, group=group)
    problems.data = (*problems.data, 1e6 * (group == 1).double())  # type: ignore[assignment]
    other, alone = found(problems, rows, function=shifted, group=group), group != 1
    assert torch.equal(plain[0][alone], other[0][alone])


@pytest.mark.parametrize("D", [1, 2, 4])
def test_steps_divide_by_absolute_eigenvalues_on_the_coordinates_that_are_free(D: int) -> None:
    A = random(8, D, D, seed=1) - 0.5
    H, g, held = A + A.mT, random(8, D, seed=2), random(8, D, seed=3) < 0.3
    d = solved(H, g, held)
    for n in range(8):
        free = np.flatnonzero(~held[n].numpy())
        values, vectors = np.linalg.eigh(H[n].numpy()[np.ix_(free, free)])
        expected = vectors @ ((vectors.T @ g[n].numpy()[free]) / np.abs(values))
        np.testing.assert_allclose(d[n].numpy()[free], expected, rtol=1e-8)
        np.testing.assert_allclose(d[n].numpy()[held[n].numpy()], 0, atol=1e-6)
