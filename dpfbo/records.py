"""Records of a run: the agents' queries, and the public numbers of broadcasts."""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpfbo.formats.checkpoint_file import SAME_POINTS
from dpfbo.space.json_values import PLAIN, Value
from dpfbo.space.mixed import MixedBox
from dpfbo.space.parameters import Space


@dataclass(frozen=True)
class RoundRecord:
    """The queries of n agents in one round, k queries for each agent.

    u, x: the queries, n x k x D, in the unit cube and in the problem's units. The other tensors are n x k. region: the
    sub-region of the query. source: the number of the `Source` that chose the query. y: the observation, larger is
    better; NaN if the evaluation failed. best: the agent's largest `Problem.true_value` so far; NaN if there is none.
    metric: `reference - best`. If the problem has no reference, the metric is `best`, negated if the objective is to be
    minimised.
    """

    round: int
    region: Tensor
    source: Tensor
    u: Tensor
    x: Tensor
    y: Tensor
    best: Tensor
    metric: Tensor

    @property
    def mean(self) -> float:
        """The metric's mean over the agents that have a value after this round; NaN if none has."""
        return float(self._last.mean())

    @property
    def _last(self) -> Tensor:
        last = self.metric[:, -1].contiguous()  # a sum's rounding depends on the strides
        return last[~last.isnan()] if last.isnan().any() else last

    @property
    def standard_error(self) -> float:
        """The standard error of `mean`; 0 for one agent."""
        last = self._last
        return float(last.std() / len(last) ** 0.5) if len(last) > 1 else 0.0

    def quantiles(self, levels: Sequence[float]) -> list[float]:
        """Compute the metric's quantiles after this round, over the agents that have a value; NaN if none has."""
        last = self._last.numpy()
        found: list[float] = (np.quantile(last, levels) if last.size else np.full(len(levels), np.nan)).tolist()
        return found

    @property
    def bytes(self) -> int:
        """The size of this record's tensors in bytes. Memory that several tensors share is counted once."""
        parts = (getattr(self, f.name).untyped_storage() for f in fields(self)[1:])
        return sum({part.data_ptr(): part.nbytes() for part in parts}.values())


@dataclass(frozen=True)
class ServerRecord:
    """The public numbers of one broadcast.

    epsilon: the cost of all charges so far. sigma, sensitivity: see `dpfbo.privacy.Release`.
    """

    round: int
    epsilon: float
    sigma: float
    sensitivity: float


_RECORD = tuple(f.name for f in fields(RoundRecord)[1:])
_WHOLE = ("region", "source")  # tensors of integers, which are packed in the smallest type that fits


def packed(record: RoundRecord) -> dict[str, np.ndarray]:
    """Return a record's arrays in fewer bytes; `unpacked` restores the record bit for bit."""
    arrays: dict[str, np.ndarray] = {name: getattr(record, name).numpy() for name in _RECORD}
    arrays.update({name: _narrow(arrays[name]) for name in _WHOLE})
    u, x = arrays["u"], arrays["x"]
    if u.shape == x.shape and u.dtype == x.dtype and (u is x or bool((_bits(u) == _bits(x)).all())):
        arrays[SAME_POINTS] = arrays.pop("u")
        del arrays["x"]
    return arrays


def unpacked(round: int, arrays: Mapping[str, np.ndarray]) -> RoundRecord:
    """Restore a round's record from `packed` arrays, which are copied. Raises KeyError if an array is missing."""
    tensors = {
        name: torch.from_numpy(np.array(array)) for name, array in arrays.items() if name in (*_RECORD, SAME_POINTS)
    }
    tensors.update({name: tensors[name].long() for name in _WHOLE})
    if SAME_POINTS in tensors:
        tensors["u"] = tensors["x"] = tensors[SAME_POINTS]
    return RoundRecord(round, *(tensors[name] for name in _RECORD))


def _narrow(values: np.ndarray) -> np.ndarray:
    for kind in (np.int8, np.int16):
        if values.size and np.iinfo(kind).min <= values.min() and values.max() <= np.iinfo(kind).max:
            return values.astype(kind)
    return values


def _bits(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values).view(np.int64)


def joined(parts: Sequence[RoundRecord]) -> RoundRecord:
    """Merge records of one round into one record. parts: a record from each of several groups of agents."""
    tensors = (torch.cat([getattr(part, f.name) for part in parts]) for f in fields(RoundRecord)[1:])
    return RoundRecord(parts[0].round, *tensors)


def best_queries(records: Sequence[RoundRecord]) -> tuple[Tensor, Tensor, Tensor]:
    """Return round (N), point in natural units (N x D) and value (N) of each agent's largest observation.

    The value is -inf if all evaluations of an agent failed.
    """
    y, place = torch.cat([r.y for r in records], 1).nan_to_num(nan=-torch.inf).max(1)
    x = torch.cat([r.x for r in records], 1)[torch.arange(len(y), device="cpu"), place]
    rounds = [torch.full((r.y.shape[1],), r.round, device="cpu") for r in records]
    return torch.cat(rounds)[place], x, y


@dataclass(frozen=True)
class Shown:
    """The direction of a problem's objective, and whether its regret is known.

    maximize: False if small values of the objective are better. In this case `y` and `best` are negated in a
    `RoundRecord`, but not in tables. has_reference: True if the metric is the regret, a reference minus the best value.
    """

    maximize: bool = True
    has_reference: bool = True

    @staticmethod
    def of(problem: Any) -> "Shown":
        reference = getattr(problem, "reference", True)  # an outsourced `Table` has its largest value instead
        return Shown(getattr(problem, "maximize", True) is not False, reference is not None)

    @property
    def sign(self) -> float:
        return 1.0 if self.maximize else -1.0


def query_columns(record: RoundRecord, agents: Tensor, shown: Shown) -> dict[str, np.ndarray]:
    """Return the columns of rounds.parquet for one round, with a row for each query.

    Column `x` has D numbers in each row; every other column has one value. Column `source` contains members of the
    enumeration `Source` as integers.
    """
    n, k = record.y.shape
    columns = {"agent": agents.repeat_interleave(k).numpy(), "round": np.full(n * k, record.round)}
    for name in ("region", "source", "x", "y", "best"):
        values = getattr(record, name)
        columns[name] = values.reshape(n * k, *values.shape[2:]).numpy()
    columns |= {name: shown.sign * columns[name] for name in ("y", "best")}
    regret = record.metric.reshape(-1).numpy()
    return {**columns, "regret": regret if shown.has_reference else np.full(n * k, np.nan)}


def parameter_columns(
    x: np.ndarray, space: Space, as_json: Collection[str] | None = None
) -> Iterator[tuple[str, Any, np.ndarray | None]]:
    """Yield each parameter's name, values and indices: its value at point i is `values[indices[i]]`.

    For a continuous parameter, `indices` is None, and its value at point i is `values[i]`. Where a parameter
    is inactive, its value is NaN if the parameter is continuous, else None.

    x: the points in natural units, n x D. as_json: the names of the parameters whose values become JSON texts; None to
    choose those whose values need JSON.
    """
    distinct = [np.unique(numbers, return_inverse=True) for numbers in x.T]
    inactive = inactive_axes(x, space)
    columns = zip(space.axes.items(), distinct, x.T, inactive.T, strict=True)
    for (name, axis), (some, places), numbers, absent in columns:
        if axis.size is None:
            yield name, np.where(absent, np.nan, numbers) if absent.any() else numbers, None
            continue
        values = [axis.value(number) for number in some.tolist()]
        null_twice = None in values and absent.any()  # None is a value, and would also mean inactive
        if need_json(values) or null_twice if as_json is None else name in as_json:
            values = [json.dumps(value) for value in values]
        if absent.any():
            values, places = [*values, None], np.where(absent, len(values), places)
        yield name, values, places


def need_json(values: Collection[Value]) -> bool:
    """Return True if the values have several types, or if one of them is a list, tuple or dict."""
    return len({type(value) for value in values}) > 1 or any(not isinstance(value, PLAIN) for value in values)


def inactive_axes(x: np.ndarray, space: Space) -> np.ndarray:
    """Return booleans, n x D, that are True where an axis is inactive. x: points in natural units, n x D."""
    domain = space.domain
    if not (isinstance(domain, MixedBox) and domain.conditions):
        return np.zeros(x.shape, dtype=bool)
    return ~domain.active(domain.to_unit(torch.tensor(x, device="cpu"))).numpy()
