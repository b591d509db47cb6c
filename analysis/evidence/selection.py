"""Selection of the runs that a claim is about, and grouping of these runs by independent unit (function or seed)."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from analysis.load import Run

PUBLISHED = Path(__file__).parents[1] / "published"
_METRICS = {
    "simple_regret": "regret",
    "one_minus_auc": "1 − AUC",
    "one_minus_r2": "1 − R²",
    "validation_error": "validation error",
    "nmse": "normalised MSE",
}
_ABSENT = object()


class NotRun(Exception):
    """A setting, named by the message, has no finished run."""


class Unclear(Exception):
    """The runs do not decide a claim, for the reason in the message."""


@cache
def published_yaml(name: str) -> Any:
    """Return the content of a YAML file in analysis/published."""
    return yaml.load((PUBLISHED / name).read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))


@dataclass(frozen=True)
class Case:
    """The problem, the number of agents N, the rounds T and the metric of the runs that a claim is about.

    problem: name of the problem; a name that ends with `_`, such as `digits_`, includes every problem whose name begins
    with it. variant: required values of the problem's parameters. longest: each run has at least T and at most
    `longest` rounds; None means exactly T rounds. Curves are cut off after round T. margin: a relative difference, such
    as 0.05 for 5 %; two settings count as level if their values of the metric differ by less.
    """

    problem: str
    N: int
    T: int
    metric: str
    variant: tuple[tuple[str, Any], ...] = ()
    longest: int | None = None
    margin: float = 0.05

    def __post_init__(self) -> None:
        if self.metric not in _METRICS:
            raise ValueError(f"metric must be one of {', '.join(_METRICS)}, got {self.metric!r}")

    @staticmethod
    def named(name: str) -> "Case":
        """Return the case of this name in `published/settings.yaml`."""
        known = published_yaml("settings.yaml")["cases"][name]
        return Case(**{**known, "variant": tuple(known.get("variant", {}).items())})

    @property
    def metric_in_words(self) -> str:
        return _METRICS[self.metric]

    def __str__(self) -> str:
        return ", ".join([f"N = {self.N}", f"T = {self.T}", *(f"{key} = {value}" for key, value in self.variant)])

    def __contains__(self, run: Run) -> bool:
        s, problem = run.summary, str(run.summary.get("problem"))
        named = problem.startswith(self.problem) if self.problem.endswith("_") else problem == self.problem
        return (
            named
            and self.T <= s["rounds"] <= (self.longest or self.T)
            and (s.get("n_agents"), s.get("metric"), s.get("lower_is_better")) == (self.N, self.metric, True)
            and all(_alike(_value(run.config, f"problem.{key}"), value) for key, value in self.variant)
        )

    def among(self, runs: Sequence[Run]) -> list[Run]:
        """Return the runs of this case, with their curves cut off after round T."""
        return [
            replace(run, summary=run.summary | {"curve": {"mean": run.curve[: self.T + 1]}})
            for run in runs
            if run in self
        ]


@dataclass(frozen=True)
class SettingFilter:
    """A filter that selects the runs of a setting by values of its configuration.

    words: name of the setting. keys: required values, by dotted name. free: keys that may have any value. Every other
    key that the run has must have its default value, which comes from the paper or from the problem's preset. A key
    without a default may have any value, and so may the privacy keys of a run that is not private.
    """

    words: str = field(compare=False)
    keys: tuple[tuple[str, Any], ...]
    free: tuple[str, ...] = ()

    @staticmethod
    @cache
    def of(text: str) -> "SettingFilter":
        """Parse a text such as `dp P=2 q=0.25 z=1`. Raises ValueError unless settings.yaml defines its parts."""
        known = published_yaml("settings.yaml")
        name, *parts = text.split()
        kind = _entry(known["kinds"], name, text)
        options, keys, words = known["options"] | kind.get("options", {}), dict(kind["keys"]), kind["words"]
        for part in parts:
            name, _, given = part.partition("=")
            option, value = _entry(options, name, text), yaml.safe_load(given)
            keys |= {key: value if wanted == "$" else wanted for key, wanted in option["keys"].items()}
            words += option.get("words", "").format(value)
            if name == "P" and value > 1:
                words += f"{kind.get('regions', '')}, P = {value}"
        fixed = {key: tuple(value) if isinstance(value, list) else value for key, value in keys.items()}
        return SettingFilter(words, tuple(sorted(fixed.items())), tuple(kind.get("any", ())))

    def matches(self, run: Run) -> bool:
        given, config = dict(self.keys), run.config
        if not all(_alike(_value(config, key), wanted) for key, wanted in given.items()):
            return False
        private = _value(config, "algorithm.private") is True
        for key, wanted in _defaults(config).items():
            found = _value(config, key)
            idle = key.startswith("privacy.") and not private
            if key in given or key in self.free or idle or _ABSENT in (found, wanted):
                continue
            if not _alike(found, wanted):
                return False
        return True

    def among(self, runs: Sequence[Run]) -> list[Run]:
        """Return the matching runs. Raises NotRun if there are none, Unclear if they have several settings."""
        found = [run for run in runs if self.matches(run)]
        if not found:
            raise NotRun(self.words)
        if len(names := sorted({run.setting for run in found})) > 1:
            number = "two" if len(names) == 2 else str(len(names))
            raise Unclear(f"{number} settings could be meant: {', '.join(names)} are all {self.words}")
        return found


def _entry(known: dict[str, Any], name: str, text: str) -> Any:
    if name not in known:
        raise ValueError(f"setting {text!r} must name some of {', '.join(known)}, got {name!r}")
    return known[name]


def blind_server(kind: str, text: str) -> SettingFilter:
    """Return the filter for a setting's control: runs with a server that sends random or Sobol points, for comparison.

    kind: `random_server` or `sobol_server`. text: the setting, such as `dp P=2 q=0.25`. The control has those options
    of the setting that also apply to such a server.
    """
    shared = published_yaml("settings.yaml")["blind_options"]
    options = " ".join(part for part in text.split() if part.partition("=")[0] in shared)
    return SettingFilter.of(f"{kind} {options}")


@dataclass(frozen=True)
class Measure:
    """A number computed from a run, by which settings are compared.

    words: description, with fields {metric} and {T}. ratio: True for positive numbers that are compared by their ratio.
    """

    words: str
    of: Callable[[Run], float] = field(compare=False)
    ratio: bool = False

    def by_unit(self, runs: Sequence[Run]) -> dict[int, float]:
        """Return the mean value of this measure for each independent unit (a function or a seed).

        The mean is over all runs of the unit. If `ratio` is set, the logarithm of the mean is returned instead. The
        keys of the result are the seeds of the functions or of the runs. Raises Unclear if a run has no finite value of
        this measure, or if `ratio` is set and a mean is not positive.
        """
        grouped: dict[int, list[float]] = {}
        for run in runs:
            grouped.setdefault(unit(run), []).append(self._number(run))
        means = {key: float(np.mean(values)) for key, values in grouped.items()}
        if not self.ratio:
            return means
        if min(means.values()) <= 0:
            raise Unclear(f"a cost of {min(means.values()):g}, which has no ratio to others")
        return {key: math.log(mean) for key, mean in means.items()}

    def _number(self, run: Run) -> float:
        try:
            value = float(self.of(run))
        except (KeyError, IndexError, TypeError, ZeroDivisionError):
            value = math.nan
        if not math.isfinite(value):
            raise Unclear(f"a run lacks the compared number: {run.setting}, seed {run.seed}")
        return value


def _optimiser_seconds(run: Run) -> float:
    s = run.summary
    return (s["seconds"]["total"] - s["seconds"]["objective"]) / (s["n_agents"] * s["rounds"])


MEASURES = {
    "overall": Measure("mean {metric} over rounds 1 to {T}", lambda run: float(np.mean(run.curve[1:]))),
    "late": Measure(
        "mean {metric} over the second half of {T} rounds", lambda run: float(np.mean(run.curve[len(run.curve) // 2 :]))
    ),
    "last": Measure("{metric} after round {T}", lambda run: run.curve[-1]),
    "clipped": Measure("clipped messages in % of the chosen ones", lambda run: 100 * run.summary["clip_fraction"]),
    "seconds": Measure("seconds per query without the objective's own, on this machine", _optimiser_seconds, True),
}


def at(t: int) -> Measure:
    """Return the measure of the metric after round t."""
    return Measure(f"{{metric}} after round {t}", lambda run: run.curve[t])


def unit(run: Run) -> int:
    """Return the seed that identifies a run's independent unit.

    If the run's problem draws a random function, the seed is that of the function. Otherwise, it is the run's seed.
    """
    seed = run.config["problem"].get("function_seed")
    return run.seed if seed is None else int(seed)


def units_in_words(n: int, runs: Sequence[Run]) -> str:
    """Return n units in words, such as `20 functions` or `5 seeds, same data`."""
    if runs[0].config["problem"].get("function_seed") is not None:
        return f"{n} function{'s' * (n != 1)}"
    if n > 1 and all(run.own_sample for run in runs):
        return f"{n} samples of one file"
    return f"{n} seed{'s' * (n != 1)}, same data"


def _defaults(config: dict[str, Any]) -> dict[str, Any]:
    """Return default values by dotted name, from the paper and the problem's preset.

    If the preset should give a value but lacks it, the value is `_ABSENT`.
    """
    known, preset = published_yaml("settings.yaml"), _value(config, "problem.preset")
    P, S = _value(config, "algorithm.P"), _value(preset, "S")
    by_P = S.get(P, S.get("default", _ABSENT)) if isinstance(S, dict) else _ABSENT
    return known["paper"] | {key: _value(preset, name) for key, name in known["preset"].items()} | {"privacy.S": by_P}


def _value(node: Any, dotted: str) -> Any:
    for part in dotted.split("."):
        if not isinstance(node, dict) or part not in node:
            return _ABSENT
        node = node[part]
    return node


def _alike(found: Any, wanted: Any) -> bool:
    """Compare two values; numbers are alike if they agree to four digits."""
    if isinstance(wanted, float | int) and isinstance(found, float | int):
        return math.isclose(found, wanted, rel_tol=1e-4)
    found = tuple(found) if isinstance(found, list) else found
    return found is not _ABSENT and bool(found == wanted)
