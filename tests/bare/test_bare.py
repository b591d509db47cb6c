"""A study needs none of the optional packages; what needs one says so in a sentence."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import runners
from dpfbo.extras import MissingPackage, needing
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


def test_programs_check_for_the_packages_of_their_extra():
    assert set(runners.PACKAGES) == modules(project()["optional-dependencies"]["run"])


def test_an_import_that_fails_for_another_reason_is_no_missing_package():
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'dpfbo\.nowhere'"), needing("run", "this"):
        import dpfbo.nowhere  # noqa: F401
    with pytest.raises(MissingPackage, match=r"^this needs scikit-learn: pip install 'dpfbo\[problems\]'$"):
        raise MissingPackage("this", "sklearn", "problems")
