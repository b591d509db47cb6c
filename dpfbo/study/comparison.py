"""The paired comparison of two results, agent by agent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dpfbo.study.html_table import html_table

if TYPE_CHECKING:
    import pandas

_LEVEL = 0.95
_CAVEAT = "The agents of a run share its broadcasts: this standard error says nothing about other seeds."


@dataclass(frozen=True)
class PairedComparison:
    """The difference between the final values of each agent in two results, the first result minus the other.

    The standard error and the interval describe the variation over agents in these two runs. All agents of a run
    receive the same broadcasts, so another seed may change the mean difference by much more than the standard error.
    Compare several seeds before you conclude anything about algorithms.

    Args:
        result: The first result, in words.
        other: The other result, in words.
        metric: The metric, in words.
        lower_is_better: True if smaller values are better.
        agents: The agents that have a value in both results.
        values: The values of these agents in the first result.
        other_values: The values of these agents in the other result.

    Example:
        >>> import dpfbo
        >>> def score(agent, x):
        ...     return -((x["x"] - 0.1 * agent) ** 2)
        >>> space = {"x": dpfbo.Float(0, 1)}
        >>> long, short = (dpfbo.optimize(score, space, 4, "local", rounds=rounds, n_init=1) for rounds in (8, 1))
        >>> compared = long.compare(short)
        >>> compared.mean > 0, compared.n_worse
        (True, 0)
    """

    result: str
    other: str
    metric: str
    lower_is_better: bool
    agents: tuple[int, ...]
    values: tuple[float, ...]
    other_values: tuple[float, ...]

    @property
    def differences(self) -> np.ndarray:
        """Each agent's value in the first result minus that in the other."""
        return np.array(self.values) - np.array(self.other_values)

    @property
    def mean(self) -> float:
        """The mean difference."""
        return float(self.differences.mean())

    @property
    def standard_error(self) -> float:
        """The standard error of `mean` over the agents."""
        return float(self.differences.std(ddof=1) / len(self.agents) ** 0.5)

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % confidence interval of `mean`, by Student's t."""
        from scipy.special import stdtrit  # imported here, because loading SciPy takes longer than a small study

        half = float(stdtrit(len(self.agents) - 1, (1 + _LEVEL) / 2)) * self.standard_error
        return self.mean - half, self.mean + half

    @property
    def n_better(self) -> int:
        """The number of agents with a better value in the first result."""
        return int((self._gains > 0).sum())

    @property
    def n_worse(self) -> int:
        """The number of agents with a worse value in the first result."""
        return int((self._gains < 0).sum())

    @property
    def _gains(self) -> np.ndarray:
        return -self.differences if self.lower_is_better else self.differences

    def to_pandas(self) -> pandas.DataFrame:
        """Return a row for each agent, with the columns agent, value, other_value and difference."""
        import pandas as pd

        columns = {"agent": self.agents, "value": self.values, "other_value": self.other_values}
        return pd.DataFrame({**columns, "difference": self.differences})

    def __str__(self) -> str:
        (low, high), n = self.interval, len(self.agents)
        return (
            f"{self.result} less {self.other}: {self.metric} {self.mean:+.4g} (mean of {n} agents, standard error "
            f"{self.standard_error:.2g}, 95 % interval {low:+.4g} to {high:+.4g}; {self._direction} is better), "
            f"better for {self.n_better}, worse for {self.n_worse}. {_CAVEAT}"
        )

    def _repr_html_(self) -> str:
        low, high = self.interval
        rows = [
            ("compared", f"{self.result} less {self.other}"),
            (self.metric, f"{self.mean:+.4g} ± {self.standard_error:.2g} (mean ± standard error over agents)"),
            ("95 % interval", f"{low:+.4g} to {high:+.4g}"),
            ("direction", f"{self._direction} is better"),
            ("agents", f"{len(self.agents)}: {self.n_better} better, {self.n_worse} worse"),
        ]
        return f"{html_table(rows)}<p><small>{_CAVEAT}</small></p>"

    @property
    def _direction(self) -> str:
        return "smaller" if self.lower_is_better else "larger"
