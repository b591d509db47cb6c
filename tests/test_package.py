"""The wheel, installed in a fresh environment, runs outside the source tree; type checkers see an editable install."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = ("dpfbo", "runners", "analysis", "conf", "pyproject.toml", "setup.py", "README.md", "LICENSE")
SMALL = ["rounds=1", "problem.n_agents=4", "problem.grid_size=20", "n_init=2", "algorithm.M=6"]
PLACES = """
import json, analysis, dpfbo, runners, runners.compose.conf_folder as conf_folder
from runners.record import environment
print(json.dumps([analysis.__file__, dpfbo.__file__, runners.__file__, str(conf_folder.CONF), environment.commit()]))
"""
USE = """
import dpfbo
from dpfbo.outsourced import Curator

reveal_type(dpfbo.optimize)
reveal_type(dpfbo.Float(0, 1))
reveal_type(dpfbo.problems.Branin())
reveal_type(Curator)
dpfbo.nothing
"""


def call(*command, folder):
    """Run a program in `folder`, with the source tree on no path; returns its standard output."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([str(word) for word in command], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def environment(venv, installed):
    """Install a wheel into a fresh environment with the other packages of this one; returns its programs' folder."""
    call(sys.executable, "-m", "venv", "--without-pip", venv, folder=venv.parent)
    offline = ["--no-deps", "--no-index", "--disable-pip-version-check"]
    call(sys.executable, "-m", "pip", "--python", venv / "bin" / "python", "install", *offline, installed, folder="/")
    (packages,) = venv.glob("lib/python*/site-packages")
    others = {sysconfig.get_path(name) for name in ("purelib", "platlib")}
    (packages / "others.pth").write_text("\n".join(others))  # at the end of the path, without an editable dpfbo
    return venv / "bin"


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A checkout without the tests."""
    source = tmp_path_factory.mktemp("source")
    for name in SOURCES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)
    return source


@pytest.fixture(scope="module")
def wheel(source, tmp_path_factory):
    """The wheel, built from the source distribution as an installer does."""
    made = tmp_path_factory.mktemp("made")
    backend = f"from setuptools import build_meta; build_meta.build_sdist({str(made)!r})"
    call(sys.executable, "-c", backend, folder=source)
    (archive,) = made.glob("dpfbo-*.tar.gz")
    offline = ["--no-deps", "--no-build-isolation", "--no-index", "--no-cache-dir", "--disable-pip-version-check"]
    call(sys.executable, "-m", "pip", "wheel", *offline, archive, folder=made)
    (found,) = made.glob("dpfbo-*.whl")
    return found


@pytest.fixture(scope="module")
def scripts(wheel, tmp_path_factory):
    """The programs of a fresh environment with the wheel and the other packages of this environment."""
    return environment(tmp_path_factory.mktemp("venv") / "venv", wheel)


@pytest.fixture(scope="module")
def editable(source, tmp_path_factory):
    """The wheel of an editable install of the checkout, which leads to it."""
    made = tmp_path_factory.mktemp("editable")
    call(
        sys.executable,
        "-c",
        f"from setuptools import build_meta; build_meta.build_editable({str(made)!r})",
        folder=source,
    )
    (found,) = made.glob("dpfbo-*.whl")
    return found


def test_holds_all_settings_and_files(wheel, tmp_path):
    shutil.unpack_archive(wheel, tmp_path, "zip")
    for folder, installed in (("conf", "runners/conf"), ("analysis", "analysis"), ("dpfbo", "dpfbo")):
        wanted = {p.relative_to(ROOT / folder) for p in (ROOT / folder).rglob("*") if p.is_file()}
        held = {p.relative_to(tmp_path / installed) for p in (tmp_path / installed).rglob("*") if p.is_file()}
        assert {path for path in wanted if "__pycache__" not in path.parts} == held
    absent = ("conf", "tests", "runners/bench")  # for those who change the code, in a checkout
    assert not any((tmp_path / folder).exists() for folder in absent)


def test_runs_outside_the_source_tree(scripts, tmp_path):
    places = json.loads(call(scripts / "python", "-c", PLACES, folder=tmp_path))
    assert places.pop() is None  # the code is in no checkout
    assert all(Path(place).is_relative_to(scripts.parent / "lib") for place in places), places
    call(scripts / "dpfbo", "sweep", "experiment=demo", "results_dir=here", "seeds=0", *SMALL, folder=tmp_path)
    rows = json.loads(call(scripts / "dpfbo", "tables", "demo", "results_dir=here", "--json", folder=tmp_path))
    assert len(rows) == 8
    summaries = [json.loads(path.read_text()) for path in (tmp_path / "here").rglob("summary.json")]
    assert [summary["commit"] for summary in summaries] == [None] * 8


def test_an_editable_install_is_a_path_that_type_checkers_read(editable, source, tmp_path):
    shutil.unpack_archive(editable, tmp_path, "zip")
    (path,) = (file for file in tmp_path.iterdir() if file.is_file())  # and no module with an import hook
    assert path.suffix == ".pth" and path.read_text().strip() == str(source)
    assert (source / "dpfbo" / "py.typed").exists()


@pytest.mark.slow
def test_mypy_sees_the_types_of_an_editable_install(editable, tmp_path):
    scripts = environment(tmp_path / "venv", editable)
    (tmp_path / "use.py").write_text(USE)
    mypy = [sys.executable, "-m", "mypy", "--strict", "--python-executable", scripts / "python", "use.py"]
    said = subprocess.run(mypy, cwd=tmp_path, capture_output=True, text=True).stdout
    assert re.findall(r'Revealed type is "(?:def .* -> )?([\w.]+)"', said) == [
        "dpfbo.study.optimization.Optimization", "dpfbo.space.parameters.Float", "dpfbo.problems.branin.Branin",
        "dpfbo.outsourced.curator.Curator",
    ]  # fmt: skip
    assert "Found 1 error" in said and 'Module has no attribute "nothing"' in said
