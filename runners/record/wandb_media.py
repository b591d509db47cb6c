"""The pictures and tables of a W&B run: its figure, its end point, its best configurations."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runners.record import wandb_layout as layout

if TYPE_CHECKING:
    import wandb


def show_pictures(run: wandb.Run, point: dict[str, float], draw: Callable[[Path], object] | None) -> None:
    """Log the end point of the run, if both its coordinates are finite, and its figure."""
    import wandb

    if len(point) == 2:
        # The chart shows a table, because W&B then joins the tables of all runs; it draws no metric against another
        # where each run has only one value of both.
        table = wandb.Table(columns=["epsilon", "regret"], data=[[point["final_epsilon"], point["final_regret"]]])
        title = "final regret against epsilon, a point for each run"
        run.log({layout.END_POINT: wandb.plot.scatter(table, "epsilon", "regret", title, split_table=True)})
    if draw is not None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "figure.png"
            draw(path)
            run.log({layout.FIGURE: wandb.Image(str(path))})  # copies the file


def show_best(run: wandb.Run, best: list[dict[str, Any]] | None) -> None:
    """Log the best configuration of each agent as a table, if the summary lists them."""
    import wandb

    if best:
        columns: list[Any] = list(best[0])
        rows: list[Any] = [[row[name] for name in columns] for row in best]
        run.log({layout.BEST: wandb.Table(columns=columns, data=rows, allow_mixed_types=True)})
