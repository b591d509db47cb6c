"""Run trials on Ray Tune, which restarts a trial whose node or process goes away.

Tune's own state is temporary: a resumed sweep is planned anew from the run folders.
"""

import logging
import math
import os
import re
import signal
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

# set before Ray is imported: Tune writes no log files and does not change the working directory
os.environ |= {"RAY_CHDIR_TO_TRIAL_DIR": "0", "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1"}
os.environ |= {"TUNE_GLOBAL_CHECKPOINT_S": "1e9", "TUNE_MAX_PENDING_TRIALS_PG": "4"}  # no state, no long queue
os.environ["TUNE_DISABLE_SIGINT_HANDLER"] = "1"  # Ctrl-C interrupts the sweep, as it does a single run
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import ray
from omegaconf import OmegaConf
from ray import tune
from ray.exceptions import RayError
from ray.tune.experiment import Trial as TuneTrial
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, MedianStoppingRule, TrialScheduler

from runners.executor.ray.cluster import check_reachable, init_ray, no_standard_output
from runners.private_apis import shrink_tune_trial
from runners.sweep.attempt import Report, run_trial
from runners.sweep.plan import PlannedSetting, SweepOptions
from runners.sweep.progress_table import ProgressTable
from runners.sweep.trials import Trial, TrialState, record_failure, record_preemption, record_stop, state
from runners.sweep.tuning.early_stopping import EarlyStopping

Planned = tuple[PlannedSetting, Trial]


@contextmanager
def cluster(options: SweepOptions) -> Iterator[None]:
    """Connect to Ray, or start it on this machine, until the end of the block.

    If this process is already connected to Ray, it uses that connection, which stays open after the block. Raises
    ConnectionError if Ray cannot be reached or started, and ValueError if no node has the CPUs and GPUs of one trial,
    or if `options.ray` is not empty although the process is already connected.
    """
    if ray.is_initialized():
        if options.ray:
            rule = "have no effect on a Ray that is connected already"
            raise ValueError(f"executor.runtime_env, .init and .dashboard {rule}")
        _check_resources(options)
        yield
        return
    check_reachable(options.address)
    before = signal.getsignal(signal.SIGTERM)
    try:
        try:
            init_ray(options.address, **{"include_dashboard": False, **options.ray})
        except (OSError, ValueError, RuntimeError, TypeError, AttributeError, AssertionError, RayError) as error:
            raise ConnectionError(f"Ray cannot be used: {' '.join(str(error).split())}") from error
        _check_resources(options)
        if threading.current_thread() is threading.main_thread():
            # SIGTERM, which batch systems send, is treated like Ctrl-C; Ray's handler would exit with its own report
            signal.signal(signal.SIGTERM, before if callable(before) else signal.default_int_handler)
        with no_standard_output():  # where Ray reports dead nodes
            yield
    finally:
        with no_standard_output():
            ray.shutdown()  # even after an interrupted start
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def run_trials(todo: Sequence[Planned], options: SweepOptions, table: ProgressTable) -> list[str]:
    """Run the trials in parallel and update the progress table; return the trials' warnings, one of each kind.

    Raises ConnectionError if the cluster is lost.
    """
    numbers = {id(setting): number for number, setting in enumerate({id(s): s for s, _ in todo}.values())}
    plain = {numbers[id(s)]: (s.name, OmegaConf.to_container(s.cfg)) for s, _ in todo}
    planned = {(numbers[id(setting)], trial.seed): (setting, trial) for setting, trial in todo}
    left, stopping, settings = list(reversed(planned)), options.early_stopping, [setting for setting, _ in todo]
    listener = _Listener(table, planned, None if stopping is None else stopping.scheduler)
    bundle = {"CPU": options.cpus_per_trial, "GPU": options.gpus_per_trial}
    held = {name: count for name, count in bundle.items() if count} or {"memory": 1.0}  # Tune must reserve a resource
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # the listener reports trials' errors
    with tempfile.TemporaryDirectory(prefix="dpfbo-sweep-") as storage, no_standard_output():
        tuner = tune.Tuner(
            tune.with_resources(
                tune.with_parameters(
                    run_trial,
                    settings=plain,
                    cwd=str(Path.cwd()),
                    gpus=options.gpus_per_trial,
                    every_round=stopping is not None or options.tensorboard,
                ),
                tune.PlacementGroupFactory([held]),
            ),
            param_space={"trial": tune.sample_from(lambda _: left.pop())},  # trials start in order
            tune_config=tune.TuneConfig(
                num_samples=len(planned),
                reuse_actors=True,  # importing the library takes seconds, a trial may take less
                max_concurrent_trials=options.max_concurrent,
                trial_dirname_creator=lambda trial: trial.trial_id,
                scheduler=None if stopping is None else _SeedBySeed(lambda: _scheduler(stopping, settings)),
            ),
            run_config=tune.RunConfig(
                name="sweep",
                storage_path=storage,
                verbose=0,
                callbacks=[listener, *([_TensorBoard(planned)] if options.tensorboard else [])],
                failure_config=tune.FailureConfig(max_failures=options.max_retries),
            ),
        )
        try:
            tuner.fit()
        except (RayError, tune.TuneError) as error:
            raise ConnectionError(f"the Ray cluster was lost: {' '.join(str(error).split())}") from error
    return [f"{texts[0]} ({len(texts)} times)" if texts[1:] else texts[0] for texts in listener.warnings.values()]


def _scheduler(stopping: EarlyStopping, settings: Sequence[PlannedSetting]) -> TrialScheduler:
    """Create Tune's scheduler for the trials of one seed."""
    mode = "min" if settings[0].lower_is_better else "max"
    read: dict[str, Any] = {"time_attr": "round", "metric": "mean", "mode": mode, "grace_period": stopping.grace_period}
    if stopping.scheduler == "median":
        read["min_time_slice"] = math.inf  # never pause a trial for a waiting one: it would have to restart
        return MedianStoppingRule(**read, min_samples_required=stopping.min_samples_required)
    longest = max(setting.rounds for setting in settings)
    return ASHAScheduler(**read, reduction_factor=stopping.reduction_factor, max_t=longest)


class _SeedBySeed(FIFOScheduler):
    """A scheduler that compares only trials of the same seed, because some seeds are easier than others."""

    def __init__(self, make: Callable[[], TrialScheduler]) -> None:
        super().__init__()
        self._by_seed: defaultdict[int, TrialScheduler] = defaultdict(make)

    def _of(self, trial: TuneTrial) -> TrialScheduler:
        return self._by_seed[trial.config["trial"][1]]

    def on_trial_add(self, tune_controller: Any, trial: TuneTrial) -> None:
        self._of(trial).on_trial_add(tune_controller, trial)

    def on_trial_remove(self, tune_controller: Any, trial: TuneTrial) -> None:
        self._of(trial).on_trial_remove(tune_controller, trial)

    def on_trial_result(self, tune_controller: Any, trial: TuneTrial, result: dict[str, Any]) -> str:
        read = {key: result[key] for key in ("round", "mean")}
        return self._of(trial).on_trial_result(tune_controller, trial, read)

    def on_trial_complete(self, tune_controller: Any, trial: TuneTrial, result: dict[str, Any]) -> None:
        read = {key: result[key] for key in ("round", "mean")}
        self._of(trial).on_trial_complete(tune_controller, trial, read)


class _Listener(tune.Callback):
    """A callback of Tune that updates the progress table, and collects the trials' warnings.

    scheduler: the name of the scheduler that stops trials early; None if there is none.
    """

    def __init__(
        self, table: ProgressTable, planned: Mapping[tuple[int, int], Planned], scheduler: str | None = None
    ) -> None:
        self._table, self._planned, self._scheduler = table, planned, scheduler
        self.warnings: dict[str, list[str]] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Return no state, because this callback is never restored."""
        return {}

    def on_trial_start(self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, **info: Any) -> None:
        self._table.update(self._planned[trial.config["trial"]][1], TrialState("running", 0))

    def on_trial_result(
        self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, result: dict[str, Any], **info: Any
    ) -> None:
        report = Report.of(result)
        self._table.update(self._planned[trial.config["trial"]][1], report.state)
        for kind, text in report.warnings:
            self.warnings.setdefault(kind, []).append(text)

    def on_trial_recover(self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, **info: Any) -> None:
        """Record that a trial's process died; Tune then restarts the trial."""
        setting, ours = self._planned[trial.config["trial"]]
        folder, error = ours.folder(setting.folder), _last_error(trial)
        if "Traceback" not in error:  # an error in the worker is not a preemption
            with suppress(OSError):
                record_preemption(folder, cause_of_death(error))
        self._table.update(ours, state(folder))

    def on_trial_complete(self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, **info: Any) -> None:
        last = Report.of(trial.last_result).state if "told" in trial.last_result else None
        if self._scheduler is not None and last is not None and last.phase == "running" and last.error is None:
            setting, ours = self._planned[trial.config["trial"]]
            with suppress(OSError):
                record_stop(ours.folder(setting.folder), self._scheduler, last)
            self._table.update(ours, replace(last, phase="interrupted", stopped_by=self._scheduler))
        shrink_tune_trial(trial)

    def on_trial_error(self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, **info: Any) -> None:
        """Record the failure of a trial whose process died more than `sweep.max_retries` times."""
        setting, ours = self._planned[trial.config["trial"]]
        folder = ours.folder(setting.folder)
        now = state(folder)
        if now.phase != "done":
            text = _last_error(trial)
            reason, times = cause_of_death(text), trial.run_metadata.num_failures
            if times > 1:
                reason += f" ({times} times, and sweep.max_retries={trial.max_failures})"
            with suppress(OSError):
                record_failure(folder, reason, text)
            now = TrialState("failed", error=reason)
        self._table.update(ours, now)


class _TensorBoard(tune.Callback):
    """A callback that writes metrics and epsilons for TensorBoard: results/EXPERIMENT/tensorboard/LABEL-HASH/SEED."""

    def __init__(self, planned: Mapping[tuple[int, int], Planned]) -> None:
        from tensorboardX import SummaryWriter  # a dependency of Tune, whose import takes a second

        self._planned, self._writer, self._writers = planned, SummaryWriter, dict[str, SummaryWriter]()

    def __getstate__(self) -> dict[str, Any]:
        """Return no state, because this callback is never restored."""
        return {}

    def on_trial_result(
        self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, result: dict[str, Any], **info: Any
    ) -> None:
        setting, ours = self._planned[trial.config["trial"]]
        if trial.trial_id not in self._writers:
            folder = setting.folder / "tensorboard"
            folder.mkdir(mode=0o700, exist_ok=True)  # the metric of real data is private
            name = re.sub(r"[^\w.=,+-]+", "_", f"{ours.label[:100]}-{ours.setting}")
            self._writers[trial.trial_id] = self._writer(str(folder / name / str(ours.seed)))
        for tag, key in ((setting.metric, "mean"), ("epsilon", "epsilon")):
            if math.isfinite(result[key]):
                self._writers[trial.trial_id].add_scalar(tag, result[key], result["round"])

    def on_trial_complete(self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, **info: Any) -> None:
        if (writer := self._writers.pop(trial.trial_id, None)) is not None:
            writer.close()

    def on_trial_error(self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, **info: Any) -> None:
        self.on_trial_complete(iteration, trials, trial)


def _last_error(trial: TuneTrial) -> str:
    """Return the last error that Tune recorded for a trial; empty if there is none."""
    try:
        return Path(trial.error_file).read_text().rpartition("Failure # ")[2] if trial.error_file else ""
    except OSError:
        return ""


def cause_of_death(error: str) -> str:
    """Describe in a few words why a trial's process died, given Ray's error message."""
    if "Traceback" in error:  # the process is alive, but could not import a module, for example
        return f"its process could not run the trial: {error.strip().splitlines()[-1].strip()}"
    if "OOM" in error or "memory pressure" in error or "OUT_OF_MEMORY" in error:
        return "its process died: its node was short of memory, or it was killed"
    if "node" in error and ("has died" in error or "drain" in error or "preempt" in error):
        return "its node went away"
    return "its process died: killed, or out of memory"


def _check_resources(options: SweepOptions) -> None:
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    cpus, gpus = options.cpus_per_trial, options.gpus_per_trial
    if not any(node.get("CPU", 0) >= cpus and node.get("GPU", 0) >= gpus for node in nodes):
        has = " or ".join(sorted({f"{node.get('CPU', 0):g} CPUs and {node.get('GPU', 0):g} GPUs" for node in nodes}))
        raise ValueError(
            f"sweep.cpus_per_trial={cpus:g} and sweep.gpus_per_trial={gpus:g} fit on no node of the Ray cluster, "
            f"which has {has}"
        )
