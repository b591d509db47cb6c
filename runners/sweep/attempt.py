"""Run one trial of a sweep in a worker process, and record its failure if it fails."""

import gc
import json
import logging
import math
import os
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from logging.handlers import BufferingHandler
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from dpfbo.formats.run_folder import ResultsError, RunFolder
from dpfbo.run_result import OnRound, Round
from runners.executor.deployment import limit_gpu_memory
from runners.identity.places import trial_folder
from runners.identity.setting import names_of
from runners.recorded_run import run_configuration
from runners.sweep.trials import PLAN, TrialState, forget_failure, record_failure, state
from runners.user_errors import user_errors

REPORT_SECONDS = 1.0  # shortest interval between two reports of a running trial
BUSY_SECONDS = 15.0  # longest wait for another process in the run folder, such as one left by a killed sweep
LEASE_SECONDS = 150.0  # longest such wait after a preemption: a file system may keep the locks of a dead node


@dataclass(frozen=True)
class Report:
    """A worker's report about its trial. warnings: pairs of a warning's format string and its formatted text."""

    state: TrialState
    warnings: Sequence[tuple[str, str]] = ()

    def for_tune(self) -> dict[str, Any]:
        """Return the report as a result for Tune: the numbers that Tune reads, and the whole report as JSON.

        Unknown numbers are NaN.
        """
        known = {"mean": self.state.mean, "epsilon": self.state.epsilon}
        numbers = {name: math.nan if number is None else number for name, number in known.items()}
        return {"round": self.state.round or 0, **numbers, "told": json.dumps(asdict(self))}

    @staticmethod
    def of(result: Mapping[str, Any]) -> "Report":
        told = json.loads(result["told"])
        return Report(TrialState(**told["state"]), told["warnings"])


def run_trial(
    config: Mapping[str, Any],
    settings: Mapping[int, tuple[str, dict[str, Any]]],
    cwd: str,
    gpus: float = 0.0,
    every_round: bool = False,
) -> dict[str, Any]:
    """Run one trial in a worker of Ray Tune.

    config: the entry `trial` holds the setting's number and the seed. settings: the name and configuration of each
    setting, by number. cwd: the working directory of the sweep. gpus: the number of GPUs of the trial; if it is between
    0 and 1, the trial's tensors may fill only this share of the GPU's memory. every_round: report after every round
    except the last one; False to report at most once per `REPORT_SECONDS`.
    """
    from ray import tune

    with suppress(OSError):  # another machine may lack this folder, and the trial does not depend on it
        os.chdir(cwd)
    limit_gpu_memory(gpus)
    if not gc.get_freeze_count():  # torch and Ray are a million objects that garbage collection would visit in vain
        gc.freeze()
    number, seed = config["trial"]
    name, plain = settings[number]
    cfg = OmegaConf.create({**plain, "seed": seed})
    plan = Path(cfg.results_dir) / str(cfg.experiment_name) / PLAN
    if not plan.exists():  # results_dir is not shared: a ledger on this node would miss earlier charges
        error = f"{plan} is not on this node: all nodes must share one results_dir"
        return Report(TrialState("failed", error=error)).for_tune()
    reported = time.monotonic()

    def report(done: Round) -> None:
        nonlocal reported
        due = done.agents.round < int(cfg.rounds) if every_round else time.monotonic() >= reported + REPORT_SECONDS
        if due:
            epsilon = done.server.epsilon if done.server is not None else None
            tune.report(Report(TrialState("running", done.agents.round, done.agents.mean, epsilon)).for_tune())
            reported = time.monotonic()

    warnings = BufferingHandler(sys.maxsize)
    warnings.setLevel(logging.WARNING)
    warnings.addFilter(lambda record: record.name.partition(".")[0] in ("dpfbo", "runners"))
    logging.getLogger().addHandler(warnings)
    try:
        ended = attempt(cfg, report, name)
    finally:
        logging.getLogger().removeHandler(warnings)
    return Report(ended, [(str(record.msg), record.getMessage()) for record in warnings.buffer]).for_tune()


def attempt(cfg: Any, on_round: OnRound, setting: str | None = None) -> TrialState:
    """Run a trial in this process and return its state afterwards; an Exception is recorded as a failure, not raised.

    setting: name of the trial's setting; None to compute it from `cfg`.
    """
    experiment = Path(cfg.results_dir) / str(cfg.experiment_name)
    folder = trial_folder(experiment, setting or names_of(cfg).setting, int(cfg.seed), int(cfg.rounds))
    give_up = time.monotonic() + (LEASE_SECONDS if folder.preemptions() else BUSY_SECONDS)
    while True:
        try:
            known = state(folder)
            if known.phase != "done":  # otherwise another process has finished it
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
        except Exception as error:  # a failed trial must not stop the other ones
            return _failed(folder, error)


def _failed(folder: RunFolder, error: Exception) -> TrialState:
    words = " ".join(str(error).split())
    sentence = words if isinstance(error, user_errors()) and words else f"{type(error).__name__}: {words}"
    with suppress(OSError):  # the error may be that the folder cannot be written
        record_failure(folder, sentence, traceback.format_exc())
    return TrialState("failed", error=sentence)
