"""One trial in a worker process: it runs to its end, and a failure is recorded."""

import gc
import json
import logging
import math
import os
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
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

REPORT_SECONDS = 1.0  # interval of the reports of a running trial
BUSY_SECONDS = 15.0  # longest wait for another process in the run folder, such as one left by a killed sweep
LEASE_SECONDS = 150.0  # the same after a preemption: a file system may hold the locks of a dead node so long


@dataclass(frozen=True)
class Report:
    """The report of a worker about its trial. warnings: pairs of the text without its values and the whole text."""

    state: TrialState
    warnings: Sequence[tuple[str, str]] = ()

    def for_tune(self) -> dict[str, Any]:
        """The numbers that a scheduler or a callback of Tune reads, NaN if unknown, and all of the report as one text.

        Tune keeps statistics of each number, of bounded size, until a trial ends (`shrink_tune_trial`): so only a few.
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

    config: `trial`, the number of its setting and its seed. settings: names and configurations by number. cwd: the
    folder of the sweep. gpus: the share of a GPU, to whose memory the trial is limited.
    every_round: report every round but the last one, after which the trial is as good as finished.
    """
    from ray import tune

    with suppress(OSError):  # on another machine that folder may not exist, and need not
        os.chdir(cwd)
    limit_gpu_memory(gpus)
    if not gc.get_freeze_count():  # torch and Ray are a million objects, which would be visited in vain
        gc.freeze()
    number, seed = config["trial"]
    name, plain = settings[number]
    cfg = OmegaConf.create({**plain, "seed": seed})
    plan = Path(cfg.results_dir) / str(cfg.experiment_name) / PLAN
    if not plan.exists():  # a second ledger here would know nothing of the first
        error = f"{plan} is not on this node: all nodes need one results_dir"
        return Report(TrialState("failed", error=error)).for_tune()
    reported = time.monotonic()

    def report(done: Round) -> None:
        nonlocal reported
        due = done.agents.round < int(cfg.rounds) if every_round else time.monotonic() >= reported + REPORT_SECONDS
        if due:
            epsilon = done.server.epsilon if done.server is not None else None
            tune.report(Report(TrialState("running", done.agents.round, done.agents.mean, epsilon)).for_tune())
            reported = time.monotonic()

    warnings = _Warnings()
    logging.getLogger().addHandler(warnings)
    try:
        return Report(attempt(cfg, report, name), warnings.found).for_tune()
    finally:
        logging.getLogger().removeHandler(warnings)


class _Warnings(logging.Handler):
    """Keeps the warnings of our own code."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found: list[tuple[str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.partition(".")[0] in ("dpfbo", "runners"):
            self.found.append((str(record.msg), record.getMessage()))


def attempt(cfg: Any, on_round: OnRound, setting: str | None = None) -> TrialState:
    """Run a trial in this process, record a failure, and return the final state; raises no Exception.

    setting: its name, if it is known.
    """
    experiment = Path(cfg.results_dir) / str(cfg.experiment_name)
    folder = trial_folder(experiment, setting or names_of(cfg).setting, int(cfg.seed), int(cfg.rounds))
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


def _failed(folder: RunFolder, error: Exception) -> TrialState:
    words = " ".join(str(error).split())
    sentence = words if isinstance(error, user_errors()) and words else f"{type(error).__name__}: {words}"
    with suppress(OSError):  # the error may be that the folder cannot be written
        record_failure(folder, sentence, traceback.format_exc())
    return TrialState("failed", error=sentence)
