"""python -m runners.run: run one experiment from the command line (Hydra)."""

import logging
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from dpfbo import lazy
from dpfbo.formats.files import make_folder
from runners.compose.conf_folder import CONF
from runners.compose.configuration import command_line
from runners.compose.overrides import name_of, no_setting, one_sentence, quoted
from runners.private_apis import parse_command_line, run_composed, run_each
from runners.record.terminal import RoundProgress, end, print_summary, say_error
from runners.user_errors import INTERRUPTED, exit_code, outcome

_FINISHED = (
    "finished before, with {rounds} rounds: nothing is run, and nothing is released. "
    "A larger rounds=… continues the run; --again runs it anew"
)
_NO_OPTIONS = {"--config-dir", "-cd", "--config-path", "-cp", "--config-name", "-cn"}  # refused; use DPFBO_CONF
_INTERRUPTED = "interrupted; the same command resumes after the last round, and the ledger holds every broadcast"
_SUBMITTED = "interrupted; jobs that submitit has started may still run: scancel ends those of Slurm"


def run(cfg: DictConfig) -> None:
    """Run the composed experiment; exit with code 1 after an error, 130 if interrupted."""
    if code := exit_code(lambda: _run(cfg), _INTERRUPTED):
        sys.exit(code)


def job(cfg: DictConfig) -> str:
    """Run one of several composed experiments; return its error, or an empty string if there is none."""
    code, error = outcome(lambda: _run(cfg))
    if code == INTERRUPTED:
        raise KeyboardInterrupt
    return error


def _run_each(cfg: DictConfig, overrides: list[str]) -> int:
    """Run every configuration of a multirun (`-m`); return 1 if a run failed, else 0."""
    done = _launch(cfg, overrides)
    common = set.intersection(*(set(one.overrides) for one in done))
    failed = [one for one in done if one.return_value]
    for one in failed:
        own = " ".join(override for override in one.overrides if override not in common)
        say_error(f"{own}: {one.return_value}" if own else one.return_value)
    print(f"{len(done) - len(failed)} of {len(done)} runs are finished", file=sys.stderr)
    return int(bool(failed))


def _launch(cfg: DictConfig, overrides: list[str]) -> list[Any]:
    from runners import run as module  # this module, by the name under which other processes can import it

    launcher, logs = _launcher(cfg), cfg.hydra.launcher.get("submitit_folder")
    if launcher == "submitit_slurm" and shutil.which("srun") is None:
        raise ValueError("hydra/launcher=submitit_slurm needs srun on this machine, a login node of Slurm")
    if logs is not None:
        make_folder(Path(logs).parent, private=True)
    if launcher != "basic":
        overrides = ["progress=false", *overrides]  # otherwise all its processes draw on the terminal
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: joblib then ends its processes
    try:
        return run_each(module.job, overrides)
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in ("joblib", "submitit"):
            raise
        raise ConnectionError(f"hydra/launcher={launcher}: {' '.join(str(error).splitlines()[:2])}") from error


def _launcher(cfg: DictConfig) -> str:
    return str(cfg.hydra.runtime.choices["hydra/launcher"])


def _run(cfg: DictConfig) -> None:
    check_is_a_run(cfg)
    warn_about_ignored(cfg)
    with lazy.uncollected(for_good=True):  # imported here: --help, --cfg and invalid words need no torch
        from runners.compose.composition import Composition, is_complete
        from runners.compose.typed import checked_settings
        from runners.recorded_run import finished_before, record_run
        from runners.wandb.attempts import in_sweep
        from runners.wandb.backfill import log_finished
        from runners.wandb.finished_runs import RunOnDisk
    given, settings = checked_settings(cfg)
    ready = finished_before(given, settings, single=True) if is_complete(settings) else None
    if ready is None:
        composition = Composition.complete(given, settings)
        ready = finished_before(composition.given, composition.settings, single=True)
    if ready is None:
        title = f"{HydraConfig.get().runtime.choices['problem']} {cfg.algorithm.name}"
        epsilon = composition.experiment.plan.epsilon_of_nothing
        warn_of_a_weak_release(composition.experiment)
        with RoundProgress(title, settings.rounds, "mean", bool(cfg.progress), epsilon) as progress:
            summary, folder = record_run(composition, progress, single=True)
    else:
        summary, folder = ready
        print(_FINISHED.format(rounds=summary["rounds"]), file=sys.stderr)
        if in_sweep():  # the W&B agent that started this run waits for its metrics
            log_finished(RunOnDisk(folder), settings.tracker.wandb.mode)
    if cfg.progress:
        print_summary(summary, folder)


def check_is_a_run(cfg: DictConfig) -> None:
    """Raise ValueError if a setting of a sweep is given; a single run would ignore it."""
    if any(cfg.sweep[key] is not None for key in ("settings", "scales", "experiments")):
        raise ValueError(
            f"experiment={cfg.experiment_name} is a sweep of several settings: "
            f"python -m runners.sweep experiment={cfg.experiment_name}"
        )
    for override in HydraConfig.get().overrides.task:
        group, value = name_of(override).partition(".")[0], override.partition("=")[2]
        if group in ("seeds", "scale", "sweep", "launcher") and (group != "sweep" or value != "null"):
            raise ValueError(f"{override} is for runners.sweep; a run has one seed, or several with -m seed=0,1,2")


def warn_about_ignored(cfg: DictConfig) -> None:
    """Print a note if the algorithm ignores an override."""
    overrides, a = HydraConfig.get().overrides.task, cfg.algorithm
    own = [o for o in overrides if name_of(o).startswith(("algorithm.own_gp", "algorithm.own_draw"))]
    if own and a.get("averaged_gp") is not None:
        print(f"note: agents of algorithm={a.name} use averaged_gp, {', '.join(own)} has no effect", file=sys.stderr)
    given = [o for o in overrides if name_of(o).startswith("privacy.")]
    if "epsilon" in (cfg.get("transform") or {}):  # these determine the transform's claim and randomness
        effective = ("privacy.epsilon", "privacy.delta", "privacy.rng")
        given = [o for o in given if name_of(o) not in effective]
    if given and not a.private:
        print(f"note: algorithm={a.name} is not private, {', '.join(given)} has no effect", file=sys.stderr)


def warn_of_a_weak_release(experiment: Any) -> None:
    """Print a note if a private prior's release is expected to carry almost no information."""
    from runners.compose.federated import FederatedExperiment

    outlook = experiment.study.outlook if isinstance(experiment, FederatedExperiment) else None
    if outlook is not None and outlook.weak:
        print(f"note: {outlook}", file=sys.stderr)


def start(arguments: list[str]) -> None:
    """Run what a command line describes; exit with a one-sentence error message if Hydra cannot compose it."""
    try:
        options, unknown = parse_command_line(arguments)
    except ValueError as error:
        end(f"{error}; see python -m runners.run --hydra-help", 2)
    elsewhere = [word for word in arguments if word.partition("=")[0] in _NO_OPTIONS]
    settings = [word for word in options.overrides if "=" in word or word.startswith("~")]
    for word in [*unknown, *elsewhere, *(word for word in options.overrides if word not in settings)]:
        end(no_setting(word), 2)
    options.overrides = list(map(quoted, settings))
    sys.argv[1:] = [*(word for word in arguments if word not in settings), *options.overrides]  # as Hydra reads them
    if not (options.help or options.hydra_help or options.info or options.shell_completion):
        try:
            with command_line(options.overrides, bool(options.multirun)) as cfg:
                several = options.multirun or cfg.hydra.mode == RunMode.MULTIRUN
                if not several and _launcher(cfg) != "basic":
                    raise ValueError(f"hydra/launcher={_launcher(cfg)} is for several runs: add -m")
                if several and not options.cfg:
                    interrupted = _SUBMITTED if _launcher(cfg).startswith("submitit") else _INTERRUPTED
                    sys.exit(exit_code(lambda: _run_each(cfg, options.overrides), interrupted))
                if not options.cfg:
                    run_composed(run, cfg)
                    return
        except (HydraException, OmegaConfBaseException, ValueError) as error:
            end(one_sentence(str(error)), 2)
    GlobalHydra.instance().clear()
    if options.info:
        logging.getLogger().handlers.clear()  # Hydra prints through a handler of its own
    hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")(run)()


def _replay(arguments: list[str]) -> int:
    """Repeat a recorded run (`--replay FOLDER`); return the exit code."""
    from runners import replay

    allow = [word.partition("=")[2] for word in arguments if word.startswith("allow=")]
    first, *others = [word for word in arguments if not word.startswith("allow=")]
    words = [*first.split("=", 1), *others]
    if words[0] != "--replay" or len(words) != 2:
        end("--replay FOLDER takes no settings but allow=PACKAGE: the run is repeated as it was recorded", 2)
    return replay.main(Path(words[1]), [name for names in allow for name in names.strip("[]").split(",")])


def main() -> None:
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    logging.getLogger("runners.executor.ray").setLevel(logging.INFO)  # it logs the placement
    if any(word.partition("=")[0] == "--replay" for word in sys.argv[1:]):
        sys.exit(_replay(sys.argv[1:]))
    start(["again=true" if word == "--again" else word for word in sys.argv[1:]])


if __name__ == "__main__":
    main()
