"""Compiled exact draws on a grid: the maximisers of the tensor code, and every agent on its own."""

import pytest
import torch

from dpfbo.gp import draws
from dpfbo.gp.compiled import calls
from dpfbo.gp.compiled.loading import SWITCH, computes, library
from dpfbo.gp.draws import exact_draw_on_grid, exact_maximizers_on_grid
from dpfbo.gp.own_gp import Hyperparameters
from dpfbo.rng import Streams

pytestmark = pytest.mark.skipif(library() is None, reason="there is no C compiler")


def uniforms(*shape, seed):
    return torch.rand(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def some_draws(n, t, G, seed=0, noise=None):
    """Arguments of a draw for agents of all length-scales, variances and noises that a fit may find."""
    u = uniforms(n, 4, seed=seed)
    lengths = 0.005 * 20_000 ** u[:, 0]
    hyper = Hyperparameters(lengths, 1e-3 * 1e6 ** u[:, 1], 1e-5 * 1e5 ** u[:, 2])
    noise = hyper.noise if noise is None else torch.full((n,), noise, dtype=torch.float64)
    index = torch.randint(0, G, (n, t), generator=torch.Generator().manual_seed(seed))
    y = uniforms(n, t, seed=seed + 1) - 0.5
    streams, agents = Streams(seed), torch.arange(n)
    e = noise.sqrt()[:, None] * streams.normal("e", agents, 0, t)
    line = torch.linspace(0, 1, G, dtype=torch.float64)

    def prior(octave, rows, size):
        return streams.normal(f"w/{octave}", agents[rows], 0, size)

    return line, index, y, hyper, noise, prior, e


@pytest.fixture(autouse=True)
def called(monkeypatch):
    """The numbers of agents of all compiled draws."""
    numbers, compiled = [], calls.grid_maximizers

    def counted(*arguments):
        numbers.append(len(arguments[3]))
        return compiled(*arguments)

    monkeypatch.setenv(SWITCH, "1")
    monkeypatch.setattr(calls, "grid_maximizers", counted)
    return numbers


@pytest.mark.parametrize("G", [2, 31, 32, 33, 1000])
@pytest.mark.parametrize("t", [1, 2, 7, 8, 9, 16, 33, 70])
def test_finds_the_maxima_of_the_tensor_code(called, t, G):
    arguments = some_draws(200, t, G, seed=t)
    found, values = exact_maximizers_on_grid(*arguments), exact_draw_on_grid(*arguments)
    lost = values.amax(1) - values.gather(1, found[:, None])[:, 0]
    scale = values.abs().amax(1)
    assert sum(called) == 200
    assert found.ge(0).all() and found.lt(G).all()
    assert (lost <= 1e-7 * scale).all()  # K is ill-conditioned where many points share a row


@pytest.mark.parametrize("some", [[0], [3, 4], list(range(8)), list(range(5, 22)), [20, 1, 7]])
def test_every_agent_is_drawn_by_itself(some):
    line, index, y, hyper, noise, prior, e = some_draws(30, 12, 400)
    whole, rows = exact_maximizers_on_grid(line, index, y, hyper, noise, prior, e), torch.tensor(some)

    def of_some(octave, r, size):
        return prior(octave, rows[r], size)

    part = exact_maximizers_on_grid(line, index[rows], y[rows], hyper.select(rows), noise[rows], of_some, e[rows])
    assert torch.equal(part, whole[rows])


def test_what_needs_jitter_is_left_to_the_tensor_code(called):
    """One row twice, without noise: K is singular, and only those agents are drawn again."""
    line, index, y, hyper, noise, prior, e = some_draws(20, 6, 50)
    noise, e = torch.full((20,), 0.05, dtype=torch.float64), 0 * e
    noise[4] = noise[11] = 0.0
    index[4, 1] = index[4, 0]
    index[11] = 7
    y[4, 1], y[11] = y[4, 0], y[11, 0]
    found = exact_maximizers_on_grid(line, index, y, hyper, noise, prior, e)
    values = exact_draw_on_grid(line, index, y, hyper, noise, prior, e)
    assert torch.equal(found, values.argmax(1))


def test_equal_values_give_the_first_row():
    """Without variance the draw is zero everywhere."""
    line, index, y, _, noise, prior, e = some_draws(9, 3, 100, noise=0.1)
    zeros, ones = torch.zeros(9, dtype=torch.float64), torch.ones(9, dtype=torch.float64)
    found = exact_maximizers_on_grid(line, index, y, Hyperparameters(ones, zeros, ones), noise, prior, e)
    assert found.eq(0).all()


def test_values_that_are_no_numbers_are_those_of_the_tensor_code():
    line, index, y, hyper, noise, prior, e = some_draws(9, 3, 100, noise=0.1)
    y[2, 1] = torch.nan
    found = exact_maximizers_on_grid(line, index, y, hyper, noise, prior, e)
    assert torch.equal(found, exact_draw_on_grid(line, index, y, hyper, noise, prior, e).argmax(1))


@pytest.mark.parametrize("row", [-1, 100])
def test_a_row_that_is_none_is_refused(row):
    line, index, y, hyper, noise, prior, e = some_draws(9, 3, 100)
    index[3, 2] = row
    with pytest.raises(ValueError, match="index must hold rows of the grid, 0 to 99"):
        exact_maximizers_on_grid(line, index, y, hyper, noise, prior, e)


def test_other_numbers_and_no_library_are_left_to_the_tensor_code(called, monkeypatch):
    line, index, y, hyper, noise, prior, e = some_draws(20, 5, 60)
    expected = exact_maximizers_on_grid(line, index, y, hyper, noise, prior, e)
    assert sum(called) == 20
    monkeypatch.setenv(SWITCH, "0")
    assert torch.equal(exact_maximizers_on_grid(line, index, y, hyper, noise, prior, e), expected)
    monkeypatch.setenv(SWITCH, "1")
    assert computes(y) and not computes(y.float()) and not computes(torch.empty(0, 3, dtype=torch.float64))
    assert sum(called) == 20


@pytest.mark.parametrize("F", [3, 25, 603])
def test_the_exponential_is_that_of_the_tensor_code(F):
    """The spectrum shows in a draw without observations' weight: far noise leaves the prior draw alone."""
    line = torch.linspace(0, 1, 500, dtype=torch.float64)
    hyper = Hyperparameters(*(torch.full((4,), v, dtype=torch.float64) for v in (0.3, 2.0, 1.0)))
    circle, (G, J) = 2.7, (len(line), F // 2)
    basis = draws._fourier_basis(line, circle, J)
    index, rest = torch.zeros(4, 1, dtype=torch.int64), torch.zeros(4, 1, dtype=torch.float64)
    normals, far = uniforms(4, F, seed=3) - 0.5, torch.full((4,), 1e300, dtype=torch.float64)
    found = calls.grid_maximizers(line, basis, circle, index, rest, normals, hyper, far)
    values = (normals * draws._spectrum(hyper, circle, J).sqrt()) @ basis.mT
    assert G == 500 and torch.equal(found, values.argmax(1))
