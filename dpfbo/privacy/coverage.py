"""The identity of the run to which a ledger belongs."""

from dataclasses import dataclass

from dpfbo import checks
from dpfbo.privacy.charge import check_text

_WORDS = {"setting": "another setting", "seed": "another seed", "data": "other data", "relation": "another relation"}


@dataclass(frozen=True)
class LedgerCoverage:
    """The identity of a run, written in the first line of its ledger.

    Args:
        setting: A text that identifies the settings of the run, such as their digest.
        seed: The seed of the noise; None for noise from the operating system.
        data: The fingerprint of the data (`dpfbo.problems.data_fingerprint`); None if unknown.
        relation: The neighbouring relation of the run's epsilon; None if the run has no guarantee.

    Raises:
        SettingError: A value is out of range.
    """

    setting: str
    seed: int | None = None
    data: str | None = None
    relation: str | None = None

    def __post_init__(self) -> None:
        if self.seed is not None:
            checks.integer("seed", self.seed, minimum=0)
        check_text("setting", self.setting)
        for name in ("data", "relation"):
            if (value := getattr(self, name)) is not None:
                check_text(name, value)

    def differences(self, other: "LedgerCoverage") -> list[str]:
        """Return a text for each field in which self, the run of a ledger, differs from `other`, the present run.

        If the ledger's run has seed 3 and the present run has seed 0, the text is `another seed (3, and this is 0)`. A
        `data` or `relation` that is None in either run does not count as different.
        """
        found = []
        for name, words in _WORDS.items():
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs and (name == "seed" or None not in (mine, theirs)):
                found.append(f"{words} ({_short(mine)}, and this is {_short(theirs)})")
        return found

    @property
    def words(self) -> str:
        """The run as a text such as `setting 0a1b2c3d4e5f, seed 0, data sha256:0a1b2c3d4e5f, relation zero-out`."""
        seed = "noise of the system" if self.seed is None else f"seed {self.seed}"
        data = "data without a fingerprint" if self.data is None else f"data {_short(self.data)}"
        relation = "no relation" if self.relation is None else f"relation {self.relation}"
        return f"setting {_short(self.setting)}, {seed}, {data}, {relation}"


def _short(value: object) -> str:
    text = "none" if value is None else str(value)
    return text if len(text) <= 40 else f"{text[:19]}.."
