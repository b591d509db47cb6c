"""The rounds that an interrupted run has finished, checked against its ledger before anything goes on."""

import logging
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass

from dpfbo.checkpoint import Checkpoint, check_charged
from dpfbo.privacy.accounting import finite_or_none
from dpfbo.privacy.coverage import LedgerCoverage
from dpfbo.privacy.ledger import Ledger
from dpfbo.run_result import Result, Round
from runners.compose.composition import Experiment
from runners.compose.privacy_plan import affordable
from runners.compose.settings import MechanismPrivacy
from runners.record import finished
from runners.record.run_folder import ResultsError, RunFolder

logger = logging.getLogger(__name__)


@dataclass
class CheckedRounds:
    """The rounds of a checkpoint: how many there are, and how many of them released something.

    silent: True if nothing was sent after the last one.
    """

    count: int = 0
    releases: int = 0
    silent: bool = False


def resumed(
    experiment: Experiment, checkpoint: Checkpoint, folder: RunFolder, result: Result, run: LedgerCoverage
) -> tuple[int, float | None, int]:
    """(number of finished rounds, epsilon before the first of them, number of broadcasts of the whole run).

    The rounds are the first ones of the checkpoint, and the ledger holds all of them; it is that of `run`, and says so
    from now on if it was empty. Unusual circumstances are logged.
    `result` gets the observations of a round that was the last of a finished run, and now lacks its broadcast.
    """
    settings, seeded = experiment.settings, experiment.settings.privacy.seeded
    anew, summary = settings.again or not settings.resume, finished.summary_of(folder)
    ended = (folder.path / finished.SUMMARY).exists() and summary is not None
    with folder.hold_ledger() if folder.ledger_path.exists() else nullcontext() as held:
        ledger = Ledger(folder.ledger_path, held)  # no orphaned server charges it any more
        if not (seeded and anew and summary is not None):  # it is put aside
            ledger.check_covers(run)
        finished.check_ledger(folder, len(ledger.charges), seeded)
        kept = _checked(checkpoint, ledger)
        changed = True
        if anew and (summary is not None or not settings.resume):
            checkpoint.clear()
        elif summary is not None and (ended or kept.count <= summary["rounds"]):
            finished.take_rounds(folder)
        else:
            changed = False
        try:
            kept = _checked(checkpoint, ledger) if changed else kept
            done = _done(experiment, checkpoint, folder, result, kept)
            broadcasts = _broadcasts(experiment, checkpoint, ledger, done, kept.releases)
        except BaseException:
            if ended:  # it is finished as before
                checkpoint.clear()
            raise
        if summary is not None and anew:
            aside = finished.put_aside(folder, with_ledger=seeded)
            what = "records and ledger" if seeded else "records, without the ledger, which goes on,"
            logger.warning("the %s of the finished run are in %s now", what, aside)
            ledger = Ledger(folder.ledger_path, held)
        elif ended:
            finished.reopen(folder)
        if experiment.plan.events:
            ledger.bind(run)
    if done:
        logger.warning("%s: going on after round %d of %d", folder.path, done - 1, experiment.rounds)
    _say_what_is_unusual(experiment, ledger, kept.releases)
    earlier = ledger.events()[: len(ledger.charges) - kept.releases]
    if earlier and not seeded:  # this run adds to these releases
        return done, finite_or_none(experiment.plan.epsilon(earlier)), broadcasts
    return done, experiment.plan.epsilon_of_nothing, broadcasts


def _checked(checkpoint: Checkpoint, ledger: Ledger) -> CheckedRounds:
    """Read all rounds, one at a time. Raises LedgerError if the ledger lacks a broadcast of theirs."""
    found = CheckedRounds()

    def counted() -> Iterator[Round]:
        for round in checkpoint.rounds():
            found.count += 1
            found.releases += round.server is not None
            found.silent = round.broadcast is None
            yield round

    check_charged(counted(), ledger)
    return found


def _done(
    experiment: Experiment, checkpoint: Checkpoint, folder: RunFolder, result: Result, kept: CheckedRounds
) -> int:
    """The number of rounds, without one that is observed and lacks its broadcast: `result` gets that."""
    known, T = kept.count, experiment.rounds
    if known > T + 1:
        progress = folder.progress()
        longer = known - 1 if progress is None else max(progress.rounds, known - 1)
        raise ResultsError(f"{folder.path} is a run of more rounds that was interrupted: rounds={longer} goes on")
    done = known
    # a run that ended there sent nothing after its last round; one in which nothing is sent any more repeats nothing
    if experiment.family == "federated" and 0 < known <= T and kept.silent:
        done -= 1
        result.observed = checkpoint.record(done)
    checkpoint.forget_from(known, released=done)
    return done


def _broadcasts(experiment: Experiment, checkpoint: Checkpoint, ledger: Ledger, done: int, resumed: int) -> int:
    """The number of broadcasts of the run, `resumed` of them in its `done` finished rounds.

    There are fewer than planned if fresh noise adds to the ledger and the budget ends earlier.
    """
    if experiment.settings.privacy.seeded or experiment.plan.budget is None:
        return experiment.broadcasts
    if resumed < min(done, experiment.broadcasts):  # the broadcasts had ended already
        return resumed
    spent, kept = ledger.events(), experiment.kept_release(checkpoint).load(done)
    if kept is not None and ledger.holds(done, kept[0].values):  # this release is charged already, and is sent again
        spent = spent[:-1]
    return affordable(experiment.plan, spent, resumed)


def _say_what_is_unusual(experiment: Experiment, ledger: Ledger, resumed: int) -> None:
    privacy = experiment.settings.privacy
    if experiment.private:
        if privacy.seeded:
            logger.info("privacy.rng=seeded: a simulation; whoever knows the seed can remove the noise")
        if isinstance(privacy, MechanismPrivacy) and privacy.mechanism.noise_multiplier == 0:
            logger.warning("privacy.z=0 adds no noise: there is no finite epsilon")
    if ledger.carried_over > resumed:
        how = "different ones add to epsilon; these releases are real, keep this ledger"
        if privacy.seeded:
            how = "different ones with the same random numbers are refused; delete the folder to start anew"
        logger.warning(
            "%s already holds %d broadcasts: equal ones are not charged again, %s",
            ledger.path,
            ledger.carried_over,
            how,
        )
