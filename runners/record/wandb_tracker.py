"""Weights & Biases as a mirror of a run: the result files come first, and W&B never stops a run.

Every call to W&B happens on a thread of its own with a time limit. At the first failure, whatever it
is, one warning is logged and the tracker does nothing from then on.
"""

from __future__ import annotations

import logging
import math
import numbers
import os
import shutil
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

if TYPE_CHECKING:
    import wandb

MODES = ("online", "offline", "disabled")
SHOWS = ("auto", "all", "released")
PATHS = ("results_dir", "data_dir", "file")  # settings that tell of a machine
# of summary.json: what follows from public settings and the ledger alone
RELEASED_SUMMARY = (
    "experiment", "setting", "problem", "algorithm", "seed", "n_agents", "rounds", "metric", "private", "delta",
    "relation", "accountant", "approximations", "epsilon", "rng", "n_charges", "commit",
)  # fmt: skip
INIT_SECONDS = 20.0  # W&B's own limit for opening a run
FINISH_SECONDS = 30.0  # W&B's own limit for the last upload
ANSWER_SECONDS = 10.0  # for W&B's local service to answer; on top of the two above
REASON_CHARACTERS = 240  # of W&B's own words, in the one warning

# What one sees first is decided by names alone: a workspace gives each prefix ("server/") a section of its own, and
# sorts sections and panels by name; metrics without a prefix go to the section "Charts", charts of tables without one
# to "Custom Charts". So nothing that has a chart is without a prefix but regret against epsilon, round by round and at
# the end; both sections come before all others, whether capitals go first or not ("figures" is the next); and should
# the hidden `round` be shown after all (as some versions of the dashboard do), it comes after "regret_...".
# Epsilon is the horizontal axis of the first chart, and below, against the round, a chart of its own.
TRADE_OFF, END_POINT = "regret_vs_epsilon", "final_regret_vs_epsilon"
EPSILON, REGRET, FIGURE = "privacy/epsilon", "regret/mean", "figures/regret"

# (metric, horizontal axis, what its column in the table of runs holds). The metrics of a section may not overlap with
# those of another line: W&B takes only one of two definitions. Regret is that of the best query so far, so its last
# value is also its best one.
METRICS = (
    (EPSILON, "round", "last"),
    (TRADE_OFF, EPSILON, "last"),
    ("regret/*", "round", "last"),
    ("server/*", "round", "mean"),
    ("seconds/*", "round", "none"),  # their sums over the rounds come with the summary
)

# W&B looks around the machine (hardware, load, installed packages, command line), which takes half of the time that
# opening a run does, and is not ours to upload. Internal names: what a version does not know is left out.
UNWANTED: dict[str, Any] = {
    "x_disable_machine_info": True,
    "x_disable_meta": True,
    "x_disable_stats": True,
    "x_save_requirements": False,
}

logger = logging.getLogger(__name__)


class WandbTracker:
    """One W&B run: regret against epsilon and against the round, the config, the final figure.

    No method raises because of W&B, and none blocks for longer than `INIT_SECONDS` or
    `FINISH_SECONDS`, plus twice `ANSWER_SECONDS`. W&B prints nothing, asks for no key, and keeps
    its files in `<run_dir>/wandb`; an offline run is uploaded later with `wandb sync`.
    Stop on the dashboard of an online run interrupts the process, as Ctrl-C does.
    """

    def __init__(
        self, mode: str = "offline", project: str = "dpfbo", entity: str | None = None, show: str = "auto"
    ) -> None:
        """Keep the settings; W&B is neither imported nor contacted yet.

        Args:
            mode: `online`, `offline` or `disabled`; goes before the variable WANDB_MODE.
            project: W&B project the run appears in.
            entity: W&B user or team; None for the key's default.
            show: `all`, or `released`: nothing but what an outsider of a real deployment may see. `auto`: `released`
                where the noise is a private run's own (privacy.rng=os), else `all`.

        Raises:
            ValueError: mode or show is none of the three.
        """
        if show not in SHOWS:
            raise ValueError(f"tracker.wandb.show must be one of {', '.join(SHOWS)}, got {show!r}")
        if mode not in MODES:
            raise ValueError(f"tracker.wandb.mode must be one of {', '.join(MODES)}, got {mode!r}")
        self._mode = mode
        self._project = project
        self._entity = entity
        self._show = show
        self._released_only = show == "released"
        self._inert = mode == "disabled"
        self._run: wandb.Run | None = None
        self._spent: float | None = None
        self._held: list[dict[str, float]] = []  # rows of a run that shows only what is released

    def start(
        self,
        config: dict,
        run_dir: Path,
        name: str,
        group: str,
        tags: list[str],
        commit: str | None = None,
        epsilon: float | None = 0.0,
    ) -> None:
        """Open the W&B run, in place of those not yet uploaded that earlier attempts left in the same folder.

        The run gets the tag `simulation` if it shows what nobody would see in a real deployment, else `released`; its
        config has, besides the settings, `commit` and `visibility`: which metrics are released, which simulation-only.

        Args:
            config: resolved settings of the run; may be nested.
            run_dir: result folder of the run, which no other process uses; W&B adds the folder `wandb` to it.
            name: name of the run on the dashboard.
            group: runs with the same group (a sweep) are shown together.
            tags: labels, of 1 to 64 characters each.
            commit: git commit of the code; None if not known.
            epsilon: before the first broadcast: 0, or None if agents give away something without any protection.
        """

        if self._show == "auto":
            real = config.get("privacy", {}).get("rng") == "os" and config.get("algorithm", {}).get("private", False)
            self._released_only = bool(real)

        def open_run() -> None:
            # Its error reports carry tracebacks, and hold up the exit when the server does not answer.
            os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
            import wandb

            folder = Path(run_dir).resolve()
            # Made here because W&B would quietly go to the temporary folder when it cannot.
            (folder / "wandb").mkdir(parents=True, exist_ok=True)
            _forget_earlier_attempts(folder / "wandb")
            # For the whole process, because W&B may print and look for a key before it opens the run.
            wandb.setup(wandb.Settings(mode=self._mode, silent=True))  # type: ignore[arg-type]
            if self._mode == "online" and not wandb.login(prompt=False, verify=False):
                raise RuntimeError("no W&B API key: run `wandb login` or set WANDB_API_KEY")
            run = wandb.init(
                mode=self._mode,  # type: ignore[arg-type]
                project=self._project,
                entity=self._entity,
                dir=str(folder),
                config={**config, "commit": commit, "visibility": visibility()},
                id=uuid.uuid4().hex[:8],  # of its own, whatever WANDB_RUN_ID and WANDB_RESUME say
                resume="never",
                name=name,
                group=group or None,
                tags=[*tags, "released" if self._released_only else "simulation"],
                reinit="create_new",  # whatever run the process has, or had, is left alone
                settings=wandb.Settings(
                    console="off",
                    disable_code=True,
                    disable_git=True,
                    finish_timeout=FINISH_SECONDS,
                    finish_timeout_raises=True,
                    init_timeout=INIT_SECONDS,
                    save_code=False,
                    **{name: value for name, value in UNWANTED.items() if name in wandb.Settings.model_fields},
                ),
            )
            run.define_metric("round", hidden=True, summary="last")
            for metric, axis, summary in METRICS:
                run.define_metric(metric, step_metric=axis, summary=summary)
            self._run = run

        if self._released_only:
            config = {key: value for key, value in config.items() if key not in PATHS}
            config["problem"] = {k: v for k, v in config.get("problem", {}).items() if k not in PATHS}
        self._spent, self._held = epsilon, []
        self._attempt(open_run, INIT_SECONDS + ANSWER_SECONDS)

    def log_round(self, round: int, metrics: dict[str, float | None]) -> None:
        """Log the metrics of one round, those that are finite numbers, at step `round`.

        The regret of a round was paid for by the broadcasts before it. So `privacy/epsilon` of a round is the epsilon
        after the last one before, and with it `regret/mean` is also logged as `regret_vs_epsilon`; neither is
        where there is no finite epsilon.

        Args:
            round: number of the round; does not decrease from call to call.
            metrics: value of each metric. `epsilon`: after the broadcast of this round, by the run's accountant; None
                or infinite if no finite one covers it, not given if there is none.
        """
        run = self._run
        if run is None:
            return
        if "epsilon" in metrics and not _is_finite(metrics["epsilon"]):
            self._spent = None
        row = {key: float(value) for key, value in metrics.items() if key != "epsilon" and _is_finite(value)}
        if self._spent is not None:
            row[EPSILON] = self._spent
            if REGRET in row:
                row[TRADE_OFF] = row[REGRET]
            self._spent = metrics.get("epsilon", self._spent)
        if self._released_only:  # at the end, since W&B stamps a row with the time, which agents' data decide
            self._held.append({key: row[key] for key in row if key in visibility()["released"]} | {"round": int(round)})
            return
        self._attempt(lambda: run.log({**row, "round": int(round)}, step=int(round), commit=True), ANSWER_SECONDS)

    def finish(self, summary: dict, draw: Callable[[Path], object] | None = None) -> None:
        """Close the run as finished, with its final regret and epsilon: one point in a chart of all runs.

        Args:
            summary: contents of summary.json; numbers, strings and booleans are kept, nested ones as `outer/inner`.
            draw: writes the figure of the run, a PNG file, to the path it is given; not called without a W&B run.
        """

        def record_released(run: wandb.Run) -> None:
            self._log_held(run)
            known = {key: summary[key] for key in RELEASED_SUMMARY if key in summary}
            spent = {key: value for key, value in end_point(summary).items() if key == "final_epsilon"}
            run.summary.update({**dict(_scalars(known)), **spent})

        def record(run: wandb.Run) -> None:
            import wandb

            point = end_point(summary)
            run.summary.update({**dict(_scalars(summary)), **point})
            if len(point) == 2:
                # A chart of a table, because it shows the tables of all runs together: W&B draws no metric against
                # another by itself where each run has but one value of both.
                table = wandb.Table(
                    columns=["epsilon", "regret"], data=[[point["final_epsilon"], point["final_regret"]]]
                )
                title = "final regret against epsilon, a point for each run"
                run.log({END_POINT: wandb.plot.scatter(table, "epsilon", "regret", title, split_table=True)})
            if draw is not None:
                with tempfile.TemporaryDirectory() as folder:
                    path = Path(folder) / "figure.png"
                    draw(path)
                    run.log({FIGURE: wandb.Image(str(path))})  # copies the file

        self._close(record_released if self._released_only else record, exit_code=0)

    def fail(self, message: str) -> None:
        """Close the run as failed, with exit code 1 and `message` under `error` in its summary.

        Of a run that shows only what is released, the message, which may quote an agent's data, stays here.
        """
        if not self._released_only:
            self._close(lambda run: run.summary.update({"error": message}), exit_code=1)
            return

        def record(run: wandb.Run) -> None:
            self._log_held(run)
            run.summary.update({"error": "the run failed; its own log says why"})

        self._close(record, exit_code=1)

    def _log_held(self, run: wandb.Run) -> None:
        for row in self._held:
            run.log(row, step=int(row["round"]), commit=True)

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


def visibility() -> dict[str, list[str]]:
    """The metrics that an outsider of a real deployment would see (`released`), and the others (`simulation-only`)."""
    from dpfbo.records import SERVER_SCHEMA  # here, because it takes torch with it

    names: dict[str, list[str]] = {"released": [], "simulation-only": []}
    for column in SERVER_SCHEMA:
        name = {"round": "round", "epsilon": EPSILON}.get(column.name, f"server/{column.name}")
        names[column.metadata[b"visibility"].decode()].append(name)
    names["released"] += ["final_epsilon"]
    names["simulation-only"] += ["regret/*", "final_regret", TRADE_OFF, END_POINT, "figures/*", "seconds/*"]
    return names


def end_point(summary: Mapping[str, Any]) -> dict[str, float]:
    """`final_regret` and `final_epsilon` (by the run's accountant) of a summary, those that are finite.

    Short names, because the table of runs sorts and filters by names without a slash only.
    """
    point = {
        "final_regret": summary.get("final", {}).get("mean"),
        "final_epsilon": summary.get("epsilon", {}).get(summary.get("accountant")),
    }
    return {key: float(value) for key, value in point.items() if _is_finite(value)}


def _forget_earlier_attempts(folder: Path) -> None:
    """Delete the offline runs in a `wandb` folder that were not uploaded.

    An interrupted run logs all its rounds again when it goes on, and a repeated one replaces its result files.
    """
    for attempt in folder.glob("offline-run-*"):
        if not any(attempt.glob("*.synced")):
            shutil.rmtree(attempt, ignore_errors=True)


def _is_finite(value: object) -> TypeGuard[float]:
    return isinstance(value, numbers.Real) and math.isfinite(value)


def _scalars(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float | str | bool]]:
    """Yield the finite numbers, strings and booleans of a nested mapping, with keys joined by `/`."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _scalars(value, f"{prefix}{key}/")
        elif isinstance(value, str) or _is_finite(value):
            yield f"{prefix}{key}", value
