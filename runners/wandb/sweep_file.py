"""The YAML file of a W&B sweep, whose agents run `python -m runners.run` with the values that W&B chooses."""

import itertools
import json
from collections.abc import Sequence
from typing import Any

import yaml

from runners.compose import sweep_line
from runners.compose.composition import Composition
from runners.compose.configuration import Composer, composing
from runners.compose.overrides import name_of
from runners.compose.sweep_line import Interval, Space, SweepError
from runners.wandb import layout

_MODE = "tracker.wandb.mode=online"  # agents of a W&B sweep need the server
_OF_A_SWEEP = ("sweep", "launcher")  # keys that only runners.sweep uses
_DISTRIBUTIONS: dict[tuple[bool, bool], dict[str, Any]] = {  # by (integer, logarithmic)
    (False, False): {"distribution": "uniform"},
    (True, False): {"distribution": "int_uniform"},
    (False, True): {"distribution": "log_uniform_values"},
    (True, True): {"distribution": "q_log_uniform_values", "q": 1},
}


def sweep_file(words: Sequence[str], method: str) -> str:
    """Return the YAML file of a W&B sweep over the values and seeds in `words`, a command line of `runners.sweep`.

    Raises SweepError for words that a W&B sweep does not support. Invalid words raise the errors of
    `runners.sweep.plan`.
    """
    for word in words:
        _check(word)
    space: dict[str, Interval | tuple[str, ...]] = {}
    with composing():
        base = sweep_line.composed_base([word for word in words if name_of(word) != "seeds"])
        seeds, entries = sweep_line.scaled(base)
        if entries is not None or base.sweep.experiments is not None:
            raise SweepError(
                f"a W&B sweep takes settings from lists of values, but experiment={base.experiment_name} names its "
                f"settings one by one: add sweep.settings=null and lists of values"
            )
        given = sweep_line.parsed([word for word in words if name_of(word) not in ("seeds", "scale")], space)
        fixed = [word for values in given.values() for word in values]
        fixed += [] if _MODE in fixed else [_MODE]
        fixed += [] if base.sweep.scales is None else ["sweep.scales=null"]
        _check_space(space, method)
        found = [Composition.of(Composer().compose([*fixed, *own])) for own in _combinations(space)]
    seeds = next((word.partition("=")[2] for word in reversed(words) if name_of(word) == "seeds"), seeds)
    tracker = found[0].settings.tracker.wandb
    parameters = {key: _parameter(values) for key, values in space.items()}
    parameters["seed"] = {"values": list(sweep_line.parse_seeds(seeds))}
    return yaml.safe_dump(
        {
            "name": found[0].settings.experiment_name,
            "project": tracker.project,
            **({"entity": tracker.entity} if tracker.entity else {}),
            "program": "runners/run.py",
            "command": ["${env}", "${interpreter}", "-m", "runners.run", *fixed, "${args_no_hyphens}"],
            "method": method,
            **_metric(found, method),
            "parameters": parameters,
        },
        sort_keys=False, width=120,
    )  # fmt: skip


def _check(word: str) -> None:
    name, value = name_of(word), word.partition("=")[2]
    if name in ("seed", "again"):
        raise SweepError(f"{name} cannot be given to a sweep, use seeds, such as seeds=0..4 or seeds=0,1,5")
    if name.partition(".")[0] in _OF_A_SWEEP and value != "null":
        raise SweepError(f"{word} is for runners.sweep: the agents of a W&B sweep run one run at a time; leave it out")
    if name == "tracker.wandb.mode" and value != "online":
        raise SweepError(f"tracker.wandb.mode must be online in a W&B sweep, got {value!r}")


def _check_space(space: Space, method: str) -> None:
    interval = next((key for key, values in space.items() if isinstance(values, Interval)), None)
    if method == "grid" and interval is not None:
        raise SweepError(f"{interval} must be a list of values for --method grid: an interval() needs random or bayes")
    if method != "grid" and not space:
        raise SweepError(f"--method {method} needs keys with an interval(), a choice() or values between commas")


def _combinations(space: Space) -> list[tuple[str, ...]]:
    """Return the overrides of every combination of values; an interval contributes only its two ends."""
    values = {k: (v.word(v.low), v.word(v.high)) if isinstance(v, Interval) else v for k, v in space.items()}
    return list(itertools.product(*([f"{key}={word}" for word in words] for key, words in values.items())))


def _metric(found: Sequence[Composition], method: str) -> dict[str, Any]:
    """Return the metric that W&B optimises, with its goal.

    With `method=grid`, the result is empty if `tracker.wandb.show` hides the metric, or if it is minimised in some
    settings and maximised in others. With other methods, SweepError is raised if the metric is hidden, or if it cannot
    be compared between the settings.
    """
    problems = [composition.experiment.problem for composition in found]
    if method != "grid":
        functions = (composition.given.problem.get("function") for composition in found)
        compared = ((p.name, p.metric, function) for p, function in zip(problems, functions, strict=True))
        sweep_line.check_comparable(f"--method {method}", (str(c.settings.privacy.rng) for c in found), compared)
    hidden = any(layout.released_only(c.settings.tracker.wandb.show, not c.settings.privacy.seeded) for c in found)
    if hidden and method != "grid":
        raise SweepError(f"--method {method} needs {layout.FINAL_REGRET}, which tracker.wandb.show=released hides")
    goals = {"minimize" if problem.lower_is_better else "maximize" for problem in problems}
    return {} if hidden or len(goals) > 1 else {"metric": {"name": layout.FINAL_REGRET, "goal": goals.pop()}}


def _parameter(values: Interval | tuple[str, ...]) -> dict[str, Any]:
    if isinstance(values, Interval):
        return {**_DISTRIBUTIONS[values.whole, values.log], "min": values.low, "max": values.high}
    return {"values": [_number(word) for word in values]}


def _number(word: str) -> int | float | str:
    """Convert a word to a number if `str(number)` gives the same word: `0.5` is converted, `1e3` is not."""
    try:
        value = json.loads(word)
    except ValueError:
        return word
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and str(value) == word else word
