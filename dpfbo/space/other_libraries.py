"""Conversion of search spaces from Optuna and ConfigSpace, and to Optuna."""

from collections.abc import Mapping
from typing import Any

from dpfbo import checks
from dpfbo.checks import SettingError
from dpfbo.extras import needing
from dpfbo.space.axes import Categorical, Float, Integer, Ordinal
from dpfbo.space.json_values import Value

Descriptions = dict[str, Any]  # descriptions of parameters by name, as in a YAML file


def parameters_of_optuna(distributions: Mapping[str, Any]) -> Descriptions:
    """Describe Optuna's distributions as parameters."""
    with needing("optuna", "a space of Optuna"):
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if not isinstance(distributions, Mapping):
        raise SettingError("distributions", f"must map names to distributions, got {checks.shown(distributions)}")
    found: Descriptions = {}
    for name, d in distributions.items():
        if isinstance(d, CategoricalDistribution):
            found[name] = _one_of("categorical", "choices", d.choices)
        elif isinstance(d, FloatDistribution | IntDistribution):
            word = "float" if isinstance(d, FloatDistribution) else "integer"
            bounds = {"type": word, "lower": d.low, "upper": d.high, "log": d.log, "step": d.step}
            found[name] = {"type": "fixed", "constant": d.low} if d.low == d.high else bounds
        else:
            rule = "must be a FloatDistribution, an IntDistribution or a CategoricalDistribution"
            raise SettingError(f"distributions.{name}", f"{rule}, got {checks.shown(d)}")
    return found


def optuna_distributions(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Convert parameters to Optuna's distributions."""
    with needing("optuna", "a space of Optuna"):
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    found: dict[str, Any] = {}
    for name, p in parameters.items():
        if p.when is not None:
            rule = "cannot be given to Optuna, whose distributions have no conditions: state them in the objective"
            raise SettingError(f"space.{name}.when", rule)
        if isinstance(p, Float | Integer):
            kind: Any = FloatDistribution if isinstance(p, Float) else IntDistribution
            step = {} if p.step is None else {"step": p.step}
            found[name] = kind(p.lower, p.largest, p.log, **step)
        else:
            found[name] = CategoricalDistribution(
                p.all_values if isinstance(p, Categorical | Ordinal) else (p.constant,)
            )
    return found


def parameters_of_configspace(space: Any) -> Descriptions:
    """Describe the parameters of a ConfigSpace."""
    with needing("configspace", "a space of ConfigSpace"):
        from ConfigSpace import ConfigurationSpace

    if not isinstance(space, ConfigurationSpace):
        rule = f"must be a ConfigSpace.ConfigurationSpace, got {checks.shown(space)}"
        raise SettingError("configuration_space", rule)
    if space.forbidden_clauses:
        rule = f"must have no forbidden clauses, got {checks.shown(space.forbidden_clauses[0])}"
        raise SettingError("configuration_space", rule)
    found = {name: _of_configspace(name, parameter) for name, parameter in space.items()}
    for condition in space.conditions:
        for child, parent, values in _conditions(condition):
            when = found[child].setdefault("when", {})
            when[parent] = [value for value in when.get(parent, values) if value in values]
    return found


def _of_configspace(name: str, p: Any) -> dict[str, Any]:
    import ConfigSpace

    if isinstance(p, ConfigSpace.Constant):
        return {"type": "fixed", "constant": p.value}
    if isinstance(p, ConfigSpace.UniformFloatHyperparameter):
        return {"type": "float", "lower": float(p.lower), "upper": float(p.upper), "log": p.log}
    if isinstance(p, ConfigSpace.UniformIntegerHyperparameter):
        return {"type": "integer", "lower": int(p.lower), "upper": int(p.upper), "log": p.log}
    if isinstance(p, ConfigSpace.OrdinalHyperparameter):
        return _one_of("ordinal", "values", p.sequence)
    if isinstance(p, ConfigSpace.CategoricalHyperparameter) and len(set(p.probabilities)) == 1:
        return _one_of("categorical", "choices", p.choices)
    rule = "must be uniform, ordinal, constant, or categorical without weights, as dpfbo has no priors of parameters"
    raise SettingError(f"configuration_space.{name}", f"{rule}; got {checks.shown(p)}")


def _one_of(kind: str, key: str, values: Any) -> dict[str, Any]:
    if len(values) == 1:
        return {"type": "fixed", "constant": values[0]}
    return {"type": kind, key: list(values)}


def _conditions(condition: Any) -> list[tuple[str, str, list[Value]]]:
    """Split a condition into parts (child, parent, allowed values of the parent) that must all hold."""
    import ConfigSpace

    if isinstance(condition, ConfigSpace.AndConjunction):
        return [part for component in condition.components for part in _conditions(component)]
    if isinstance(condition, ConfigSpace.EqualsCondition):
        return [(condition.child.name, condition.parent.name, [condition.value])]
    if isinstance(condition, ConfigSpace.InCondition):
        return [(condition.child.name, condition.parent.name, list(condition.values))]
    rule = "must only have conditions that are an EqualsCondition, InCondition or AndConjunction"
    raise SettingError("configuration_space", f"{rule}, got {checks.shown(condition)}")
