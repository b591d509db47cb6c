"""Ray Tune schedules each trial, and restarts it if its node or process goes away.

The run folders are the truth. Tune's own state is in a temporary folder, and a resumed sweep is planned anew from the
run folders.
"""

import logging
import os
import signal
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
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

from runners.executor.ray.cluster import check_reachable, no_standard_output
from runners.private_apis import shrink_tune_trial
from runners.sweep.attempt import Report, run_trial
from runners.sweep.plan import PlannedSetting, SweepOptions
from runners.sweep.progress_table import ProgressTable
from runners.sweep.trials import Trial, TrialState, record_failure, record_preemption, state

Planned = tuple[PlannedSetting, Trial]


@contextmanager
def cluster(options: SweepOptions) -> Iterator[None]:
    """Connect to Ray, or start one on this machine, and shut that down at the end.

    A connection that this process had before stays. Raises ConnectionError if there is no Ray at the address,
    ValueError if no node can ever hold a trial.
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
            quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, "include_dashboard": False}
            ray.init(options.address, **{**quiet, **options.ray})
        except (OSError, ValueError, RuntimeError, TypeError, AttributeError, AssertionError, RayError) as error:
            raise ConnectionError(f"Ray cannot be used: {' '.join(str(error).split())}") from error
        _check_resources(options)
        if threading.current_thread() is threading.main_thread():
            # a batch system sends SIGTERM: it is treated like Ctrl-C, and Ray's handler would end with its own report
            signal.signal(signal.SIGTERM, before if callable(before) else signal.default_int_handler)
        with no_standard_output():  # Ray tells of dead nodes there
            yield
    finally:
        with no_standard_output():
            ray.shutdown()  # even after an interrupted start
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def run_trials(todo: Sequence[Planned], options: SweepOptions, table: ProgressTable) -> list[str]:
    """Run the trials, as many at a time as fit, and update the progress table; returns their warnings.

    Raises ConnectionError if the cluster is lost.
    """
    numbers = {id(setting): number for number, setting in enumerate({id(s): s for s, _ in todo}.values())}
    plain = {numbers[id(s)]: (s.name, OmegaConf.to_container(s.cfg)) for s, _ in todo}
    planned = {(numbers[id(setting)], trial.seed): (setting, trial) for setting, trial in todo}
    left, listener = list(reversed(planned)), _Listener(table, planned)
    bundle = {"CPU": options.cpus_per_trial, "GPU": options.gpus_per_trial}
    held = {name: count for name, count in bundle.items() if count} or {"memory": 1.0}  # Tune must hold something
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # errors of trials come to the listener
    with tempfile.TemporaryDirectory(prefix="dpfbo-sweep-") as storage, no_standard_output():
        tuner = tune.Tuner(
            tune.with_resources(
                tune.with_parameters(run_trial, settings=plain, cwd=str(Path.cwd()), gpus=options.gpus_per_trial),
                tune.PlacementGroupFactory([held]),
            ),
            param_space={"trial": tune.sample_from(lambda _: left.pop())},  # in order
            tune_config=tune.TuneConfig(
                num_samples=len(planned),
                reuse_actors=True,  # importing the library takes seconds, a trial may take less
                max_concurrent_trials=options.max_concurrent,
                trial_dirname_creator=lambda trial: trial.trial_id,
                trial_name_creator=lambda trial: _name(*planned[trial.config["trial"]]),
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
    return [f"{texts[0]} ({len(texts)} times)" if texts[1:] else texts[0] for texts in listener.warnings.values()]


def _name(setting: PlannedSetting, trial: Trial) -> str:
    """The name of a trial in Ray's lists and dashboard."""
    return f"{setting.label}, seed {trial.seed}"


class _Listener(tune.Callback):
    """Updates the progress table from Tune's callbacks, and collects the trials' warnings by their kind."""

    def __init__(self, table: ProgressTable, planned: Mapping[tuple[int, int], Planned]) -> None:
        self._table, self._planned = table, planned
        self.warnings: dict[str, list[str]] = {}

    def __getstate__(self) -> dict[str, Any]:
        """No state: Tune keeps its callbacks on disk for a restore that never happens here."""
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
        """Note that the process of a trial went away; Tune starts it again, and it goes on from its checkpoint."""
        setting, ours = self._planned[trial.config["trial"]]
        folder, error = ours.folder(setting.folder), _last_error(trial)
        if "Traceback" not in error:  # a process that could not run it has not been preempted
            with suppress(OSError):
                record_preemption(folder, cause_of_death(error))
        self._table.update(ours, state(folder))

    def on_trial_complete(self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, **info: Any) -> None:
        shrink_tune_trial(trial)

    def on_trial_error(self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, **info: Any) -> None:
        """Record the failure of a trial whose process died too often and could not record it."""
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


def _last_error(trial: TuneTrial) -> str:
    """The text of the last error that Tune wrote of a trial."""
    try:
        return Path(trial.error_file).read_text().rpartition("Failure # ")[2] if trial.error_file else ""
    except OSError:
        return ""


def cause_of_death(error: str) -> str:
    """A few words for the death of a trial's process, from Ray's account of it."""
    if "Traceback" in error:  # the process is alive, but could not import a module, for example
        return f"its process could not run it: {error.strip().splitlines()[-1].strip()}"
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
