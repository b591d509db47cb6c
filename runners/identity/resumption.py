"""Check the finished rounds of an interrupted run against its ledger before the run continues."""

import logging
from contextlib import nullcontext

from dpfbo.checkpoint import Checkpoint, check_charged
from dpfbo.formats.run_folder import ResultsError, RunFolder
from dpfbo.privacy.accounting import finite_or_none
from dpfbo.privacy.budget import BudgetSpent
from dpfbo.privacy.coverage import LedgerCoverage
from dpfbo.privacy.ledger import Ledger
from dpfbo.run_result import Result
from runners.compose.composition import Experiment
from runners.compose.federated import FederatedExperiment
from runners.compose.settings import MechanismPrivacy
from runners.identity import finished

logger = logging.getLogger(__name__)


def resumed(
    experiment: Experiment, checkpoint: Checkpoint, folder: RunFolder, result: Result, run: LedgerCoverage
) -> tuple[int, float | None, int]:
    """Prepare a run to start or to resume.

    Returns three values: the number of finished rounds; the epsilon of earlier releases (None if infinite); and the
    number of broadcasts that the whole run can make, including those of the finished rounds.

    Earlier releases are charged in the ledger, but do not belong to the finished rounds. For example, if a real run
    (rng `os`) starts over, the ledger still has all the charges from before. A simulation ignores earlier releases.

    The server makes no broadcast in the last round of a run. If the run now continues with more rounds, the former last
    round still needs a broadcast, so it does not count as finished. The observations of this round are put into
    `result.observed`, so that no objective is evaluated again.

    run: the run's identity, which is written to an empty ledger if the run has releases to charge. Raises LedgerError
    if the ledger names another run, or if the ledger lacks a broadcast of a finished round.
    """
    settings, seeded = experiment.settings, experiment.settings.privacy.seeded
    anew, summary = settings.again or not settings.resume, finished.summary_of(folder)
    ended = (folder.path / finished.SUMMARY).exists() and summary is not None
    with folder.hold_ledger() if folder.ledger_path.exists() else nullcontext() as held:
        ledger = Ledger(folder.ledger_path, held)  # locked, so that no orphaned server charges it
        if not (seeded and anew and summary is not None):  # otherwise it is put aside
            ledger.check_covers(run)
        finished.check_ledger(folder, len(ledger.charges), seeded)
        kept = check_charged(checkpoint.rounds(), ledger)
        changed = True
        if anew and (summary is not None or not settings.resume):
            checkpoint.clear()
        elif summary is not None and (ended or len(kept) <= summary["rounds"]):
            finished.take_rounds(folder)
        else:
            changed = False
        try:
            kept = check_charged(checkpoint.rounds(), ledger) if changed else kept
            releases = sum(released for released, _ in kept)
            sent_last = kept[-1][1] if kept else True
            done = _done(experiment, checkpoint, folder, result, len(kept), sent_last)
            broadcasts = _broadcasts(experiment, checkpoint, ledger, done, releases)
        except BaseException:
            if ended:  # leave the run finished, as it was before
                checkpoint.clear()
            raise
        if summary is not None and anew:
            aside = finished.put_aside(folder, with_ledger=seeded)
            what = "records and ledger" if seeded else "records (not the ledger, which goes on)"
            logger.warning("the %s of the finished run are in %s now", what, aside)
            ledger = Ledger(folder.ledger_path, held)
        elif ended:
            finished.reopen(folder)
        if experiment.plan.events:
            ledger.bind(run)
    if done:
        logger.warning("%s: going on after round %d of %d", folder.path, done - 1, experiment.rounds)
    _say_what_is_unusual(experiment, ledger, releases)
    earlier = ledger.events()[: len(ledger.charges) - releases]
    if earlier and not seeded:  # this run adds to these releases
        return done, finite_or_none(experiment.plan.epsilon(earlier)), broadcasts
    return done, experiment.plan.epsilon_of_nothing, broadcasts


def _done(
    experiment: Experiment, checkpoint: Checkpoint, folder: RunFolder, result: Result, known: int, sent_last: bool
) -> int:
    """Return the number of finished rounds: `known`, or one less if the last known round must be repeated.

    A federated run repeats the last known round if the server made no broadcast in this round (`sent_last` is False)
    and the round is not the experiment's final one. The round's observations are then put into `result.observed`.
    Raises ResultsError if the checkpoint has more rounds than the experiment.
    """
    done, T = known, experiment.rounds
    if known > T + 1:
        progress = folder.progress()
        longer = known - 1 if progress is None else max(progress.rounds, known - 1)
        raise ResultsError(f"{folder.path} is a run of more rounds that was interrupted: rounds={longer} continues it")
    # a shorter run sent nothing in its last round, which is repeated; without a broadcast this changes nothing
    if isinstance(experiment, FederatedExperiment) and 0 < known <= T and not sent_last:
        done -= 1
        result.observed = checkpoint.record(done)
    checkpoint.forget_from(known, released=done)
    return done


def _broadcasts(experiment: Experiment, checkpoint: Checkpoint, ledger: Ledger, done: int, releases: int) -> int:
    """Return the largest number of broadcasts that the whole run can make within its budget.

    With when_spent=refuse, raises BudgetSpent if the budget does not pay for all planned broadcasts.
    """
    if experiment.settings.privacy.seeded or experiment.plan.budget is None:
        return experiment.broadcasts
    if releases < min(done, experiment.broadcasts):  # the broadcasts ended before the finished rounds did
        return releases
    spent, kept = ledger.events(), experiment.kept_release(checkpoint).load(done)
    if kept is not None and ledger.holds(done, kept[0].values):  # this release is charged already, and is sent again
        spent = spent[:-1]
    plan, planned = experiment.plan, len(experiment.plan.events)
    paid = plan.affordable(spent, releases)
    if paid < planned and plan.budget is not None and plan.budget.when_spent == "refuse":
        raise BudgetSpent(
            f"{planned - releases} more broadcasts would cost more than privacy.budget.epsilon={plan.budget.epsilon!r} "
            f"with the {len(spent)} that the ledger holds already"
        )
    return paid


def _say_what_is_unusual(experiment: Experiment, ledger: Ledger, releases: int) -> None:
    privacy = experiment.settings.privacy
    if experiment.private and privacy.seeded:
        logger.info("privacy.rng=seeded: a simulation; whoever knows the seed can remove the noise")
    if experiment.private and isinstance(privacy, MechanismPrivacy) and privacy.mechanism.noise_multiplier == 0:
        logger.warning("privacy.z=0 adds no noise: there is no finite epsilon")
    if ledger.carried_over > releases:
        what = "different ones add to epsilon; these releases are real, so keep this ledger"
        if privacy.seeded:
            what = "different ones with the same random numbers are refused; delete the folder to start anew"
        said = "%s already holds %d broadcasts: equal ones are not charged again, %s"
        logger.warning(said, ledger.path, ledger.carried_over, what)
