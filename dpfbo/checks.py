"""Validation of public settings: one sentence with the name, the rule and the value."""

import sys
from collections.abc import Iterable
from numbers import Integral, Real

LARGEST = sys.float_info.max  # a larger integer is no finite number of 64 bits


class SettingError(ValueError):
    """A setting that breaks a rule: `<name> <rule>`, as in `sampling_probability must lie in (0, 1], got 1.4`.

    name: the library's name of the setting; a caller can replace it by its own, such as a key of a configuration.
    """

    def __init__(self, name: str, rule: str) -> None:
        super().__init__(name, rule)
        self.name, self.rule = name, rule

    def __str__(self) -> str:
        return f"{self.name} {self.rule}"


def integer(name: str, value: object, minimum: int) -> None:
    """Raise SettingError unless `value` is an integer of at least `minimum`."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < minimum:
        raise SettingError(name, f"must be an integer of at least {minimum}, got {value!r}")


def probability(name: str, value: object) -> None:
    """Raise SettingError unless `value` lies in (0, 1]."""
    if not _is_real(value) or not 0 < value <= 1:  # type: ignore[operator]
        raise SettingError(name, f"must lie in (0, 1], got {value!r}")


def real(name: str, value: object) -> None:
    """Raise SettingError unless `value` is a finite number."""
    if not _is_real(value) or not -LARGEST <= value <= LARGEST:  # type: ignore[operator]
        raise SettingError(name, f"must be a finite number, got {value!r}")


def positive(name: str, value: object) -> None:
    """Raise SettingError unless `value` is a finite number above 0."""
    if not _is_real(value) or not 0 < value <= LARGEST:  # type: ignore[operator]
        raise SettingError(name, f"must be a finite number above 0, got {value!r}")


def non_negative(name: str, value: object) -> None:
    """Raise SettingError unless `value` is a finite number of at least 0."""
    if not _is_real(value) or not 0 <= value <= LARGEST:  # type: ignore[operator]
        raise SettingError(name, f"must be a finite number of at least 0, got {value!r}")


def momentum(name: str, value: object) -> None:
    """Raise SettingError unless `value` lies in [0, 1)."""
    if not _is_real(value) or not 0 <= value < 1:  # type: ignore[operator]
        raise SettingError(name, f"must lie in [0, 1), got {value!r}")


def one_of(name: str, value: object, allowed: Iterable[object]) -> None:
    """Raise SettingError unless `value` is one of `allowed`."""
    allowed = list(allowed)
    if value not in allowed:
        raise SettingError(name, f"must be one of {', '.join(map(str, allowed))}, got {value!r}")


def _is_real(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
