"""Named parameters: a `Space` maps configurations, dicts by name, to points of a search domain and back."""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from dpfbo import checks
from dpfbo.checks import SettingError
from dpfbo.space.axes import PLAIN, Categorical, Float, Integer, Ordinal, Value
from dpfbo.space.domain import Box
from dpfbo.space.mixed import MixedBox

_CONDITIONS = ("condition", "conditions", "when", "parent", "active_if")


@dataclass(frozen=True)
class Fixed:
    """A parameter with one value, which the objective receives. It adds no axis to the search space.

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
        if not isinstance(self.constant, PLAIN):
            raise SettingError("constant", f"must be a number, a string, a boolean or null, got {self.constant!r}")


Searched = Float | Integer | Categorical | Ordinal
Parameter = Searched | Fixed
_KINDS: dict[str, type[Any]] = {
    "float": Float, "integer": Integer, "categorical": Categorical, "ordinal": Ordinal, "fixed": Fixed,
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Space:
    """Defines a search space of named parameters. A configuration is a dict with the value of every parameter.

    Args:
        parameters: The parameters by name. A parameter can also be given as its description in a YAML file, such as
            `{type: float, lower: 1e-4, upper: 1, log: true}`, `{type: integer, ..}`, `{type: categorical, choices:
            [..]}` or `{type: ordinal, values: [..]}`; a fixed parameter, as a plain value.

    Raises:
        SettingError: A parameter is wrong (the error names it), or all parameters are fixed.

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
    if isinstance(given, PLAIN):
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
