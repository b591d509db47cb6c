"""The examples in docstrings (`Example:`) run, and most names of `dpfbo` have one."""

import doctest
import inspect
from importlib import import_module
from pathlib import Path

import pytest

import dpfbo

ROOT = Path(dpfbo.__file__).parents[1]
FILES = [path for path in sorted((ROOT / "dpfbo").rglob("*.py")) if ">>> " in path.read_text()]
MODULES = [".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in FILES]
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_run(name, capsys):
    result = doctest.testmod(import_module(name), optionflags=OPTIONS)
    assert result.attempted and not result.failed, capsys.readouterr().out


def test_names_of_the_package_have_an_example():
    objects = {name: getattr(dpfbo, name) for name in dpfbo.__all__}
    wanted = {n for n, o in objects.items() if not getattr(o, "_is_protocol", False) and not is_error(o)}
    assert {name for name in wanted if ">>> " not in (inspect.getdoc(objects[name]) or "")} == set()
    assert len(wanted) >= 25


def is_error(thing):
    return isinstance(thing, type) and issubclass(thing, Exception)
