"""The records of a run, and the schemas of their Parquet files.

Each column is tagged `released` (public by design: broadcast, or derived from public settings) or `simulation-only`
(an agent's or the server's private knowledge, written because this is a simulation; epsilon does not cover it).
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields

import pyarrow as pa
import torch
from torch import Tensor

from dpfbo.privacy.accounting import finite_or_none
from dpfbo.privacy.release import Diagnostics
from dpfbo.space.parameters import Space


def _column(name: str, kind: pa.DataType, visibility: str, meaning: str) -> pa.Field:
    return pa.field(name, kind, metadata={"visibility": visibility, "meaning": meaning})


_SIM, _OUT = "simulation-only", "released"

SOURCES = ("initial", "own", "server", "random", "modeler")  # of queries; records hold indices into this

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


@dataclass(frozen=True)
class ServerRecord:
    """Public numbers of one broadcast: the `released` columns of `SERVER_SCHEMA`.

    The private ones are `dpfbo.privacy.release.Diagnostics`.
    """

    round: int
    epsilon: float
    sigma: float
    sensitivity: float


def joined(parts: Sequence[RoundRecord]) -> RoundRecord:
    """One round's records of several shards as one record, their agents in the given order."""
    tensors = (torch.cat([getattr(part, f.name) for part in parts]) for f in fields(RoundRecord)[1:])
    return RoundRecord(parts[0].round, *tensors)


def rounds_table(records: list[RoundRecord], agents: Tensor, space: Space | None = None) -> pa.Table:
    """One row for each agent and query, round after round.

    space: named parameters, each with a column of its own, `x.<name>`, in the parameter's own type.
    """
    columns: dict[str, list[Tensor]] = {name: [] for name in ROUNDS_SCHEMA.names}
    for r in records:
        n, k = r.y.shape
        columns["agent"].append(agents.repeat_interleave(k))
        columns["round"].append(torch.full((n * k,), r.round))
        for name in ("region", "source", "y", "best", "regret"):
            columns[name].append(getattr(r, name).reshape(-1))
        columns["x"].append(r.x.reshape(n * k, -1))
    arrays = {name: torch.cat(parts).numpy() for name, parts in columns.items()}
    x = arrays["x"]
    offsets = torch.arange(0, x.size + 1, x.shape[1], dtype=torch.int32).numpy()
    plain = {name: values for name, values in arrays.items() if name not in ("x", "source")}
    data = {name: pa.array(values).cast(ROUNDS_SCHEMA.field(name).type) for name, values in plain.items()}
    data["x"] = pa.ListArray.from_arrays(offsets, x.reshape(-1))
    data["source"] = pa.DictionaryArray.from_arrays(pa.array(arrays["source"]).cast(pa.int8()), pa.array(SOURCES))
    table = pa.table([data[name] for name in ROUNDS_SCHEMA.names], schema=ROUNDS_SCHEMA)
    for name, values in ({} if space is None else space.columns(x.T.tolist())).items():
        if len({type(value) for value in values}) > 1:  # a column has one type
            values = [json.dumps(value) for value in values]
        column = pa.array(values)
        table = table.append_column(_column(f"x.{name}", column.type, _SIM, f"the query's {name}"), column)
    return table


def best_queries(records: Sequence[RoundRecord]) -> tuple[Tensor, Tensor, Tensor]:
    """The round (N), the point in natural units (N x D) and the observation (N) of each agent's largest observation.

    The observation is -inf if all evaluations of an agent failed.
    """
    y = torch.cat([r.y for r in records], 1).nan_to_num(nan=-torch.inf)
    rounds = torch.cat([torch.full((r.y.shape[1],), r.round) for r in records])
    best = y.argmax(1)
    x = torch.cat([r.x for r in records], 1)
    each = torch.arange(len(y))
    return rounds[best], x[each, best], y[each, best]


def server_row(record: ServerRecord, private: Diagnostics) -> dict[str, float | int | None]:
    """One row of server.parquet."""
    return {
        "round": record.round,
        "epsilon": finite_or_none(record.epsilon),
        "sigma": record.sigma,
        "sensitivity": finite_or_none(record.sensitivity),
        "snr": private.signal / private.noise if private.noise > 0 else None,
        "clip_fraction": private.n_clipped / private.n_chosen if private.n_chosen else None,
        "n_chosen": private.n_chosen,
        "n_rejected": private.n_rejected,
        "n_dropped": private.n_dropped,
    }


def server_table(records: Sequence[ServerRecord], private: Sequence[Diagnostics]) -> pa.Table:
    """One row for each broadcast."""
    rows = [server_row(*pair) for pair in zip(records, private, strict=True)]
    return pa.Table.from_pylist(rows, schema=SERVER_SCHEMA)
