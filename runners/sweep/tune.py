"""Trials on Ray Tune: worker processes run them, and the driver keeps the progress table up to date.

The run folders are the truth. Tune only finds a free place for each trial; its own state is in a temporary folder, and
a resumed sweep is planned anew from the run folders.
"""

import logging
import os
import signal
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

# set before Ray is imported: Tune writes no log files and does not change the folder
os.environ |= {"RAY_CHDIR_TO_TRIAL_DIR": "0", "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1"}
os.environ["TUNE_DISABLE_SIGINT_HANDLER"] = "1"  # Ctrl-C interrupts the sweep, as it does a single run
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import ray
from omegaconf import OmegaConf
from ray import tune
from ray.exceptions import RayError
from ray.tune.experiment import Trial as TuneTrial

from dpfbo.run_result import OnRound, Round
from runners.compose.identity import setting_hash
from runners.executor.ray.cluster import check_reachable
from runners.record.run_folder import ResultsError, RunFolder, trial_folder
from runners.recorded_run import run_configuration
from runners.sweep.plan import PlannedSetting, SweepOptions
from runners.sweep.progress_table import ProgressTable
from runners.sweep.trials import Trial, TrialState, forget_failure, record_failure, state
from runners.user_errors import USER_ERRORS

REPORT_SECONDS = 1.0  # interval of the reports of a running trial
BUSY_SECONDS = 15.0  # longest wait for another process in the run folder, such as one left by a killed sweep


@contextmanager
def cluster(options: SweepOptions) -> Iterator[None]:
    """Connect to Ray, or start one on this machine, and shut that down at the end.

    A connection that this process had before stays. Raises ConnectionError if there is no Ray at the address,
    ValueError if no node can ever hold a trial.
    """
    if ray.is_initialized():
        _check_resources(options)
        yield
        return
    check_reachable(options.address)
    try:
        try:
            ray.init(options.address, log_to_driver=False, logging_level=logging.ERROR, include_dashboard=False)
        except (OSError, ValueError, RuntimeError, RayError) as error:
            raise ConnectionError(f"Ray cannot be used: {' '.join(str(error).split())}") from error
        _check_resources(options)
        with _terminated_like_interrupted():
            yield
    finally:
        ray.shutdown()  # even after an interrupted start


@contextmanager
def _terminated_like_interrupted() -> Iterator[None]:
    """Treat SIGTERM, as a batch system sends it, like Ctrl-C; Ray would end with its own report."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def run_trials(todo: Sequence[tuple[PlannedSetting, Trial]], options: SweepOptions, table: ProgressTable) -> list[str]:
    """Run the trials, as many at a time as fit, and update the progress table; returns their warnings.

    Raises ConnectionError if the cluster is lost.
    """
    texts = {
        OmegaConf.to_yaml(OmegaConf.create(setting.config(trial.seed))): (setting, trial) for setting, trial in todo
    }
    listener = _Listener(table, texts)
    bundle = {"CPU": options.cpus_per_trial, "GPU": options.gpus_per_trial}
    held = {name: count for name, count in bundle.items() if count} or {"memory": 1.0}  # Tune must hold something
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # errors of trials come to the listener
    with tempfile.TemporaryDirectory(prefix="dpfbo-sweep-") as storage, _no_standard_output():
        tuner = tune.Tuner(
            tune.with_resources(run_trial, tune.PlacementGroupFactory([held])),
            param_space={"cfg": tune.grid_search(list(texts)), "cwd": str(Path.cwd())},
            tune_config=tune.TuneConfig(
                reuse_actors=True,  # importing the library takes seconds, a trial may take less
                max_concurrent_trials=options.max_concurrent,
                trial_dirname_creator=lambda trial: trial.trial_id,
            ),
            run_config=tune.RunConfig(name="sweep", storage_path=storage, verbose=0, callbacks=[listener]),
        )
        try:
            tuner.fit()
        except (RayError, tune.TuneError) as error:
            raise ConnectionError(f"the Ray cluster was lost: {' '.join(str(error).split())}") from error
    return listener.warnings()


def run_trial(config: Mapping[str, Any]) -> dict[str, Any]:
    """Run one trial in a worker process. config: `cfg`, its configuration as YAML; `cwd`, folder of the sweep."""
    with suppress(OSError):  # on another machine that folder may not exist, and need not
        os.chdir(config["cwd"])
    cfg = OmegaConf.create(config["cfg"])
    reported = time.monotonic()

    def report(done: Round) -> None:
        nonlocal reported
        if time.monotonic() >= reported + REPORT_SECONDS:
            epsilon = done.server.epsilon if done.server is not None else None
            tune.report({"state": asdict(TrialState("running", done.agents.round, done.agents.mean, epsilon))})
            reported = time.monotonic()

    with _warnings() as warnings:
        ended = attempt(cfg, report)
    return {"state": asdict(ended), "warnings": warnings}


def attempt(cfg: Any, on_round: OnRound) -> TrialState:
    """Run a trial in this process, record a failure, and return the final state; raises no Exception."""
    experiment = Path(cfg.results_dir) / str(cfg.experiment_name)
    folder = trial_folder(experiment, setting_hash(cfg), int(cfg.seed), int(cfg.rounds))
    give_up = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            known = state(folder)
            if known.phase != "done":  # another process may have finished it
                forget_failure(folder)
                run_configuration(cfg, on_round)
                known = state(folder)
            return known
        except ResultsError as error:
            if not folder.busy():
                return _failed(folder, error)
            if time.monotonic() > give_up:
                return TrialState("running", error="another process is running it")
            time.sleep(0.5)
        except Exception as error:  # the other trials go on
            return _failed(folder, error)


def _failed(folder: RunFolder, error: Exception) -> TrialState:
    words = " ".join(str(error).split())
    sentence = words if isinstance(error, USER_ERRORS) and words else f"{type(error).__name__}: {words}"
    with suppress(OSError):  # the error may be that the folder cannot be written
        record_failure(folder, sentence, traceback.format_exc())
    return TrialState("failed", error=sentence)


class _Listener(tune.Callback):
    """Updates the progress table from Tune's callbacks."""

    def __init__(self, table: ProgressTable, trials: Mapping[str, tuple[PlannedSetting, Trial]]) -> None:
        self._table, self._trials = table, trials
        self._warnings: dict[str, list[str]] = {}

    def __getstate__(self) -> dict[str, Any]:
        """No state: Tune keeps its callbacks on disk for a restore that never happens here."""
        return {}

    def on_trial_start(self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, **info: Any) -> None:
        self._table.update(self._trial(trial), TrialState("running", 0))

    def on_trial_result(
        self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, result: dict[str, Any], **info: Any
    ) -> None:
        self._table.update(self._trial(trial), TrialState(**result["state"]))
        for kind, text in result.get("warnings", ()):
            self._warnings.setdefault(kind, []).append(text)

    def on_trial_error(self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, **info: Any) -> None:
        """Record the failure of a trial whose process died and could not record it."""
        setting, ours = self._trials[trial.config["cfg"]]
        folder = ours.folder(setting.folder)
        now = state(folder)
        if now.phase != "done":
            text = Path(trial.error_file).read_text() if trial.error_file else ""
            reason = "its process died: killed, or out of memory"
            if "Traceback" in text:  # the process is alive, but could not import a module, for example
                reason = f"its process could not run it: {text.strip().splitlines()[-1].strip()}"
            with suppress(OSError):
                record_failure(folder, reason, text)
            now = TrialState("failed", error=reason)
        self._table.update(ours, now)

    def warnings(self) -> list[str]:
        """One warning of each kind, with its count."""
        return [f"{texts[0]} ({len(texts)} times)" if texts[1:] else texts[0] for texts in self._warnings.values()]

    def _trial(self, trial: TuneTrial) -> Trial:
        return self._trials[trial.config["cfg"]][1]


class _Collector(logging.Handler):
    """Keeps the warnings of our own code: (message without its values, message)."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.collected: list[tuple[str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.partition(".")[0] in ("dpfbo", "runners"):
            self.collected.append((str(record.msg), record.getMessage()))


@contextmanager
def _warnings() -> Iterator[list[tuple[str, str]]]:
    handler = _Collector()
    logging.getLogger().addHandler(handler)
    try:
        yield handler.collected
    finally:
        logging.getLogger().removeHandler(handler)


@contextmanager
def _no_standard_output() -> Iterator[None]:
    """Discard the prints of Ray and Tune; the table is on standard error."""
    with open(os.devnull, "w") as nothing, redirect_stdout(nothing):
        yield


def _check_resources(options: SweepOptions) -> None:
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    cpus, gpus = options.cpus_per_trial, options.gpus_per_trial
    if not any(node.get("CPU", 0) >= cpus and node.get("GPU", 0) >= gpus for node in nodes):
        has = " or ".join(sorted({f"{node.get('CPU', 0):g} CPUs and {node.get('GPU', 0):g} GPUs" for node in nodes}))
        raise ValueError(
            f"sweep.cpus_per_trial={cpus:g} and sweep.gpus_per_trial={gpus:g} fit on no node of the Ray cluster, "
            f"which has {has}"
        )
