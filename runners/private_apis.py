"""Undocumented functions of Hydra, Ray and W&B are called here only; each function names the version that it fits.

A newer version in constraints.txt needs a look at all functions of its library, and then its number here.
"""

from __future__ import annotations

import argparse
import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override
    from omegaconf import DictConfig

CHECKED = {"hydra-core": "1.3.8", "ray": "2.60.0", "wandb": "0.31.0"}
WANDB_UNWANTED = {
    "x_disable_machine_info": True,
    "x_disable_meta": True,
    "x_disable_stats": True,
    "x_save_requirements": False,
}

logger = logging.getLogger(__name__)


def parse_command_line(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments as a program under `hydra.main` does: `overrides` and the flags. hydra-core 1.3.8."""
    from hydra._internal.utils import get_args_parser

    return get_args_parser().parse_args(list(arguments))


def option_names() -> set[str]:
    """The options of a program under `hydra.main`, such as `--cfg`. hydra-core 1.3.8."""
    from hydra._internal.utils import get_args_parser

    return {name for action in get_args_parser()._actions for name in action.option_strings}


def parse_overrides(overrides: Sequence[str]) -> list[Override]:
    """Parse overrides with their sweeps (`a=1,2`); call it while Hydra is initialised. hydra-core 1.3.8."""
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.override_parser.overrides_parser import OverridesParser

    parser = OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())
    return parser.parse_overrides(list(overrides))


def run_composed(task: Callable[[DictConfig], None], cfg: DictConfig) -> None:
    """Run a task on a configuration composed with Hydra's own part, as `hydra.main` would. hydra-core 1.3.8.

    Call it while Hydra is initialised. `hydra.main` itself composes, twice.
    """
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


def resolve_ray_address(address: str | None) -> str | None:
    """The address that ray.init would use: RAY_ADDRESS, or that of the last `ray start` on this machine. ray 2.60.0."""
    try:
        from ray._private.services import canonicalize_bootstrap_address  # no public function reads its file
    except ImportError:
        return address or os.environ.get("RAY_ADDRESS")
    return canonicalize_bootstrap_address(address)  # type: ignore[arg-type]


def shrink_tune_trial(trial: Any) -> None:
    """Drop the statistics of an ended Tune trial's metrics, which Tune would keep to the end. ray 2.60.0."""
    metadata = getattr(trial, "run_metadata", None)
    for name in ("metric_analysis", "metric_n_steps"):
        getattr(metadata, name, {}).clear()


def wandb_settings_without_machine() -> dict[str, Any]:
    """Settings that stop W&B from collecting hardware, load, installed packages and the command line. wandb 0.31.0.

    They are not ours to upload, and collecting them takes half of the time to open a run. Settings that the installed
    version does not know are left out.
    """
    import wandb

    return {name: value for name, value in WANDB_UNWANTED.items() if name in wandb.Settings.model_fields}


def wandb_version() -> str:
    """The installed version of W&B, whose service processes serve that version alone."""
    import wandb

    return wandb.__version__


def start_shared_wandb_service(idle: str) -> str:
    """Start a service process of W&B that belongs to no process; returns its address. wandb 0.31.0.

    Its command is a beta one. idle: such as `60s`; the service ends when no process was connected to it for so long.
    Raises SubprocessError if it does not start, ValueError if it says no address.
    """
    command = [sys.executable, "-m", "wandb", "beta", "core", "start", "--idle-timeout", idle]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True,
        timeout=20,
    )  # fmt: skip
    address = done.stdout.strip()
    if not wandb_service_answers(address):
        raise ValueError(f"no service of W&B at {address!r}")
    return address


def wandb_service_answers(address: str) -> bool:
    """True if a process of this user listens at a service's address. wandb 0.31.0.

    An address reads `3-PID-unix-PATH` or `3-PID-tcp-localhost-PORT`.
    """
    try:
        _, _, kind, *rest = address.split("-", 3)
        if kind == "unix":
            if os.stat(rest[0]).st_uid != os.getuid():  # somebody else made it under the same name
                return False
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(1.0)
                connection.connect(rest[0])
        else:
            socket.create_connection(("localhost", int(rest[0].rpartition("-")[2])), timeout=1.0).close()
    except (OSError, ValueError, IndexError):
        return False
    return True


def drop_wandb_service(wait_seconds: float) -> None:
    """Drop W&B's service process within `wait_seconds`, so that the next run starts a new one. wandb 0.31.0.

    A shared one is left alone, and this process does not use it any more. Without this, W&B would wait without limit at
    exit for a service that hangs, and print a traceback for a dead one. Its teardown first cancels that wait, and may
    then hang, here on a daemon thread.
    """
    wandb = sys.modules.get("wandb")
    if wandb is None:
        return
    address = os.environ.get("WANDB_SERVICE", "")

    def teardown() -> None:
        try:
            wandb.teardown(exit_code=1)
        except Exception as error:  # the service is dead already
            logger.debug("W&B teardown: %r", error)
        if os.environ.get("WANDB_SERVICE") == address:  # W&B keeps that of a service that it did not start
            del os.environ["WANDB_SERVICE"]

    thread = threading.Thread(target=teardown, name="wandb-teardown", daemon=True)
    thread.start()
    thread.join(wait_seconds)
