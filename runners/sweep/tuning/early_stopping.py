"""Settings of early stopping by Ray Tune."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from dpfbo import checks

SCHEDULERS = ("asha", "median")


@dataclass(frozen=True)
class EarlyStopping:
    """The values of `sweep.scheduler` and `sweep.scheduler_options`, named as in Ray Tune; time is counted in rounds.

    reduction_factor: only for asha. min_samples_required: only for median.
    """

    scheduler: str
    grace_period: int = 5
    reduction_factor: float = 4
    min_samples_required: int = 3

    def __post_init__(self) -> None:
        checks.one_of("sweep.scheduler", self.scheduler, (None, *SCHEDULERS))
        checks.integer("sweep.scheduler_options.grace_period", self.grace_period, minimum=1)
        checks.integer("sweep.scheduler_options.min_samples_required", self.min_samples_required, minimum=1)
        checks.positive("sweep.scheduler_options.reduction_factor", self.reduction_factor)
        if self.reduction_factor <= 1:
            raise ValueError(
                f"sweep.scheduler_options.reduction_factor must be greater than 1, got {self.reduction_factor}"
            )

    @staticmethod
    def of(scheduler: str | None, options: Mapping[str, Any]) -> "EarlyStopping | None":
        """Create an `EarlyStopping` from a scheduler's options; return None if there is no scheduler."""
        for key in options:
            checks.one_of("a key of sweep.scheduler_options", key, [f.name for f in fields(EarlyStopping)[1:]])
        return None if scheduler is None else EarlyStopping(scheduler, **options)
