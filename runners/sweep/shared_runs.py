"""Several experiments in one sweep: a trial that they share runs once and is copied into the other folders.

Figures share settings, and one setting with one seed is the same run in every experiment. Real noise (privacy.rng=os)
is refused, because its releases happened once. W&B gets a copied run from its files, in the group of its experiment.
"""

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from omegaconf import OmegaConf

from dpfbo.formats.bounded import read_yaml
from runners.compose.conf_folder import CONF
from runners.record.config_text import config_text
from runners.record.run_folder import ResultsError, RunFolder
from runners.sweep.plan import PlannedSetting, SweepError, SweepPlan, plan
from runners.sweep.trials import FAILURE, Phase, Trial, TrialState, state, write_plan

States = dict[tuple[str, int], TrialState]

COPIED = ("ledger.jsonl", "rounds.parquet", "server.parquet")


def command_lines(arguments: Sequence[str]) -> list[list[str]]:
    """The command line of each experiment that one names, as in experiment=fig2a,fig2b; itself for a single one.

    An experiment with `sweep.experiments` stands for those. Raises SweepError where several do not go together.
    """
    given = {a.lstrip("+").partition("=")[0]: a.partition("=")[2] for a in arguments}
    asked = [name.strip() for name in given.get("experiment", "").split(",")]
    names = [part for name in asked for part in _parts(name)]
    if names == asked and len(names) < 2:
        return [list(arguments)]
    if not all(names) or len(set(names)) < len(names):
        raise SweepError(f"experiments must be different names between commas, got {given['experiment']!r}")
    if "experiment_name" in given:
        raise SweepError("experiment_name cannot be given to several experiments, each has its own")
    rest = [a for a in arguments if a.lstrip("+").partition("=")[0] != "experiment"]
    return [[f"experiment={name}", *rest] for name in names]


def plan_all(arguments: Sequence[str], say: Callable[[str], None] = lambda message: None) -> list[SweepPlan]:
    """`plan` for each experiment of a command line. Raises SweepError where several do not go together."""
    sweeps = [plan(line, say) for line in command_lines(arguments)]
    if len(sweeps) > 1:
        _check_shareable(sweeps)
    return sweeps


def _parts(name: str) -> list[str]:
    """The experiments that an experiment stands for, or itself alone. Its own file names them, nothing is composed."""
    file = CONF / "experiment" / f"{name}.yaml"
    own = OmegaConf.select(OmegaConf.load(file), "sweep.experiments") if name and file.is_file() else None
    return list(own or [name])


def _check_shareable(sweeps: Sequence[SweepPlan]) -> None:
    for sweep in sweeps:
        if sweep.options.alone:
            raise SweepError(f"experiment {sweep.experiment} (sweep.alone=true) cannot be run with others")
    if len({sweep.folder for sweep in sweeps}) < len(sweeps):
        raise SweepError(f"experiments must have folders of their own, got {', '.join(g.experiment for g in sweeps)}")
    for key, values in (
        ("sweep's resources", {sweep.options for sweep in sweeps}),
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


def distinct_trials(
    sweeps: Sequence[SweepPlan], found: Sequence[States]
) -> tuple[dict[tuple[str, int], tuple[PlannedSetting, Trial]], States]:
    """Every trial once, in the experiment where it is farthest, and its state there.

    found: the states of each experiment's trials.
    """
    planned: dict[tuple[str, int], tuple[PlannedSetting, Trial]] = {}
    known: States = {}
    for sweep, states in zip(sweeps, found, strict=True):
        for setting, trial in sweep.trials:
            here = states[trial.key]
            if trial.key not in planned or _farther(here, known[trial.key]):
                planned[trial.key], known[trial.key] = (setting, trial), here
    return planned, known


def copy_finished(sweeps: Sequence[SweepPlan], found: Sequence[States], known: States) -> list[States]:
    """Copy finished trials to all experiments that ask for them; returns the states of each one's trials.

    found: the states before, by experiment. known: the state of each distinct trial. A trial whose copy fails, because
    the folder is busy or cannot be written, counts as failed there; the same command copies it later.
    """
    after = [dict(states) for states in found]
    for sweep, states in zip(sweeps, after, strict=True):
        if len(sweeps) > 1:
            write_plan(sweep.folder, [trial for _, trial in sweep.trials])
        for _, trial in sweep.trials:
            if states[trial.key].phase != "done":
                states[trial.key] = _copied(trial, sweep, sweeps, known[trial.key])
    return after


def _copied(trial: Trial, sweep: SweepPlan, sweeps: Sequence[SweepPlan], known: TrialState) -> TrialState:
    """The state of a trial in the folder of `sweep`; it is copied there if only another experiment has it."""
    target = trial.folder(sweep.folder)
    if known.phase != "done" or state(target).phase == "done":
        return known
    sources = [trial.folder(other.folder) for other in sweeps if other is not sweep]
    try:
        copy(next(folder.path for folder in sources if state(folder).phase == "done"), target)
    except (ResultsError, OSError, StopIteration) as error:
        return TrialState("failed", error=f"done in another experiment, but not copied: {error or 'it is gone'}")
    return known


def _farther(one: TrialState, other: TrialState) -> bool:
    order: tuple[Phase, ...] = ("waiting", "failed", "interrupted", "running", "done")
    return (order.index(one.phase), one.round or 0) > (order.index(other.phase), other.round or 0)


def copy(source: Path, target: RunFolder) -> None:
    """Copy the finished run in the folder `source` to another experiment, under whose name it is recorded.

    It replaces an unfinished run there, and its summary is written last.
    """
    config = read_yaml(source / "config.yaml")
    summary = json.loads((source / "summary.json").read_bytes())
    if summary.get("rng") != "seeded":
        raise ResultsError(f"{source} is a real run, and its releases happened once")
    files = {file: (source / file).read_bytes() for file in COPIED}
    config["experiment_name"] = summary["experiment"] = target.path.parent.parent.name
    files["config.yaml"] = config_text(config).encode()
    files["summary.json"] = json.dumps(summary, indent=2, allow_nan=False).encode() + b"\n"
    with target.opened():
        shutil.rmtree(target.checkpoint_path, ignore_errors=True)
        for file in ("progress.json", "theory.json", FAILURE):
            (target.path / file).unlink(missing_ok=True)
        for name, content in files.items():
            target.replace(name, lambda file, c=content: file.write(c), durable=name == "summary.json")  # type: ignore[misc]
