"""Search spaces of named parameters."""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from dpfbo import checks
from dpfbo.checks import SettingError
from dpfbo.space.axes import Categorical, Float, Integer, Ordinal
from dpfbo.space.conditions import Condition, Conditional, Requirements, named_fields, ordered_fields, requirements
from dpfbo.space.domain import Box
from dpfbo.space.json_values import KINDS, PLAIN, Value, json_text, own
from dpfbo.space.mixed import MixedBox

_CONDITIONS = ("condition", "conditions", "parent", "active_if")  # the names of `when` in other libraries


@dataclass(frozen=True, repr=False)
class Fixed(Conditional):
    """A parameter with one value, which the objective receives. It adds no axis to the search space.

    Args:
        constant: A value that JSON can write.
        when: The condition under which the parameter is active, see `Space`.

    Raises:
        SettingError: JSON cannot write the constant.

    Example:
        >>> from dpfbo import Fixed, Float, Space
        >>> list(Space({"rate": Float(0, 1), "epochs": Fixed(20)}).axes)
        ['rate']
    """

    constant: Value = field(hash=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if json_text(self.constant) is None:
            raise SettingError("constant", f"must be one of {KINDS}, got {checks.shown(self.constant)}")
        object.__setattr__(self, "constant", own(self.constant))


Searched = Float | Integer | Categorical | Ordinal
Parameter = Searched | Fixed
_KINDS: dict[str, type[Any]] = {
    "float": Float, "integer": Integer, "categorical": Categorical, "ordinal": Ordinal, "fixed": Fixed,
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Space:
    """A search space of named parameters. A configuration is a dict with the value of every active parameter.

    A parameter with `when={"depth": [2, 3], "kernel": "rbf"}` is active only where `depth` is 2 or 3, `kernel` is
    "rbf", and both are active themselves. A list in `when` contains the allowed values. If the only allowed value is
    itself a list, such as `[2, 3]`, write `[[2, 3]]`. A condition may name categorical, ordinal and integer parameters.
    A configuration leaves inactive parameters out. In the point of a configuration, the coordinate of an inactive
    parameter is the middle of the parameter's axis.

    Args:
        parameters: The parameters by name. A plain value stands for a fixed parameter. Every parameter can be given as
            a dict, as in YAML, such as `{type: float, lower: 1e-4, upper: 1, log: true}`.

    Raises:
        SettingError: A parameter or a condition is wrong, or all parameters are fixed.

    Example:
        >>> from dpfbo import Categorical, Integer, Space
        >>> space = Space({"depth": Integer(1, 12), "kernel": Categorical(["linear", "rbf"]), "epochs": 20})
        >>> space.domain.dimension
        2
        >>> space.configuration([4, 1])
        {'depth': 4, 'kernel': 'rbf', 'epochs': 20}
        >>> space.natural({"depth": 4, "kernel": "rbf"}).tolist()
        [4.0, 1.0]
        >>> kernel, degree = Categorical(["linear", "poly"]), Integer(2, 4, when={"kernel": "poly"})
        >>> space = Space({"kernel": kernel, "degree": degree})
        >>> space.configuration([1, 4]), space.configuration([0, 4])
        ({'kernel': 'poly', 'degree': 4}, {'kernel': 'linear'})
        >>> space.natural({"kernel": "linear"}).tolist()
        [0.0, 3.0]
    """

    parameters: Mapping[str, Parameter]

    def __post_init__(self) -> None:
        if not isinstance(self.parameters, Mapping):
            raise SettingError("space", f"must map names to parameters, got {self.parameters!r}")
        made = {name: _parameter(name, given) for name, given in self.parameters.items()}
        object.__setattr__(self, "parameters", made)
        if not self.axes:
            raise SettingError("space", f"must have a parameter that is not fixed, got {list(made)}")
        self._requirements  # noqa: B018  (raises for a wrong condition)

    def __eq__(self, other: object) -> bool:  # the order of the parameters matters to points
        return isinstance(other, Space) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))

    @cached_property
    def domain(self) -> MixedBox | Box:
        """The domain, with one axis for each parameter that is not fixed.

        The domain is a `Box` if all axes are floats on a linear scale, without steps or conditions.
        """
        linear = [axis for axis in self.axes.values() if isinstance(axis, Float) and not axis.log and axis.size is None]
        index = {name: i for i, name in enumerate(self.axes)}
        conditions = tuple(
            Condition(index[name], index[parent], numbers)
            for name, required in self._requirements.items()
            for parent, numbers in required.items()
            if name in index
        )
        if len(linear) == len(self.axes) and not conditions:
            return Box(tuple(float(a.lower) for a in linear), tuple(float(a.upper) for a in linear))
        return MixedBox(tuple(self.axes.values()), conditions)

    @cached_property
    def _requirements(self) -> dict[str, Requirements]:
        return requirements(self.parameters, (Categorical, Ordinal, Integer))

    def _unmet(self, name: str, numbers: Mapping[str, float]) -> str | None:
        """Return a parameter whose value makes `name` inactive; None if `name` is active. numbers: in natural units."""
        required = self._requirements[name].items()
        return next((parent for parent, allowed in required if numbers[parent] not in allowed), None)

    def configuration(self, x: Tensor | Sequence[float]) -> dict[str, Value]:
        """Return the active parameters' values by name. x: a point, D numbers in natural units."""
        values = {name: axis.value(float(v)) for (name, axis), v in zip(self.axes.items(), x, strict=True)}
        deciding = {parent for required in self._requirements.values() for parent in required}
        numbers = {name: self.axes[name].number(values[name]) for name in deciding}
        active = {name: p for name, p in self.parameters.items() if self._unmet(name, numbers) is None}
        return {name: own(p.constant) if isinstance(p, Fixed) else values[name] for name, p in active.items()}

    def natural(self, configuration: Mapping[str, Value]) -> Tensor:
        """Return the point of a configuration, D numbers in natural units.

        Fixed parameters may be left out of the configuration, and inactive ones must be left out. On the axis of an
        inactive parameter, the point lies in the middle.

        Raises:
            SettingError: A value is missing, outside the space, or given for an inactive parameter.
        """
        for name in configuration:
            checks.one_of("the configuration's parameter", name, self.parameters)
        numbers: dict[str, float] = {}
        for name in sorted(self.parameters, key=lambda name: len(self._requirements[name])):  # parents come first
            p, unmet = self.parameters[name], self._unmet(name, numbers)
            if unmet is not None and name in configuration:
                value = self.axes[unmet].value(numbers[unmet])
                rule = f"must be left out where {unmet} is {value!r}, got {checks.shown(configuration[name])}"
                raise SettingError(name, rule)
            if isinstance(p, Fixed):
                given = configuration.get(name, p.constant)
                if given != p.constant and json_text(given) != json_text(p.constant):
                    raise SettingError(name, f"is fixed at {p.constant!r}, got {given!r}")
            elif unmet is not None:
                numbers[name] = float(p.natural(torch.tensor(0.5, dtype=torch.float64, device="cpu")))
            elif name not in configuration:
                raise SettingError(name, "must be in the configuration")
            else:
                try:
                    numbers[name] = p.number(configuration[name])
                except SettingError as error:
                    raise SettingError(name, error.rule) from error
        return torch.tensor([numbers[name] for name in self.axes], dtype=torch.float64, device="cpu")

    def to_dict(self) -> dict[str, Any]:
        """Return plain data from which `Space` makes an equal space.

        Tuples among the values become lists if the data are written as JSON.
        """
        kinds = {kind: name for name, kind in _KINDS.items()}
        return {
            name: {"type": kinds[type(p)], **{f.name: own(getattr(p, f.name)) for f in named_fields(p)}}
            for name, p in self.parameters.items()
        }

    @staticmethod
    def from_optuna(distributions: Mapping[str, Any]) -> "Space":
        """Make a space from Optuna's distributions.

        A distribution with a single value becomes a fixed parameter.

        Args:
            distributions: A mapping from names to `FloatDistribution`, `IntDistribution` or `CategoricalDistribution`
                objects, such as `optuna.trial.FrozenTrial.distributions`.

        Raises:
            SettingError: A distribution is of another class, or JSON cannot write a choice.
            MissingPackage: Optuna is not installed.

        Example:
            >>> from optuna.distributions import IntDistribution
            >>> from dpfbo import Space
            >>> Space.from_optuna({"units": IntDistribution(16, 64, step=16)})
            Space(parameters={'units': Integer(lower=16, upper=64, log=False, step=16)})
        """
        from dpfbo.space import other_libraries  # each of its libraries is optional

        return Space(other_libraries.parameters_of_optuna(distributions))

    def to_optuna(self) -> dict[str, Any]:
        """Return the parameters as Optuna's distributions, by name, for `study.ask` or `create_trial`.

        Ordinal and fixed parameters become a `CategoricalDistribution`, which has no order.

        Raises:
            SettingError: The space has conditions, which Optuna's distributions cannot state.
            MissingPackage: Optuna is not installed.

        Example:
            >>> from dpfbo import Float, Space
            >>> Space({"rate": Float(0, 1, step=0.3)}).to_optuna()
            {'rate': FloatDistribution(high=0.9, log=False, low=0.0, step=0.3)}
        """
        from dpfbo.space import other_libraries

        return other_libraries.optuna_distributions(self.parameters)

    @staticmethod
    def from_configspace(configuration_space: Any) -> "Space":
        """Make a space from a `ConfigSpace.ConfigurationSpace`, with its conditions but without default values.

        Args:
            configuration_space: A space of uniform floats and integers, categorical and ordinal parameters, and
                constants. A condition may be an `EqualsCondition`, an `InCondition` or an `AndConjunction` of these.

        Returns:
            The space, with the parameters in ConfigSpace's order.

        Raises:
            SettingError: The space has forbidden clauses, another kind of condition, or a parameter with a non-uniform
                prior.
            MissingPackage: ConfigSpace is not installed.

        Example:
            >>> from ConfigSpace import ConfigurationSpace
            >>> from dpfbo import Space
            >>> Space.from_configspace(ConfigurationSpace({"depth": (1, 12), "jobs": 4}))
            Space(parameters={'depth': Integer(lower=1, upper=12, log=False), 'jobs': Fixed(constant=4)})
        """
        from dpfbo.space import other_libraries

        return Space(other_libraries.parameters_of_configspace(configuration_space))

    @cached_property
    def axes(self) -> dict[str, Searched]:
        """The parameters that are not fixed, by name; they are the axes of the domain."""
        return {name: p for name, p in self.parameters.items() if not isinstance(p, Fixed)}


def _parameter(name: str, given: object) -> Parameter:
    if not isinstance(name, str) or not name:
        raise SettingError("space", f"must have names that are not empty, got {name!r}")
    if isinstance(given, Parameter):
        return given
    if isinstance(given, PLAIN):
        return Fixed(given)
    if not isinstance(given, Mapping):
        rule = f"must be a parameter, such as Float(0, 1) or {{type: float, lower: 0, upper: 1}}, got {given!r}"
        raise SettingError(f"space.{name}", rule)
    for key in given:
        if key in _CONDITIONS:
            raise SettingError(f"space.{name}.{key}", "is unknown: a condition reads `when: {PARAMETER: VALUE}`")
    settings = dict(given)
    word = settings.pop("type", None)
    checks.one_of(f"space.{name}.type", word, _KINDS)
    kind = _KINDS[str(word)]
    known = {f.name: f.default is MISSING for f in ordered_fields(kind)}
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
