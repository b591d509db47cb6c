"""The tables of a run's records, with the columns of `dpfbo.formats.record_tables`."""

from collections.abc import Collection, Iterable, Iterator, Sequence

from torch import Tensor

from dpfbo.extras import needing
from dpfbo.privacy.accounting import finite_or_none
from dpfbo.privacy.release import Diagnostics
from dpfbo.records import RoundRecord, ServerRecord, Shown, need_json, parameter_columns, query_columns
from dpfbo.space.axes import Categorical, Ordinal
from dpfbo.space.parameters import Space

with needing("run", "a table of records"):
    import pyarrow as pa
    import pyarrow.compute as pc

    from dpfbo.formats.record_tables import SERVER_SCHEMA, queries_table, released, simulated_column

ROW_GROUP = 1024 * 1024  # rows of a row group of rounds.parquet, the default of PyArrow's writer


def row_groups(
    records: Iterable[RoundRecord], agents: Tensor, shown: Shown, space: Space | None = None, rows: int = ROW_GROUP
) -> Iterator[pa.Table]:
    """Yield tables of `rows` rows, the last with the remaining rows.

    There is one row for each agent and query, round after round. A parameter's column has the same type in all tables:
    if there is more than one table, a parameter with choices of different types becomes a column of JSON texts. A
    column is null where its parameter is inactive.

    Args:
        records: All rounds.
        agents: The ids of the N agents.
        shown: The sign of the objective, and whether regret is known.
        space: Named parameters, each of which gets a column `x.<name>` in the parameter's own type.
        rows: The number of rows of a table.
    """
    waiting: list[pa.Table] = []
    n, as_json = 0, None
    for record in records:
        waiting.append(queries_table(query_columns(record, agents, shown)))
        n += record.y.numel()
        if n > rows:
            table, as_json = _joined(waiting), _mixed(space)
            for first in range(0, n - rows, rows):
                yield _with_parameters(table.slice(first, rows).combine_chunks(), space, as_json)
            waiting = [table.slice((n - 1) // rows * rows)]
            n = len(waiting[0])
    yield _with_parameters(_joined(waiting), space, as_json)


def _joined(tables: Sequence[pa.Table]) -> pa.Table:
    """Join tables, each column in one chunk, because a Parquet page ends where a chunk ends."""
    return pa.concat_tables(tables).combine_chunks()


def _with_parameters(table: pa.Table, space: Space | None, as_json: Collection[str] | None) -> pa.Table:
    if space is None:
        return table
    x = pc.list_flatten(table["x"]).to_numpy().reshape(len(table), -1)
    for name, values, places in parameter_columns(x, space, as_json):
        column = pa.array(values, from_pandas=True) if places is None else pa.array(values).take(pa.array(places))
        table = table.append_column(simulated_column(f"x.{name}", column.type, f"the query's {name}"), column)
    return table


def _mixed(space: Space | None) -> set[str]:
    axes = {} if space is None else space.axes
    choices = {name: axis.all_values for name, axis in axes.items() if isinstance(axis, Categorical | Ordinal)}
    return {name for name, values in choices.items() if need_json(values)}


def server_row(record: ServerRecord, private: Diagnostics | None) -> dict[str, float | int | None]:
    """Return one row of server.parquet. private: secret numbers about the release; None leaves them out."""
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
    """Make a table with a row for each broadcast. private: secret numbers about each release; None leaves them out."""
    schema = released(SERVER_SCHEMA) if private is None else SERVER_SCHEMA
    pairs = zip(records, [None] * len(records) if private is None else private, strict=True)
    return pa.Table.from_pylist([server_row(*pair) for pair in pairs], schema=schema)
