"""The workspace of an experiment on the W&B dashboard, built without a server.

Its lines are means over the runs of one label, with their standard error: regret against the epsilon that was spent on
it, and against the round. All runs of the experiment's group are shown, up to W&B's limit.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from runners.dashboard.summary_run import FRONTIER, SETTINGS
from runners.record import wandb_layout as layout

if TYPE_CHECKING:
    from wandb_workspaces.reports.v2.interface import LinePlot
    from wandb_workspaces.workspaces import Workspace

MOST_RUNS = 1000  # in one panel; W&B's own limit
OPEN_SECTIONS = 3  # the others are there, and closed
SERVER = ("snr", "clip_fraction", "n_chosen", "n_dropped", "n_rejected", "sigma", "sensitivity")
PHASES = ("objective", "message", "server", "acquisition", "own_draw")


def workspace(experiment: str, project: str, entity: str) -> Workspace:
    """The workspace of the runs in the group `experiment`. Raises ImportError without wandb-workspaces."""
    from wandb_workspaces import expr
    from wandb_workspaces import workspaces as ws
    from wandb_workspaces.reports import v2 as wr

    trade_off = [
        _line("regret against epsilon", layout.EPSILON, layout.TRADE_OFF, "epsilon spent before the round"),
        _line("regret against the round", "round", layout.REGRET, "round"),
        wr.ScatterPlot(
            title="final regret against final epsilon, a point for each run",
            x=wr.SummaryMetric("final_epsilon"),
            y=wr.SummaryMetric("final_regret"),
        ),
    ]
    pictures = wr.MediaBrowser(title="frontier", media_keys=[FRONTIER])
    summary = [wr.WeavePanelSummaryTable(table_name=name) for name in (SETTINGS, "claims")]
    quantiles = [
        _line(f"{name} of the agents", "round", f"regret/{name}", "round") for name in ("q10", "median", "q90")
    ]
    sections: dict[str, list[Any]] = {
        "Regret and epsilon": trade_off,
        "Summary of the sweep": [pictures, *summary],
        "Privacy": [_line("epsilon", "round", layout.EPSILON, "round")],
        "Regret over the agents": quantiles,
        "Server": [_line(name, "round", f"server/{name}", "round") for name in SERVER],
        "Seconds": [_line(name, "round", f"seconds/{name}", "round") for name in PHASES],
        "Runs": [wr.MediaBrowser(title="each run", media_keys=[layout.FIGURE])],
    }
    return ws.Workspace(
        entity=entity,
        project=project,
        name=experiment,
        sections=[
            ws.Section(name=name, panels=panels, is_open=number < OPEN_SECTIONS)
            for number, (name, panels) in enumerate(sections.items())
        ],
        settings=ws.WorkspaceSettings(x_axis="round", max_runs=MOST_RUNS, remove_legends_from_panels=False),
        runset_settings=ws.RunsetSettings(
            filters=[expr.Metric("Group") == experiment], groupby=[expr.Config("label")], pinned_columns=_columns()
        ),
    )


def spec(built: Workspace) -> dict[str, Any]:
    """The specification of a workspace, as it is sent to the server."""
    view = built._to_model()
    found: dict[str, Any] = json.loads(view.spec.model_dump_json(by_alias=True, exclude_none=True))
    return found


def _line(title: str, x: str, y: str, title_x: str) -> LinePlot:
    """A line for each label: the mean of its runs, and their standard error as a band."""
    from wandb_workspaces.reports import v2 as wr

    return wr.LinePlot(
        title=title, x=wr.Metric(x), y=[wr.Metric(y)], title_x=title_x, title_y=y, groupby=wr.Config("label"),
        groupby_aggfunc="mean", groupby_rangefunc="stderr", aggregate=True, max_runs_to_show=MOST_RUNS,
        smoothing_type="none",
    )  # fmt: skip


def _columns() -> list[str]:
    """The first columns of the table of runs."""
    return ["run:displayName", "config:label.value", "summary:final_regret", "summary:final_epsilon"]
