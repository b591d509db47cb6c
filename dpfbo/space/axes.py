"""Parameters as axes: numbers and whole numbers in an interval, and values with or without an order."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, ClassVar

import torch
from torch import Tensor

from dpfbo import checks
from dpfbo.checks import SettingError

PLAIN = (str, bool, int, float, type(None))  # types of a choice
_EXACT = 2**53  # every whole number up to this has a float of its own

Value = Any  # of a parameter: a number, a string, a boolean or None


def quotient(x: Tensor, y: float) -> Tensor:
    """`x / y`, rounded alike on every device: CUDA would multiply by the reciprocal of a plain number."""
    return x / torch.full((), y, dtype=x.dtype, device=x.device)


class Axis(ABC):
    """Maps the values of a parameter to numbers in natural units, and these numbers to coordinates in [0, 1]."""

    @property
    def size(self) -> int | None:
        """The number of values; None if the axis is continuous."""
        return None

    @property
    def first(self) -> int:
        """The smallest number of a discrete axis, whose other numbers are the next integers."""
        return 0

    @property
    def columns(self) -> int:
        """The number of columns in the embedding: one for each value of an unordered choice, else 1."""
        return 1

    @abstractmethod
    def natural(self, u: Tensor) -> Tensor:
        """The number in natural units of the value to which each coordinate belongs, elementwise."""

    @abstractmethod
    def unit(self, x: Tensor) -> Tensor:
        """The coordinate of each number in natural units, elementwise."""

    @abstractmethod
    def value(self, number: float) -> Value:
        """The value that has this number."""

    @abstractmethod
    def number(self, value: Value) -> float:
        """The number of a value; SettingError if the parameter does not have the value."""


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
        return quotient((x.log() if self.log else x) - low, high - low)

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
        SettingError: The bounds are not finite, or `lower` is not below `upper`.

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
        SettingError: The bounds are not whole numbers, or `lower` is not below `upper`.

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
    """One of several values, the only field of a dataclass; a value's number is its index."""

    def __post_init__(self) -> None:
        ((name, values),) = vars(self).items()
        if isinstance(values, str) or not isinstance(values, Sequence):
            raise SettingError(name, f"must be a list of values, got {values!r}")
        for value in values:
            if not isinstance(value, PLAIN):
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
        return quotient(x + 0.5, self.size)

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
        SettingError: There are fewer than two choices, two are equal, or one has another type.

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
    """One of several values in an order; consecutive values are alike.

    Args:
        values: At least two different numbers, strings, booleans or None, in their order.

    Raises:
        SettingError: There are fewer than two values, two are equal, or one has another type.

    Example:
        >>> from dpfbo import Ordinal
        >>> Ordinal(["small", "medium", "large"]).number("large")
        2.0
    """

    values: Sequence[Value]
