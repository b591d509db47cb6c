"""The charge for one release in the privacy ledger."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dpfbo import checks
from dpfbo.checks import SettingError
from dpfbo.privacy.accounting.events import round_event, round_parameters

if TYPE_CHECKING:  # reading a ledger needs neither, and importing them takes a second
    import dp_accounting
    from torch import Tensor

_DIGEST = re.compile(r"[0-9a-f]{64}")
_LONGEST_TEXT = 200  # characters


@dataclass(frozen=True)
class Charge:
    """The ledger's entry for one broadcast.

    Args:
        round: The round of the broadcast.
        q: The sampling probability of the broadcast's dp-accounting event.
        z: The noise multiplier of that event; None if the event is not private.
        sigma: The standard deviation of the noise.
        sensitivity: The L2 sensitivity; None if it is infinite.
        digest: The sha256 of the released numbers, 64 hexadecimal digits.
        subset: (k, N) if a subset of fixed size k of the N agents was sampled; else None.
        relation: The neighbouring relation of an outsourced release. None for a release without a guarantee, and for a
            federated release, whose accountant determines the relation.

    Raises:
        SettingError: A value is out of range.
    """

    round: int
    q: float
    z: float | None
    sigma: float
    sensitivity: float | None
    digest: str
    subset: tuple[int, int] | None = None
    relation: str | None = None

    def __post_init__(self) -> None:
        checks.integer("round", self.round, minimum=0)
        checks.probability("q", self.q)
        if self.z is not None:
            checks.positive("z", self.z)
        checks.non_negative("sigma", self.sigma)
        if self.sensitivity is not None:
            checks.non_negative("sensitivity", self.sensitivity)
        if not isinstance(self.digest, str) or not _DIGEST.fullmatch(self.digest):
            raise SettingError("digest", f"must be 64 hexadecimal digits, got {checks.shown(self.digest)}")
        if self.subset is not None:
            if not isinstance(self.subset, tuple) or len(self.subset) != 2:
                found = list(self.subset) if isinstance(self.subset, tuple) else self.subset
                raise SettingError("subset", f"must be [k, N], got {checks.shown(found)}")
            checks.integer("k of subset", self.subset[0], minimum=1)
            checks.integer("N of subset", self.subset[1], minimum=self.subset[0])
        if self.relation is not None:
            check_text("relation", self.relation)
            if self.q != 1 or self.subset is not None:
                raise SettingError("q", f"must be 1 and subset null where there is a relation, got {self.q!r}")

    @staticmethod
    def of(
        round: int, event: dp_accounting.DpEvent, sigma: float, sensitivity: float | None, values: Tensor,
        relation: str | None = None,
    ) -> Charge:  # fmt: skip
        """Return the charge for the released numbers `values`, with q, z and subset from `event`."""
        q, z, subset = round_parameters(event)
        return Charge(round, q, z, sigma, sensitivity, digest(values), subset, relation)

    def event(self) -> dp_accounting.DpEvent:
        """Return the dp-accounting event that this charge records."""
        return round_event(self.q, self.z, self.subset)


def digest(values: Tensor) -> str:
    """Return the sha256 of a released tensor's float64 bytes, in hexadecimal digits."""
    return hashlib.sha256(values.double().contiguous().numpy().tobytes()).hexdigest()


def check_text(name: str, value: object) -> None:
    """Raise SettingError unless the value is a printable text of 1 to 200 characters."""
    if not isinstance(value, str) or not value.isprintable() or not 0 < len(value) <= _LONGEST_TEXT:
        raise SettingError(name, f"must be a text of 1 to {_LONGEST_TEXT} characters, got {checks.shown(value)}")
