"""The columns of rounds.parquet and server.parquet.

Each column has one of two tags. `released` columns are public by design: broadcast, or derived from public settings.
`simulation-only` columns contain secrets of an agent or the server; epsilon does not cover these columns.
If a run is real (rng `os`), its server.parquet has only the `released` columns.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from dpfbo.formats.words import Source

RELEASED, SIMULATED = "released", "simulation-only"


def simulated_column(name: str, kind: pa.DataType, meaning: str) -> pa.Field:
    """Return a column with the tag `simulation-only`, which marks secrets of an agent or the server."""
    return pa.field(name, kind, metadata={"visibility": SIMULATED, "meaning": meaning})


def _released_column(name: str, kind: pa.DataType, meaning: str) -> pa.Field:
    return pa.field(name, kind, metadata={"visibility": RELEASED, "meaning": meaning})


ROUNDS_SCHEMA = pa.schema(
    [
        simulated_column("agent", pa.int32(), "agent id, 0..N-1"),
        simulated_column("round", pa.int32(), "t; 0 for the initial points"),
        simulated_column("region", pa.int16(), "region of the query"),
        simulated_column("source", pa.dictionary(pa.int8(), pa.string()), "initial, own, server, random, or modeler"),
        simulated_column("x", pa.list_(pa.float64()), "the query, in the problem's units"),
        simulated_column("y", pa.float64(), "what the agent observed, in the objective's own sign"),
        simulated_column("best", pa.float64(), "best objective value (noiseless if known) so far, in its own sign"),
        simulated_column("regret", pa.float64(), "the metric, reference less best; null where no reference is known"),
    ],
    metadata={"schema_version": "2"},
)

SERVER_SCHEMA = pa.schema(
    [
        _released_column("round", pa.int32(), "round of the broadcast, 0..T-1"),
        _released_column("epsilon", pa.float64(), "after this broadcast, by the run's accountant; null: none finite"),
        _released_column("sigma", pa.float64(), "standard deviation of the noise in each released number"),
        _released_column("sensitivity", pa.float64(), "L2 sensitivity that sigma was derived from; null: unbounded"),
        simulated_column("snr", pa.float64(), "norm of the sum over the norm of the noise; null: no noise"),
        simulated_column("clip_fraction", pa.float64(), "chosen messages that were clipped / |S_t|; null: empty S_t"),
        simulated_column("n_chosen", pa.int32(), "|S_t|"),
        simulated_column("n_rejected", pa.int32(), "chosen messages that were missing, malformed or not finite"),
        simulated_column("n_dropped", pa.int32(), "messages of all agents that were lost on the way or came too late"),
    ]
)


def released(schema: pa.Schema) -> pa.Schema:
    """Return the columns of a schema that are tagged `released`."""
    return pa.schema([field for field in schema if field.metadata[b"visibility"] == RELEASED.encode()])


def queries_table(columns: Mapping[str, np.ndarray]) -> pa.Table:
    """Make a table of queries from columns of `ROUNDS_SCHEMA`.

    columns: an array for each column, with one value per query, or D values for `x`. The array for `source`
    holds integer values of the enum `Source`, not their names.
    """
    schema = pa.schema([ROUNDS_SCHEMA.field(name) for name in columns], metadata=ROUNDS_SCHEMA.metadata)
    return pa.table([_as_arrow(name, values) for name, values in columns.items()], schema=schema)


def _as_arrow(name: str, values: np.ndarray) -> Any:
    if name == "x":
        offsets = np.arange(0, values.size + 1, values.shape[1], dtype=np.int32)
        return pa.ListArray.from_arrays(offsets, values.reshape(-1))
    if name == "source":
        return pa.DictionaryArray.from_arrays(pa.array(values).cast(pa.int8()), pa.array([s.name for s in Source]))
    if name == "regret":
        return pa.array(values, from_pandas=True)  # null in place of NaN
    return pa.array(values).cast(ROUNDS_SCHEMA.field(name).type)
