"""Trials on Ray Tune: worker processes run them, and the driver keeps the progress table up to date.

The run folders are the truth. Tune only finds a free place for each trial; its own state is in a temporary folder, and
a resumed sweep is planned anew from the run folders.
"""

import json
import logging
import os
import signal
import tempfile
import threading
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any

# set before Ray is imported: Tune writes no log files and does not change the folder
os.environ |= {"RAY_CHDIR_TO_TRIAL_DIR": "0", "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1"}
os.environ |= {"TUNE_GLOBAL_CHECKPOINT_S": "1e9", "TUNE_MAX_PENDING_TRIALS_PG": "4"}  # no state, no long queue
os.environ["TUNE_DISABLE_SIGINT_HANDLER"] = "1"  # Ctrl-C interrupts the sweep, as it does a single run
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import ray
from omegaconf import OmegaConf
from ray import tune
from ray.exceptions import RayError
from ray.tune.experiment import Trial as TuneTrial
from ray.tune.search import Searcher

from dpfbo.run_result import OnRound, Round
from runners.executor.deployment import limit_gpu_memory
from runners.executor.ray.cluster import check_reachable
from runners.identity.places import trial_folder
from runners.identity.setting import names_of
from runners.private_apis import shrink_tune_trial
from runners.record.run_folder import ResultsError, RunFolder
from runners.recorded_run import run_configuration
from runners.sweep.garbage import leave_modules_alone
from runners.sweep.plan import PlannedSetting, SweepOptions
from runners.sweep.progress_table import ProgressTable
from runners.sweep.shared_runs import copy_and_log
from runners.sweep.trials import PLAN, Trial, TrialState, forget_failure, record_failure, record_preemption, state
from runners.user_errors import USER_ERRORS

REPORT_SECONDS = 1.0  # interval of the reports of a running trial
LEASE_SECONDS = 150.0  # the same after a preemption: a file system may hold the locks of a dead node so long
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
    before = signal.getsignal(signal.SIGTERM)
    try:
        try:
            ray.init(options.address, log_to_driver=False, logging_level=logging.ERROR, include_dashboard=False)
        except (OSError, ValueError, RuntimeError, RayError) as error:
            raise ConnectionError(f"Ray cannot be used: {' '.join(str(error).split())}") from error
        _check_resources(options)
        with _terminated_like_interrupted(before), _no_standard_output():  # Ray tells of dead nodes there
            yield
    finally:
        with _no_standard_output():
            ray.shutdown()  # even after an interrupted start


@contextmanager
def _terminated_like_interrupted(before: Any) -> Iterator[None]:
    """Treat SIGTERM, as a batch system sends it, like Ctrl-C; Ray would end with its own report.

    before: the handler before Ray set its own; if it is the program's, it comes back.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGTERM, before if callable(before) else signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def run_trials(
    todo: Sequence[tuple[PlannedSetting, Trial]], options: SweepOptions, table: ProgressTable,
    others: Mapping[tuple[str, int], Sequence[Path]] = MappingProxyType({}),
) -> list[str]:  # fmt: skip
    """Run the trials, as many at a time as fit, and update the progress table; returns their warnings.

    others: folders to which a trial is copied when it is finished, by its key.

    Raises ConnectionError if the cluster is lost.
    """
    numbers = {id(setting): number for number, setting in enumerate({id(s): s for s, _ in todo}.values())}
    settings = {numbers[id(setting)]: setting for setting, _ in todo}
    plain: list[Any] = [(settings[k].name, OmegaConf.to_container(settings[k].cfg)) for k in range(len(settings))]
    named = {(numbers[id(setting)], trial.seed): (setting, trial) for setting, trial in todo}
    copies = {key: [str(path) for path in others.get(trial.key, ())] for key, (_, trial) in named.items()}
    listener = _Listener(table, named)
    bundle = {"CPU": options.cpus_per_trial, "GPU": options.gpus_per_trial}
    held = {name: count for name, count in bundle.items() if count} or {"memory": 1.0}  # Tune must hold something
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # errors of trials come to the listener
    with tempfile.TemporaryDirectory(prefix="dpfbo-sweep-") as storage, _no_standard_output():
        tuner = tune.Tuner(
            tune.with_resources(
                tune.with_parameters(
                    run_trial, settings=plain, cwd=str(Path.cwd()), gpus=options.gpus_per_trial, copies=copies
                ),
                tune.PlacementGroupFactory([held]),
            ),
            tune_config=tune.TuneConfig(
                search_alg=_InOrder(named),  # tune.grid_search copies the whole list for each trial
                num_samples=len(named),
                reuse_actors=True,  # importing the library takes seconds, a trial may take less
                max_concurrent_trials=options.max_concurrent,
                trial_dirname_creator=lambda trial: trial.trial_id,
            ),
            run_config=tune.RunConfig(
                name="sweep",
                storage_path=storage,
                verbose=0,
                callbacks=[listener],
                failure_config=tune.FailureConfig(max_failures=options.max_retries),
            ),
        )
        try:
            tuner.fit()
        except (RayError, tune.TuneError) as error:
            raise ConnectionError(f"the Ray cluster was lost: {' '.join(str(error).split())}") from error
    return listener.warnings()


def run_trial(
    config: Mapping[str, Any], settings: Sequence[tuple[str, dict[str, Any]]], cwd: str, gpus: float = 0.0,
    copies: Mapping[tuple[int, int], Sequence[str]] = MappingProxyType({}),
) -> dict[str, Any]:  # fmt: skip
    """Run one trial in a worker process.

    Args:
        config: `trial`, the number of its setting and its seed.
        settings: names of the settings, and their configurations as plain trees.
        cwd: folder of the sweep.
        gpus: share of a GPU, to whose memory the trial is limited.
        copies: by trial, the folders to which it is copied.
    """
    with suppress(OSError):  # on another machine that folder may not exist, and need not
        os.chdir(cwd)
    limit_gpu_memory(gpus)
    leave_modules_alone()
    number, seed = config["trial"]
    name, plain = settings[number]
    cfg = OmegaConf.create({**plain, "seed": seed})
    reported = time.monotonic()

    def report(done: Round) -> None:
        nonlocal reported
        if time.monotonic() >= reported + REPORT_SECONDS:
            epsilon = done.server.epsilon if done.server is not None else None
            tune.report(_told(TrialState("running", done.agents.round, done.agents.mean, epsilon)))
            reported = time.monotonic()

    plan = Path(cfg.results_dir) / str(cfg.experiment_name) / PLAN
    if not plan.exists():  # a second ledger here would know nothing of the first
        ended = TrialState("failed", error=f"{plan} is not on this node: all nodes need one results_dir")
        return _told(ended)
    with _warnings() as warnings:
        ended = attempt(cfg, report, name)
        targets = [Path(path) for path in copies.get((number, seed), ())]
        if ended.phase == "done" and targets:
            copy_and_log(_folder(cfg, name).path, targets, str(cfg.tracker.wandb.mode))
    return _told(ended, warnings)


def _told(state: TrialState, warnings: Sequence[tuple[str, str]] = ()) -> dict[str, Any]:
    """A result for Tune: one text, since Tune keeps a history of every number."""
    return {"told": json.dumps({"state": asdict(state), "warnings": warnings})}


def attempt(cfg: Any, on_round: OnRound, setting: str | None = None) -> TrialState:
    """Run a trial in this process, record a failure, and return the final state; raises no Exception.

    setting: its name, if it is known.
    """
    folder = _folder(cfg, setting or names_of(cfg).setting)
    give_up = time.monotonic() + (LEASE_SECONDS if folder.preemptions() else BUSY_SECONDS)
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


def _folder(cfg: Any, name: str) -> RunFolder:
    experiment = Path(cfg.results_dir) / str(cfg.experiment_name)
    return trial_folder(experiment, name, int(cfg.seed), int(cfg.rounds))


def _failed(folder: RunFolder, error: Exception) -> TrialState:
    words = " ".join(str(error).split())
    sentence = words if isinstance(error, USER_ERRORS) and words else f"{type(error).__name__}: {words}"
    with suppress(OSError):  # the error may be that the folder cannot be written
        record_failure(folder, sentence, traceback.format_exc())
    return TrialState("failed", error=sentence)


class _InOrder(Searcher):
    """Gives Tune the trials one after another, each as the number of its setting and its seed."""

    def __init__(self, trials: Iterable[tuple[int, int]]) -> None:
        super().__init__()
        self._left = iter(list(trials))

    def suggest(self, trial_id: str) -> Any:
        key = next(self._left, None)
        return Searcher.FINISHED if key is None else {"trial": key}

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        pass

    def save(self, checkpoint_path: str) -> None:
        """Nothing is saved: a sweep is planned anew from the run folders."""

    def restore(self, checkpoint_path: str) -> None:
        raise RuntimeError("a sweep is planned anew from the run folders")


class _Listener(tune.Callback):
    """Updates the progress table from Tune's callbacks."""

    def __init__(self, table: ProgressTable, trials: Mapping[tuple[int, int], tuple[PlannedSetting, Trial]]) -> None:
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
        told = json.loads(result["told"])
        self._table.update(self._trial(trial), TrialState(**told["state"]))
        for kind, text in told["warnings"]:
            self._warnings.setdefault(kind, []).append(text)

    def on_trial_recover(self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, **info: Any) -> None:
        """Note that the process of a trial went away; Tune starts it again, and it goes on from its checkpoint."""
        setting, ours = self._trials[trial.config["trial"]]
        folder, error = ours.folder(setting.folder), _last_error(trial)
        if "Traceback" not in error:  # a process that could not run it has not been preempted
            with suppress(OSError):
                record_preemption(folder, _cause_of_death(error))
        self._table.update(ours, state(folder))

    def on_trial_complete(self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, **info: Any) -> None:
        shrink_tune_trial(trial)

    def on_trial_error(self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, **info: Any) -> None:
        """Record the failure of a trial whose process died too often and could not record it."""
        setting, ours = self._trials[trial.config["trial"]]
        folder = ours.folder(setting.folder)
        now = state(folder)
        if now.phase != "done":
            text = _last_error(trial)
            reason, times = _cause_of_death(text), trial.run_metadata.num_failures
            if times > 1:
                reason += f" ({times} times, and sweep.max_retries={trial.max_failures})"
            with suppress(OSError):
                record_failure(folder, reason, text)
            now = TrialState("failed", error=reason)
        self._table.update(ours, now)

    def warnings(self) -> list[str]:
        """One warning of each kind, with its count."""
        return [f"{texts[0]} ({len(texts)} times)" if texts[1:] else texts[0] for texts in self._warnings.values()]

    def _trial(self, trial: TuneTrial) -> Trial:
        return self._trials[trial.config["trial"]][1]


def _last_error(trial: TuneTrial) -> str:
    """The text of the last error that Tune wrote of a trial."""
    try:
        return Path(trial.error_file).read_text().rpartition("Failure # ")[2] if trial.error_file else ""
    except OSError:
        return ""


def _cause_of_death(error: str) -> str:
    """A few words for the death of a trial's process, from Ray's account of it."""
    if "Traceback" in error:  # the process is alive, but could not import a module, for example
        return f"its process could not run it: {error.strip().splitlines()[-1].strip()}"
    if "OOM" in error or "memory pressure" in error or "OUT_OF_MEMORY" in error:
        return "its process died: its node was short of memory, or it was killed"
    if "node" in error and ("has died" in error or "drain" in error or "preempt" in error):
        return "its node went away"
    return "its process died: killed, or out of memory"


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
