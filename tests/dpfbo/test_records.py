"""Records of rounds: their table in row groups, and in few bytes, are the same numbers."""

import dataclasses
import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from dpfbo.records import RoundRecord, Shown, best_queries, packed, unpacked
from dpfbo.space.axes import Categorical, Float, Integer, Ordinal
from dpfbo.space.parameters import Space
from dpfbo.tables import row_groups

SPACE = Space(
    {"rate": Float(-1, 1), "depth": Integer(1, 40), "kind": Categorical([1, "a", None]), "size": Ordinal([2, 4])}
)
N = 5


def record(t, k=1, n=N, D=4):
    """Natural points of `SPACE` whose choices are all there from the first round on, some values failed."""
    draw = torch.Generator().manual_seed(t)
    y, best, regret = (torch.randn(n, k, dtype=torch.float64, generator=draw) for _ in range(3))
    y[torch.rand(n, k, generator=draw) < 0.2] = torch.nan
    rate = torch.rand(n, k, dtype=torch.float64, generator=draw) * 2 - 1
    rate[0] = -0.0
    depth, kind, size = (torch.randint(a, b, (n, k), generator=draw).double() for a, b in ((1, 41), (0, 3), (0, 2)))
    kind[:3, 0] = torch.arange(3)
    x = torch.stack([rate, depth, kind, size], 2)[..., :D]
    return RoundRecord(t, y.isnan().long(), y.isnan().long() * 3, x / 41, x, y, best, regret)


RECORDS = [record(0, k=3), *(record(t) for t in range(1, 9))]  # 15 rows, and 5 in each later round
ROWS = 15 + 8 * N


def written(tables, schema):
    file = io.BytesIO()
    with pq.ParquetWriter(file, schema) as writer:
        for table in tables:
            writer.write_table(table)
    return file.getvalue()


@pytest.mark.parametrize("space", [None, SPACE], ids=["plain", "named"])
@pytest.mark.parametrize("rows", [1, 4, 5, 7, 11, 15, 16, 18, ROWS - 1, ROWS, ROWS + 1])
def test_row_groups_are_those_of_the_whole_table_to_the_byte(rows, space):
    agents = torch.arange(N)
    whole, file = next(row_groups(RECORDS, agents, Shown(), space)), io.BytesIO()
    pq.write_table(whole, file, row_group_size=rows)
    groups = list(row_groups(iter(RECORDS), agents, Shown(), space, rows))
    assert [len(g) for g in groups] == [rows] * ((ROWS - 1) // rows) + [(ROWS - 1) % rows + 1]
    assert written(groups, whole.schema) == file.getvalue()


def test_a_parameter_of_several_types_has_texts_whichever_occur():
    """A row group cannot know of the types of later ones."""
    first, second = record(0), record(1)
    for r, choice in ((first, 0.0), (second, 1.0)):
        r.x[..., 2] = choice
    columns = [table["x.kind"].to_pylist() for table in row_groups([first, second], torch.arange(N), Shown(), SPACE, N)]
    assert columns == [["1"] * N, ['"a"'] * N]
    assert next(row_groups([first], torch.arange(N), Shown(), SPACE))["x.kind"].to_pylist() == [1] * N


def test_a_row_group_leaves_before_later_rounds_are_asked_for():
    asked = []
    groups = row_groups((asked.append(r.round) or r for r in RECORDS), torch.arange(N), Shown(), None, 10)
    next(groups)
    assert asked == [0]
    list(groups)
    assert asked == list(range(9))


def test_parameters_are_those_of_the_points():
    table = next(row_groups(RECORDS, torch.arange(N), Shown(), SPACE))
    x = np.stack(table["x"].to_pylist()).T.tolist()
    expected = {name: [axis.value(v) for v in some] for (name, axis), some in zip(SPACE.axes.items(), x, strict=True)}
    assert table["x.rate"].to_pylist() == expected["rate"]
    assert np.signbit(table["x.rate"].to_numpy()).sum() == np.signbit(expected["rate"]).sum()  # -0.0 stays
    assert table["x.depth"].to_pylist() == expected["depth"]
    assert table["x.size"].to_pylist() == expected["size"] and table["x.size"].type == pa.int64()


def bits(found):
    return [(f.name, getattr(found, f.name).numpy().tobytes()) for f in dataclasses.fields(found)[1:]]


@pytest.mark.parametrize("change", ["as it is", "same points", "many regions", "minus zero"])
def test_a_packed_record_is_the_same_to_the_bit(change):
    made = record(3, k=3)
    if change in ("same points", "minus zero"):
        made = dataclasses.replace(made, u=made.x.clone())
    if change == "minus zero":  # equal, and not the same bits
        made.u[made.u == 0] = 0.0
    if change == "many regions":
        made = dataclasses.replace(made, region=torch.arange(15).view(N, 3) * 5000)
    arrays = packed(made)
    assert bits(unpacked(3, arrays)) == bits(made)
    assert ("ux" in arrays) == (change == "same points") and ("x" in arrays) == (change != "same points")
    kinds = arrays["region"].dtype, arrays["source"].dtype
    assert kinds == (np.int64 if change == "many regions" else np.int8, np.int8)
    back = unpacked(3, {name: np.array(array, copy=True) for name, array in arrays.items()})
    assert all(getattr(back, f.name).dtype == getattr(made, f.name).dtype for f in dataclasses.fields(made)[1:])


def test_an_array_that_is_missing_is_noticed():
    for name in packed(record(0)):
        with pytest.raises(KeyError):
            unpacked(0, {n: array for n, array in packed(record(0)).items() if n != name})


def test_best_queries_are_the_first_largest_observations():
    failed = dataclasses.replace(RECORDS[0], y=RECORDS[0].y.clone())
    failed.y[4] = torch.nan
    records = [failed, *RECORDS[1:4], dataclasses.replace(RECORDS[3], round=4)]
    for r in records[1:]:
        r.y[4] = torch.nan
    rounds, x, y = best_queries(records)
    whole = torch.cat([r.y for r in records], 1).nan_to_num(nan=-torch.inf)
    assert torch.equal(y, whole.amax(1)) and y[4] == -torch.inf
    place = whole.argmax(1)
    assert torch.equal(x, torch.cat([r.x for r in records], 1)[torch.arange(N), place])
    assert rounds[:4].tolist() == torch.tensor([0, 0, 0, 1, 2, 3, 4])[place[:4]].tolist()
    assert 4 not in rounds[:4]  # it has the values of round 3


def test_quantiles_are_of_the_agents_that_have_a_value():
    made = dataclasses.replace(record(1), metric=torch.tensor([[1.0], [torch.nan], [3.0], [2.0], [5.0]]).double())
    assert made.quantiles([0.0, 0.5, 1.0]) == [1.0, 2.5, 5.0]
    none = dataclasses.replace(made, metric=torch.full((N, 1), torch.nan).double())
    assert np.isnan(none.quantiles([0.5])).all()


def test_bytes_count_what_is_held():
    made = record(1)
    own = sum(getattr(made, f.name).nbytes for f in dataclasses.fields(made)[1:])
    assert dataclasses.replace(made, x=made.u).bytes == own - made.x.nbytes
    wide = torch.zeros(N, 9, dtype=torch.float64)
    assert dataclasses.replace(made, y=wide[:, :1]).bytes == made.bytes + 8 * N * 8
