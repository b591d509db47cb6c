"""Run one experiment with its executor, and write its records to disk."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from omegaconf import DictConfig

from dpfbo import run_summary, tables
from dpfbo.checkpoint import Checkpoint, RunOrigin
from dpfbo.formats.run_folder import Progress
from dpfbo.privacy.budget import BudgetSpent
from dpfbo.privacy.coverage import LedgerCoverage
from dpfbo.privacy.mechanism_code import code_digests
from dpfbo.problems.problem import data_fingerprint
from dpfbo.records import Shown
from dpfbo.run_result import OnRound, Result, Round
from runners.compose.composition import Composition, Experiment
from runners.compose.settings import ANY_CODE, Settings
from runners.executor.deployment import Spent
from runners.executor.place import deployed, with_room
from runners.identity import finished
from runners.identity.places import check_noise_of_other_lengths, note_lineage, run_folder_of
from runners.identity.resumption import resumed
from runners.identity.setting import RunIdentity
from runners.record.best_found import SUMMARY_AGENTS, best_found
from runners.record.config_text import config_text
from runners.record.environment import commit, environment
from runners.wandb.layout import BUDGET, QUANTILES, SECONDS, SECONDS_LEFT, regret_metrics, server_metrics
from runners.wandb.tracker import WandbTracker

_PROGRESS_SECONDS = 1.0  # seconds between two writes of progress.json
_TITLE = ("problem", "algorithm", "setting", "seed")  # facts that form the title of a tracked run

Recorded = tuple[dict[str, Any], Path]  # the summary of a run, and its folder


def run_configuration(cfg: DictConfig, on_round: OnRound = lambda done: None) -> Recorded:
    """Run and record a composed configuration, see `record_run`."""
    return record_run(Composition.of(cfg), on_round)


def finished_before(given: DictConfig, settings: Settings, single: bool = False) -> Recorded | None:
    """Return the summary and the folder of the run with these settings if it has finished before, else None.

    Also returns None if `settings.again` is true, or if `record_run` still has to remove the run's temporary files.
    """
    folder = run_folder_of(RunIdentity.of(given, settings), single)
    summary = finished.summary_of(folder, settings.rounds)
    return None if summary is None or settings.again or not finished.settled(folder) else (summary, folder.path)


def record_run(
    composition: Composition,
    on_round: OnRound = lambda done: None,
    single: bool = False,
    identity: RunIdentity | None = None,
) -> Recorded:
    """Run and record an experiment, or resume an interrupted run; return the summary and the folder.

    If the run has finished before, nothing runs unless the setting `again` is true.

    on_round: called after every round. When a run resumes, on_round is first called again for each finished round.
    single: True outside a sweep. If an earlier run differs only in having fewer rounds, a single run continues the
    earlier run. If the folder of a single run is new, the folder's name starts with the run's label. identity: the
    identity of the run; None to compute it from `composition`. Raises ResultsError before any work starts if the folder
    cannot be written.
    """
    experiment, settings = composition.experiment, composition.settings
    run = RunIdentity.of(composition.given, settings) if identity is None else identity
    tracker = WandbTracker(**asdict(settings.tracker.wandb))
    folder = run_folder_of(run, single)
    if single:
        check_noise_of_other_lengths(run, folder)
    may_go_on = single and folder.path.parent.name != run.names.setting
    with folder.opened(), folder.failures_kept(), ExitStack() as cluster:
        checkpoint = Checkpoint(folder.checkpoint_path, f"{run.names.family} {settings.seed}", _origin(experiment))
        summary = finished.summary_of(folder, settings.rounds)
        if summary is not None and not settings.again:
            if (folder.path / finished.SUMMARY).exists():
                folder.tidy()  # the run may have been killed before it did this
                checkpoint.clear()
            return summary, folder.path
        cluster.enter_context(with_room(experiment))  # before a finished run is put aside
        result = experiment.result()
        result.rounds.read_back = checkpoint.record
        facts, noted, began = _facts(experiment, run), 0.0, 0.0

        def begin(before: float | None, refused: bool = False) -> None:
            title, tags = "-".join(str(facts[key]) for key in _TITLE), [facts["problem"], facts["algorithm"]]
            tracker.start(
                composition.recorded, folder.path, title, settings.experiment_name, tags, commit(), before,
                run.names.setting, run.label, folder=folder.path.parents[1], refused=refused,
            )  # fmt: skip

        try:
            done, before, broadcasts = resumed(experiment, checkpoint, folder, result, _coverage(experiment, run))
        except BudgetSpent as error:
            if tracker.alerts:
                begin(None, refused=True)
                tracker.alert(BUDGET, f"{run.label}, seed {settings.seed} does not run: {error}")
                tracker.fail(str(error))
            raise

        def seconds_left(round: Round) -> float | None:
            """Predict the seconds left from the pace of this process; None before its first round."""
            t, pace = round.agents.round, time.monotonic() - began
            return pace / (t + 1 - done) * (experiment.rounds - t) if began and t >= done else None

        def show(round: Round) -> None:
            if tracker.mode != "disabled":
                tracker.log_round(round.agents.round, {**_metrics(round), SECONDS_LEFT: seconds_left(round)})
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
                begin(before)
                if broadcasts < (planned := getattr(experiment, "study", experiment).broadcasts):
                    said = (
                        f"{run.label}, seed {settings.seed}: its budget pays for {broadcasts} of {planned} broadcasts"
                    )
                    tracker.alert(BUDGET, said)
                for round in checkpoint.rounds(done):
                    show(round)
                if may_go_on:
                    note_lineage(folder, run)
                began = time.monotonic()
                deployment.run(keep, broadcasts)
                ending = {"executor": deployment.placed(), "epsilon_before": before}
                summary = {**facts, **_outcome(experiment, result, deployment.spent()), **ending}
            if n := folder.preemptions():
                summary["preemptions"] = n
            if may_go_on:
                finished.keep_rounds(folder)
            server = tables.server_table(result.server, result.diagnostics if settings.privacy.seeded else None)
            folder.write(config_text(composition.recorded), _row_groups(experiment, result), server, summary)
        except BaseException as error:
            tracker.fail(f"{type(error).__name__}: {error}")
            if getattr(error, "traceback", ""):  # the error of an objective
                folder.note_failure(str(error), error)
            raise
        checkpoint.clear()
    tracker.finish(summary)
    return summary, folder.path


def _origin(experiment: Experiment) -> RunOrigin:
    """Return digests of the run's data and code. Raises ValueError for resume=any_code in a real run (rng `os`)."""
    settings = experiment.settings
    if settings.resume == ANY_CODE and not settings.privacy.seeded:
        raise ValueError(f"resume={ANY_CODE} is for simulations, whose privacy.rng is seeded: leave it out")
    any_code = settings.resume is not True  # with resume=false no round is resumed
    return RunOrigin(data_fingerprint(experiment.problem), code_digests(), any_code)


def _coverage(experiment: Experiment, run: RunIdentity) -> LedgerCoverage:
    """Return the first line of the run's ledger.

    The line has a fingerprint of the data only in a simulation. In a real run (rng `os`), others could test guesses of
    the data against the fingerprint.
    """
    seeded = run.settings.privacy.seeded
    data, seed = (data_fingerprint(experiment.problem), run.settings.seed) if seeded else (None, None)
    # the family leaves out the number of rounds, because a longer run continues the ledger
    return LedgerCoverage(run.names.family, seed, data, experiment.plan.relation or None)


def _row_groups(experiment: Experiment, result: Result) -> Iterator[pa.Table]:
    problem = experiment.problem
    agents, space = torch.arange(problem.n_agents), getattr(problem, "space", None)
    return tables.row_groups(result.rounds, agents, Shown.of(problem), space)


def _progress(experiment: Experiment, result: Result, facts: dict[str, Any], before: float | None) -> Progress:
    """Return the content of progress.json. before: epsilon of earlier charges in the ledger; None if infinite."""
    privacy = experiment.settings.privacy
    limits = {"target_epsilon": privacy.epsilon}
    limits |= {"budget_epsilon": privacy.budget.epsilon, "budget_delta": privacy.budget.delta}
    return run_summary.progress(result, experiment.rounds, {**facts, **limits}, before)


def _facts(experiment: Experiment, run: RunIdentity) -> dict[str, Any]:
    settings, problem, plan = run.settings, experiment.problem, experiment.plan
    return {
        "experiment": settings.experiment_name, "setting": run.names.setting, "label": run.label,
        "problem": problem.name, "algorithm": settings.algorithm.name, "seed": settings.seed,
        "n_agents": problem.n_agents, "rounds": experiment.rounds,
        "metric": problem.metric, "lower_is_better": problem.lower_is_better,
        "private": experiment.private, "rng": settings.privacy.rng,
        "delta": plan.delta, "relation": plan.relation, "accountant": settings.privacy.accountant,
    }  # fmt: skip


def _outcome(experiment: Experiment, result: Result, spent: Spent) -> dict[str, Any]:
    problem, seeded, best = experiment.problem, experiment.settings.privacy.seeded, None
    if seeded and problem.n_agents <= SUMMARY_AGENTS:
        best = best_found(_row_groups(experiment, result), Shown.of(problem).maximize).to_pylist()
    return {
        **run_summary.outcome(result, experiment.plan, seeded, spent.epsilons, spent.n_charges),
        **experiment.release_summary,
        "normalized": getattr(experiment.settings.algorithm, "message_normalize", False),
        "best": best,
        "commit": commit(),
        "environment": environment(),
    }


def _metrics(done: Round) -> dict[str, float | None]:
    metrics = regret_metrics(done.agents.mean, done.agents.quantiles([*QUANTILES.values()]))
    metrics |= {SECONDS + phase: seconds for phase, seconds in done.seconds.items()}
    if done.server is not None:
        metrics |= server_metrics(tables.server_row(done.server, done.diagnostics))
    return metrics
