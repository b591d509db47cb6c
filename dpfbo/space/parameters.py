"""Named parameters: a `Space` maps configurations, dicts by name, to points of a search domain and back."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from functools import cached_property
from numbers import Integral, Real
from typing import Any, ClassVar

import torch
from torch import Tensor

from dpfbo import checks
from dpfbo.checks import SettingError
from dpfbo.space.domain import Box
from dpfbo.space.mixed import Axis, MixedBox, Value

_PLAIN = (str, bool, int, float, type(None))
_CONDITIONS = ("condition", "conditions", "when", "parent", "active_if")
_EXACT = 2**53  # every whole number up to this has a float of its own


@dataclass(frozen=True)
class _Interval(Axis):
    """The numbers, or the whole numbers, between two bounds."""

    lower: float
    upper: float
    log: bool = False

    _whole: ClassVar[bool] = False  # then the axis reaches half a number beyond both bounds

    def __post_init__(self) -> None:
        for name, bound in (("lower", self.lower), ("upper", self.upper)):
            integer = isinstance(bound, Integral) and not isinstance(bound, bool) and abs(int(bound)) <= _EXACT
            if self._whole and not integer:
                raise SettingError(name, f"must be a whole number, got {bound!r}")
            checks.real(name, bound)
        if not self.lower < self.upper:
            raise SettingError("upper", f"must be above lower={self.lower!r}, got {self.upper!r}")
        checks.one_of("log", self.log, (True, False))
        if self.log and self.lower <= 0:
            raise SettingError("lower", f"must be above 0 on a log scale, got {self.lower!r}")

    @property
    def _ends(self) -> tuple[float, float]:
        low, high = (self.lower - 0.5, self.upper + 0.5) if self._whole else (self.lower, self.upper)
        return (math.log(low), math.log(high)) if self.log else (low, high)

    def natural(self, u: Tensor) -> Tensor:
        low, high = self._ends
        x = low + u * (high - low)
        x = x.exp() if self.log else x
        return ((x + 0.5).floor() if self._whole else x).clamp(self.lower, self.upper)

    def unit(self, x: Tensor) -> Tensor:
        low, high = self._ends
        return ((x.log() if self.log else x) - low) / (high - low)

    def value(self, number: float) -> Value:
        return int(number) if self._whole else float(number)

    def number(self, value: Value) -> float:
        kind = Integral if self._whole else Real
        if isinstance(value, bool) or not isinstance(value, kind) or not self.lower <= value <= self.upper:  # type: ignore[operator]
            low, high = self.lower, self.upper
            rule = f"whole number from {low} to {high}" if self._whole else f"number in [{low}, {high}]"
            raise SettingError("value", f"must be a {rule}, got {value!r}")
        return float(value)


@dataclass(frozen=True)
class Float(_Interval):
    """A number in `[lower, upper]`.

    Args:
        lower: The smallest value.
        upper: The largest value.
        log: True to search the logarithm of the number; `lower` must then be above 0.

    Raises:
        SettingError: The bounds are not finite, or not in this order.

    Example:
        >>> from dpfbo import Float, Space
        >>> space = Space({"rate": Float(1e-4, 1.0, log=True)})
        >>> space.configuration(space.natural({"rate": 0.01}))
        {'rate': 0.01}
    """


@dataclass(frozen=True)
class Integer(_Interval):
    """A whole number from `lower` to `upper`, both included.

    Args:
        lower: The smallest value.
        upper: The largest value.
        log: True to search the logarithm of the number; `lower` must then be at least 1.

    Raises:
        SettingError: The bounds are not whole numbers, or not in this order.

    Example:
        >>> from dpfbo import Integer
        >>> Integer(1, 12).value(7.0)
        7
    """

    lower: int
    upper: int

    _whole: ClassVar[bool] = True

    @property
    def size(self) -> int:
        return self.upper - self.lower + 1

    @property
    def first(self) -> int:
        return self.lower


class _OneOf(Axis):
    """One of several values, the only field of a dataclass; a value's natural number is its index."""

    def __post_init__(self) -> None:
        ((name, values),) = vars(self).items()
        if isinstance(values, str) or not isinstance(values, Sequence):
            raise SettingError(name, f"must be a list of values, got {values!r}")
        for value in values:
            if not isinstance(value, _PLAIN):
                raise SettingError(name, f"must hold numbers, strings, booleans or null, got {value!r}")
        if len({(type(value), value) for value in values}) < max(len(values), 2):
            raise SettingError(name, f"must hold at least two values, all different, got {list(values)!r}")
        object.__setattr__(self, name, tuple(values))

    @property
    def all_values(self) -> tuple[Value, ...]:
        (values,) = vars(self).values()
        return values

    @property
    def size(self) -> int:
        return len(self.all_values)

    def natural(self, u: Tensor) -> Tensor:
        return (u * self.size).floor().clamp(0, self.size - 1)

    def unit(self, x: Tensor) -> Tensor:
        return (x + 0.5) / self.size

    def value(self, number: float) -> Value:
        return self.all_values[int(number)]

    def number(self, value: Value) -> float:
        for i, known in enumerate(self.all_values):
            if type(known) is type(value) and known == value:
                return float(i)
        raise SettingError("value", f"must be one of {', '.join(map(repr, self.all_values))}, got {value!r}")


@dataclass(frozen=True)
class Categorical(_OneOf):
    """One of several values without an order.

    Args:
        choices: At least two different numbers, strings, booleans or None.

    Raises:
        SettingError: The choices are fewer than two, not all different, or of another type.

    Example:
        >>> from dpfbo import Categorical
        >>> Categorical(["linear", "rbf"]).value(1)
        'rbf'
    """

    choices: Sequence[Value]

    @property
    def columns(self) -> int:
        return self.size


@dataclass(frozen=True)
class Ordinal(_OneOf):
    """One of several values in an order, of which neighbours are alike.

    Args:
        values: At least two different numbers, strings, booleans or None, in their order.

    Raises:
        SettingError: The values are fewer than two, not all different, or of another type.

    Example:
        >>> from dpfbo import Ordinal
        >>> Ordinal(["small", "medium", "large"]).number("large")
        2.0
    """

    values: Sequence[Value]


@dataclass(frozen=True)
class Fixed:
    """A parameter with one value, which the objective receives and nobody searches.

    Args:
        constant: A number, a string, a boolean or None.

    Raises:
        SettingError: The constant is of another type.

    Example:
        >>> from dpfbo import Fixed, Float, Space
        >>> list(Space({"rate": Float(0, 1), "epochs": Fixed(20)}).axes)
        ['rate']
    """

    constant: Value

    def __post_init__(self) -> None:
        if not isinstance(self.constant, _PLAIN):
            raise SettingError("constant", f"must be a number, a string, a boolean or null, got {self.constant!r}")


Searched = Float | Integer | Categorical | Ordinal
Parameter = Searched | Fixed
_KINDS: dict[str, type[Any]] = {
    "float": Float, "integer": Integer, "categorical": Categorical, "ordinal": Ordinal, "fixed": Fixed,
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Space:
    """A search space of named parameters. A configuration is a dict with the value of every parameter.

    Args:
        parameters: The parameters by name. In place of a parameter may stand its description in a YAML file, such as
            `{type: float, lower: 1e-4, upper: 1, log: true}`, `{type: integer, ..}`, `{type: categorical, choices:
            [..]}` or `{type: ordinal, values: [..]}`, or a plain value for a fixed parameter.

    Raises:
        SettingError: A parameter is wrong (the sentence has its name), or there is nothing to search.

    Example:
        >>> from dpfbo import Categorical, Integer, Space
        >>> space = Space({"depth": Integer(1, 12), "kernel": Categorical(["linear", "rbf"]), "epochs": 20})
        >>> space.domain.dimension
        2
        >>> space.configuration([4, 1])
        {'depth': 4, 'kernel': 'rbf', 'epochs': 20}
        >>> space.natural({"depth": 4, "kernel": "rbf"}).tolist()
        [4.0, 1.0]
    """

    parameters: Mapping[str, Parameter]

    def __post_init__(self) -> None:
        if not isinstance(self.parameters, Mapping):
            raise SettingError("space", f"must map names to parameters, got {self.parameters!r}")
        made = {name: _parameter(name, given) for name, given in self.parameters.items()}
        object.__setattr__(self, "parameters", made)
        if not self.axes:
            raise SettingError("space", f"must have a parameter that is not fixed, got {list(made)}")

    def __eq__(self, other: object) -> bool:  # in another order they have other points
        return isinstance(other, Space) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))

    @cached_property
    def domain(self) -> MixedBox | Box:
        """The domain, with one axis for each searched parameter; a plain box if all are linear numbers."""
        plain = [axis for axis in self.axes.values() if isinstance(axis, Float) and not axis.log]
        if len(plain) == len(self.axes):
            return Box(tuple(float(a.lower) for a in plain), tuple(float(a.upper) for a in plain))
        return MixedBox(tuple(self.axes.values()))

    def configuration(self, x: Tensor | Sequence[float]) -> dict[str, Value]:
        """The value of every parameter, by name, at a natural point x of the domain, D numbers."""
        values = {name: axis.value(float(v)) for (name, axis), v in zip(self.axes.items(), x, strict=True)}
        return {name: p.constant if isinstance(p, Fixed) else values[name] for name, p in self.parameters.items()}

    def natural(self, configuration: Mapping[str, Value]) -> Tensor:
        """The natural point of a configuration, D numbers; fixed parameters may be left out of it.

        Raises:
            SettingError: A value is missing or outside the space; the message begins with the parameter's name.
        """
        for name in configuration:
            checks.one_of("the configuration's parameter", name, self.parameters)
        numbers = []
        for name, p in self.parameters.items():
            if isinstance(p, Fixed):
                if configuration.get(name, p.constant) != p.constant:
                    raise SettingError(name, f"is fixed at {p.constant!r}, got {configuration[name]!r}")
            elif name not in configuration:
                raise SettingError(name, "must be in the configuration")
            else:
                try:
                    numbers.append(p.number(configuration[name]))
                except SettingError as error:
                    raise SettingError(name, error.rule) from error
        return torch.tensor(numbers, dtype=torch.float64, device="cpu")

    def to_dict(self) -> dict[str, Any]:
        """The space as plain data, from which `Space` makes an equal one."""
        kinds = {kind: name for name, kind in _KINDS.items()}
        return {name: {"type": kinds[type(p)], **asdict(p)} for name, p in self.parameters.items()}

    @cached_property
    def axes(self) -> dict[str, Searched]:
        """The searched parameters by name, which are the axes of the domain."""
        return {name: p for name, p in self.parameters.items() if not isinstance(p, Fixed)}


def _parameter(name: str, given: object) -> Parameter:
    """The parameter from a Python or a YAML description; SettingError with its name."""
    if not isinstance(name, str) or not name:
        raise SettingError("space", f"must have names that are not empty, got {name!r}")
    if isinstance(given, Parameter):
        return given
    if isinstance(given, _PLAIN):
        return Fixed(given)
    if not isinstance(given, Mapping):
        rule = f"must be a parameter, such as {{type: float, lower: 0, upper: 1}}, got {given!r}"
        raise SettingError(f"space.{name}", rule)
    for key in given:
        if key in _CONDITIONS:
            rule = "is not supported: every parameter is searched whatever the others are; let the objective ignore it"
            raise SettingError(f"space.{name}.{key}", f"{rule} where it has no effect")
    settings = dict(given)
    word = settings.pop("type", None)
    checks.one_of(f"space.{name}.type", word, _KINDS)
    kind = _KINDS[str(word)]
    known = {f.name: f.default is MISSING for f in fields(kind)}
    for key in settings:
        checks.one_of(f"a key of space.{name}", key, known)
    for key, needed in known.items():
        if needed and key not in settings:
            raise SettingError(f"space.{name}.{key}", "must be given")
    try:
        made: Parameter = kind(**settings)
    except SettingError as error:
        raise SettingError(f"space.{name}.{error.name}", error.rule) from error
    return made
