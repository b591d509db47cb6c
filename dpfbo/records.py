"""The records of a run, and their tables in the columns of `dpfbo.formats.record_tables`."""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from dpfbo.formats.checkpoint_file import SAME_POINTS
from dpfbo.formats.record_tables import ROUNDS_SCHEMA, SERVER_SCHEMA, queries_table, released, simulated_column
from dpfbo.privacy.accounting import finite_or_none
from dpfbo.privacy.release import Diagnostics
from dpfbo.space.parameters import Categorical, Float, Ordinal, Space

ROW_GROUP = 1024 * 1024  # rows of a row group of rounds.parquet, as Parquet writers cut a table


@dataclass(frozen=True)
class RoundRecord:
    """All queries of one round. u: n x k x D in the unit cube; x: the same in the problem's units; the others n x k.

    source: values of `Source`. y: NaN where the evaluation failed; best, regret: NaN while there is no value.
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


def packed(record: RoundRecord) -> dict[str, np.ndarray]:
    """The arrays of a record in fewer bytes, from which `unpacked` makes the same record to the bit."""
    arrays: dict[str, np.ndarray] = {name: getattr(record, name).numpy() for name in _RECORD}
    arrays.update({name: _narrow(arrays[name]) for name in _WHOLE})
    u, x = arrays["u"], arrays["x"]
    if u.shape == x.shape and u.dtype == x.dtype and (u is x or bool((_bits(u) == _bits(x)).all())):
        arrays[SAME_POINTS] = arrays.pop("u")
        del arrays["x"]
    return arrays


def unpacked(round: int, arrays: Mapping[str, np.ndarray]) -> RoundRecord:
    """The record of a round. Raises KeyError if an array is missing. arrays: not changed, nor used by the record."""
    tensors = {
        name: torch.from_numpy(np.array(array)) for name, array in arrays.items() if name in (*_RECORD, SAME_POINTS)
    }
    tensors.update({name: tensors[name].long() for name in _WHOLE})
    if SAME_POINTS in tensors:
        tensors["u"] = tensors["x"] = tensors[SAME_POINTS]
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
    return _with_parameters(_joined([_table(record, agents) for record in records]), space, None)


def row_groups(
    records: Iterable[RoundRecord], agents: Tensor, space: Space | None = None, rows: int = ROW_GROUP
) -> Iterator[pa.Table]:
    """Yield `rounds_table` in tables of `rows` rows, the last with the rest; one of them and one round are in memory.

    Few rows are one table, equal to `rounds_table`. In several, a parameter with choices of several types has a column
    of JSON texts, whichever of them occur.
    """
    waiting: list[pa.Table] = []
    n, as_json = 0, None
    for record in records:
        waiting.append(_table(record, agents))
        n += record.y.numel()
        if n > rows:
            table, as_json = _joined(waiting), _mixed(space)
            for first in range(0, n - rows, rows):
                yield _with_parameters(table.slice(first, rows).combine_chunks(), space, as_json)
            waiting = [table.slice((n - 1) // rows * rows)]
            n = len(waiting[0])
    yield _with_parameters(_joined(waiting), space, as_json)


def _table(record: RoundRecord, agents: Tensor) -> pa.Table:
    """The columns of `ROUNDS_SCHEMA`."""
    n, k = record.y.shape
    columns = {"agent": agents.repeat_interleave(k).numpy(), "round": np.full(n * k, record.round)}
    for name in ROUNDS_SCHEMA.names[2:]:
        values = getattr(record, name)
        columns[name] = values.reshape(n * k, *values.shape[2:]).numpy()
    return queries_table(columns)


def _joined(tables: Sequence[pa.Table]) -> pa.Table:
    """The rows of all; each column in one piece, as pages of Parquet end where a piece does."""
    return pa.concat_tables(tables).combine_chunks()


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
        table = table.append_column(simulated_column(f"x.{name}", column.type, f"the query's {name}"), column)
    return table


def _mixed(space: Space | None) -> set[str]:
    """The parameters whose choices are of several types."""
    searched = {} if space is None else {name: space.parameters[name] for name in space.searched}
    choices = {n: p.choices for n, p in searched.items() if isinstance(p, Categorical)}
    choices |= {n: p.values for n, p in searched.items() if isinstance(p, Ordinal)}
    return {name for name, values in choices.items() if len({type(value) for value in values}) > 1}


def best_queries(records: Sequence[RoundRecord]) -> tuple[Tensor, Tensor, Tensor]:
    """The round (N), the point in natural units (N x D) and the observation (N) of each agent's largest observation.

    Of equal ones it is the first. The observation is -inf if all evaluations of an agent failed.
    """
    y, place = torch.cat([r.y for r in records], 1).nan_to_num(nan=-torch.inf).max(1)
    x = torch.cat([r.x for r in records], 1)[torch.arange(len(y), device="cpu"), place]
    rounds = [torch.full((r.y.shape[1],), r.round, device="cpu") for r in records]
    return torch.cat(rounds)[place], x, y


def server_row(record: ServerRecord, private: Diagnostics | None) -> dict[str, float | int | None]:
    """One row of server.parquet; without private numbers its released columns alone."""
    row: dict[str, float | int | None] = {
        "round": record.round,
        "epsilon": finite_or_none(record.epsilon),
        "sigma": record.sigma,
        "sensitivity": finite_or_none(record.sensitivity),
    }
    if private is not None:
        row |= {
            "snr": private.signal / private.noise if private.noise > 0 else None,
            "clip_fraction": private.n_clipped / private.n_chosen if private.n_chosen else None,
            **{name: getattr(private, name) for name in ("n_chosen", "n_rejected", "n_dropped")},
        }
    return row


def server_table(records: Sequence[ServerRecord], private: Sequence[Diagnostics] | None) -> pa.Table:
    """One row for each broadcast. private: None for real releases, whose table has the released columns alone."""
    schema = released(SERVER_SCHEMA) if private is None else SERVER_SCHEMA
    pairs = zip(records, [None] * len(records) if private is None else private, strict=True)
    return pa.Table.from_pylist([server_row(*pair) for pair in pairs], schema=schema)
