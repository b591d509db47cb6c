"""Track a run in Weights & Biases; a failure of W&B never stops the run.

A tracker calls W&B in a thread of its own. At the first failure it logs one warning, and does nothing from then on.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfbo import checks
from runners import private_apis
from runners.wandb import attempts, layout
from runners.wandb.attempts import WandbNote

if TYPE_CHECKING:
    import wandb

INIT_SECONDS = 20.0  # W&B's own limit for opening a run
FINISH_SECONDS = 30.0  # W&B's own limit for the last upload
ANSWER_SECONDS = 10.0  # limit for an answer of W&B's local service, in addition to the two above
RECORDS = ("config.yaml", "summary.json", "rounds.parquet", "server.parquet", "ledger.jsonl", "theory.json")
REASON_CHARACTERS = 240  # largest length of W&B's error in our warning

logger = logging.getLogger(__name__)
_missing: set[str | None] = set()  # packages that are not installed; each is reported once in a process


@dataclass(eq=False)
class WandbTracker:
    """Logs one run to W&B: its config, its metrics by round, and at the end its summary with final regret and epsilon.

    The fields are the settings `tracker.wandb`; invalid values raise ValueError. A failure of W&B raises no error. W&B
    prints nothing and asks for no key. Only `start`, `finish` and `fail` wait for W&B, and give up if W&B makes no
    progress within a time limit. "Stop" on the dashboard of an online run interrupts the process, as Ctrl-C does.
    """

    mode: str = "offline"
    project: str = "dpfbo"
    entity: str | None = None
    show: str = "auto"
    artifacts: bool = False
    alerts: bool = False

    def __post_init__(self) -> None:
        checks.one_of("tracker.wandb.show", self.show, ("auto", "all", "released"))
        checks.one_of("tracker.wandb.mode", self.mode, ("online", "offline", "disabled"))
        self._released_only = self.show == "released"
        self._worker: threading.Thread | None = None  # None before the run, or if W&B does not answer
        self._actions: queue.SimpleQueue[Callable[[], object]] | None = None  # None unless the run is open
        self._ending = threading.Lock()
        self._run: Any = None  # wandb.Run, which only the worker uses
        self._spent: float | None = None  # epsilon so far; None if there is no finite one
        self._held: list[dict[str, float]] = []  # rows to log at the end, if only released metrics are shown
        self._run_dir, self._id, self._rounds = Path(), "", 0  # folder, W&B id, last round

    def start(
        self, config: dict, run_dir: Path, name: str, group: str, tags: list[str], commit: str | None = None,
        epsilon: float | None = 0.0, setting: str = "", label: str = "", folder: Path | None = None,
        refused: bool = False,
    ) -> None:  # fmt: skip
        """Open the W&B run.

        If `refused` is False, deletes all earlier offline attempts of this run that were not uploaded.

        config: resolved settings. run_dir: the run's folder, which no other process uses. tags: further tags;
        `released` is added if only released metrics are shown, else `simulation`. epsilon: the epsilon before the
        first broadcast of the run; None if it is not finite. setting, label: hash and label of the settings. folder:
        W&B writes to `<folder>/wandb`, which several runs may share. If folder is None, W&B writes to
        `<run_dir>/wandb`. refused: True if the run will not begin, because its privacy budget is spent.
        """
        if self.mode == "disabled":
            return
        real = layout.is_real(config)
        self._released_only = layout.released_only(self.show, real)
        if self.artifacts and self._released_only:
            raise ValueError("tracker.wandb.artifacts=true uploads values that are not released: it needs show=all")
        self._spent, self._run_dir = epsilon, Path(run_dir).resolve()
        config = layout.config_of(config, setting, label, self._released_only)
        config |= {"commit": commit, "visibility": layout.visibility()}
        tags = [*tags, "released" if self._released_only else "simulation"]
        facts = {"config": config, "name": name, "group": group or None, "job_type": "trial", "tags": tags}
        place = self._run_dir if folder is None else Path(folder).resolve()
        self._actions, opened = queue.SimpleQueue(), threading.Event()
        self._actions.put(lambda: self._open(place, facts, real, refused))
        self._actions.put(opened.set)
        work = (self._actions, opened)
        self._worker = threading.Thread(target=self._work, args=work, name="wandb-tracker", daemon=True)
        self._worker.start()
        if not opened.wait(INIT_SECONDS + ANSWER_SECONDS):
            self._no_answer(INIT_SECONDS + ANSWER_SECONDS)

    def log_round(self, round: int, metrics: dict[str, float | None]) -> None:
        """Log the finite metrics of one round at step `round`, without waiting for W&B.

        The epsilon logged with a round covers only the broadcasts before the round. `metrics["epsilon"]` also covers
        the broadcast of this round, so this value is logged with the next round. There is one exception: if
        `metrics["epsilon"]` is None or infinite, this round and all later rounds are logged without an epsilon.
        """
        if self._actions is None:
            return
        self._rounds = int(round)
        if "epsilon" in metrics and not layout.is_finite(metrics["epsilon"]):
            self._spent = None
        row = {**layout.row_of(metrics, self._spent), "round": int(round)}
        if self._spent is not None:
            self._spent = metrics.get("epsilon", self._spent)
        if self._released_only:  # logged at the end: W&B stores the time of a row, which depends on agents' data
            self._held.append({key: row[key] for key in row if key in layout.visibility()["released"]})
        else:
            self._hand_over(lambda: self._log(row))

    def finish(self, summary: dict) -> None:
        """Close the run as finished, with the scalars of summary.json; nested keys become `outer/inner`."""

        def record() -> None:
            self._run.summary.update(layout.summary_of(summary, self._released_only))
            if not self._released_only:
                _show_end(self._run, summary)
            if self.artifacts:
                files = [path for name in RECORDS if (path := self._run_dir / name).is_file()]
                log_files(self._run, f"records-{self._id}", "records", files)

        self._close(record, exit_code=0)

    def alert(self, title: str, text: str) -> None:
        """If `alerts` is set, let W&B send a message to the users who subscribed to its alerts."""
        if self.alerts:
            self._hand_over(lambda: self._run.alert(title=title, text=text))

    def fail(self, message: str) -> None:
        """Close the run as failed, with `message` as `error` in its summary.

        If only released metrics are shown, the message is left out, since it may quote an agent's data.
        """
        error = "the run failed; its log has the reason" if self._released_only else message
        self._close(lambda: self._run.summary.update({"error": error}), exit_code=1)

    def _open(self, folder: Path, facts: dict[str, Any], real: bool, refused: bool) -> None:
        # If W&B could not make this folder, it would silently use a temporary one.
        (folder / "wandb").mkdir(parents=True, exist_ok=True)
        if real and not self._released_only:
            (folder / "wandb").chmod(0o700)  # it will hold private records, as the user asked
        self._id = attempts.id_of_attempt(self._run_dir, self.mode)
        earlier = attempts.not_uploaded(folder, attempts.id_prefix(self._run_dir))
        self._run = open_run(self.mode, folder, id=self._id, project=self.project, entity=self.entity, **facts)
        if not refused:
            WandbNote(self._id, self.mode).write(self._run_dir)
            attempts.delete(earlier)  # a resumed run logs all its rounds again
        self._run.define_metric("round", hidden=True, summary="last")
        for metric, axis, summary in layout.METRICS:
            self._run.define_metric(metric, step_metric=axis, summary=summary)

    def _log(self, row: dict[str, float]) -> None:
        if row["round"] >= self._run.starting_step:  # the server has earlier rows, from an attempt that crashed
            self._run.log(row, step=int(row["round"]), commit=True)

    def _close(self, record: Callable[[], object], exit_code: int) -> None:
        def close() -> None:
            try:
                for row in self._held:
                    self._log(row)
                record()
            finally:
                self._run.finish(exit_code=exit_code)
            if exit_code == 0:
                WandbNote(self._id, self.mode, True, self._rounds).write(self._run_dir)
            self._actions = None

        self._hand_over(close)
        actions, before = self._actions, None
        while self._worker is not None and self._worker.is_alive():
            left = 0 if actions is None else actions.qsize()
            if left == before:
                return self._no_answer(FINISH_SECONDS + ANSWER_SECONDS)
            before = left
            self._worker.join(FINISH_SECONDS + ANSWER_SECONDS)

    def _hand_over(self, action: Callable[[], object]) -> None:
        if (actions := self._actions) is not None:
            actions.put(action)

    def _work(self, actions: queue.SimpleQueue, opened: threading.Event) -> None:
        try:
            while self._actions is not None:
                actions.get()()
        except ModuleNotFoundError as error:
            said = error.name in _missing
            _missing.add(error.name)
            self._give_up("" if said else f"ModuleNotFoundError: {error}, pip install 'dpfbo[wandb]'", wait_seconds=0.0)
        except BaseException as error:  # W&B also leaves through SystemExit
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            self._give_up(reason[:REASON_CHARACTERS], wait_seconds=ANSWER_SECONDS)
        finally:
            opened.set()

    def _no_answer(self, seconds: float) -> None:
        self._worker = None  # so that `_close` does not wait again
        self._give_up(f"no answer within {seconds:g} s", wait_seconds=0.0)

    def _give_up(self, reason: str, wait_seconds: float) -> None:
        """Stop tracking and warn with the reason; an empty reason or a closed run gives no warning."""
        with self._ending:
            is_open, self._actions = self._actions is not None, None
        if is_open and reason:
            logger.warning("W&B tracking is off for the rest of this run; its files are unaffected: %s", reason)
        if is_open:
            private_apis.drop_wandb_service(wait_seconds)


def open_run(mode: str, folder: Path, **facts: Any) -> wandb.Run:
    """Open a W&B run whose files are in `<folder>/wandb`, without output or prompts; may raise any exception.

    facts: arguments of wandb.init, which override environment variables such as WANDB_RUN_ID. An online run with an
    earlier run's id resumes that run.
    """
    # W&B's error reports carry tracebacks, and delay the exit when the server does not answer.
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    import wandb

    # W&B may print and look for a key before it opens the run, so this applies to the whole process.
    wandb.setup(wandb.Settings(mode=mode, silent=True))  # type: ignore[arg-type]
    if mode == "online" and not wandb.login(prompt=False, verify=False):
        raise RuntimeError("no W&B API key: run `wandb login` or set WANDB_API_KEY")
    settings = wandb.Settings(
        console="off", disable_code=True, disable_git=True, save_code=False, init_timeout=INIT_SECONDS,
        finish_timeout=FINISH_SECONDS, finish_timeout_raises=True, **private_apis.wandb_settings_without_machine(),
    )  # fmt: skip
    resume = "allow" if mode == "online" else "never"
    # create_new: other runs of the process stay open
    return wandb.init(mode=mode, dir=str(folder), resume=resume, reinit="create_new", settings=settings, **facts)  # type: ignore[arg-type]


def log_files(run: wandb.Run, name: str, kind: str, files: Sequence[Path]) -> None:
    """Log files as one artifact of a run; each file keeps its name."""
    import wandb

    artifact = wandb.Artifact(name, type=kind)
    for path in files:  # uploaded in place: others might read a copy elsewhere
        artifact.add_file(str(path), name=path.name, policy="immutable", skip_cache=True)
    run.log_artifact(artifact)


def table(rows: Sequence[dict[str, Any]]) -> wandb.Table:
    """Return a W&B table of rows, which must have the same columns."""
    import wandb

    columns: list[Any] = list(rows[0])
    return wandb.Table(columns=columns, data=[list(row.values()) for row in rows], allow_mixed_types=True)


def _show_end(run: wandb.Run, summary: dict[str, Any]) -> None:
    """Log a chart and a table of a run's results to W&B.

    The chart plots final regret against final epsilon. It is left out if either value is not finite. The table contains
    the best query of each agent.
    """
    import wandb

    point = layout.end_point(summary)
    if len(point) == 2:
        # The chart is made of a table, since W&B joins the tables of all runs; it cannot plot two metrics of which each
        # run has a single value.
        data = table([{"epsilon": point[layout.FINAL_EPSILON], "regret": point[layout.FINAL_REGRET]}])
        title = "final regret against epsilon, a point for each run"
        run.log({layout.END_POINT: wandb.plot.scatter(data, "epsilon", "regret", title, split_table=True)})
    if best := summary.get("best"):
        run.log({layout.BEST: table(best)})
