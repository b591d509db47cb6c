"""Weights & Biases as a mirror of a run: the result files come first, and W&B never stops a run.

Every call to W&B happens on a thread of its own with a time limit. At the first failure, whatever it
is, one warning is logged and the tracker does nothing from then on.
"""

from __future__ import annotations

import logging
import math
import numbers
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

if TYPE_CHECKING:
    import wandb

MODES = ("online", "offline", "disabled")
INIT_SECONDS = 20.0  # W&B's own limit for opening a run
FINISH_SECONDS = 30.0  # W&B's own limit for the last upload
ANSWER_SECONDS = 10.0  # for W&B's local service to answer; on top of the two above
REASON_CHARACTERS = 240  # of W&B's own words, in the one warning
IMAGE_SUFFIXES = frozenset({".gif", ".jpeg", ".jpg", ".png", ".webp"})

logger = logging.getLogger(__name__)


class WandbTracker:
    """One W&B run: regret against the round and against epsilon, the config, the final figures.

    No method raises because of W&B, and none blocks for longer than `INIT_SECONDS` or
    `FINISH_SECONDS`, plus twice `ANSWER_SECONDS`. W&B prints nothing, asks for no key, and keeps
    its files in `<run_dir>/wandb`; an offline run is uploaded later with `wandb sync`.
    Stop on the dashboard of an online run interrupts the process, as Ctrl-C does.
    """

    def __init__(self, mode: str = "offline", project: str = "dpfbo", entity: str | None = None) -> None:
        """Keep the settings; W&B is neither imported nor contacted yet.

        Args:
            mode: `online`, `offline` or `disabled`; goes before the variable WANDB_MODE.
            project: W&B project the run appears in.
            entity: W&B user or team; None for the key's default.

        Raises:
            ValueError: mode is none of the three.
        """
        if mode not in MODES:
            raise ValueError(f"tracker.wandb.mode must be one of {', '.join(MODES)}, got {mode!r}")
        self._mode = mode
        self._project = project
        self._entity = entity
        self._inert = mode == "disabled"
        self._run: wandb.Run | None = None

    def start(self, config: dict, run_dir: Path, name: str, group: str, tags: list[str]) -> None:
        """Open the W&B run.

        Args:
            config: resolved settings of the run; may be nested.
            run_dir: result folder of the run; W&B adds the folder `wandb` to it.
            name: name of the run on the dashboard.
            group: runs with the same group (a sweep) are shown together.
            tags: labels, of 1 to 64 characters each.
        """

        def open_run() -> None:
            # Its error reports carry tracebacks, and hold up the exit when the server does not answer.
            os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
            import wandb

            folder = Path(run_dir).resolve()
            # Made here because W&B would quietly go to the temporary folder when it cannot.
            (folder / "wandb").mkdir(parents=True, exist_ok=True)
            # For the whole process, because W&B may print and look for a key before it opens the run.
            wandb.setup(wandb.Settings(mode=self._mode, silent=True))  # type: ignore[arg-type]
            if self._mode == "online" and not wandb.login(prompt=False, verify=False):
                raise RuntimeError("no W&B API key: run `wandb login` or set WANDB_API_KEY")
            run = wandb.init(
                mode=self._mode,  # type: ignore[arg-type]
                project=self._project,
                entity=self._entity,
                dir=str(folder),
                config=config,
                name=name,
                group=group or None,
                tags=tags,
                reinit="create_new",  # whatever run the process has, or had, is left alone
                settings=wandb.Settings(
                    console="off",
                    disable_code=True,
                    disable_git=True,
                    finish_timeout=FINISH_SECONDS,
                    finish_timeout_raises=True,
                    init_timeout=INIT_SECONDS,
                    save_code=False,
                ),
            )
            run.define_metric("round")
            run.define_metric("regret/mean", step_metric="round")
            run.define_metric("regret_vs_epsilon", step_metric="epsilon")
            run.define_metric("*", step_metric="round")
            self._run = run

        self._attempt(open_run, INIT_SECONDS + ANSWER_SECONDS)

    def log_round(self, round: int, metrics: dict[str, float | None]) -> None:
        """Log the metrics of one round, those that are finite numbers, at step `round`.

        With a finite `epsilon` and `regret/mean`, the latter is also logged as `regret_vs_epsilon`,
        whose chart has epsilon as its horizontal axis.

        Args:
            round: number of the round; does not decrease from call to call.
            metrics: value of each metric; `epsilon` is infinite without noise.
        """
        run = self._run
        if run is None:
            return

        def log() -> None:
            row = {key: float(value) for key, value in metrics.items() if _is_finite(value)}
            if "epsilon" in row and "regret/mean" in row:
                row["regret_vs_epsilon"] = row["regret/mean"]
            run.log({**row, "round": int(round)}, step=int(round), commit=True)

        self._attempt(log, ANSWER_SECONDS)

    def finish(self, summary: dict, figures: list[Path]) -> None:
        """Close the run as finished.

        Args:
            summary: final values; numbers, strings and booleans are kept, nested ones as `outer/inner`.
            figures: image files to show on the dashboard; files in other formats are left out.
        """

        def record(run: wandb.Run) -> None:
            from wandb import Image

            run.summary.update(dict(_scalars(summary)))
            images = [path for path in map(Path, figures) if path.suffix.lower() in IMAGE_SUFFIXES]
            if images:
                run.log({f"figures/{path.stem}": Image(str(path)) for path in images})

        self._close(record, exit_code=0)

    def fail(self, message: str) -> None:
        """Close the run as failed, with exit code 1 and `message` under `error` in its summary."""
        self._close(lambda run: run.summary.update({"error": message}), exit_code=1)

    def _close(self, record: Callable[[wandb.Run], None], exit_code: int) -> None:
        run = self._run
        if run is None:
            return

        def close() -> None:
            try:
                record(run)
            finally:
                run.finish(exit_code=exit_code)

        self._attempt(close, FINISH_SECONDS + ANSWER_SECONDS)
        self._run = None

    def _attempt(self, action: Callable[[], None], seconds: float) -> None:
        """Do `action` within `seconds`, or warn and be inert from now on."""
        if self._inert:
            return
        errors: list[BaseException] = []

        def work() -> None:
            try:
                action()
            except BaseException as error:  # W&B also leaves through SystemExit
                errors.append(error)

        thread = threading.Thread(target=work, name="wandb-tracker", daemon=True)
        thread.start()
        thread.join(seconds)
        if thread.is_alive():
            self._abandon(f"no answer within {seconds:g} s", wait_seconds=0.0)
        elif errors:
            reason = " ".join(f"{type(errors[0]).__name__}: {errors[0]}".split())
            self._abandon(reason[:REASON_CHARACTERS], wait_seconds=ANSWER_SECONDS)

    def _abandon(self, reason: str, wait_seconds: float) -> None:
        self._inert = True
        self._run = None
        logger.warning("W&B tracking is off for the rest of this run, its files are unaffected: %s", reason)
        _drop_service(wait_seconds)


def _drop_service(wait_seconds: float) -> None:
    """Let go of W&B's service process, so that the next run starts afresh.

    Without this, W&B would wait at exit for a service that hangs, without limit, and print a traceback
    for one that died. Its teardown first cancels that wait, and may then hang on its daemon thread.
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


def _is_finite(value: object) -> TypeGuard[float]:
    return isinstance(value, numbers.Real) and math.isfinite(value)


def _scalars(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float | str | bool]]:
    """Yield the finite numbers, strings and booleans of a nested mapping, with keys joined by `/`."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _scalars(value, f"{prefix}{key}/")
        elif isinstance(value, str) or _is_finite(value):
            yield f"{prefix}{key}", value
