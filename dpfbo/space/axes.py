"""Parameters as axes of a search space."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from numbers import Integral, Real
from typing import ClassVar

import torch
from torch import Tensor

from dpfbo import checks
from dpfbo.checks import SettingError
from dpfbo.space.conditions import Conditional
from dpfbo.space.json_values import KINDS, Value, json_text, own

_EXACT = 2**53  # floats represent all whole numbers up to this exactly
_ROUNDING = 1e-6  # in steps: a number at most this far from a value counts as that value


def quotient(x: Tensor, y: float) -> Tensor:
    """Compute `x / y` with the same rounding on every device.

    To divide by a Python number, CUDA multiplies by the number's reciprocal. So y becomes a tensor first.
    """
    return x / torch.full((), y, dtype=x.dtype, device=x.device)


class Axis(Conditional, ABC):
    """A parameter as an axis of the search space.

    Each value has a number in natural units: the value itself, or its index on a categorical or ordinal axis. Each
    number has a coordinate in [0, 1].
    """

    @property
    def size(self) -> int | None:
        """The number of values; None if the axis is continuous."""
        return None

    @property
    def columns(self) -> int:
        """The number of columns in the embedding: one per value if the values have no order, else 1."""
        return 1

    @abstractmethod
    def natural(self, u: Tensor) -> Tensor:
        """Map coordinates u in [0, 1] to numbers in natural units (values, or indices of choices), elementwise."""

    @abstractmethod
    def unit(self, x: Tensor) -> Tensor:
        """Map numbers x, which are in natural units, to coordinates in [0, 1], elementwise."""

    def nth(self, k: Tensor) -> Tensor:
        """Return the k-th value (k = 0, 1, ..) of a discrete axis as a number in natural units, elementwise."""
        return k

    def rank(self, x: Tensor) -> Tensor:
        """Return the k for which `nth(k)` is the number x, elementwise."""
        return x

    @abstractmethod
    def value(self, number: float) -> Value:
        """Return the parameter's value for a number in natural units."""

    @abstractmethod
    def number(self, value: Value) -> float:
        """Convert a value to a number in natural units. Raises SettingError if the axis does not have this value."""


@dataclass(frozen=True, repr=False)
class _Interval(Axis):
    """Real numbers (if `_whole`, integers) between two bounds; with a step, only `lower` plus multiples of the step."""

    lower: float
    upper: float
    log: bool = False
    step: float | None = field(default=None, kw_only=True, metadata={"named": "if given"})

    _whole: ClassVar[bool] = False  # True: only whole numbers, and the axis reaches 1/2 beyond both bounds

    def __post_init__(self) -> None:
        super().__post_init__()
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
        if self.step is not None:
            self._check_step(self.step)

    def _check_step(self, step: float) -> None:
        if self._whole:
            checks.integer("step", step, minimum=1)
        else:
            checks.positive("step", step)
        if self._whole and step == 1:
            object.__setattr__(self, "step", None)  # an axis of all whole numbers
        elif self.log:
            raise SettingError("step", f"must be left out on a log scale, got {step!r}")
        elif self._count < 2:
            raise SettingError("step", f"must be at most upper - lower = {self.upper - self.lower:g}, got {step!r}")
        elif self._count > _EXACT:
            raise SettingError("step", f"must leave at most 2^53 values, got {step!r}")

    @property
    def size(self) -> int | None:
        if self.step is not None:
            return self._count
        return int(self.upper) - int(self.lower) + 1 if self._whole else None

    @property
    def largest(self) -> Value:
        """The largest value; with a step, it may be below `upper`."""
        if self.step is None:
            return self.upper
        return self.value(float(self.nth(torch.tensor(self._count - 1, dtype=torch.float64, device="cpu"))))

    @cached_property
    def _count(self) -> int:
        lower, upper, step = map(_decimal, (self.lower, self.upper, self.step))
        return (upper - lower) // step + 1

    @cached_property
    def _grid(self) -> tuple[float, float, float]:
        """The a, b, c for which `(a + k b) / c` is the k-th value; a, b, c are whole numbers where possible."""
        lower, step = map(_decimal, (self.lower, self.step))
        c = math.lcm(lower.denominator, step.denominator)
        a, b = int(lower * c), int(step * c)
        if max(abs(a), abs(a + (self._count - 1) * b), c) <= _EXACT:
            return float(a), float(b), float(c)
        return float(lower), float(step), 1.0

    def nth(self, k: Tensor) -> Tensor:
        if self.step is None:
            return self.lower + k
        a, b, c = self._grid
        return quotient(a + k * b, c).clamp(self.lower, self.upper)

    def rank(self, x: Tensor) -> Tensor:
        if self.step is None:
            return x - self.lower
        a, b, c = self._grid
        return quotient(x * c - a, b).round()

    @property
    def _ends(self) -> tuple[float, float]:
        low, high = (self.lower - 0.5, self.upper + 0.5) if self._whole else (self.lower, self.upper)
        return (math.log(low), math.log(high)) if self.log else (low, high)

    def natural(self, u: Tensor) -> Tensor:
        if self.step is not None:
            return self.nth((u * self._count).floor().clamp(0, self._count - 1))
        low, high = self._ends
        x = low + u * (high - low)
        x = x.exp() if self.log else x
        return ((x + 0.5).floor() if self._whole else x).clamp(self.lower, self.upper)

    def unit(self, x: Tensor) -> Tensor:
        if self.step is not None:
            return quotient(self.rank(x) + 0.5, self._count)
        low, high = self._ends
        return quotient((x.log() if self.log else x) - low, high - low)

    def value(self, number: float) -> Value:
        return int(number) if self._whole else float(number)

    def number(self, value: Value) -> float:
        kind = Integral if self._whole else Real
        margin = self.step or 0  # a multiple of the step may miss a bound by rounding
        good = isinstance(value, kind) and not isinstance(value, bool)
        good = good and self.lower - margin <= value <= self.upper + margin  # type: ignore[operator]
        found = self._nearest(float(value)) if good else None
        if found is None:
            low, high = self.lower, self.upper
            rule = f"whole number from {low} to {high}" if self._whole else f"number in [{low}, {high}]"
            steps = "" if self.step is None else f" that is {low} plus a multiple of {self.step}"
            raise SettingError("value", f"must be a {rule}{steps}, got {value!r}")
        return found

    def _nearest(self, number: float) -> float | None:
        """Return the axis's value that equals `number` up to rounding; None if there is none."""
        if self.step is None:
            return number
        x = torch.tensor(number, dtype=torch.float64, device="cpu")
        found = float(self.nth(self.rank(x).clamp(0, self._count - 1)))
        return found if abs(found - number) <= (0 if self._whole else _ROUNDING * self.step) else None


def _decimal(number: float | None) -> Fraction:
    """Return the decimal number that a float is printed as, such as 1/10 for 0.1."""
    return Fraction(number) if isinstance(number, int) else Fraction(repr(float(number or 0)))


@dataclass(frozen=True, repr=False)
class Float(_Interval):
    """A number in `[lower, upper]`.

    Args:
        lower: The smallest value.
        upper: The largest value.
        log: True to search the logarithm of the number; `lower` must then be above 0.
        step: The distance between the values `lower, lower + step, ..`, the last of which may be below `upper`; None
            for all numbers. Not allowed with `log`.
        when: The condition under which the parameter is active, see `Space`.

    Raises:
        SettingError: The bounds are not finite, `lower` is not below `upper`, or `step` is invalid.

    Example:
        >>> from dpfbo import Float, Space
        >>> space = Space({"rate": Float(1e-4, 1.0, log=True)})
        >>> space.configuration(space.natural({"rate": 0.01}))
        {'rate': 0.01}
        >>> Float(0.1, 0.5, step=0.1).number(0.1 + 2 * 0.1)
        0.3
    """


@dataclass(frozen=True, repr=False)
class Integer(_Interval):
    """A whole number from `lower` to `upper`, both included.

    Args:
        lower: The smallest value.
        upper: The largest value.
        log: True to search the logarithm of the number; `lower` must then be at least 1.
        step: The distance between consecutive values, as for `Float`; a whole number.
        when: The condition under which the parameter is active, see `Space`.

    Raises:
        SettingError: A bound or `step` is not a whole number, `lower` is not below `upper`, or `step` is too large or
            given with `log`.

    Example:
        >>> from dpfbo import Integer
        >>> Integer(1, 12).value(7.0)
        7
        >>> Integer(2, 65, step=2).size
        32
    """

    lower: int
    upper: int

    _whole: ClassVar[bool] = True


class _OneOf(Axis):
    """One of several values, numbered by their indices. `_field` is the name of the field that holds the values."""

    _field: ClassVar[str]

    def __post_init__(self) -> None:
        super().__post_init__()
        name, values = self._field, getattr(self, self._field)
        if isinstance(values, str) or not isinstance(values, Sequence):
            raise SettingError(name, f"must be a list of values, got {values!r}")
        for value in values:
            if json_text(value) is None:
                raise SettingError(name, f"must hold {KINDS}, got {checks.shown(value)}")
        if len(set(map(json_text, values))) < max(len(values), 2):
            raise SettingError(name, f"must hold at least two values, all different, got {list(values)!r}")
        object.__setattr__(self, name, tuple(map(own, values)))

    @property
    def all_values(self) -> tuple[Value, ...]:
        values: tuple[Value, ...] = getattr(self, self._field)
        return values

    @property
    def size(self) -> int:
        return len(self.all_values)

    def natural(self, u: Tensor) -> Tensor:
        return (u * self.size).floor().clamp(0, self.size - 1)

    def unit(self, x: Tensor) -> Tensor:
        return quotient(x + 0.5, self.size)

    def value(self, number: float) -> Value:
        return own(self.all_values[int(number)])

    def number(self, value: Value) -> float:
        found = self._numbers.get(json_text(value))
        if found is None:
            raise SettingError("value", f"must be one of {', '.join(map(repr, self.all_values))}, got {value!r}")
        return found

    @cached_property
    def _numbers(self) -> dict[str | None, float]:
        return {json_text(value): float(i) for i, value in enumerate(self.all_values)}


@dataclass(frozen=True, repr=False)
class Categorical(_OneOf):
    """One of several values without an order.

    Args:
        choices: At least two different values that JSON can write. Tuples are allowed; a tuple equals a list of the
            same values.
        when: The condition under which the parameter is active, see `Space`.

    Raises:
        SettingError: There are fewer than two choices, two are equal, or JSON cannot write one.

    Example:
        >>> from dpfbo import Categorical
        >>> Categorical(["linear", "rbf"]).value(1)
        'rbf'
        >>> Categorical([(64,), (64, 64)]).number([64, 64])
        1.0
    """

    choices: Sequence[Value] = field(hash=False)

    _field: ClassVar[str] = "choices"

    @property
    def columns(self) -> int:
        return self.size


@dataclass(frozen=True, repr=False)
class Ordinal(_OneOf):
    """One of several ordered values; consecutive values are assumed to be similar.

    Args:
        values: At least two different values that JSON can write, in their order.
        when: The condition under which the parameter is active, see `Space`.

    Raises:
        SettingError: There are fewer than two values, two are equal, or JSON cannot write one.

    Example:
        >>> from dpfbo import Ordinal
        >>> Ordinal(["small", "medium", "large"]).number("large")
        2.0
    """

    values: Sequence[Value] = field(hash=False)

    _field: ClassVar[str] = "values"
