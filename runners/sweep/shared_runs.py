"""Run several experiments in one sweep: each shared trial runs once and is copied to the other experiments.

Only simulations are accepted, because a copy of a real run (rng `os`) would report the run's releases a second time.
"""

import json
import logging
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from omegaconf import OmegaConf

from dpfbo import checks
from dpfbo.formats.bounded import read_yaml
from dpfbo.formats.run_folder import ResultsError, RunFolder
from dpfbo.problems.readers.data_files import MissingData, data_root
from runners.compose.conf_folder import CONF
from runners.compose.overrides import name_of
from runners.compose.sweep_line import SweepError, base_of
from runners.record.config_text import config_text
from runners.sweep.plan import PlannedSetting, SweepPlan, plan
from runners.sweep.trials import FAILURE, STOPPED, States, TrialState, state

logger = logging.getLogger(__name__)

COPIED = ("ledger.jsonl", "rounds.parquet", "server.parquet")


@dataclass(frozen=True)
class TrialOnce:
    """A trial that several experiments may share.

    sweep, setting: those of the first experiment that has the trial. state: "done" if any experiment has finished it.
    """

    sweep: SweepPlan
    setting: PlannedSetting
    state: TrialState


def command_lines(arguments: Sequence[str]) -> list[list[str]]:
    """Split a command line that names several experiments, such as experiment=fig2a,fig2b, into one line for each.

    An experiment with a list `sweep.experiments` is replaced by the experiments in this list, with one line for each.
    The replaced experiment's other `sweep` options are added to each of these lines.

    Raises SweepError if the experiments cannot be combined.
    """
    given = {name_of(a): a.partition("=")[2] for a in arguments}
    asked = [name.strip() for name in given.get("experiment", "").split(",")]
    groups = [_group(name) for name in asked]
    names = [part for parts, _ in groups for part in parts]
    if names == asked and len(names) < 2:
        return [list(arguments)]
    if not all(names) or len(set(names)) < len(names):
        raise SweepError(f"experiments must be different names between commas, got {given['experiment']!r}")
    if "experiment_name" in given:
        raise SweepError("experiment_name cannot be given to several experiments: each has its own")
    rest = [a for a in arguments if name_of(a) != "experiment"]
    return [[f"experiment={name}", *options, *rest] for parts, options in groups for name in parts]


def plan_all(
    arguments: Sequence[str],
    say: Callable[[str], None] = lambda message: None,
    composed: dict[tuple[str, ...], PlannedSetting] | None = None,
) -> list[SweepPlan]:
    """Plan each experiment of a command line; those with `sweep.alone`, which share no trials, come last.

    composed: passed on to `plan` if there is a single experiment.

    Raises SweepError if the experiments cannot be combined. Raises MissingData if the data of an experiment are
    missing, unless `sweep.skip_missing` is true and other experiments remain.
    """
    lines, sweeps, missing = command_lines(arguments), list[SweepPlan](), dict[str, MissingData]()
    if len(lines) == 1:
        return [plan(lines[0], say, composed)]
    for line in lines:
        name = line[0].partition("=")[2]
        try:
            sweeps.append(plan(line, lambda step, name=name: say(f"{name}: {step}")))  # type: ignore[misc]
        except MissingData as error:
            missing[name] = error
    if missing:
        base = base_of(lines[0])
        checks.one_of("sweep.skip_missing", base.sweep.skip_missing, (True, False))
        if not base.sweep.skip_missing or not sweeps:
            raise MissingData(_in_words(missing, base.data_dir))
        logger.warning("left out, since their data are missing: %s", ", ".join(missing))
    _check_shareable(sweeps)
    return sorted(sweeps, key=lambda sweep: sweep.options.alone)


def _in_words(missing: Mapping[str, MissingData], data_dir: str | None) -> str:
    names = list(dict.fromkeys(error.fetch_name for error in missing.values() if error.fetch_name))
    names += [f"data_dir={shlex.quote(str(data_root(data_dir)))}"] if data_root(data_dir) != data_root() else []
    fetch = f'run "python -m runners.fetch {" ".join(names)}"'
    where = "point data_dir (or DPFBO_DATA) at the folder that holds them"
    leave = "leave these experiments out with sweep.skip_missing=true"
    return f"the data of {', '.join(missing)} are missing: {fetch}, or {where}, or {leave}"


def each_once(sweeps: Sequence[SweepPlan], states: Sequence[States]) -> list[TrialOnce]:
    """Return every trial of the sweeps once, with its state.

    A trial of an experiment with `sweep.alone` is never merged with a trial of another experiment.
    """
    found: dict[object, TrialOnce] = {}
    for sweep, known in zip(sweeps, states, strict=True):
        for setting, trial in sweep.trials:
            key = (sweep.folder if sweep.options.alone else None, trial.key)
            this = TrialOnce(sweep, setting, known[trial.key])
            first = found.setdefault(key, this)
            if this.state.phase == "done":
                found[key] = replace(first, state=this.state)
    return list(found.values())


def sharing(sweep: SweepPlan, sweeps: Sequence[SweepPlan]) -> list[SweepPlan]:
    """Return the other sweeps that may share trials with `sweep`; a sweep with the option `alone` shares none."""
    return [other for other in sweeps if other is not sweep and not (sweep.options.alone or other.options.alone)]


def _group(name: str) -> tuple[list[str], list[str]]:
    """Look up the list `sweep.experiments` in the file of the experiment `name`.

    Returns the names in this list, and the file's other `sweep` options as overrides. If the file has no such list,
    returns `name` itself and no overrides.
    """
    file = CONF / "experiment" / f"{name}.yaml"
    own = dict(OmegaConf.select(OmegaConf.load(file), "sweep") or {}) if name and file.is_file() else {}
    parts = own.pop("experiments", None)
    return ([name], []) if not parts else (list(parts), [f"sweep.{key}={json.dumps(own[key])}" for key in own])


def _check_shareable(sweeps: Sequence[SweepPlan]) -> None:
    if len({sweep.folder for sweep in sweeps}) < len(sweeps):
        raise SweepError(f"experiments must have folders of their own, got {', '.join(g.experiment for g in sweeps)}")
    if any(sweep.options.search for sweep in sweeps):
        raise SweepError("sweep.search is for one experiment, but several were given")
    for key, values in (
        ("sweep's resources", {sweep.options for sweep in sweeps if not sweep.options.alone}),
        ("executor", {str(sweep.settings[0].cfg.executor) for sweep in sweeps}),
    ):
        if len(values) > 1:
            raise SweepError(f"several experiments must have one {key}: give it on the command line")
    for cfg in (setting.cfg for sweep in sweeps for setting in sweep.settings):
        if (got := OmegaConf.select(cfg, "privacy.rng")) != "seeded":
            raise SweepError(
                f"several experiments share their runs, which needs privacy.rng=seeded, got {got!r} "
                f"in {cfg.experiment_name}"
            )


def copy_shared(sweep: SweepPlan, others: Sequence[SweepPlan]) -> None:
    """Copy each trial that is finished in one of `others`, but not in `sweep`, into the folder of `sweep`.

    A trial whose folder is busy or cannot be written is not copied.
    """
    planned = {other.folder: {trial.key for _, trial in other.trials} for other in others}
    for _, trial in sweep.trials:
        target = trial.folder(sweep.folder)
        places = (trial.folder(folder) for folder, keys in planned.items() if trial.key in keys)
        sources = (folder for folder in places if state(folder).phase == "done")
        if others and state(target).phase != "done" and (source := next(sources, None)) is not None:
            with suppress(ResultsError, OSError):
                copy(source.path, target)


def copy(source: Path, target: RunFolder) -> None:
    """Copy the finished run in the folder `source` to `target`.

    Replaces an unfinished run in `target`. In the copied files, the name of the experiment is replaced by the name of
    `target`'s experiment. Raises ResultsError if the run is real (its rng is not `seeded`).
    """
    config = read_yaml(source / "config.yaml")
    summary = json.loads((source / "summary.json").read_bytes())
    if summary.get("rng") != "seeded":
        raise ResultsError(f"{source} is a real run: its releases happened once, so it is not copied")
    files = {file: (source / file).read_bytes() for file in COPIED}
    config["experiment_name"] = summary["experiment"] = target.path.parent.parent.name
    files["config.yaml"] = config_text(config).encode()
    files["summary.json"] = json.dumps(summary, indent=2, allow_nan=False).encode() + b"\n"
    with target.opened():
        shutil.rmtree(target.checkpoint_path, ignore_errors=True)
        for file in ("progress.json", "theory.json", FAILURE, STOPPED):
            (target.path / file).unlink(missing_ok=True)
        for name, content in files.items():
            target.replace(name, lambda file, c=content: file.write(c), durable=name == "summary.json")  # type: ignore[misc]
