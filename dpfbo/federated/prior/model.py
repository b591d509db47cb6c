"""The settings of the private prior that agents and server share. All of them are public."""

from dataclasses import dataclass

from dpfbo import checks
from dpfbo.checks import SettingError
from dpfbo.federated.prior.statistics import Statistics


@dataclass(frozen=True)
class PriorModel:
    """The hierarchical model of the private prior, and how agents use it.

    Args:
        lengthscales: One block of features for each, in the unit cube; the release decides how much each counts.
        scale: The assumed standard deviation of an objective, public.
        scalar_weight: The size of the message's scalar, see `Statistics`.
        noise: The variance of an observation; None if the release decides.
        caution: The factor of the posterior covariance of what is shared, so that a peak in the noise stays possible.
        optimism: Agents take tau for `1 + optimism * own share` times as large, so that they keep exploring.
        residuals: Further factors of tau that an agent tries on its own observations.
        no_transfer: The models without transfer that it also tries: `features`, the prior `N(0, diag(v + tau))`;
            `own_gp`, its own GP once it was fitted; `both`; or `none`.
        leave_own_out: True to take the agent's own message out of the release before it is used as a prior.

    Raises:
        SettingError: A number is not positive, or a name is unknown.

    Example:
        >>> PriorModel(no_transfer="own_gp").tries("features")
        False
    """

    lengthscales: tuple[float, ...] = (0.1, 0.2, 0.4, 0.8)
    scale: float = 1.0
    scalar_weight: float = 0.25
    noise: float | None = None
    caution: float = 2.0
    optimism: float = 3.0
    residuals: tuple[float, ...] = (1.0, 4.0)
    no_transfer: str = "both"
    leave_own_out: bool = True

    def __post_init__(self) -> None:
        for name in ("lengthscales", "residuals"):
            values = tuple(getattr(self, name))
            object.__setattr__(self, name, values)
            if not values:
                raise SettingError(name, "must name at least one number, got none")
            for value in values:
                checks.positive(name, value)
        checks.positive("caution", self.caution)
        checks.non_negative("optimism", self.optimism)
        if self.noise is not None:
            checks.positive("noise", self.noise)
        checks.one_of("no_transfer", self.no_transfer, ("features", "own_gp", "both", "none"))
        checks.one_of("leave_own_out", self.leave_own_out, (True, False))
        self.statistics  # noqa: B018

    def tries(self, model: str) -> bool:
        """True if an agent tries this model without transfer, `features` or `own_gp`."""
        return self.no_transfer in (model, "both")

    @property
    def statistics(self) -> Statistics:
        return Statistics(self.scale, self.scalar_weight)
