"""Build the workspace and the report of an experiment for the W&B dashboard; only `save` contacts W&B's server.

Each line of a plot is the mean over the runs with the same label, with a band of one standard error.
"""

import json
import os
from typing import Any

from runners.wandb import layout

MOST_RUNS = 1000  # W&B's own limit of runs in one panel
OPEN_SECTIONS = 3  # number of sections that are not collapsed
COLUMNS = ["run:displayName", "config:label.value", f"summary:{layout.FINAL_REGRET}", f"summary:{layout.FINAL_EPSILON}"]
REPORT_TEXT = (
    "Each line is the mean of the runs of one setting, with the standard error over its seeds as a band. Epsilon "
    "covers the broadcasts before a round, by the accountant of the runs and at the delta in their summaries."
)
SECONDS = 15  # longest wait for an answer of the server


def build(experiment: str, project: str, entity: str) -> Any:
    """Build the workspace of the runs in the group `experiment`. Raises ImportError without wandb-workspaces."""
    from wandb_workspaces import expr
    from wandb_workspaces import workspaces as ws

    filters = [expr.Metric("Group") == experiment]
    return ws.Workspace(
        entity=entity, project=project, name=experiment,
        sections=[
            ws.Section(name=name, panels=panels, is_open=number < OPEN_SECTIONS)
            for number, (name, panels) in enumerate(_sections().items())
        ],
        settings=ws.WorkspaceSettings(x_axis="round", max_runs=MOST_RUNS, remove_legends_from_panels=False),
        runset_settings=ws.RunsetSettings(filters=filters, groupby=[expr.Config("label")], pinned_columns=COLUMNS),
    )  # fmt: skip


def build_report(experiment: str, project: str, entity: str) -> Any:
    """Build the report of the runs in the group `experiment`."""
    from wandb_workspaces import expr
    from wandb_workspaces.reports import v2 as wr

    blocks: list[Any] = [wr.MarkdownBlock(text=REPORT_TEXT)]
    for name, panels in list(_sections().items())[:OPEN_SECTIONS]:
        runs = wr.Runset(
            entity=entity, project=project, name=experiment, filters=[expr.Metric("Group") == experiment],
            groupby=["config.label"], pinned_columns=COLUMNS,
        )  # fmt: skip
        blocks += [wr.H2(text=name), wr.PanelGrid(runsets=[runs], panels=panels)]
    title = f"{experiment}: regret against epsilon"
    return wr.Report(entity=entity, project=project, title=title, blocks=blocks, width="fluid")


def _sections() -> dict[str, list[Any]]:
    from wandb_workspaces.reports import v2 as wr

    def line(y: str, title: str = "", x: str = "round", title_x: str = "round") -> Any:
        return wr.LinePlot(
            title=title or y.partition("/")[2], x=wr.Metric(x), y=[wr.Metric(y)], title_x=title_x, title_y=y,
            groupby=wr.Config("label"), groupby_aggfunc="mean", groupby_rangefunc="stderr", aggregate=True,
            max_runs_to_show=MOST_RUNS, smoothing_type="none",
        )  # fmt: skip

    end_points = wr.ScatterPlot(
        title="final regret against final epsilon, a point for each run",
        x=wr.SummaryMetric(layout.FINAL_EPSILON), y=wr.SummaryMetric(layout.FINAL_REGRET),
    )  # fmt: skip
    return {
        "Regret and epsilon": [
            line(layout.TRADE_OFF, "regret against epsilon", layout.EPSILON, "epsilon spent before the round"),
            line(layout.REGRET, "regret against the round"),
            end_points,
        ],
        "Summary of the sweep": [
            wr.WeavePanelSummaryTable(table_name=name) for name in (layout.SETTINGS, layout.CLAIMS)
        ],
        "Privacy": [line(layout.EPSILON)],
        "Regret over the agents": [line(name, f"{name.partition('/')[2]} of the agents") for name in layout.QUANTILES],
        "Server": [line(name) for name in layout.SERVER_METRICS],
        "Seconds": [line(name) for name in layout.PHASES],
    }


def title(panel: dict[str, Any]) -> str:
    """Return a panel's title; a table without a title gets the text `the table NAME of the summary`.

    panel: the panel's entry in a `specification`.
    """
    given = panel["config"].get("chartTitle")
    if given:
        return given
    text = json.dumps(panel["config"])
    return next(f"the table {name} of the summary" for name in (layout.SETTINGS, layout.CLAIMS) if f'"{name}"' in text)


def specification(built: Any) -> dict[str, Any]:
    """Return the specification of a workspace or a report."""
    return json.loads(built._to_model().spec.model_dump_json(by_alias=True, exclude_none=True))


def save(built: Any) -> str:
    """Store a workspace or a report in its W&B project and return its address.

    An empty entity stands for the default entity of the API key. Raises ConnectionError if storing fails.
    """
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    import wandb

    try:
        wandb.setup(wandb.Settings(silent=True))
        if not wandb.login(prompt=False, verify=False):
            raise ConnectionError("it needs a W&B API key: run `wandb login` or set WANDB_API_KEY")
        built.entity = built.entity or str(wandb.Api(timeout=SECONDS).default_entity)
        for grid in getattr(built, "blocks", ()):
            for runs in getattr(grid, "runsets", ()):
                runs.entity = built.entity
        return str(built.save().url)
    except Exception as error:  # W&B raises many kinds
        said = " ".join(str(error).split())[:200] or type(error).__name__
        raise ConnectionError(f"the {type(built).__name__.lower()} was not saved: {said}") from error
