"""Counts of work, by hand and by torch's counter of operations; and the floors of a run."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from dpfbo.gp import posterior
from dpfbo.gp.features import shared_features
from runners.bench import floors
from runners.bench.floors import RunShape, floor_seconds, of_run, work
from runners.bench.machine import KINDS

RATES = dict(zip(KINDS, (4e10, 8e10, 3e8, 6e8, 5e8, 4e8, 2e8, 1e10, 250.0), strict=True))

BOX = RunShape(
    N=10, T=4, n_init=5, D=2, M=20, P=2, q=0.5, G=0, method="rff", F=30, lengthscale=0.2, fit_every=5,
    candidates=100, starts=3, kernels=0, lengthscales=0, broadcasts=4, own=[0, 0.5, 0.5, 0.5, 0.5],
    server=[0, 0.5, 0.5, 0.5, 0.5],
)  # fmt: skip
LINE = replace(BOX, D=1, G=50, method="exact", fit_every=None)
ALONE = replace(BOX, kernels=10, P=1, broadcasts=0, server=[0] * 5)
PRIOR = replace(LINE, kernels=20, lengthscales=5, broadcasts=1, P=1)


def counts(found: np.ndarray) -> SimpleNamespace:
    return SimpleNamespace(**dict(zip(KINDS, found, strict=True)))


def random(*shape: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(0).standard_normal(shape))


def counted(call: object) -> int:
    """Additions and multiplications in matrix products, by torch."""
    with FlopCounterMode(display=False) as counter:
        call()  # type: ignore[operator]
    return counter.get_total_flops()


@pytest.mark.parametrize(("n", "M"), [(7, 20), (3, 50)])
def test_products_of_a_draw_are_those_that_torch_counts(n: int, M: int) -> None:
    """`4 n M` flops of the draw are products; the solutions (2 n^2) and sums are not torch's to count."""
    Phi, factor = random(2, n, M), torch.eye(n, dtype=torch.float64).expand(2, -1, -1)
    found = counted(lambda: posterior.sample_weights(Phi, factor, random(2, n), random(2, M), random(2, n)))
    others = 2 * n * n + M + 2 * n + counts(floors.normals(M + n)).flops
    assert counts(floors.matheron(n, M)).flops - others == found / 2 == 4 * n * M


def test_products_of_features_are_those_that_torch_counts() -> None:
    k, M, D = 16, 20, 3
    features = shared_features(M, D, 0.2, np.random.default_rng(0))
    found = counted(lambda: features(random(1, k, D)))
    norm = 3 * k * M
    assert counts(floors.features(k, M, D)).flops - norm == found == 2 * k * M * D
    assert counts(floors.features(k, M, D)).cos == k * M


def test_a_factor_grown_by_rows_costs_what_a_whole_one_does() -> None:
    """The rows of a factor appended one by one are n^3 / 3 in the end, up to lower orders."""
    n, M, D = 400, 1, 1
    rows = sum(floors.appended(m, 1, M, D) - floors.features(1, M, D) for m in range(1, n + 1))
    grown = counts(rows).flops - sum(2 * m * M for m in range(1, n + 1))
    assert grown == pytest.approx(counts(floors.factor(n)).flops, rel=0.01)


def test_counts_by_hand() -> None:
    np.testing.assert_array_equal(floors.normals(4), work(flops=8, cos=4, log=2, uniforms=4))
    # half of a message of 20, weighted twice; noise
    assert counts(floors.server(BOX)).flops == 0.5 * 20 * 7 + 2 * 40 / 10
    assert BOX.records_mb == 10 * (5 + 4) * 72 / 1e6
    exact = counts(floors.own_draw(5, LINE))
    F = floors.harmonics(0.2)
    assert exact.uniforms == F + 5
    assert exact.flops == 3 * 25 + 4 * 5 * F + 3 * F + 2 * (F + 5) + 2 * F
    assert exact.flops32 == 2 * F * 50 + 50
    assert counts(floors.nystrom(PRIOR)).flops == 20 * (3 + 5 + 20)
    fits, values = 10 * (125 / 3 + 6 * 25), 100
    improvement = counts(floors.improvement(5, ALONE))
    assert improvement.flops == pytest.approx(fits + values * (25 + 4 * 5 + 20))
    search = counts(floors.search(BOX, 20))
    assert (search.cos32, search.cos, search.uniforms) == (100 * 20 + 2 * 4 * 20, 40, 103 * 2)
    assert counts(floors.fit(10, BOX)).exp == 2 * 50


@pytest.mark.parametrize("lengthscale", [0.03, 0.5])
def test_harmonics_describe_the_kernel(lengthscale: float) -> None:
    """With so many basis functions the series has the SE kernel to 1e-9, with a fifth of them it does not."""
    octave = 2.0 ** math.ceil(math.log2(lengthscale))
    circle, x = 1 + 7 * octave, np.linspace(0, 1, 50)

    def error(F: int) -> float:
        j = np.arange(F // 2 + 1)
        a = math.sqrt(2 * math.pi) * lengthscale / circle * np.exp(-0.5 * (2 * math.pi * j * lengthscale / circle) ** 2)
        series = (np.where(j > 0, 2 * a, a) * np.cos(2 * math.pi * j * x[:, None] / circle)).sum(1)
        return float(np.abs(series - np.exp(-0.5 * (x / lengthscale) ** 2)).max())

    F = floors.harmonics(lengthscale)
    assert error(F) < 1e-9 < 1e-6 < error(F // 5)


def test_the_cheaper_message_counts() -> None:
    """If few agents are chosen, their messages are made from the points; if many are, factors are kept."""
    n = 8
    rare = floors.message(n, 1, replace(BOX, q=1e-4), RATES)
    often = floors.message(n, 1, BOX, RATES)
    kept = floors.appended(n, 1, BOX.M, BOX.D)
    assert floor_seconds(rare, RATES) < floor_seconds(kept, RATES) < floor_seconds(often, RATES)


def test_seconds_add_arithmetic_and_hide_what_is_faster() -> None:
    rates = dict.fromkeys(KINDS, 10.0)
    assert floor_seconds(work(flops=20, cos=10, bytes=25), rates) == 3.0
    assert floor_seconds(work(flops=20, bytes=40), rates) == 4.0
    assert floor_seconds(work(appends=50, bytes=40), rates) == 5.0


@pytest.mark.parametrize(
    ("shape", "phases"),
    [
        (BOX, {"message", "server", "other", "own_draw", "acquisition", "fit"}),
        (LINE, {"message", "server", "other", "own_draw", "acquisition"}),
        (PRIOR, {"message", "server", "other", "acquisition"}),
        (ALONE, {"acquisition", "other"}),
        (replace(LINE, broadcasts=0, server=[0] * 5), {"other", "own_draw"}),
    ],
    ids=["box", "grid", "prior", "local", "ts"],
)
def test_floors_of_a_run_are_of_its_phases(shape: RunShape, phases: set[str]) -> None:
    found = of_run(shape, RATES)
    assert set(found) == phases and min(found.values()) > 0


def test_one_search_a_round_serves_all_agents_that_follow() -> None:
    search = floor_seconds(4 * floors.search(BOX, BOX.M), RATES)
    for share in (0.1, 1.0):
        assert of_run(replace(BOX, server=[0] + 4 * [share]), RATES)["acquisition"] == pytest.approx(search)
    once = of_run(replace(BOX, server=[0, 0, 0.5, 0, 0]), RATES)["acquisition"]
    assert once == pytest.approx(search / 4)


def test_floors_of_a_run_are_sums_over_its_rounds_and_agents() -> None:
    found = of_run(BOX, RATES)
    draws = sum(0.5 * floors.own_draw(n, BOX) for n in range(5, 9))
    assert found["own_draw"] == pytest.approx(10 * floor_seconds(draws, RATES))
    assert found["fit"] == pytest.approx(10 * floor_seconds(floors.fit(5, BOX), RATES))  # due once in four rounds
    assert found["server"] == pytest.approx(10 * 4 * floor_seconds(floors.server(BOX), RATES))
    doubled = of_run(BOX, {**RATES, "bytes": RATES["bytes"] / 2})
    assert doubled["other"] == pytest.approx(2 * found["other"])
