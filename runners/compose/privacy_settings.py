"""The settings of a run's privacy: the mechanism or the release, their randomness, and the budget."""

from dataclasses import dataclass

from dpfbo import checks
from dpfbo.checks import SettingError
from dpfbo.federated.schedule import Schedule
from dpfbo.privacy.accounting import accountant_names, check_delta
from dpfbo.privacy.noise import DiscreteGaussian, Noise

RELEASE_ACCOUNTANT = "analytic_gaussian"  # accountant for a curator's release


@dataclass(frozen=True)
class BudgetSettings:
    """The limit for all charges of a ledger. epsilon: None for no limit. delta: None for the run's."""

    epsilon: float | None
    delta: float | None
    when_spent: str

    def __post_init__(self) -> None:
        if self.delta is not None:
            check_delta(self.delta)


@dataclass(frozen=True)
class ReleasePrivacy:
    """The privacy settings of both families. epsilon: target, None for none. delta: None for N^-1.1."""

    epsilon: float | None
    delta: float | None
    rng: str
    accountant: str
    budget: BudgetSettings
    noise: Noise

    def __post_init__(self) -> None:
        checks.one_of("rng", self.rng, ("seeded", "os"))
        if self.epsilon is not None:
            checks.positive("epsilon", self.epsilon)
        if self.delta is not None:
            check_delta(self.delta)

    @property
    def seeded(self) -> bool:
        """True if the server's random numbers follow from the seed, as in a simulation."""
        return self.rng == "seeded"

    def check_noise(self, noise: object) -> None:
        """Raise ValueError for noise without a seed in a seeded run."""
        if isinstance(noise, DiscreteGaussian) and self.seeded:
            raise ValueError(f"privacy/noise=discrete needs privacy.rng=os, got {self.rng!r}: its noise has no seed")


@dataclass(frozen=True)
class MechanismPrivacy(ReleasePrivacy):
    """The private mechanism of the federated algorithms."""

    q: float
    z: float
    S: float
    sensitivity: str
    charge: str
    sampling: str
    schedule: Schedule
    accountants: list[str]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.accountants, list) or not self.accountants:
            raise SettingError("accountants", f"must be a list of names, such as [pld,rdp], got {self.accountants!r}")
        checks.one_of("accountant", self.accountant, self.accountants)
        for name in self.accountants:
            checks.one_of("accountants", name, accountant_names())
