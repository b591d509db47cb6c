"""Parse the command line of a sweep: seeds, overrides with several values, and the space of a search."""

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import hydra
from hydra.core.override_parser.types import IntervalSweep, Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from dpfbo import checks
from runners.compose.configuration import composing
from runners.compose.overrides import name_of
from runners.compose.settings import outside_setting
from runners.private_apis import parse_overrides

MAX_SEEDS = 100_000
SCALES = ("quick", "paper")
_DIGITS = 4  # significant digits of a number from an interval, so that labels stay short

# keys of the sweep as a whole, which have one value and do not appear in a setting's label
_SWEEP_KEYS = {"experiment", *outside_setting()} - {"seed", "seeds"}


class SweepError(HydraException):
    """The overrides do not describe a sweep; the message is one sentence."""


@dataclass(frozen=True)
class Interval:
    """The numbers from `low` to `high`: integers if both ends are integers; on a logarithmic scale if `log`."""

    low: float
    high: float
    log: bool

    @staticmethod
    def of(name: str, sweep: IntervalSweep) -> "Interval":
        """Create an Interval from a sweep: `interval(0, 1)`, `int(interval(1, 9))` or `tag(log, interval(1, 9))`.

        name: the key of the sweep, for the error message. Raises ValueError if the bounds are invalid.
        """
        low, high, log = sweep.start, sweep.end, "log" in sweep.tags
        ok = low is not None and high is not None and math.isfinite(high - low) and low < high
        if not ok or (log and low <= 0):  # type: ignore[operator]
            rule = "0 < low < high" if log else "low < high"
            raise ValueError(f"{name} must be an interval(low, high) with {rule}, got interval({low}, {high})")
        return Interval(low, high, log)  # type: ignore[arg-type]

    @property
    def whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)

    def word(self, number: float) -> str:
        """Return the rounded number as text for an override."""
        return str(round(number)) if self.whole else repr(self._inside(float(f"{number:.{_DIGITS}g}")))

    def draw(self, random: Random) -> str:
        if self.whole and not self.log:
            return str(random.randint(int(self.low), int(self.high)))
        low, high = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
        number = random.uniform(low, high)
        return self.word(self._inside(math.exp(number) if self.log else number))

    def number(self, word: str) -> float:
        return int(word) if self.whole else float(word)

    def __contains__(self, word: str) -> bool:
        try:
            return self.low <= self.number(word) <= self.high
        except ValueError:
            return False

    def _inside(self, number: float) -> float:
        return min(max(number, self.low), self.high)


Space = Mapping[str, Interval | tuple[str, ...]]  # for each key, an interval or the values as text


def composed_base(arguments: Sequence[str]) -> DictConfig:
    """Compose a configuration from the keys that hold for a whole sweep; call this within `composing`."""
    given = parsed([a for a in arguments if is_sweep_key(name_of(a))])
    return hydra.compose("config", [v for values in given.values() for v in values])


def base_of(arguments: Sequence[str]) -> DictConfig:
    """Compose a configuration from the keys that hold for a whole sweep."""
    with composing():
        return composed_base(arguments)


def parse_seeds(given: object) -> tuple[int, ...]:
    """Parse the seeds, given as a list or as text, and drop duplicates.

    Examples of text are `3`, `0,1,5`, `0..4` (both ends included) and `[0..2,7]`.
    """
    items = given if isinstance(given, list) else str(given).strip().removeprefix("[").removesuffix("]").split(",")
    seeds: dict[int, None] = {}
    for item in items:
        match = re.fullmatch(r"\s*([0-9]{1,18})\s*(?:\.\.\s*([0-9]{1,18})\s*)?", str(item), re.ASCII)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, -1)
        if last < first:
            raise ValueError(f"seeds must be integers of at least 0, such as 0..4 or 0,1,5, got {given!r}")
        if last - first + len(seeds) >= MAX_SEEDS:
            raise ValueError(f"seeds must be at most {MAX_SEEDS}, got {given!r}")
        seeds.update(dict.fromkeys(range(first, last + 1)))
    return tuple(seeds)


def expanded(overrides: Sequence[str]) -> list[tuple[str, ...]]:
    """Expand overrides such as `a=1,2` and `b=3` to all combinations: here, `("a=1", "b=3")` and `("a=2", "b=3")`.

    Call this function inside a `with composing():` block.
    """
    return list(itertools.product(*parsed(overrides).values()))


def check_comparable(key: str, rngs: Iterable[str], problems: Iterable[tuple[object, ...]]) -> None:
    """Raise SweepError if a search or scheduler would compare real runs (rng `os`), or runs of different problems.

    key: the key or option of the search or scheduler. rngs: the `privacy.rng` of each compared setting. problems: the
    name, metric and function of each setting's problem.
    """
    if real := next((rng for rng in rngs if rng != "seeded"), None):
        raise SweepError(
            f"{key} is for simulations, with privacy.rng=seeded, got {real!r}: epsilon does not cover settings "
            "that are chosen, or trials that are stopped, by looking at results on private data"
        )
    if len(found := list(dict.fromkeys(problems))) > 1:
        names = " and ".join(" ".join(map(str, filter(None, each))) for each in found[:2])
        raise SweepError(f"{key} compares trials of one problem and metric, got {names}")


def scaled(base: DictConfig) -> tuple[Any, Any]:
    """Return an experiment's seeds and settings for the configured `scale` (`quick` or `paper`)."""
    checks.one_of("scale", base.scale, SCALES)
    sweep: dict[str, Any] = OmegaConf.to_container(base.sweep, resolve=True)  # type: ignore[assignment]
    seeds, settings = base.get("seeds"), sweep["settings"]
    if sweep["scales"] is None:
        if base.scale != SCALES[0]:
            raise SweepError(f"scale={base.scale} needs an experiment that has sweep.scales")
        return 0 if seeds is None else seeds, settings
    if seeds is not None:
        raise SweepError("an experiment with sweep.scales takes its seeds from there")
    try:
        chosen = sweep["scales"][base.scale]
        return chosen["seeds"], [*(settings or []), *chosen.get("also", [])] or None
    except (KeyError, TypeError, AttributeError) as error:
        raise SweepError(
            f"sweep.scales must have seeds, and perhaps also, for {' and '.join(SCALES)}, got {sweep['scales']!r}"
        ) from error


def parsed(
    overrides: Sequence[str], space: dict[str, Interval | tuple[str, ...]] | None = None
) -> dict[str, list[str]]:
    """Return the overrides by key, with `a=1,2` expanded to `a=1` and `a=2`.

    If a key is given several times, the last override counts. space: if given, keys with several values or an interval
    are put there instead of into the result.
    """
    expanded: dict[str, list[str]] = {}
    for override in parse_overrides(overrides):
        key = override.key_or_group if override.package is None else f"{override.key_or_group}@{override.package}"
        if override.is_sweep_override() and is_sweep_key(key):
            raise SweepError(f"{key} must have one value for the whole sweep, got {override.input_line}")
        name = override.get_key_element()
        expanded.pop(key, None)
        if space is not None:
            space.pop(name, None)
        if space is None or not override.is_sweep_override():
            expanded[key] = _expanded(override)
        elif isinstance(interval := override.value(), IntervalSweep):
            space[name] = Interval.of(name, interval)
        else:
            space[name] = tuple(dict.fromkeys(word.partition("=")[2] for word in _expanded(override)))
    return expanded


def _expanded(override: Override) -> list[str]:
    name = override.get_key_element()
    if not override.is_sweep_override():
        deletes_any = override.is_delete() and override.value_type is None
        return [name if deletes_any else f"{name}={override.get_value_element_as_str()}"]
    if not override.is_discrete_sweep():
        raise SweepError(
            f"{name} must be a list of values, a choice(), range() or glob(), got {override.input_line}: an interval() "
            "needs sweep.search=optuna or sweep.search=random"
        )
    values = list(override.sweep_string_iterator())
    if not values:
        raise SweepError(f"{override.input_line} has no values")
    return [f"{name}={value}" for value in values]


def is_sweep_key(key: str) -> bool:
    return key.partition(".")[0].partition("@")[0] in _SWEEP_KEYS or key.startswith("hydra")
