"""The best query of each agent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dpfbo.study.html_table import html_table

if TYPE_CHECKING:
    import pandas

_COLUMNS = ("agent", "value", "round")
_SHOWN = 50  # the maximum number of rows that a notebook shows


@dataclass(frozen=True)
class Best:
    """The best query of one agent. The agent must keep it secret, because epsilon does not cover it.

    Args:
        agent: The agent's number.
        configuration: The query in natural units: a dict if the space has named parameters, else a list.
        value: The value that the objective returned.
        round: The round of the query.

    Example:
        >>> import dpfbo
        >>> result = dpfbo.optimize(
        ...     lambda agent, x: agent - x["x"], {"x": dpfbo.Integer(1, 3)}, n_agents=3, algorithm="ts", rounds=2
        ... )
        >>> [(best.agent, best.value) for best in result.best()]
        [(0, -1.0), (1, 0.0), (2, 1.0)]
    """

    agent: int
    configuration: dict[str, Any] | list[float]
    value: float
    round: int


class BestTable(list[Best]):
    """The best query of each agent, as a list that a notebook shows as a table.

    Example:
        >>> import dpfbo
        >>> result = dpfbo.optimize(
        ...     lambda agent, x: agent - x["x"], {"x": dpfbo.Integer(1, 3)}, n_agents=2, algorithm="ts", rounds=2
        ... )
        >>> result.best().to_pandas()[["agent", "value", "x"]]
           agent  value  x
        0      0   -1.0  1
        1      1    0.0  1
    """

    def rows(self) -> list[dict[str, Any]]:
        """Return a dict for each agent, with agent, value, round and the active parameters.

        A parameter with the name agent, value or round has the key `x.<name>`.
        """
        return [
            {"agent": best.agent, "value": best.value, "round": best.round}
            | {f"x.{name}" if name in _COLUMNS else name: value for name, value in _parameters(best)}
            for best in self
        ]

    @property
    def columns(self) -> list[str]:
        """The keys of all `rows`, without duplicates."""
        return list(dict.fromkeys([*_COLUMNS, *(name for row in self.rows() for name in row)]))

    def to_pandas(self) -> pandas.DataFrame:
        """Return a table of `rows`; the value of an inactive parameter is missing."""
        import pandas as pd

        return pd.DataFrame(self.rows(), columns=self.columns)

    def _repr_html_(self) -> str:
        first = BestTable(self[:_SHOWN])
        rows = [[_text(row.get(name, "")) for name in first.columns] for row in first.rows()]
        more = f"<p>and {len(self) - _SHOWN} more agents</p>" if len(self) > _SHOWN else ""
        return html_table(rows, header=first.columns) + more


def _text(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _parameters(best: Best) -> list[tuple[str, Any]]:
    x = best.configuration
    return list(x.items()) if isinstance(x, dict) else [(f"x{k}", value) for k, value in enumerate(x)]
