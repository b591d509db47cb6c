"""Programs start fast: help, refusals, and whatever reads small files load no library that they do not use."""

import subprocess
import sys

import pytest

from dpfbo.privacy.charge import Charge
from dpfbo.privacy.ledger import Ledger

TENSORS, ACCOUNTING = {"torch", "gpytorch", "linear_operator"}, {"dp_accounting", "scipy"}
SERVICES, PICTURES = {"ray", "wandb", "sklearn", "requests"}, {"matplotlib", "pandas", "plotly"}
ALL = TENSORS | ACCOUNTING | SERVICES | PICTURES
PROGRAM = """
import runpy, sys
sys.argv[0] = program = sys.argv.pop(1)
try:
    runpy.run_module(program, run_name="__main__", alter_sys=True)
finally:
    print("LOADED", *sys.modules)
"""


def loaded(program, *words, code=0):
    """The packages that `python -m program words` has loaded when it ends with this exit code."""
    command = [sys.executable, "-c", PROGRAM, program, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    return {name.partition(".")[0] for name in done.stdout.partition("LOADED ")[2].split()}


@pytest.fixture
def ledger(tmp_path):
    path = tmp_path / "ledger.jsonl"
    Ledger(path).charge(Charge(0, 1.0, 2.0, 2.0, 1.0, "0" * 64))
    return path


@pytest.mark.parametrize("program", ["run", "sweep", "status", "wandb", "privacy", "completion"])
def test_help_loads_neither_torch_nor_an_accountant(program):
    assert not ALL & loaded(f"runners.{program}", "--help")


@pytest.mark.parametrize("program", ["figures", "tables", "agents", "claims", "report"])
def test_help_of_analysis_loads_no_library_for_tables_and_pictures(program):
    assert not (ALL | {"hydra", "jinja2"}) & loaded(f"analysis.{program}", "--help")


@pytest.mark.parametrize(("words", "code"), [(["--cfg", "job"], 0), (["rouns=3"], 2), (["nonsense"], 2)])
def test_settings_are_shown_and_refused_without_torch(words, code):
    assert not ALL & loaded("runners.run", *words, code=code)


def test_status_of_experiments_loads_no_torch(tmp_path):
    assert not ALL - {"pandas"} & loaded("runners.status", f"results_dir={tmp_path}", code=1)


def test_a_ledger_is_verified_without_torch_and_without_an_accountant(ledger):
    assert not ALL - {"pandas"} & loaded("runners.privacy", "ledger", ledger, "--verify")


def test_epsilon_of_a_ledger_needs_no_torch(ledger):
    found = loaded("runners.privacy", "ledger", ledger, "--delta", "1e-3")
    assert "dp_accounting" in found and not (TENSORS | SERVICES) & found


def test_a_site_of_a_study_loads_no_accountant_and_no_gpytorch(tmp_path):
    study, site, space = tmp_path / "study.json", tmp_path / "site", tmp_path / "space.yaml"
    space.write_text("x: {type: float, lower: 0, upper: 1}\n")
    new = ("new", study, "--space", space, "--agents", 4, "--delta", "1e-3", "--algorithm", "dp_prior")
    for words in (new, ("join", site, study, "--agent", 0)):
        loaded("runners.study", *words)
    assert not ALL - {"torch"} & loaded("runners.study", "ask", site)


def test_a_worker_that_gets_a_composed_configuration_can_resolve_it():
    """It composes nothing itself, and so does not load Hydra's part."""
    code = "import runners.recorded_run; from omegaconf import OmegaConf; print(OmegaConf.has_resolver('draw_norm'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"
