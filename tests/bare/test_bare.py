"""A study needs none of the optional packages; what needs one says so in a sentence."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import analysis
import runners
from dpfbo import extras
from dpfbo.extras import MissingPackage, needing
from runners import dpfbo_command
from tests.bare.study import check_study

ROOT = Path(__file__).parents[2]
MODULES = {"hydra-core": "hydra", "pillow": "PIL", "pyyaml": "yaml", "scikit-learn": "sklearn"}


def project():
    with (ROOT / "pyproject.toml").open("rb") as file:
        return tomllib.load(file)["project"]


def modules(requirements):
    names = (re.match(r"[\w-]+", requirement)[0] for requirement in requirements)
    return {MODULES.get(name, name.replace("-", "_")) for name in names}


def optional_packages():
    extras = project()["optional-dependencies"]
    own = (extra for extra in extras if extra not in ("all", "dev", "docs"))
    return sorted(set().union(*(modules(extras[extra]) for extra in own)))


def run(*command, absent=()):
    return subprocess.run([sys.executable, *command, *absent], cwd=ROOT, capture_output=True, text=True)


def test_a_study_imports_no_optional_package():
    assert {"hydra", "pyarrow", "sklearn", "matplotlib", "ray"} <= set(optional_packages())
    done = run("-m", "tests.bare.study", absent=optional_packages())
    assert done.returncode == 0, done.stderr
    check_study(json.loads(done.stdout))


@pytest.mark.parametrize(("package", "extra"), [(runners, "run"), (analysis, "analysis")])
def test_programs_check_for_the_packages_of_their_extra(package, extra):
    assert set(package.PACKAGES) == modules(project()["optional-dependencies"][extra])


def test_deploy_checks_for_the_packages_of_flower_but_for_flower_itself():
    assert {*runners.DEPLOY_PACKAGES, "flwr"} == modules(project()["optional-dependencies"]["flower"])


def test_a_program_without_its_packages_ends_with_a_sentence(monkeypatch):
    extras.check_for_program(["nowhere"], "run")  # pytest is not located by -m any more
    monkeypatch.setattr(sys, "argv", ["-m", "--help"])
    extras.check_for_program(["sys", "torch"], "run")
    with pytest.raises(SystemExit, match=r"^error: a program of dpfbo needs nowhere: pip install 'dpfbo\[run\]'$"):
        extras.check_for_program(["sys", "nowhere"], "run")


@pytest.mark.parametrize(("command", "extra"), [("run", "run"), ("tables", "analysis")])
def test_the_command_names_a_missing_package(command, extra, monkeypatch, capsys):
    module = dpfbo_command.COMMANDS[command].module
    monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, "rich.console", None)
    for name in [name for name in sys.modules if name.startswith(("runners.record.terminal", "runners.recorded_run"))]:
        monkeypatch.delitem(sys.modules, name)
    assert dpfbo_command.main([command]) == 1
    assert capsys.readouterr().err == f"error: dpfbo {command} needs rich: pip install 'dpfbo[{extra}]'\n"


def test_an_import_that_fails_for_another_reason_is_no_missing_package():
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'dpfbo\.nowhere'"), needing("run", "this"):
        import dpfbo.nowhere  # noqa: F401
    with pytest.raises(MissingPackage, match=r"^this needs scikit-learn: pip install 'dpfbo\[problems\]'$"):
        raise MissingPackage("this", "sklearn", "problems")
