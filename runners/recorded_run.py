"""Run one experiment on its executor, and write its records to disk."""

import logging
import math
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from omegaconf import DictConfig

from dpfbo import tables
from dpfbo.checkpoint import Checkpoint, RunOrigin
from dpfbo.formats.summary import PERCENT
from dpfbo.privacy.accounting import finite_or_none
from dpfbo.privacy.coverage import LedgerCoverage
from dpfbo.privacy.mechanism_code import code_digests
from dpfbo.problems.problem import data_fingerprint
from dpfbo.run_result import OnRound, Result, Round
from runners.compose.composition import Composition, Experiment
from runners.compose.settings import ANY_CODE
from runners.executor.deployment import Spent
from runners.executor.place import deployed
from runners.record import finished, picture
from runners.record.best_found import SUMMARY_AGENTS, best_found
from runners.record.config_text import config_text
from runners.record.curve_points import epsilon_before, shown_rounds
from runners.record.environment import commit, environment
from runners.record.finished import Lineage
from runners.record.run_folder import Progress, ResultsError, RunFolder, existing, trial_folder
from runners.resumption import resumed
from runners.wandb.layout import QUANTILES, SECONDS, regret_metrics, server_metrics
from runners.wandb.tracker import WandbTracker

logger = logging.getLogger(__name__)

MANY_AGENTS = 1000  # of more, the summary tells quantiles of the final metric
_PROGRESS_SECONDS = 1.0  # seconds between two writes of progress.json


def run_configuration(cfg: DictConfig, on_round: OnRound = lambda done: None) -> tuple[dict[str, Any], Path]:
    """`record_run` for a composed configuration."""
    return record_run(Composition.of(cfg), on_round)


def finished_before(composition: Composition, single: bool = False) -> tuple[dict[str, Any], Path] | None:
    """The summary and the folder of a run that is finished; None if there is something to do for `record_run`."""
    folder = _folder(composition, single)
    half_done = (folder.path / finished.SUMMARY).exists() and folder.untidy()  # killed as it ended
    if composition.settings.again or half_done or any(finished.moving(folder)):
        return None
    return _ready(folder, composition.settings.rounds)


def record_run(
    composition: Composition, on_round: OnRound = lambda done: None, single: bool = False
) -> tuple[dict[str, Any], Path]:
    """Build, run and record an experiment; returns its summary and its folder.

    A finished run is not run again, unless by `again`, and then its records are put aside. An interrupted one goes on
    after its last round. single: no trial of a sweep or a demonstration; its folder has a label in its name, and it
    goes on from a finished run of fewer rounds.
    on_round is called for every round, earlier ones included. Raises before any work starts for bad settings, missing
    data or an unwritable folder; see `Composition`.
    """
    experiment, settings, name = composition.experiment, composition.settings, composition.names.setting
    tracker = WandbTracker(**asdict(settings.tracker.wandb))
    group, algorithm = settings.experiment_name, settings.algorithm.name
    folder = _folder(composition, single)
    if single:
        _check_noise_of_other_lengths(composition, folder)
    labelled = single and folder.path.parent.name != name
    run = f"{composition.names.family} {settings.seed}"
    with folder.opened(), folder.failures_kept():
        checkpoint = Checkpoint(folder.checkpoint_path, run, _origin(experiment))
        finished.finish_move(folder)
        if not settings.again and (ready := _ready(folder, settings.rounds)) is not None:
            if (folder.path / finished.SUMMARY).exists():
                folder.tidy()  # the run was killed while it did that
                checkpoint.clear()
            return ready
        result = experiment.result()
        result.rounds.read_back = checkpoint.record
        done, before, broadcasts = resumed(experiment, checkpoint, folder, result, _coverage(composition))
        title = f"{experiment.problem.name}-{algorithm}-{name}-{settings.seed}"
        tags = [experiment.problem.name, algorithm]
        facts, noted = _facts(composition), 0.0

        def show(round: Round) -> None:
            if tracker.mode != "disabled":
                tracker.log_round(round.agents.round, _metrics(round))
            on_round(round)

        def keep(round: Round) -> None:
            nonlocal noted
            checkpoint.append(round)
            if time.monotonic() > noted + _PROGRESS_SECONDS:
                folder.note_progress(_progress(experiment, result, facts, before))
                noted = time.monotonic()
            show(round)

        try:
            for round in checkpoint.rounds(done):
                result.add(round)
            with deployed(experiment, folder, result) as deployment:
                tracker.start(
                    composition.recorded, folder.path, title, group, tags, commit(), before, name, composition.label,
                    folder=folder.path.parents[1],
                )  # fmt: skip
                for round in checkpoint.rounds(done):
                    show(round)
                if labelled:
                    finished.note_lineage(folder, _lineage(composition))
                deployment.run(keep, broadcasts)
                spent, placed = deployment.spent(), deployment.placed()
            private = result.diagnostics if composition.settings.privacy.seeded else None
            server = tables.server_table(result.server, private)
            best = _listed_best(experiment, result)
            ending = {"best": best, "executor": placed, "label": composition.label, "epsilon_before": before}
            if n := folder.preemptions():
                ending["preemptions"] = n
            summary = {**summarise(experiment, result, spent, name), **ending}
            if labelled:
                finished.keep_rounds(folder)
            folder.write(config_text(composition.recorded), _rounds(experiment, result), server, summary)
        except BaseException as error:
            tracker.fail(f"{type(error).__name__}: {error}")
            folder.keep_traceback(error)
            raise
        checkpoint.clear()
    epsilons = [r.epsilon for r in result.server]
    epsilons += epsilons[-1:] * (experiment.rounds - len(epsilons))  # the broadcasts may stop before the run does
    tracker.finish(summary, lambda path: picture.draw(summary, epsilons, path))
    return summary, folder.path


def _origin(experiment: Experiment) -> RunOrigin:
    """The data and the code from which the run is made. Raises ValueError if real releases are to ignore the code."""
    settings = experiment.settings
    if settings.resume == ANY_CODE and not settings.privacy.seeded:
        raise ValueError(f"resume={ANY_CODE} is for simulations, whose privacy.rng is seeded: leave it out")
    any_code = settings.resume is not True  # with false no round is gone on with
    return RunOrigin(data_fingerprint(experiment.problem), code_digests(), any_code)


def _lineage(composition: Composition) -> Lineage:
    return Lineage(composition.names.family, composition.names.any_noise)


def _coverage(composition: Composition) -> LedgerCoverage:
    """The first line of the run's ledger. Runs of one family share it, as a longer one goes on.

    That of real releases has no fingerprint of the data: a digest of private data lets others test their guesses of it.
    """
    experiment, seeded = composition.experiment, composition.settings.privacy.seeded
    data, seed = (data_fingerprint(experiment.problem), composition.settings.seed) if seeded else (None, None)
    return LedgerCoverage(composition.names.family, seed, data, experiment.plan.relation or None)


def _rounds(experiment: Experiment, result: Result) -> Iterator[pa.Table]:
    """The row groups of rounds.parquet."""
    problem = experiment.problem
    return tables.row_groups(result.rounds, torch.arange(problem.n_agents), getattr(problem, "space", None))


def _listed_best(experiment: Experiment, result: Result) -> list[dict[str, Any]] | None:
    """The best query of each agent, for the summary; None if there are many agents, or the data are real.

    `runners.best` reads it from rounds.parquet, which is private in any case.
    """
    if experiment.problem.n_agents > SUMMARY_AGENTS or not experiment.settings.privacy.seeded:
        return None
    maximize = getattr(experiment.problem, "maximize", True) is not False
    return best_found(_rounds(experiment, result), maximize).to_pylist()


def _folder(composition: Composition, single: bool) -> RunFolder:
    """The folder of a run: the one it has; for a single run, that of a run of another length; else a new one."""
    settings = composition.settings
    experiment = Path(settings.results_dir).absolute() / settings.experiment_name
    if not single:
        folder = trial_folder(experiment, composition.names.setting, settings.seed, settings.rounds)
        known = existing(experiment, composition.names.setting, settings.seed)
        if known is not None and known != folder.path and not settings.privacy.seeded:
            raise ResultsError(f"{known} is this run with other rounds: a second one would add to what that released")
        return folder
    if (known := existing(experiment, composition.names.setting, settings.seed)) is not None:
        return RunFolder(known)
    lineage = _lineage(composition)
    relatives = finished.relatives(experiment, settings.seed, lineage)
    own = experiment / composition.folder_name / str(settings.seed)
    return RunFolder(next((path for path, other in relatives if other.family == lineage.family), own))


def _check_noise_of_other_lengths(composition: Composition, folder: RunFolder) -> None:
    """Say that a run of a target epsilon has another noise for each number of rounds, if one was made already.

    Raises ResultsError if that one's releases are real: a second run would add to their epsilon, on another ledger.
    """
    settings = composition.settings
    if settings.privacy.epsilon is None or folder.path.exists():
        return
    lineage = _lineage(composition)
    for path, _ in finished.relatives(folder.path.parents[1], settings.seed, lineage):
        said = f"{path} is a run of this setting with noise for another number of rounds than {settings.rounds}"
        if not settings.privacy.seeded:
            raise ResultsError(
                f"{said}: a run of its own adds to what that one released; give another experiment_name to pay for both"
            )
        logger.warning("%s: this run starts anew in a folder of its own", said)


def _ready(folder: RunFolder, rounds: int) -> tuple[dict[str, Any], Path] | None:
    """The summary and the folder of a finished run with at least so many rounds."""
    summary = finished.summary_of(folder, rounds)
    return None if summary is None else (summary, folder.path)


def _progress(experiment: Experiment, result: Result, facts: dict[str, Any], before: float | None) -> Progress:
    """The progress to note. before: epsilon before the first round."""
    epsilons, last = [finite_or_none(r.epsilon) for r in result.server], result.rounds[-1]
    rounds = [t for t in shown_rounds(experiment.rounds) if t <= last.round]
    curve: dict[str, list[Any]] = {
        "round": rounds,
        "mean": [finite_or_none(result.rounds.means[t]) for t in rounds],
        "epsilon": epsilon_before(rounds, [r.round for r in result.server], epsilons, before),
    }
    epsilon = epsilons[-1] if epsilons else experiment.plan.epsilon_of_nothing
    return Progress(last.round, experiment.rounds, last.mean, epsilon, facts, curve)


def _facts(composition: Composition) -> dict[str, Any]:
    """The entries of the summary that are known before the run ends, and the limits of epsilon."""
    experiment, settings = composition.experiment, composition.settings
    privacy, plan = settings.privacy, experiment.plan
    return {
        "label": composition.label,
        "problem": experiment.problem.name,
        "algorithm": settings.algorithm.name,
        "n_agents": experiment.problem.n_agents,
        "metric": experiment.problem.metric,
        "lower_is_better": experiment.problem.lower_is_better,
        "private": experiment.private,
        "delta": plan.delta,
        "relation": plan.relation,
        "accountant": privacy.accountant,
        "rng": privacy.rng,
        "target_epsilon": privacy.epsilon,
        "budget_epsilon": privacy.budget.epsilon,
        "budget_delta": privacy.budget.delta,
    }


def summarise(experiment: Experiment, result: Result, spent: Spent, name: str) -> dict[str, Any]:
    """The contents of summary.json; null stands for "no finite value"."""
    settings, counts = experiment.settings, _counts(result) if experiment.settings.privacy.seeded else {}
    mean = [finite_or_none(value) for value in result.rounds.means]  # None: no agent has a value yet
    se = [finite_or_none(value) for value in result.rounds.standard_errors]
    return {
        "experiment": settings.experiment_name,
        "setting": name,
        "problem": experiment.problem.name,
        "algorithm": settings.algorithm.name,
        "seed": settings.seed,
        "n_agents": experiment.problem.n_agents,
        "rounds": experiment.rounds,
        "metric": experiment.problem.metric,
        "lower_is_better": experiment.problem.lower_is_better,
        "curve": {"round": list(range(len(mean))), "mean": mean, "se": se, "se_over": "agents"},
        "final": {"mean": mean[-1], "se": se[-1], **_spread(result)},
        "private": experiment.private,
        "delta": experiment.plan.delta,
        "relation": experiment.plan.relation,
        "accountant": settings.privacy.accountant,
        "approximations": experiment.plan.approximations,
        "epsilon": spent.epsilons,
        "epsilon_covers": experiment.plan.covers,
        **experiment.release_summary,
        "simulation_only": ["curve", "final", "best", *counts, "release", "seconds"],
        "rng": settings.privacy.rng,
        "n_charges": spent.n_charges,
        "normalized": getattr(settings.algorithm, "message_normalize", False),
        **counts,
        "seconds": {**result.seconds, "total": sum(result.seconds.values())},
        "objective_processes": getattr(experiment.problem, "n_jobs", None),
        "commit": commit(),
        "environment": environment(),
    }


def _counts(result: Result) -> dict[str, float | None]:
    """The server's private counts over all releases of a simulation."""
    chosen = sum(d.n_chosen for d in result.diagnostics)
    return {
        "clip_fraction": sum(d.n_clipped for d in result.diagnostics) / chosen if chosen else None,
        "n_rejected": sum(d.n_rejected for d in result.diagnostics),
        "n_dropped": sum(d.n_dropped for d in result.diagnostics),
    }


def _spread(result: Result) -> dict[str, Any]:
    """The entry `quantiles` of the final metric over many agents, by percent; none for few, or without any value."""
    last = result.rounds[-1]
    if len(last.y) <= MANY_AGENTS or math.isnan(last.mean):
        return {}
    return {"quantiles": dict(zip(map(str, PERCENT), last.quantiles([p / 100 for p in PERCENT]), strict=True))}


def _metrics(done: Round) -> dict[str, float | None]:
    """The metrics of one round, for a tracker."""
    metrics = regret_metrics(done.agents.mean, done.agents.quantiles([*QUANTILES.values()]))
    metrics |= {SECONDS + phase: seconds for phase, seconds in done.seconds.items()}
    if done.server is not None:
        metrics |= server_metrics(tables.server_row(done.server, done.diagnostics))
    return metrics
