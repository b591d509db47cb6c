"""python -m runners.run: one experiment from the command line (Hydra)."""

import difflib
import logging
import re
import sys
from typing import Any

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from dpfbo.gp.posterior import FactorisationError
from dpfbo.privacy.accounting import UnsupportedEvent
from dpfbo.privacy.budget import BudgetSpent
from dpfbo.privacy.ledger import LedgerError
from dpfbo.problems.custom import EvaluationError
from dpfbo.problems.readers.data_files import MissingData
from runners.compose.experiment import CONF
from runners.executor.deployment import ExecutorError
from runners.private_apis import parse_command_line
from runners.record.run_folder import ResultsError
from runners.record.terminal import RoundProgress, print_summary, say_error
from runners.recorded_run import execute

USER_ERRORS = (
    ValueError, TypeError, UnsupportedEvent, MissingData, LedgerError, BudgetSpent, FactorisationError, EvaluationError,
    ResultsError, ExecutorError, OmegaConfBaseException, OSError,
)  # fmt: skip


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")
def run(cfg: DictConfig) -> None:
    """Run the composed experiment; exit code 0, 1 for an error, 130 when interrupted."""
    try:
        check_is_a_run(cfg)
        warn_about_ignored_privacy(cfg)
        title = f"{HydraConfig.get().runtime.choices['problem']} {cfg.algorithm.name}"
        epsilon = None if cfg.algorithm.server == "peer" else 0.0
        with RoundProgress(
            title, cfg.rounds if isinstance(cfg.rounds, int) else 1, "mean", bool(cfg.progress), epsilon
        ) as progress:
            summary, folder = execute(cfg, progress)
    except KeyboardInterrupt:
        say_error("interrupted; the same command goes on after the last round, and the ledger holds every broadcast")
        sys.exit(130)
    except USER_ERRORS as error:
        say_error(str(error))
        sys.exit(1)
    if cfg.progress:
        print_summary(summary, folder)


def check_is_a_run(cfg: DictConfig) -> None:
    """Raise ValueError for what only a sweep understands, and a single run would ignore."""
    if cfg.sweep.settings is not None or cfg.sweep.scales is not None:
        raise ValueError(
            f"experiment={cfg.experiment_name} is a sweep of several settings: "
            f"python -m runners.sweep experiment={cfg.experiment_name}"
        )
    for override in HydraConfig.get().overrides.task:
        if override.lstrip("+~").partition("=")[0].partition(".")[0] in ("seeds", "scale", "sweep"):
            raise ValueError(f"{override} is for runners.sweep; a run has one seed, or several with -m seed=0,1,2")


def warn_about_ignored_privacy(cfg: DictConfig) -> None:
    """Say so when the command line sets privacy for an algorithm that has none."""
    given = [o for o in HydraConfig.get().overrides.task if o.lstrip("+~").startswith("privacy.")]
    if "epsilon" in (cfg.get("transform") or {}):  # the published claim's, and the randomness of its release
        effective = ("privacy.epsilon", "privacy.delta", "privacy.rng")
        given = [o for o in given if o.lstrip("+~").partition("=")[0] not in effective]
    if given and not cfg.algorithm.private:
        print(f"note: algorithm={cfg.algorithm.name} is not private, {', '.join(given)} has no effect", file=sys.stderr)


def check_composes(arguments: list[str]) -> None:
    """Exit with one sentence if the overrides cannot be composed (Hydra's own report takes several lines)."""
    parsed = parse_command_line(arguments)
    if parsed.help or parsed.hydra_help or parsed.info or parsed.shell_completion:
        return
    if parsed.multirun:
        check_names(parsed.overrides)
        return
    try:
        with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
            hydra.compose("config", overrides=parsed.overrides)
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        say_error(one_sentence(str(error)))
        sys.exit(2)
    finally:
        GlobalHydra.instance().clear()


def check_names(overrides: list[str]) -> None:
    """Exit with one sentence if an override of a sweep names no setting (its values are Hydra's to parse)."""
    known = {*known_keys(), *(folder.name for folder in CONF.iterdir()), *_keys_of_options()}
    for name in (override.split("=")[0] for override in overrides):
        if name not in known and name[:1] not in "+~" and "@" not in name and not name.startswith("hydra"):
            say_error(one_sentence(f"Could not override '{name}'"))
            sys.exit(2)


def one_sentence(message: str) -> str:
    """Hydra's message about an override, shortened, with the nearest known name."""
    group = re.search(r"Could not find '(\w+)/(\S+)'", message)
    if group:
        options = sorted(f.stem for f in (CONF / group[1]).glob("[a-z]*.yaml"))
        return f"unknown {group[1]} {group[2]!r}: choose one of {', '.join(options)}{_nearest(group[2], options)}"
    key = re.search(r"Could not override '([^']+)'", message) or re.search(r"Key '([^']+)' is not in struct", message)
    if key:
        return f"unknown override {key[1]!r}{_nearest(key[1], known_keys())}; --cfg job shows all settings"
    return message.split("\n\n")[0]


def known_keys() -> list[str]:
    """Dotted names of the default configuration."""
    GlobalHydra.instance().clear()
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        return _names(OmegaConf.to_container(hydra.compose("config")), "")


def _keys_of_options() -> list[str]:
    """Dotted names that other options of a group have, such as another problem's."""
    files = [file for folder in CONF.iterdir() if folder.is_dir() for file in folder.glob("*.yaml")]
    return [
        name for file in files for name in _names(OmegaConf.to_container(OmegaConf.load(file)), f"{file.parent.name}.")
    ]


def _names(node: Any, prefix: str) -> list[str]:
    if not isinstance(node, dict):
        return []
    return [name for key, child in node.items() for name in (f"{prefix}{key}", *_names(child, f"{prefix}{key}."))]


def _nearest(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, [other for other in known if other != name], n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def main() -> None:
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    for name in ("runners.executor.ray.federated", "runners.executor.ray.outsourced"):
        logging.getLogger(name).setLevel(logging.INFO)  # what it chose
    check_composes(sys.argv[1:])
    run()


if __name__ == "__main__":
    main()
