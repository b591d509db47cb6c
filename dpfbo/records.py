"""The records of a run, and the schemas of their Parquet files.

Each column is tagged `released` (public by design: broadcast, or derived from public settings) or `simulation-only`
(an agent's or the server's private knowledge; epsilon does not cover it). Those of the server are written in a
simulation only: `privacy.rng=os` leaves no file with them.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from dpfbo.privacy.accounting import finite_or_none
from dpfbo.privacy.release import Diagnostics
from dpfbo.space.parameters import Categorical, Float, Ordinal, Space


def _column(name: str, kind: pa.DataType, visibility: str, meaning: str) -> pa.Field:
    return pa.field(name, kind, metadata={"visibility": visibility, "meaning": meaning})


_SIM, _OUT = "simulation-only", "released"

SOURCES = ("initial", "own", "server", "random", "modeler")  # of queries; records hold indices into this
ROW_GROUP = 1024 * 1024  # rows of a row group of rounds.parquet, as Parquet writers cut a table

ROUNDS_SCHEMA = pa.schema(
    [
        _column("agent", pa.int32(), _SIM, "agent id, 0..N-1"),
        _column("round", pa.int32(), _SIM, "t; 0 for the initial points"),
        _column("region", pa.int16(), _SIM, "region of the query"),
        _column("source", pa.dictionary(pa.int8(), pa.string()), _SIM, "initial, own, server, random, or modeler"),
        _column("x", pa.list_(pa.float64()), _SIM, "the query, in the problem's units"),
        _column("y", pa.float64(), _SIM, "what the agent observed"),
        _column("best", pa.float64(), _SIM, "largest objective value (noiseless if known) queried so far"),
        _column("regret", pa.float64(), _SIM, "the problem's metric of `best`; see summary.json"),
    ]
)

SERVER_SCHEMA = pa.schema(
    [
        _column("round", pa.int32(), _OUT, "round of the broadcast, 0..T-1"),
        _column("epsilon", pa.float64(), _OUT, "after this broadcast, by the run's accountant; null: none finite"),
        _column("sigma", pa.float64(), _OUT, "standard deviation of the noise in each released number"),
        _column("sensitivity", pa.float64(), _OUT, "L2 sensitivity that sigma was derived from; null: unbounded"),
        _column("snr", pa.float64(), _SIM, "norm of the sum over the norm of the noise; null: no noise"),
        _column("clip_fraction", pa.float64(), _SIM, "chosen messages that were clipped / |S_t|; null: empty S_t"),
        _column("n_chosen", pa.int32(), _SIM, "|S_t|"),
        _column("n_rejected", pa.int32(), _SIM, "chosen messages that were missing, malformed or not finite"),
        _column("n_dropped", pa.int32(), _SIM, "messages of all agents that were lost on the way or came too late"),
    ]
)


@dataclass(frozen=True)
class RoundRecord:
    """All queries of one round. u: n x k x D in the unit cube; x: the same in the problem's units; the others n x k.

    source: indices into `SOURCES`. y: NaN where the evaluation failed; best, regret: NaN while there is no value.
    """

    round: int
    region: Tensor
    source: Tensor
    u: Tensor
    x: Tensor
    y: Tensor
    best: Tensor
    regret: Tensor

    @property
    def mean(self) -> float:
        """Mean over the agents of the metric after this round; without agents that have no value, NaN if none has."""
        return float(self._last.mean())

    @property
    def _last(self) -> Tensor:
        """The metric after this round of the agents that have one."""
        last = self.regret[:, -1].contiguous()  # a sum's rounding depends on the strides
        return last[~last.isnan()] if last.isnan().any() else last

    @property
    def standard_error(self) -> float:
        """Standard error over the agents of the metric after this round (0 for one agent)."""
        last = self._last
        return float(last.std() / len(last) ** 0.5) if len(last) > 1 else 0.0

    def quantiles(self, levels: Sequence[float]) -> list[float]:
        """Quantiles over the agents of the metric after this round, like `mean`; NaN if no agent has a value."""
        last = self._last.numpy()
        found: list[float] = (np.quantile(last, levels) if last.size else np.full(len(levels), np.nan)).tolist()
        return found

    @property
    def bytes(self) -> int:
        """Bytes of memory that this record holds; tensors may share them, or be views of wider ones."""
        parts = (getattr(self, f.name).untyped_storage() for f in fields(self)[1:])
        return sum({part.data_ptr(): part.nbytes() for part in parts}.values())


@dataclass(frozen=True)
class ServerRecord:
    """Public numbers of one broadcast: the `released` columns of `SERVER_SCHEMA`.

    The private ones are `dpfbo.privacy.release.Diagnostics`.
    """

    round: int
    epsilon: float
    sigma: float
    sensitivity: float


_RECORD = tuple(f.name for f in fields(RoundRecord)[1:])
_WHOLE = ("region", "source")  # packed as the smallest type that holds them
_BOTH = "ux"  # the points, where those in natural units are those of the unit cube


def packed(record: RoundRecord) -> dict[str, np.ndarray]:
    """The arrays of a record in fewer bytes, from which `unpacked` makes the same record to the bit."""
    arrays: dict[str, np.ndarray] = {name: getattr(record, name).numpy() for name in _RECORD}
    arrays.update({name: _narrow(arrays[name]) for name in _WHOLE})
    u, x = arrays["u"], arrays["x"]
    if u.shape == x.shape and u.dtype == x.dtype and (u is x or bool((_bits(u) == _bits(x)).all())):
        arrays[_BOTH] = arrays.pop("u")
        del arrays["x"]
    return arrays


def unpacked(round: int, arrays: Mapping[str, np.ndarray]) -> RoundRecord:
    """The record of a round. Raises KeyError if an array is missing. arrays: not changed, nor used by the record."""
    tensors = {name: torch.from_numpy(np.array(array)) for name, array in arrays.items() if name in (*_RECORD, _BOTH)}
    tensors.update({name: tensors[name].long() for name in _WHOLE})
    if _BOTH in tensors:
        tensors["u"] = tensors["x"] = tensors[_BOTH]
    return RoundRecord(round, *(tensors[name] for name in _RECORD))


def _narrow(values: np.ndarray) -> np.ndarray:
    """Whole numbers in the smallest signed type that holds them."""
    for kind in (np.int8, np.int16):
        if values.size and np.iinfo(kind).min <= values.min() and values.max() <= np.iinfo(kind).max:
            return values.astype(kind)
    return values


def _bits(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values).view(np.int64)


def joined(parts: Sequence[RoundRecord]) -> RoundRecord:
    """One round's records of several shards as one record, their agents in the given order."""
    tensors = (torch.cat([getattr(part, f.name) for part in parts]) for f in fields(RoundRecord)[1:])
    return RoundRecord(parts[0].round, *tensors)


def rounds_table(records: Sequence[RoundRecord], agents: Tensor, space: Space | None = None) -> pa.Table:
    """One row for each agent and query, round after round.

    space: named parameters, each with a column of its own, `x.<name>`, in the parameter's own type.
    """
    return _with_parameters(_table(records, agents), space, None)


def row_groups(
    records: Iterable[RoundRecord], agents: Tensor, space: Space | None = None, rows: int = ROW_GROUP
) -> Iterator[pa.Table]:
    """Yield `rounds_table` in tables of `rows` rows, the last with the rest; one of them and one round are in memory.

    Few rows are one table, equal to `rounds_table`. In several, a parameter with choices of several types has a column
    of JSON texts, whichever of them occur.
    """
    waiting: list[RoundRecord] = []
    n, rest, several = 0, None, None
    for record in records:
        if n + record.y.numel() > rows:
            several = _mixed(space)
        waiting.append(record)
        n += record.y.numel()
        if n <= rows:
            continue
        table = _joined(rest, _table(waiting, agents))
        for first in range(0, n - rows, rows):
            yield _with_parameters(table.slice(first, rows).combine_chunks(), space, several)
        rest, waiting = table.slice((n - 1) // rows * rows), []
        n = len(rest)
    yield _with_parameters(_joined(rest, _table(waiting, agents) if waiting else None), space, several)


def _table(records: Sequence[RoundRecord], agents: Tensor) -> pa.Table:
    """The columns of `ROUNDS_SCHEMA`."""
    columns: dict[str, list[Tensor]] = {name: [] for name in ROUNDS_SCHEMA.names}
    for r in records:
        n, k = r.y.shape
        columns["agent"].append(agents.repeat_interleave(k))
        columns["round"].append(torch.full((n * k,), r.round, device="cpu"))
        for name in ("region", "source", "y", "best", "regret"):
            columns[name].append(getattr(r, name).reshape(-1))
        columns["x"].append(r.x.reshape(n * k, -1))
    arrays = {name: torch.cat(parts).numpy() for name, parts in columns.items()}
    x = arrays["x"]
    offsets = torch.arange(0, x.size + 1, x.shape[1], dtype=torch.int32, device="cpu").numpy()
    plain = {name: values for name, values in arrays.items() if name not in ("x", "source")}
    data = {name: pa.array(values).cast(ROUNDS_SCHEMA.field(name).type) for name, values in plain.items()}
    data["x"] = pa.ListArray.from_arrays(offsets, x.reshape(-1))
    data["source"] = pa.DictionaryArray.from_arrays(pa.array(arrays["source"]).cast(pa.int8()), pa.array(SOURCES))
    return pa.table([data[name] for name in ROUNDS_SCHEMA.names], schema=ROUNDS_SCHEMA)


def _with_parameters(table: pa.Table, space: Space | None, as_json: Collection[str] | None) -> pa.Table:
    """A table with the columns `x.<name>` of a space. as_json: the names of those of texts; None: of several types."""
    if space is None:
        return table
    x = pc.list_flatten(table["x"]).to_numpy().reshape(len(table), -1)
    distinct = [np.unique(numbers, return_inverse=True) for numbers in x.T]
    by_name = space.columns([numbers.tolist() for numbers, _ in distinct])
    for (name, values), (_, places), numbers in zip(by_name.items(), distinct, x.T, strict=True):
        if isinstance(space.parameters[name], Float):
            column = pa.array(numbers)
        else:
            if len({type(value) for value in values}) > 1 if as_json is None else name in as_json:
                values = [json.dumps(value) for value in values]  # a column has one type
            column = pa.array(values).take(pa.array(places))
        table = table.append_column(_column(f"x.{name}", column.type, _SIM, f"the query's {name}"), column)
    return table


def _mixed(space: Space | None) -> set[str]:
    """The parameters whose choices are of several types."""
    searched = {} if space is None else {name: space.parameters[name] for name in space.searched}
    choices = {n: p.choices for n, p in searched.items() if isinstance(p, Categorical)}
    choices |= {n: p.values for n, p in searched.items() if isinstance(p, Ordinal)}
    return {name for name, values in choices.items() if len({type(value) for value in values}) > 1}


def _joined(first: pa.Table | None, second: pa.Table | None) -> pa.Table:
    """The rows of both; each column in one piece, as pages of Parquet end where a piece does."""
    return pa.concat_tables([table for table in (first, second) if table is not None]).combine_chunks()


def best_queries(records: Iterable[RoundRecord]) -> tuple[Tensor, Tensor, Tensor]:
    """The round (N), the point in natural units (N x D) and the observation (N) of each agent's largest observation.

    The observation is -inf if all evaluations of an agent failed.
    """
    found: tuple[Tensor, Tensor, Tensor] | None = None
    for r in records:
        y, place = r.y.nan_to_num(nan=-torch.inf).max(1)
        x, t = r.x[torch.arange(len(y), device="cpu"), place], torch.full((len(y),), r.round, device="cpu")
        if found is not None:
            better = y > found[2]  # the first of equal ones stays
            x, t = torch.where(better[:, None], x, found[1]), torch.where(better, t, found[0])
            y = torch.where(better, y, found[2])
        found = t, x, y
    assert found is not None  # every run has a round 0
    return found


def server_row(record: ServerRecord, private: Diagnostics | None) -> dict[str, float | int | None]:
    """One row of server.parquet; without private numbers its released columns alone."""
    released = {
        "round": record.round,
        "epsilon": finite_or_none(record.epsilon),
        "sigma": record.sigma,
        "sensitivity": finite_or_none(record.sensitivity),
    }
    if private is None:
        return released
    return {
        **released,
        "snr": private.signal / private.noise if private.noise > 0 else None,
        "clip_fraction": private.n_clipped / private.n_chosen if private.n_chosen else None,
        "n_chosen": private.n_chosen,
        "n_rejected": private.n_rejected,
        "n_dropped": private.n_dropped,
    }


def server_table(records: Sequence[ServerRecord], private: Sequence[Diagnostics] | None) -> pa.Table:
    """One row for each broadcast. private: None for real releases, whose table has the released columns alone."""
    if private is None:
        return pa.Table.from_pylist([server_row(record, None) for record in records], schema=released(SERVER_SCHEMA))
    rows = [server_row(*pair) for pair in zip(records, private, strict=True)]
    return pa.Table.from_pylist(rows, schema=SERVER_SCHEMA)


def released(schema: pa.Schema) -> pa.Schema:
    """The columns of a schema that are tagged `released`."""
    return pa.schema([column for column in schema if column.metadata[b"visibility"] == _OUT.encode()])
