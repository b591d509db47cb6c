"""Plan the trials of a sweep from its command line: every setting, composed and checked, with every seed.

`sweep.settings` and the command line give the settings; overrides with several values yield every combination. With
`sweep.search`, the command line gives a search space instead, and the settings are the search's suggestions so far.
"""

import itertools
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from dpfbo import checks
from runners.compose.composition import Composition
from runners.compose.conf_folder import CONF
from runners.compose.configuration import Composer, composing
from runners.compose.overrides import name_of
from runners.compose.sweep_line import (
    Interval,
    Space,
    SweepError,
    check_comparable,
    composed_base,
    is_sweep_key,
    parse_seeds,
    parsed,
    scaled,
)
from runners.identity.setting import names_of
from runners.sweep.slurm import SlurmLauncher
from runners.sweep.trials import Trial, TrialState, read_plan, state
from runners.sweep.tuning.early_stopping import EarlyStopping
from runners.sweep.tuning.search import SearchOptions, SettingOutcome, Words, suggestions

_MOST_ATTEMPTS = 20  # suggestions to draw for each new setting of a search, since some repeat earlier ones


@dataclass(frozen=True)
class PlannedSetting:
    """A composed and checked setting; with a seed it is a trial.

    epsilon: the predicted epsilon of a whole run at `delta`, by accountant; None if it is not finite. approximations:
    the accountants whose epsilon is no guarantee.
    """

    label: str
    overrides: tuple[str, ...]
    name: str
    problem: str
    cfg: DictConfig
    rounds: int
    metric: str
    lower_is_better: bool
    delta: float
    relation: str
    epsilon: dict[str, float | None]
    approximations: list[str]

    @property
    def folder(self) -> Path:
        """The results folder of the setting's experiment."""
        return Path(self.cfg.results_dir) / str(self.cfg.experiment_name)

    def trial(self, seed: int) -> Trial:
        return Trial(self.label, self.overrides, self.name, seed, self.rounds, self.metric, str(self.cfg.privacy.rng))


@dataclass(frozen=True)
class SweepOptions:
    """The keys under `sweep` that determine how trials run, with their defaults resolved.

    ray: the arguments of ray.init, from `executor.init`, `executor.runtime_env` and `executor.dashboard`.
    """

    max_concurrent: int | None
    cpus_per_trial: float
    gpus_per_trial: float
    max_retries: int
    retry_failed: bool
    address: str | None
    alone: bool
    report: bool
    tensorboard: bool
    early_stopping: EarlyStopping | None
    search: SearchOptions | None
    ray: dict[str, Any] = field(hash=False)

    def __post_init__(self) -> None:
        if self.max_concurrent is not None:
            checks.integer("sweep.max_concurrent", self.max_concurrent, minimum=1)
        checks.integer("sweep.max_retries", self.max_retries, minimum=0)
        for name in ("cpus_per_trial", "gpus_per_trial"):
            count = getattr(self, name)
            checks.non_negative(f"sweep.{name}", count)
            if count > 1 and not float(count).is_integer():
                raise ValueError(f"sweep.{name} above 1 must be a whole number, got {count!r}")
        for name in ("retry_failed", "alone", "report", "tensorboard"):
            checks.one_of(f"sweep.{name}", getattr(self, name), (True, False))
        if not isinstance(self.address, str | None):
            raise ValueError(f"sweep.address must be the address of a Ray cluster, got {self.address!r}")
        if "://" in (self.address or ""):  # with Ray Client, Tune and the progress table would run in another process
            raise ValueError(f"sweep.address must read HOST:PORT, on a machine of the cluster, got {self.address!r}")

    def is_to_run(self, known: TrialState) -> bool:
        """Return True if the sweep has to run a trial in the state `known`."""
        if known.stopped_by is not None:
            return self.early_stopping is None
        return known.phase != "done" and (known.phase != "failed" or self.retry_failed)


@dataclass(frozen=True)
class SweepPlan:
    """The trials and options of a sweep. folder: the results of its experiment. slurm: None without Slurm."""

    experiment: str
    folder: Path
    settings: tuple[PlannedSetting, ...]
    seeds: tuple[int, ...]
    options: SweepOptions
    slurm: SlurmLauncher | None

    @property
    def trials(self) -> list[tuple[PlannedSetting, Trial]]:
        """Every setting with the first seed, then with the second, and so on."""
        return [(setting, setting.trial(seed)) for seed in self.seeds for setting in self.settings]


def plan(
    arguments: Sequence[str],
    say: Callable[[str], None] = lambda message: None,
    composed: dict[tuple[str, ...], PlannedSetting] | None = None,
) -> SweepPlan:
    """Compose and check all settings that the overrides of a command line describe.

    say: called with a message at every step. composed: settings from earlier calls, which are reused; the keys are
    their overrides, and new settings are added. Raises HydraException or OmegaConfBaseException for overrides that do
    not compose, and the errors of `Composition` for settings that cannot run.
    """
    seeds = [a.partition("=")[2] for a in arguments if name_of(a) == "seeds"]
    rest = [a for a in arguments if name_of(a) != "seeds"]
    if any(name_of(a) == "seed" for a in rest):
        raise SweepError("seed cannot be given to a sweep: use seeds, such as seeds=0..4 or seeds=0,1,5")
    if any(name_of(a) == "again" for a in rest):
        raise SweepError(
            "again is for runners.run: a sweep leaves finished trials alone; to run one anew, delete its folder"
        )
    with composing():
        base = composed_base(rest)
        options = _options(base)
        space: dict[str, Interval | tuple[str, ...]] | None = {} if options.search else None
        given = parsed(rest, space)
        node = OmegaConf.to_container(base.launcher, resolve=True)
        slurm = SlurmLauncher.of(node, options.cpus_per_trial, options.gpus_per_trial)
        scaled_seeds, entries = scaled(base)
        parsed_seeds = parse_seeds(seeds[-1] if seeds else scaled_seeds)
        settings = _Settings(options, parsed_seeds, {} if composed is None else composed)
        if space is not None:
            _check_space(space, entries)
            say("composing and checking the settings of the search")
            _search(settings, folder_of(base), space, given)
        else:
            combinations = _combinations(entries, given)
            for number, overrides in enumerate(combinations, start=1):
                say(f"composing and checking {number} of {len(combinations)}")
                settings.add(overrides)
    planned = settings.labelled()
    _check_comparable(planned, options)
    folder = planned[0].folder
    return SweepPlan(folder.name, folder, planned, parsed_seeds, options, slurm)


class _Settings:
    """Collects the distinct settings of a sweep; several tuples of overrides may yield the same setting."""

    def __init__(
        self, options: SweepOptions, seeds: tuple[int, ...], before: dict[tuple[str, ...], PlannedSetting]
    ) -> None:
        self.options, self.seeds = options, seeds
        self.found: dict[str, tuple[list[tuple[str, ...]], PlannedSetting]] = {}
        self._composer, self._before = Composer(), before

    def add(self, overrides: tuple[str, ...]) -> bool:
        """Compose and check a setting; return True if it is new."""
        if overrides not in self._before:
            cfg = self._composer.compose(overrides)
            _adapt(cfg, self.options, self.seeds[0])
            composition = Composition.of(cfg)
            name = names_of(composition.given).setting
            known = self.found.get(name)
            self._before[overrides] = _checked(composition, name) if known is None else known[1]
        setting = self._before[overrides]
        group, _ = self.found.setdefault(setting.name, ([], setting))
        group.append(overrides)
        return len(group) == 1

    def labelled(self) -> tuple[PlannedSetting, ...]:
        groups, settings = zip(*self.found.values(), strict=True)
        labels = _labels(groups, [setting.cfg.algorithm.name for setting in settings])
        return tuple(
            replace(setting, label=label, overrides=group[0])
            for label, group, setting in zip(labels, groups, settings, strict=True)
        )


def outcome(setting: PlannedSetting, seeds: Sequence[int], options: SweepOptions) -> SettingOutcome | None:
    """Read the outcome of a setting from the files of its trials, one for each seed.

    Returns None if a trial still has to run, or if the sweep is not a search.
    """
    folders = [setting.trial(seed).folder(setting.folder) for seed in seeds]
    trials = [(folder, state(folder)) for folder in folders]
    if options.search is None or any(options.is_to_run(known) for _, known in trials):
        return None
    return SettingOutcome.of(options.search.objective, trials)


def _search(settings: _Settings, experiment: Path, space: Space, given: dict[str, list[str]]) -> None:
    """Add the search's earlier suggestions to `settings`; if all their trials have ended, also add a new batch."""
    options, search = settings.options, settings.options.search
    fixed = tuple(value for values in given.values() for value in values)
    for words in _suggested(experiment, space, [o for o in fixed if not is_sweep_key(name_of(o))]):
        settings.add((*fixed, *words))
    _check_comparable([setting for _, setting in settings.found.values()], options)  # before any metric is read
    found, lower_is_better = list[tuple[Words, SettingOutcome]](), True
    for group, setting in settings.found.values():
        if (ended := outcome(setting, settings.seeds, options)) is None:
            return
        values = dict(zip(space, (word.partition("=")[2] for word in group[0][len(fixed) :]), strict=True))
        found.append((values, ended))
        lower_is_better = setting.lower_is_better
    assert search is not None
    left = max(0, min(search.batch, search.num_samples - len(found)))
    for values in islice(suggestions(search, space, found, lower_is_better), _MOST_ATTEMPTS * left):
        left -= settings.add((*fixed, *(f"{key}={word}" for key, word in values.items())))
        if not left:
            break


def _suggested(experiment: Path, space: Space, fixed: list[str]) -> list[tuple[str, ...]]:
    """Return the earlier suggestions of a search, as overrides of the keys in `space`.

    Reads the trials in sweep.json. Skips a trial if its overrides of other keys differ from `fixed`, or if its values
    are not in `space`.
    """
    found: dict[tuple[str, ...], None] = {}
    for trial in read_plan(experiment):
        own = [o for o in trial.overrides if not is_sweep_key(name_of(o))]
        words = {key: value for key, _, value in (o.partition("=") for o in own) if key in space}
        rest = [o for o in own if o.partition("=")[0] not in space]
        if (
            sorted(rest) == sorted(fixed)
            and words.keys() == space.keys()
            and all(words[key] in space[key] for key in space)
        ):
            found[tuple(f"{key}={words[key]}" for key in space)] = None
    return list(found)


def _check_space(space: Space, entries: Any) -> None:
    if not space:
        raise SweepError("sweep.search needs keys with an interval(), a choice() or values between commas")
    if entries is not None:
        raise SweepError(
            "sweep.search chooses the settings itself: leave out sweep.settings, and experiments that have this key"
        )


def _check_comparable(settings: Sequence[PlannedSetting], options: SweepOptions) -> None:
    """Raise SweepError if `sweep.search` or `sweep.scheduler` is given, but cannot use these settings.

    With either key, all settings must be simulations with the same problem and metric. With `sweep.scheduler`, each
    setting must also have more rounds than the grace period.
    """
    asked = {"sweep.search": options.search, "sweep.scheduler": options.early_stopping}
    for key in (key for key, wanted in asked.items() if wanted is not None):
        problems = ((s.problem, s.metric, s.cfg.problem.get("function")) for s in settings)
        check_comparable(key, (str(s.cfg.privacy.rng) for s in settings), problems)
    grace = options.early_stopping.grace_period if options.early_stopping is not None else 0
    if (short := next((s.rounds for s in settings if s.rounds <= grace), None)) is not None:
        raise SweepError(f"sweep.scheduler_options.grace_period must be less than rounds={short}, got {grace}")


def folder_of(cfg: DictConfig) -> Path:
    """Return the results folder of a configuration's experiment."""
    return Path(str(cfg.results_dir)).absolute() / str(cfg.experiment_name)


def _adapt(cfg: DictConfig, options: SweepOptions, seed: int) -> None:
    """Turn a sweep's configuration, in place, into that of a single trial."""
    OmegaConf.set_struct(cfg, False)
    del cfg["seeds"], cfg["scale"], cfg["sweep"], cfg["launcher"]
    cfg.seed = seed
    cfg.results_dir = str(Path(str(cfg.results_dir)).absolute())
    if cfg.problem.get("n_jobs") == -1:  # all cores of the trial, not of the machine
        cfg.problem.n_jobs = max(1, int(options.cpus_per_trial))


def _checked(composition: Composition, name: str) -> PlannedSetting:
    """Return the setting of a checked composition, without label and overrides."""
    rounds, problem, plan = composition.experiment.rounds, composition.experiment.problem, composition.experiment.plan
    return PlannedSetting(
        "", (), name, problem.name, composition.given, rounds, problem.metric, problem.lower_is_better, plan.delta,
        plan.relation, plan.totals(), plan.approximations,
    )  # fmt: skip


def _options(base: DictConfig) -> SweepOptions:
    s: dict[str, Any] = OmegaConf.to_container(base.sweep, resolve=True)  # type: ignore[assignment]
    for key in s:
        checks.one_of("a key of sweep", key, OmegaConf.load(CONF / "config.yaml").sweep)
    executor: dict[str, Any] = OmegaConf.to_container(base.executor, resolve=True)  # type: ignore[assignment]
    on_ray, env = executor["name"] == "ray", executor.get("runtime_env")
    ray = {**executor.get("init", {}), **({"runtime_env": env} if env else {})}
    ray |= {"include_dashboard": True} if executor.get("dashboard") else {}
    as_given = ("gpus_per_trial", "max_retries", "retry_failed", "alone", "report", "tensorboard")
    search = SearchOptions(s["search"], s["num_samples"], s["objective"], s["search_batch"], s["search_seed"])
    return SweepOptions(
        **{key: s[key] for key in as_given},
        cpus_per_trial=s["cpus_per_trial"] if s["cpus_per_trial"] is not None else float(not on_ray),
        max_concurrent=s["max_concurrent"] if s["max_concurrent"] is not None or not on_ray else 1,
        address=s["address"] if s["address"] is not None or not on_ray else base.executor.address,
        early_stopping=EarlyStopping.of(s["scheduler"], s["scheduler_options"]),
        search=search if s["search"] is not None else None,
        ray=ray,
    )


def _combinations(entries: Any, given: dict[str, list[str]]) -> list[tuple[str, ...]]:
    """Return every combination of overrides for each entry of `sweep.settings`.

    A combination has one override of each key in the entry or in `given`. If both have the same key, only the overrides
    in `given` count.
    """
    if entries is not None and (OmegaConf.is_dict(entries) or isinstance(entries, str) or not len(entries)):
        raise SweepError(f"sweep.settings must be a list of settings, got {entries!r}")
    combinations: dict[tuple[str, ...], None] = {}
    for entry in [""] if entries is None else entries:
        own = parsed(shlex.split(entry) if isinstance(entry, str) else [str(override) for override in entry])
        for key in own:
            if is_sweep_key(key) or key in ("seed", "seeds"):
                raise SweepError(f"{key} cannot be given in sweep.settings, only for the whole sweep")
        combinations.update(dict.fromkeys(itertools.product(*{**own, **given}.values())))
    return list(combinations)


def _labels(groups: Sequence[Sequence[tuple[str, ...]]], algorithms: Sequence[str]) -> list[str]:
    """Return a label for each setting: its overrides, without those that all settings share."""
    own = [[o for o in group[0] if all(o in other for other in group)] for group in groups]
    if len(own) == 1:
        own, everywhere = [[o for o in own[0] if (CONF / name_of(o)).is_dir()]], set()
    else:
        everywhere = {o for o in own[0] if all(o in other for other in own)}
    kept = [[o for o in os if o not in everywhere and o[0] != "~" and not is_sweep_key(name_of(o))] for os in own]
    short = [" ".join(map(_override_label, ks)) or algorithm for ks, algorithm in zip(kept, algorithms, strict=True)]
    if len(set(short)) == len(short):
        return short
    return [" ".join(ks) or algorithm for ks, algorithm in zip(kept, algorithms, strict=True)]


def _override_label(override: str) -> str:
    """Shorten an override, such as `algorithm=ts` to `ts` and `privacy.q=0.5` to `q=0.5`."""
    key, _, value = override.partition("=")
    return value if (CONF / key).is_dir() else f"{key.rpartition('.')[2]}={value}"
