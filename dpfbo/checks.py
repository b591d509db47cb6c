"""Validation of public settings; an error is one sentence with the name, the rule and the value."""

import difflib
import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from numbers import Integral, Real
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_R = TypeVar("_R")

LARGEST = sys.float_info.max  # a larger integer is infinite in float64
LARGEST_INTEGER = 2**63 - 1  # of int64
LARGEST_VALUE = 1e100  # of an objective, so that squares of values, and their sums, are finite
MOST_AGENTS, MOST_ROUNDS, MOST_INITIAL = 10**7, 10**5, 10**4  # the last: initial points of an agent
MOST_DIFFERENT_ROUNDS = 1000  # rounds with different noise or weights, which accountants analyse one by one
MOST_FEATURES = 10**6  # random features
MOST_WORKERS = 1024  # threads, or processes, of one machine
_SHOWN = 100  # the maximum length of a value in an error, in characters


class SettingError(ValueError):
    """A setting breaks a rule.

    Attributes:
        name: The setting's name in the library. A caller may raise the error again with the name that its users know.
        rule: The rule, and the value that breaks it.

    Example:
        >>> str(SettingError("sampling_probability", "must lie in (0, 1], got 1.4"))
        'sampling_probability must lie in (0, 1], got 1.4'
    """

    def __init__(self, name: str, rule: str) -> None:
        super().__init__(name, rule)
        self.name, self.rule = name, rule

    def __str__(self) -> str:
        return f"{self.name} {self.rule}"


def integer(name: str, value: object, minimum: int, maximum: int = LARGEST_INTEGER) -> None:
    """Raise SettingError unless `value` is an integer from `minimum` to `maximum`."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < minimum:
        raise SettingError(name, f"must be an integer of at least {minimum}, got {shown(value)}")
    if value > maximum:  # type: ignore[operator]
        raise SettingError(name, f"must be at most {maximum}, got {shown(value)}")


def workers(name: str, value: object) -> None:
    """Raise SettingError unless `value` is a number of processes, or -1 for one process per CPU."""
    if value != -1:
        integer(name, value, minimum=1, maximum=MOST_WORKERS)


def _number(rule: str, holds: Callable[[float], bool]) -> Callable[[str, object], None]:
    """Return a function of name and value that raises SettingError unless `holds(value)`."""

    def check(name: str, value: object) -> None:
        if isinstance(value, bool) or not isinstance(value, Real) or not holds(value):  # type: ignore[arg-type]
            raise SettingError(name, f"must {rule}, got {shown(value)}")

    return check


probability = _number("lie in (0, 1]", lambda value: 0 < value <= 1)
momentum = _number("lie in [0, 1)", lambda value: 0 <= value < 1)
real = _number("be a finite number", lambda value: -LARGEST <= value <= LARGEST)
positive = _number("be a finite number above 0", lambda value: 0 < value <= LARGEST)
non_negative = _number("be a finite number of at least 0", lambda value: 0 <= value <= LARGEST)


def one_of(name: str, value: object, allowed: Iterable[object]) -> None:
    """Raise SettingError unless `value` is one of `allowed`; the error names the most similar one."""
    allowed = list(allowed)
    if value not in allowed:
        hint = nearest(value, map(str, allowed)) if isinstance(value, str) else ""
        raise SettingError(name, f"must be one of {', '.join(map(repr, allowed))}, got {shown(value)}{hint}")


def nearest(word: str, known: Iterable[str]) -> str:
    """Return a hint about an unknown word, such as ` (did you mean 'fts_de'?)`; empty if no known word is similar."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def explaining_arguments(elsewhere: Mapping[str, str]) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Return a decorator; the decorated function raises a TypeError with a hint for an unknown keyword argument.

    elsewhere: maps unknown names to what the user should give instead. For any other name, the hint is the most similar
    argument, if there is one.
    """

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        known = inspect.signature(function).parameters

        @functools.wraps(function)
        def explained(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            for name in kwargs:
                if name not in known:
                    hint = f": give {elsewhere[name]}" if name in elsewhere else nearest(name, known)
                    raise TypeError(f"{function.__name__} has no argument {name!r}{hint}")
            return function(*args, **kwargs)

        return explained

    return decorate


def shown(value: object) -> str:
    """Return a text that shows the value in an error message.

    The text is the `repr` of the value, truncated if it is long. If `repr` fails, the text names the value's type.
    """
    try:
        text = repr(value)
    except Exception:  # from a user's object, or from an integer with too many digits
        return f"a value of type {type(value).__name__}"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}.."
