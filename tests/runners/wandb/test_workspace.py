"""The dashboard of an experiment: built without a server, saved on a stand-in for one."""

import json

import pytest

from runners.wandb import command, workspace
from runners.wandb.workspace import MOST_RUNS
from tests.helpers.wandb_records import CLOSED_PORT, FAKE_KEY, own_wandb  # noqa: F401
from tests.helpers.wandb_server import wandb_server

pytest.importorskip("wandb_workspaces")
pytestmark = pytest.mark.usefixtures("own_wandb")


def sections_of(spec):
    return {section["name"]: section["panels"] for section in spec["section"]["panelBankConfig"]["sections"]}


def test_lines_are_means_of_a_label_with_their_standard_error(capsys):
    assert command.main(["workspace", "fig2c", "--json"]) == 0
    spec = json.loads(capsys.readouterr().out)
    first, *_ = sections_of(spec).values()
    against_epsilon, against_round, scatter = [panel["config"] for panel in first]
    assert (against_epsilon["xAxis"], against_epsilon["metrics"]) == ("privacy/epsilon", ["regret_vs_epsilon"])
    assert (against_round["xAxis"], against_round["metrics"]) == ("round", ["regret/mean"])
    assert scatter["xAxis"].endswith("final_epsilon") and scatter["yAxis"].endswith("final_regret")
    lines = [p["config"] for panels in sections_of(spec).values() for p in panels if "Line" in p["viewType"]]
    assert len(lines) > 10
    for line in lines:
        assert line["groupBy"].startswith("label") and (line["groupAgg"], line["groupArea"]) == ("mean", "stderr")
        assert line["limit"] == MOST_RUNS
    (runs,) = spec["section"]["runSets"]
    assert [(f["key"]["name"], f["op"], f["value"]) for f in runs["filters"]["filters"]] == [("group", "=", "fig2c")]
    assert runs["grouping"][0]["name"].startswith("label")
    assert spec["section"]["settings"]["maxRuns"] == MOST_RUNS
    assert command.main(["workspace", "fig2c"]) == 0
    listed = capsys.readouterr().out
    assert "    the table settings of the summary\n    the table claims of the summary\n" in listed


def test_all_metrics_of_the_panels_are_those_that_runs_log(capsys):
    from runners.wandb import layout

    command.main(["workspace", "fig2c", "--json"])
    spec = json.loads(capsys.readouterr().out)
    known = layout.visibility()
    names = {name for kind in known.values() for name in kind}
    for panels in sections_of(spec).values():
        for metric in (m for panel in panels for m in panel["config"].get("metrics", [])):
            assert metric in names or f"{metric.split('/')[0]}/*" in names, metric


def test_saved_on_the_server(capsys, monkeypatch):
    with wandb_server() as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.address)
        monkeypatch.setenv("WANDB_API_KEY", FAKE_KEY)
        assert command.main(["workspace", "fig2c", "--project", "other", "--save"]) == 0
        assert server.unknown == []
        (view,) = server.views
    assert (view["entityName"], view["projectName"], view["displayName"]) == ("team", "other", "fig2c")
    assert "Regret and epsilon" in view["spec"] and "/team/other" in capsys.readouterr().out


@pytest.mark.parametrize("key", [None, FAKE_KEY])
def test_without_a_key_or_a_server_one_sentence(capsys, monkeypatch, key):
    monkeypatch.setenv("WANDB_BASE_URL", CLOSED_PORT)
    if key is not None:
        monkeypatch.setenv("WANDB_API_KEY", key)
    monkeypatch.setattr(workspace, "SECONDS", 1)
    assert command.main(["workspace", "fig2c", "--save"]) == 1
    error = capsys.readouterr().err
    assert ("needs a W&B API key" if key is None else "the workspace was not saved") in error
    assert len(error.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "the following arguments are required: EXPERIMENT"),
        (["a", "b"], "unrecognized arguments: b"),
        (["a", "--json", "--save"], "not allowed with argument"),
    ],
)
def test_a_command_line_that_cannot_be_read(capsys, words, says):
    with pytest.raises(SystemExit) as stop:
        command.main(["workspace", *words])
    assert stop.value.code == 2 and says in capsys.readouterr().err


def test_a_report_has_regret_against_epsilon_of_the_experiment(capsys, monkeypatch):
    assert command.main(["report", "fig2c", "--json"]) == 0
    blocks = json.loads(capsys.readouterr().out)["blocks"]
    grids = [block["metadata"] for block in blocks if block["type"] == "panel-grid"]
    line = grids[0]["panelBankSectionConfig"]["panels"][0]["config"]
    assert (line["xAxis"], line["metrics"], line["groupAgg"]) == ("privacy/epsilon", ["regret_vs_epsilon"], "mean")
    for grid in grids:
        (runs,) = grid["runSets"]
        assert [(f["key"]["name"], f["value"]) for f in runs["filters"]["filters"]] == [("group", "fig2c")]
        assert runs["grouping"][0]["name"].startswith("label")
    with wandb_server() as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.address)
        monkeypatch.setenv("WANDB_API_KEY", FAKE_KEY)
        assert command.main(["report", "fig2c", "--project", "other", "--save"]) == 0
        assert server.unknown == []
        (view,) = server.views
    assert (view["entityName"], view["projectName"], view["type"]) == ("team", "other", "runs")
    assert view["displayName"] == "fig2c: regret against epsilon" and '"entityName":"team"' in view["spec"]
    assert "/team/other/reports/" in capsys.readouterr().out
