"""Several experiments in one sweep: what they have in common runs once and is copied into the others' folders.

Figures share settings, and one setting with one seed is one run, whichever experiment asks for it. Real noise
(privacy.rng=os) is never shared: its releases happened once; `plan_all` refuses it.
"""

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import yaml
from omegaconf import OmegaConf

from runners.record.run_folder import ResultsError, RunFolder
from runners.sweep.plan import PlannedSetting, SweepError, SweepPlan, plan
from runners.sweep.trials import FAILURE, Phase, Trial, TrialState, state, write_plan

States = dict[tuple[str, int], TrialState]

COPIED = ("ledger.jsonl", "rounds.parquet", "server.parquet")


def plan_all(arguments: Sequence[str], say: Callable[[str], None] = lambda message: None) -> list[SweepPlan]:
    """`plan` for each of the experiments that the command line names, as in experiment=fig2a,fig2b.

    Raises SweepError where several of them do not go together.
    """
    given = {a.lstrip("+").partition("=")[0]: a.partition("=")[2] for a in arguments}
    names = [name.strip() for name in given.get("experiment", "").split(",")]
    if len(names) < 2:
        return [plan(arguments, say)]
    if not all(names) or len(set(names)) < len(names):
        raise SweepError(f"experiments must be different names between commas, got {given['experiment']!r}")
    if "experiment_name" in given:
        raise SweepError("experiment_name cannot be given to several experiments, each has its own")
    rest = [a for a in arguments if a.lstrip("+").partition("=")[0] != "experiment"]
    grids = []
    for name in names:
        say(f"composing {name}")
        grids.append(plan([f"experiment={name}", *rest]))
    _check_together(grids)
    return grids


def _check_together(grids: Sequence[SweepPlan]) -> None:
    for grid in grids:
        if grid.options.alone:
            raise SweepError(f"experiment {grid.experiment} (sweep.alone=true) cannot be run with others")
    if len({grid.folder for grid in grids}) < len(grids):
        raise SweepError(f"experiments must have folders of their own, got {', '.join(g.experiment for g in grids)}")
    for key, values in (
        ("sweep's resources", {grid.options for grid in grids}),
        ("executor", {str(grid.settings[0].cfg.executor) for grid in grids}),
    ):
        if len(values) > 1:
            raise SweepError(f"several experiments must have one {key}: give it on the command line")
    for cfg in (setting.cfg for grid in grids for setting in grid.settings):
        for key, needed in (("tracker.wandb.mode", "disabled"), ("privacy.rng", "seeded")):
            if (got := OmegaConf.select(cfg, key)) != needed:
                raise SweepError(
                    f"several experiments share their runs, which needs {key}={needed}, got {got!r} "
                    f"in {cfg.experiment_name}"
                )


def together(
    grids: Sequence[SweepPlan], found: Sequence[States]
) -> tuple[dict[tuple[str, int], tuple[PlannedSetting, Trial]], States]:
    """Every trial once, in the experiment where it is farthest, and its state there.

    found: the states of each experiment's trials.
    """
    planned: dict[tuple[str, int], tuple[PlannedSetting, Trial]] = {}
    known: States = {}
    for grid, states in zip(grids, found, strict=True):
        for setting, trial in grid.trials:
            here = states[trial.key]
            if trial.key not in planned or _farther(here, known[trial.key]):
                planned[trial.key], known[trial.key] = (setting, trial), here
    return planned, known


def spread(grids: Sequence[SweepPlan], found: Sequence[States], known: States) -> list[States]:
    """Copy what is done in one experiment to the others that ask for it; returns the states of each one's trials.

    found: what each experiment had. known: of every trial, wherever it is. A copy that cannot be made, because the
    folder is busy or cannot be written, is a trial that failed here; the same command makes it later.
    """
    after = [dict(states) for states in found]
    for grid, states in zip(grids, after, strict=True):
        if len(grids) > 1:
            write_plan(grid.folder, [trial for _, trial in grid.trials])
        for _, trial in grid.trials:
            if states[trial.key].phase != "done":
                states[trial.key] = _copied(trial, grid, grids, known[trial.key])
    return after


def _copied(trial: Trial, grid: SweepPlan, grids: Sequence[SweepPlan], known: TrialState) -> TrialState:
    """The state of a trial in the folder of `grid`, after it is copied there if it is done elsewhere only."""
    target = trial.folder(grid.folder)
    if known.phase != "done" or state(target).phase == "done":
        return known
    sources = [trial.folder(other.folder) for other in grids if other is not grid]
    try:
        copy(next(folder.path for folder in sources if state(folder).phase == "done"), target)
    except (ResultsError, OSError, StopIteration) as error:
        return TrialState("failed", error=f"done in another experiment, but not copied: {error or 'it is gone'}")
    return known


def _farther(one: TrialState, other: TrialState) -> bool:
    order: tuple[Phase, ...] = ("waiting", "failed", "interrupted", "running", "done")
    return (order.index(one.phase), one.round or 0) > (order.index(other.phase), other.round or 0)


def copy(source: Path, target: RunFolder) -> None:
    """Copy the finished run in the folder `source` to another experiment, whose name it then bears.

    What was begun there is replaced. Like every run, it has its summary last.
    """
    name = target.path.parent.parent.name
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    config = yaml.load((source / "config.yaml").read_bytes(), loader)
    summary = json.loads((source / "summary.json").read_bytes())
    files = {file: (source / file).read_bytes() for file in COPIED}
    config["experiment_name"] = summary["experiment"] = name
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    files["config.yaml"] = yaml.dump(config, Dumper=dumper, sort_keys=False, allow_unicode=True).encode()
    files["summary.json"] = json.dumps(summary, indent=2, allow_nan=False).encode() + b"\n"
    with target.opened():
        shutil.rmtree(target.checkpoint_path, ignore_errors=True)
        for file in ("progress.json", "theory.json", FAILURE):
            (target.path / file).unlink(missing_ok=True)
        for file, content in files.items():
            _write(target, file, content)


def _write(folder: RunFolder, name: str, content: bytes) -> None:
    folder.replace(name, lambda file: file.write(content), durable=name == "summary.json")
