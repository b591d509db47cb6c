"""Named parameters, as people write them: a `Space` turns configurations into points of a domain and back.

Space({"rate": Float(1e-4, 1, log=True), "depth": Integer(1, 12), "kernel": Categorical(["linear", "rbf"])})
"""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from functools import cached_property
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

from dpfbo import checks
from dpfbo.checks import SettingError
from dpfbo.space.domain import Box
from dpfbo.space.mixed import Axis, Choice, Continuous, MixedBox, Whole

Value = Any  # of a parameter: a number, a string, a boolean or None
_PLAIN = (str, bool, int, float, type(None))
_CONDITIONS = ("condition", "conditions", "when", "parent", "active_if")


@dataclass(frozen=True)
class Float:
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

    lower: float
    upper: float
    log: bool = False

    def __post_init__(self) -> None:
        self.axis  # noqa: B018

    @property
    def axis(self) -> Axis:
        """The axis of the domain. Raises SettingError for bad bounds."""
        return Continuous(self.lower, self.upper, self.log)

    def value(self, number: float) -> Value:
        """The parameter's value for a natural number of the axis."""
        return float(number)

    def number(self, value: Value) -> float:
        """The natural number of the axis for a value. Raises SettingError if it is no value of the parameter."""
        if isinstance(value, bool) or not isinstance(value, Real) or not self.lower <= value <= self.upper:  # type: ignore[operator]
            raise SettingError("value", f"must be a number in [{self.lower}, {self.upper}], got {value!r}")
        return float(value)


@dataclass(frozen=True)
class Integer:
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
        >>> Integer(12, 1)
        Traceback (most recent call last):
        ...
        dpfbo.checks.SettingError: upper must be above lower=12, got 1
    """

    lower: int
    upper: int
    log: bool = False

    def __post_init__(self) -> None:
        self.axis  # noqa: B018

    @property
    def axis(self) -> Axis:
        """The axis of the domain. Raises SettingError for bad bounds."""
        return Whole(self.lower, self.upper, self.log)

    def value(self, number: float) -> Value:
        """The parameter's value for a natural number of the axis."""
        return int(number)

    def number(self, value: Value) -> float:
        """The natural number of the axis for a value. Raises SettingError if it is no value of the parameter."""
        if isinstance(value, bool) or not isinstance(value, Integral) or not self.lower <= int(value) <= self.upper:
            raise SettingError("value", f"must be a whole number from {self.lower} to {self.upper}, got {value!r}")
        return float(value)


@dataclass(frozen=True)
class Categorical:
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

    def __post_init__(self) -> None:
        object.__setattr__(self, "choices", _distinct("choices", self.choices))

    @property
    def axis(self) -> Axis:
        """The axis of the domain."""
        return Choice(len(self.choices))

    def value(self, number: float) -> Value:
        """The value at an index."""
        return self.choices[int(number)]

    def number(self, value: Value) -> float:
        """The index of a value. Raises SettingError if it is none of the choices."""
        return _index(value, self.choices)


@dataclass(frozen=True)
class Ordinal:
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

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", _distinct("values", self.values))

    @property
    def axis(self) -> Axis:
        """The axis of the domain."""
        return Choice(len(self.values), ordered=True)

    def value(self, number: float) -> Value:
        """The value at an index."""
        return self.values[int(number)]

    def number(self, value: Value) -> float:
        """The index of a value. Raises SettingError if it is none of the values."""
        return _index(value, self.values)


@dataclass(frozen=True)
class Fixed:
    """A parameter with one value, which the objective receives and nobody searches.

    Args:
        constant: A number, a string, a boolean or None.

    Raises:
        SettingError: The constant is of another type.

    Example:
        >>> from dpfbo import Fixed, Float, Space
        >>> Space({"rate": Float(0, 1), "epochs": Fixed(20)}).searched
        ('rate',)
    """

    constant: Value

    def __post_init__(self) -> None:
        if not isinstance(self.constant, _PLAIN):
            raise SettingError("constant", f"must be a number, a string, a boolean or null, got {self.constant!r}")


Parameter = Float | Integer | Categorical | Ordinal | Fixed
_KINDS: dict[str, type[Any]] = {
    "float": Float, "integer": Integer, "categorical": Categorical, "ordinal": Ordinal, "fixed": Fixed,
}  # fmt: skip


@dataclass(frozen=True)
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
        >>> space.natural({"depth": 40, "kernel": "rbf"})
        Traceback (most recent call last):
        ...
        dpfbo.checks.SettingError: depth must be a whole number from 1 to 12, got 40
    """

    parameters: Mapping[str, Parameter]
    searched: tuple[str, ...] = field(init=False)  # names of all but the fixed parameters

    def __post_init__(self) -> None:
        if not isinstance(self.parameters, Mapping):
            raise SettingError("space", f"must map names to parameters, got {self.parameters!r}")
        made = {_name(name): _parameter(name, given) for name, given in self.parameters.items()}
        object.__setattr__(self, "parameters", made)
        object.__setattr__(self, "searched", tuple(n for n, p in made.items() if not isinstance(p, Fixed)))
        if not self.searched:
            raise SettingError("space", f"must have a parameter that is not fixed, got {list(made)}")

    def __hash__(self) -> int:
        return hash((self.searched, repr(self.parameters)))

    @cached_property
    def domain(self) -> MixedBox | Box:
        """The domain, with one axis for each searched parameter; a plain box if all are linear numbers."""
        axes = tuple(self._searched(name).axis for name in self.searched)
        plain = [axis for axis in axes if isinstance(axis, Continuous) and not axis.log]
        if len(plain) == len(axes):
            return Box(tuple(float(a.lower) for a in plain), tuple(float(a.upper) for a in plain))
        return MixedBox(axes)

    def configuration(self, x: Tensor | Sequence[float]) -> dict[str, Value]:
        """The configuration at a natural point (D numbers) of the domain."""
        numbers = dict(zip(self.searched, [float(v) for v in x], strict=True))
        return {
            name: p.constant if isinstance(p, Fixed) else p.value(numbers[name]) for name, p in self.parameters.items()
        }

    def columns(self, x: Sequence[Sequence[float]]) -> dict[str, list[Value]]:
        """The values of each searched parameter, from the columns of natural points (D lists)."""
        return {
            name: [self._searched(name).value(number) for number in numbers]
            for name, numbers in zip(self.searched, x, strict=True)
        }

    def natural(self, configuration: Mapping[str, Value]) -> Tensor:
        """The natural point of a configuration, D numbers; fixed parameters may be left out.

        Raises SettingError, one sentence with the parameter's name, for a value outside the space.
        """
        for name in configuration:
            checks.one_of("the configuration's parameter", name, self.parameters)
        numbers = []
        for name in self.searched:
            if name not in configuration:
                raise SettingError(name, "must be in the configuration")
            try:
                numbers.append(self._searched(name).number(configuration[name]))
            except SettingError as error:
                raise SettingError(name, error.rule) from error
        for name, parameter in self.parameters.items():
            if isinstance(parameter, Fixed) and configuration.get(name, parameter.constant) != parameter.constant:
                raise SettingError(name, f"is fixed at {parameter.constant!r}, got {configuration[name]!r}")
        return torch.tensor(numbers, dtype=torch.float64, device="cpu")

    def to_dict(self) -> dict[str, Any]:
        """The space as plain data, from which `Space` makes an equal one."""
        kinds = {kind: name for name, kind in _KINDS.items()}
        plain = {}
        for name, parameter in self.parameters.items():
            values = {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(parameter).items()}
            plain[name] = {"type": kinds[type(parameter)], **values}
        return plain

    def _searched(self, name: str) -> Float | Integer | Categorical | Ordinal:
        parameter = self.parameters[name]
        assert not isinstance(parameter, Fixed)
        return parameter


def _name(name: object) -> str:
    if not isinstance(name, str) or not name:
        raise SettingError("space", f"must have names that are not empty, got {name!r}")
    return name


def _parameter(name: str, given: object) -> Parameter:
    """The parameter that somebody wrote. Raises SettingError with its name."""
    if isinstance(given, Parameter):
        return given
    if not isinstance(given, Mapping):
        if isinstance(given, _PLAIN):
            return Fixed(given)
        raise SettingError(
            f"space.{name}", f"must be a parameter, such as {{type: float, lower: 0, upper: 1}}, got {given!r}"
        )
    for key in given:
        if key in _CONDITIONS:
            raise SettingError(
                f"space.{name}.{key}", "is not supported: every parameter is searched whatever the others are; "
                "let the objective ignore it where it has no effect",
            )  # fmt: skip
    given = dict(given)
    kind = given.pop("type", None)
    checks.one_of(f"space.{name}.type", kind, _KINDS)
    known = {f.name: f for f in fields(_KINDS[str(kind)])}
    for key in given:
        checks.one_of(f"a key of space.{name}", key, known)
    for key, f in known.items():
        if key not in given and f.default is MISSING:
            raise SettingError(f"space.{name}.{key}", "must be given")
    try:
        made: Parameter = _KINDS[str(kind)](**given)
    except SettingError as error:
        raise SettingError(f"space.{name}.{error.name}", error.rule) from error
    return made


def _distinct(name: str, values: object) -> tuple[Value, ...]:
    """At least two different plain values."""
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise SettingError(name, f"must be a list of values, got {values!r}")
    for value in values:
        if not isinstance(value, _PLAIN):
            raise SettingError(name, f"must hold numbers, strings, booleans or null, got {value!r}")
    keys = [(type(value), value) for value in values]
    if len(set(keys)) < len(keys) or len(keys) < 2:
        raise SettingError(name, f"must hold at least two values, all different, got {list(values)!r}")
    return tuple(values)


def _index(value: Value, values: Sequence[Value]) -> float:
    for i, known in enumerate(values):
        if type(known) is type(value) and known == value:
            return float(i)
    raise SettingError("value", f"must be one of {', '.join(map(repr, values))}, got {value!r}")
