"""Wrap all undocumented functions of Hydra, Ray and W&B that the programs use.

Each wrapper was checked with one version of its library. The first line of the wrapper's docstring names this version.
Before you raise a library's version in constraints.txt, check the wrappers of this library again.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override
    from omegaconf import DictConfig

CHECKED = {"hydra-core": "1.3.8", "ray": "2.60.0", "wandb": "0.31.0"}
WANDB_UNWANTED = {  # facts about the user's machine; collecting them is half of the time to open a run
    **dict.fromkeys(("x_disable_machine_info", "x_disable_meta", "x_disable_stats"), True),
    "x_save_requirements": False,
}

logger = logging.getLogger(__name__)


def parse_command_line(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Parse a command line of `hydra.main`, and return the unknown options separately. Checked with hydra-core 1.3.8.

    Overrides and options may be in any order. Raises ValueError for an option with a missing or wrong value.
    """
    from hydra._internal.utils import get_args_parser

    parser = get_args_parser()
    parser.exit_on_error = False
    try:
        return parser.parse_known_intermixed_args(list(arguments))
    except argparse.ArgumentError as error:
        raise ValueError(str(error).removeprefix("argument ")) from error


def complete_overrides(conf: Path, words: Sequence[str]) -> list[str]:
    """Return completions of `words[-1]`, an override of config.yaml in `conf`. Checked with hydra-core 1.3.8."""
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from hydra.plugins.completion_plugin import DefaultCompletionPlugin

    with initialize_config_dir(str(conf), version_base="1.3"):
        plugin = DefaultCompletionPlugin(GlobalHydra.instance().config_loader())
        return plugin._query("config", " ".join(words))


def parse_overrides(overrides: Sequence[str]) -> list[Override]:
    """Parse overrides, including sweeps such as `a=1,2`; Hydra must be initialised. Checked with hydra-core 1.3.8."""
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.override_parser.overrides_parser import OverridesParser

    parser = OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())
    return parser.parse_overrides(list(overrides))


def run_composed(task: Callable[[DictConfig], None], cfg: DictConfig) -> None:
    """Run a task on a composed configuration, without composing it again. Checked with hydra-core 1.3.8."""
    from hydra._internal.callbacks import Callbacks
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.utils import run_job
    from hydra.types import HydraContext, RunMode

    cfg.hydra.mode = RunMode.RUN
    callbacks = Callbacks(cfg)
    callbacks.on_run_start(config=cfg, config_name="config")
    context = HydraContext(config_loader=GlobalHydra.instance().config_loader(), callbacks=callbacks)
    done = run_job(task, cfg, "hydra.run.dir", None, context)
    callbacks.on_run_end(config=cfg, config_name="config", job_return=done)
    done.return_value  # raises the error of the task  # noqa: B018


def run_each(task: Callable[[DictConfig], Any], overrides: Sequence[str]) -> list[Any]:
    """Start the runs of `-m`, and return the JobReturn of each. Checked with hydra-core 1.3.8.

    Hydra must be initialised. Raises an error of the launcher, of a task, or of the composition of a run.
    """
    from hydra.core.global_hydra import GlobalHydra

    batches = GlobalHydra.instance().hydra.multirun("config", task, list(overrides))  # type: ignore[union-attr]
    return [done for batch in batches for done in batch]


def resolve_ray_address(address: str | None) -> str | None:
    """Return the address that ray.init would use: RAY_ADDRESS, or a Ray on this machine. Checked with ray 2.60.0."""
    try:
        from ray._private.services import canonicalize_bootstrap_address  # no public function reads Ray's file
    except ImportError:
        return address or os.environ.get("RAY_ADDRESS")
    return canonicalize_bootstrap_address(address)  # type: ignore[arg-type]


def let_ray_choose_its_ports() -> None:
    """Make the next Ray that starts here take a free port for its dashboard agent. Checked with ray 2.60.0.

    Otherwise `ray.init` waits 3 s if another Ray on this machine holds port 52365.
    """
    try:
        from ray._private.parameter import RayParams
    except ImportError:
        return
    defaults = RayParams.__init__.__defaults__ or ()
    RayParams.__init__.__defaults__ = tuple(0 if value == 52365 else value for value in defaults)


def shrink_tune_trial(trial: Any) -> None:
    """Drop the metric statistics of an ended Tune trial, which Tune would keep. Checked with ray 2.60.0."""
    metadata = getattr(trial, "run_metadata", None)
    for name in ("metric_analysis", "metric_n_steps"):
        getattr(metadata, name, {}).clear()


def wandb_settings_without_machine() -> dict[str, Any]:
    """Return settings that keep W&B from collecting facts about the machine. Checked with wandb 0.31.0."""
    import wandb

    return {name: value for name, value in WANDB_UNWANTED.items() if name in wandb.Settings.model_fields}


def drop_wandb_service(wait_seconds: float) -> None:
    """Drop W&B's service process, so that the next run starts a new one. Checked with wandb 0.31.0.

    wait_seconds: longest wait for W&B's teardown, which may hang.
    """
    wandb = sys.modules.get("wandb")
    if wandb is None:
        return

    def teardown() -> None:
        try:
            wandb.teardown(exit_code=1)
        except Exception as error:  # the service is dead already
            logger.debug("W&B teardown: %r", error)

    thread = threading.Thread(target=teardown, name="wandb-teardown", daemon=True)
    thread.start()
    thread.join(wait_seconds)
