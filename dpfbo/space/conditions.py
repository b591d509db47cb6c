"""Conditions under which a parameter is active: other parameters must have certain values."""

from collections.abc import Iterable, Mapping
from dataclasses import Field, dataclass, field, fields
from graphlib import CycleError, TopologicalSorter
from typing import Any

from dpfbo import checks
from dpfbo.checks import SettingError
from dpfbo.space.json_values import Value, own

Requirements = dict[str, tuple[float, ...]]  # maps names of parameters to the numbers of their allowed values


@dataclass(frozen=True, repr=False)
class Conditional:
    """A parameter that is active only if every parameter named in `when` has one of the values given there."""

    when: Mapping[str, Value] | None = field(default=None, kw_only=True, hash=False, metadata={"named": "if given"})

    def __post_init__(self) -> None:
        if self.when is None:
            return
        if not isinstance(self.when, Mapping) or not self.when:
            rule = f"must map a parameter's name to one value or a list of values, got {checks.shown(self.when)}"
            raise SettingError("when", rule)
        listed = {name: value if isinstance(value, list | tuple) else (value,) for name, value in self.when.items()}
        for name, values in listed.items():
            if not values:
                raise SettingError(f"when.{name}", "must hold at least one value, got none")
        object.__setattr__(self, "when", {name: tuple(map(own, values)) for name, values in listed.items()})

    def __repr__(self) -> str:
        values = (f"{f.name}={getattr(self, f.name)!r}" for f in named_fields(self))
        return f"{type(self).__name__}({', '.join(values)})"


def named_fields(parameter: Conditional) -> list[Field[Any]]:
    """Return the fields that describe a parameter, without optional ones that have their default value."""
    found = ordered_fields(type(parameter))
    return [f for f in found if f.metadata.get("named") is None or getattr(parameter, f.name) != f.default]


def ordered_fields(kind: type[Conditional]) -> list[Field[Any]]:
    """Return a class's fields: first the positional ones, then the keyword-only ones, and `when` last."""
    return sorted(fields(kind), key=lambda f: (bool(f.kw_only), f.name == "when"))


@dataclass(frozen=True)
class Condition:
    """Axis `axis` of a domain is active only if axis `parent` has one of `numbers`, in natural units."""

    axis: int
    parent: int
    numbers: tuple[float, ...]


def requirements(parameters: Mapping[str, Any], deciding: tuple[type, ...]) -> dict[str, Requirements]:
    """Collect the conditions under which each parameter is active: its own `when`, and the conditions of its parents.

    The parents of a parameter are the parameters named in its `when`.

    Args:
        parameters: All parameters by name.
        deciding: The classes of parameters that a condition may name.

    Returns:
        For each parameter, a dict whose keys are the parameters on which this parameter depends. A parent's own parents
        come before the parent. Each key has a tuple of its allowed values, as numbers in natural units.

    Raises:
        SettingError: A `when` names a parameter that is missing or whose class is not in `deciding`; it gives a value
            that the named parameter does not have; the conditions form a circle; or they can never hold together.
    """
    for name, p in parameters.items():
        for parent in p.when or ():
            if not isinstance(parameters.get(parent), deciding):
                known = ", ".join(n for n, q in parameters.items() if isinstance(q, deciding)) or "none"
                rule = f"must name categorical, ordinal or integer parameters ({known}), got {parent!r}"
                raise SettingError(f"space.{name}.when", rule)
    order, found = TopologicalSorter({name: p.when or () for name, p in parameters.items()}), dict[str, Requirements]()
    try:
        order.prepare()
    except CycleError as error:
        circle = error.args[1][::-1]
        raise SettingError(f"space.{circle[0]}.when", f"must not form a circle, got {' -> '.join(circle)}") from None
    while ready := order.get_ready():
        for name in sorted(ready, key=list(parameters).index):
            found[name] = _required(name, parameters[name].when or {}, parameters, found)
        order.done(*ready)
    return found


def _required(
    name: str, when: Mapping[str, Iterable[Value]], parameters: Mapping[str, Any], found: Mapping[str, Requirements]
) -> Requirements:
    required: Requirements = {}
    for parent, values in when.items():
        try:
            numbers = tuple(parameters[parent].number(value) for value in values)
        except SettingError as error:
            raise SettingError(f"space.{name}.when.{parent}", error.rule) from error
        for other, allowed in {**found[parent], parent: numbers}.items():
            required[other] = tuple(number for number in required.get(other, allowed) if number in allowed)
            if not required[other]:
                rule = f"can never hold: no value of {other} meets the conditions of {name} and of its parents"
                raise SettingError(f"space.{name}.when", rule)
    return required
