"""Ledgers of one or several runs on the same data, added up."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dpfbo.privacy.accounting import in_words
from dpfbo.privacy.accounting.analytic_gaussian import AnalyticGaussian
from dpfbo.privacy.accounting.calibrate import SMALLEST_NOISE
from dpfbo.privacy.ledger import Charge, Ledger, LedgerError
from dpfbo.privacy.plan import PrivacyPlan, analysing
from runners.privacy.report import facts

NO_RELATION = "none of tables (messages of agents, or a release without a claim)"
COVERS = (
    "the broadcasts in these ledgers; not settings chosen by comparing runs on the same private data, nor runs whose "
    "ledgers are not given"
)
COVERS_RELEASES = (
    "the tables released in these ledgers, for neighbours of one table in the same public box; not measurements, nor "
    "settings chosen by comparing runs on the same private data, nor runs whose ledgers are not given"
)
SEVERAL = (
    "several ledgers add up if their runs drew their noise independently; runs with one seed and privacy.rng=seeded "
    "share their noise, and then no epsilon covers them together (a ledger does not say how its noise was drawn)"
)


def added_up(paths: Sequence[Path], delta: float) -> dict[str, Any]:
    """Epsilon of all charges in these files by every accountant that applies.

    Charges of one release (same round, same digest) count once, with the least noise that any of them states.

    Raises LedgerError for a missing file, a file that is no ledger, or one that cannot be added to the others.
    """
    ledgers = {str(path): opened(path) for path in paths}
    files = {path: ledger.charges for path, ledger in ledgers.items()}
    everything = [charge for charges in files.values() for charge in charges]
    once: dict[tuple[int, str], Charge] = {}
    for charge in sorted(everything, key=_noise, reverse=True):
        once[charge.round, charge.digest] = charge
    plan = _plan(list(once.values()), delta, _relation(files))
    return {
        "files": [
            {"path": path, "charges": len(ledger.charges), "unchained": ledger.unchained}
            for path, ledger in ledgers.items()
        ],
        "charges": len(once),
        "repeated": sum(map(len, files.values())) - len(once),
        **facts(plan),
        "covers": plan.covers,
        "note": SEVERAL if len(files) > 1 else None,
    }


def _relation(files: dict[str, list[Charge]]) -> str | None:
    """The relation of all charges, None for the federated family. Raises LedgerError if they have no common one."""
    everything = [charge for charges in files.values() for charge in charges]
    relations = {charge.relation: path for path, charges in files.items() for charge in charges}
    if len(relations) > 1:
        said = "; ".join(f"{path}: {NO_RELATION if r is None else in_words(r)}" for r, path in relations.items())
        raise LedgerError(f"ledgers must have one relation to be added up, got {said}")
    relation = next(iter(relations), None)
    if relation is None and not analysing([charge.event() for charge in everything]):
        raise LedgerError(
            f"{', '.join(files)}: some charges are of Poisson sampling and some of subsets of a fixed size, "
            "and no accountant covers both under one relation"
        )
    return relation


def _plan(charges: Sequence[Charge], delta: float, relation: str | None) -> PrivacyPlan:
    """The charges as a privacy plan. relation: None for the federated family."""
    events = [charge.event() for charge in charges]
    if relation is not None:
        by = AnalyticGaussian(relation)
        return PrivacyPlan(events, delta, {"analytic_gaussian": by}, "analytic_gaussian", COVERS_RELEASES)
    able = analysing(events)
    return PrivacyPlan(events, delta, able, next(iter(able)), COVERS)


def _noise(charge: Charge) -> tuple[float, float]:
    """The sort key of a charge: it rises with the noise multiplier, then falls with the sampling probability."""
    return charge.z or 0.0, -charge.q


def opened(path: Path) -> Ledger:
    """The ledger of a file, all of its charges such that they can be accounted for. Raises LedgerError."""
    if not path.is_file():
        raise LedgerError(f"ledger {path} is not there, or no file")
    try:
        ledger = Ledger(path)
        if not ledger.charges and ledger.covers is None and path.read_bytes().strip():
            raise LedgerError(f"ledger {path} holds no whole charge: it is none, or was torn in its first line")
    except OSError as error:
        raise LedgerError(f"ledger {path} cannot be read: {error.strerror}") from error
    for number, charge in enumerate(ledger.charges, start=1):
        if charge.z is not None and charge.z < SMALLEST_NOISE:
            raise LedgerError(
                f"ledger {path} charge {number} is none: z must be null or at least {SMALLEST_NOISE}, got {charge.z!r}"
            )
    return ledger
