"""The outsourced loop: records of rounds, in the units of the table."""

import pytest
import torch

from dpfbo.outsourced import loop
from dpfbo.outsourced.curator import Measured
from dpfbo.outsourced.table import ReleasedTable, Table
from dpfbo.rng import Streams


def table(*values):
    rows = torch.arange(len(values), dtype=torch.float64)[:, None]
    return Table(rows, rows, torch.tensor(values, dtype=torch.float64), ("x",), (-1.0,), (float(len(values)),))


class NoisyCurator:
    """Measures the rows that it is asked for; its noise turns their order around."""

    def __init__(self, table):
        self.table = table

    def release(self):
        return ReleasedTable(self.table.rows), None, None

    def measure(self, t, indices):
        return Measured(list(indices), (-10 * self.table.values[list(indices)]).tolist(), list(indices))


class InOrder:
    """Proposes one candidate after the other."""

    def start(self, values):
        return len(values)

    def propose(self, t, uniform):
        return t - 1

    def observe(self, t, indices, y):
        pass


def records(table, rounds):
    return loop.run(NoisyCurator(table), InOrder(), loop.Setup(table, Streams(0), 1, rounds)).rounds


def test_the_best_so_far_is_the_best_noiseless_value():
    values = (0.5, 0.25, 2.0, -1.0, 1.0)
    found = records(table(*values), 5)
    seen = [values[int(found[0].x[0, 0, 0])], *values]
    for t, done in enumerate(found):
        assert done.y.tolist() == [[-10 * seen[t]]]
        assert done.best.tolist() == [[max(seen[: t + 1])]]
        assert done.metric.tolist() == [[2.0 - max(seen[: t + 1])]]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_the_optimum_is_over_all_rows_of_the_table(place):
    values = [0.0, 0.0, 0.0]
    values[place] = 3.0
    found = records(table(*values), 3)
    assert {float(done.best[0, -1] + done.metric[0, -1]) for done in found} == {3.0}
    assert float(found[-1].metric[0, -1]) == 0.0
