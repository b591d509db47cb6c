"""Counts of work, by hand and by torch's counter of operations; and the floors of a run."""

from __future__ import annotations

import math
from dataclasses import asdict, fields, replace

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from dpfbo.gp import posterior
from dpfbo.gp.features import shared_features
from runners.bench import floors
from runners.bench.floors import RunShape, Work, of_run
from runners.bench.machine import OperationRates
from tests.helpers.bench import RATES

BOX = RunShape(
    N=10, T=4, n_init=5, D=2, M=20, P=2, q=0.5, G=0, method="rff", F=30, lengthscale=0.2, fit=True, every=5,
    candidates=100, starts=3, models=0, blocks=0, aggregates=True, broadcasts=4, own=[0, 0.5, 0.5, 0.5, 0.5],
    server=[0, 0.5, 0.5, 0.5, 0.5],
)  # fmt: skip
LINE = replace(BOX, D=1, G=50, method="exact", fit=False)
PRIOR = replace(LINE, models=4, blocks=1, broadcasts=1, P=1)


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
    others = 2 * n * n + M + 2 * n + floors.normals(M + n).flops
    assert floors.matheron(n, M).flops - others == found / 2 == 4 * n * M


def test_products_of_features_are_those_that_torch_counts() -> None:
    k, M, D = 16, 20, 3
    features = shared_features(M, D, 0.2, np.random.default_rng(0))
    found = counted(lambda: features(random(1, k, D)))
    norm = 3 * k * M
    assert floors.features(k, M, D).flops - norm == found == 2 * k * M * D
    assert floors.features(k, M, D).cos == k * M


def test_a_factor_grown_by_rows_costs_what_a_whole_one_does() -> None:
    """The rows of a factor appended one by one are n^3 / 3 in the end, up to lower orders."""
    n, M, D = 400, 1, 1
    grown = sum(floors.appended(m, 1, M, D).flops - floors.features(1, M, D).flops - 2 * m * M for m in range(1, n + 1))
    assert grown == pytest.approx(floors.factor(n).flops, rel=0.01)


def test_counts_by_hand() -> None:
    assert floors.normals(4) == Work(flops=8, cos=4, log=2, uniforms=4)
    assert floors.server(BOX).flops == 0.5 * 20 * 7 + 2 * 40 / 10  # half of a message of 20, weighted twice; noise
    assert floors.records(3, 2).bytes == 3 * 8 * (2 + 2 + 5)
    exact = floors.own_draw(5, LINE)
    F = floors.harmonics(0.2)
    assert exact.uniforms == F + 5
    assert exact.flops == 3 * 25 + 4 * 5 * F + 3 * F + 2 * (F + 5) + 2 * F
    assert exact.flops32 == 2 * F * 50 + 50
    search = floors.search(BOX, 20)
    assert (search.cos32, search.cos, search.uniforms) == (100 * 20 + 2 * 4 * 20, 40, 103 * 2)
    assert floors.fit(10, BOX).exp == 2 * 50


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
    assert rare.seconds(RATES) < kept.seconds(RATES) < often.seconds(RATES)


def test_seconds_add_arithmetic_and_hide_what_is_faster() -> None:
    rates = OperationRates(*(10.0 for _ in fields(OperationRates)))
    assert Work(flops=20, cos=10, bytes=25).seconds(rates) == (3.0, "arithmetic")
    assert Work(flops=20, bytes=40).seconds(rates) == (4.0, "memory")
    assert Work(appends=50, bytes=40).seconds(rates) == (5.0, "disk")
    assert Work(flops=20).time(rates, "formula", 1e3).time == 2e3
    assert (2 * Work(flops=1, exp=2) + Work(exp=1)) == Work(flops=2, exp=5)
    assert {f.name for f in fields(Work)} == {f.name for f in fields(OperationRates)}


@pytest.mark.parametrize(
    ("shape", "phases"),
    [
        (BOX, {"message", "server", "other", "own_draw", "acquisition", "fit"}),
        (LINE, {"message", "server", "other", "own_draw", "acquisition"}),
        (PRIOR, {"message", "server", "other", "acquisition", "gate"}),
        (replace(LINE, aggregates=False, server=[0] * 5), {"other", "own_draw"}),
    ],
    ids=["box", "grid", "prior", "alone"],
)
def test_floors_of_a_run_are_of_its_phases(shape: RunShape, phases: set[str]) -> None:
    found = of_run(shape, RATES, 1e3)
    assert set(found) == phases
    for phase, floor in found.items():
        assert floor.time > 0 and floor.formula == floors.FORMULAS[phase]


def test_floors_of_a_run_are_sums_over_its_rounds() -> None:
    found = of_run(BOX, RATES, 1e3)
    draws = sum((0.5 * floors.own_draw(BOX.observations(t), BOX) for t in range(1, 5)), Work())
    expected = (0.25 * draws).seconds(RATES)[0]
    assert found["own_draw"].time == pytest.approx(1e3 * expected)
    assert found["fit"].work == pytest.approx({k: v / 4 for k, v in asdict(floors.fit(5, BOX)).items() if v})
    doubled = of_run(BOX, replace(RATES, bytes=RATES.bytes / 2), 1e3)
    assert doubled["other"].time == pytest.approx(2 * found["other"].time)
    assert floors.memory_mb(BOX) == 10 * (5 + 4) * 72 / 1e6
