"""The outcome of runs with kills, and the judgement of their records and ledgers."""

import io
import json
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.parquet as pq

from dpfbo.privacy.accounting.analytic_gaussian import AnalyticGaussian
from dpfbo.privacy.accounting.rdp import Rdp
from dpfbo.privacy.ledger import Ledger, LedgerError
from tests.helpers.small_runs import Records, charged, differences, records


@dataclass
class Outcome:
    """The outcome of runs with kills. records: True if correct. ledger: True if complete, without duplicates.

    lost: broadcasts without a charge. double: charges beside the first of the same broadcast. under: records whose
    epsilon is below that of the ledger. tracebacks: of drivers. memory: bytes of this process until a tenth of the
    time, and at most.
    """

    kind: str
    kills: int = 0
    records: bool = False
    ledger: bool = False
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)
    runs: int = 1
    lost: int = 0
    double: int = 0
    under: int = 0
    tracebacks: int = 0
    memory: tuple[int, int] = (0, 0)

    @property
    def passed(self) -> bool:
        return self.records and self.ledger and not (self.lost or self.double or self.under or self.tracebacks)

    def add(self, other: "Outcome") -> None:
        """Count the runs of another outcome of the same kind."""
        self.records, self.ledger = self.records and other.records, self.ledger and other.ledger
        for name in ("kills", "runs", "lost", "double", "under", "tracebacks"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        if not other.passed:
            self.notes += other.notes or ["differs"]

    def judge(self, folder: Path, expected: Records) -> None:
        """Compare with an undisturbed run of the same seed: everything must be the same to the bit."""
        different = differences(records(folder), expected)
        self.records = not different
        self.notes += [f"{name} differs" for name in different]
        try:
            paid = charged(folder)
        except LedgerError as error:
            self.notes.append(str(error))
            self.ledger = False
            return
        lines = map(json.loads, expected["ledger.jsonl"].splitlines())
        theirs = {(line["round"], line["digest"]) for line in lines if "digest" in line}  # one says what run it is of
        self.lost, self.double = len(theirs - set(paid)), len(paid) - len(set(paid))
        self.ledger = not self.lost and not self.double and set(paid) == theirs
        self.ledger &= _sent(folder / "server.parquet") == _sent(io.BytesIO(expected["server.parquet"]))

    def judge_fresh(self, folder: Path, observed: set[tuple[int, str]], broadcasts: int) -> None:
        """With fresh noise: every observed broadcast must be charged, and epsilon must be that of all charges."""
        left, paid = records(folder), charged(folder)
        sent, events = _sent(folder / "server.parquet"), Ledger(folder / "ledger.jsonl").events()
        accountant = AnalyticGaussian("") if left["summary"]["accountant"] == "analytic_gaussian" else Rdp()
        implied = accountant.curve(events, left["summary"]["delta"])
        epsilon = pq.read_table(folder / "server.parquet")["epsilon"].to_pylist()
        final = left["summary"]["epsilon"][left["summary"]["accountant"]]
        self.lost, self.double = len(observed - set(paid)), len(paid) - len(set(paid))
        self.ledger = not self.lost and not self.double and len(paid) >= len(observed) >= broadcasts == len(sent)
        self.ledger &= {t for t, _ in observed} == {t for t, _ in paid} == sent
        self.under = sum(e < least for e, least in zip(epsilon, implied, strict=False)) + (final < implied[-1])
        self.records = epsilon[-1] == implied[-1] == final and not self.under
        self.notes.append(f"{len(paid)} charges, {len(observed)} broadcasts seen")


def _sent(file: Path | io.BytesIO) -> set[int]:
    return set(pq.read_table(file)["round"].to_pylist())
