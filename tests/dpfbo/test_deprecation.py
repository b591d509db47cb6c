"""Marks of what may change: they warn at each use, change nothing else, and none outlives its version."""

import ast
import pickle
import tomllib
import warnings
from dataclasses import FrozenInstanceError, dataclass
from pathlib import Path

import pytest

from dpfbo.deprecation import ExperimentalWarning, deprecated, experimental

ROOT = Path(__file__).parents[2]


@experimental("0.1.0")
def half(n, *, up=False):
    """Half of n."""
    return (n + up) // 2


@deprecated("0.2.0", "0.3.0", instead="Fraction")
@dataclass(frozen=True)
class Ratio:
    """A ratio."""

    above: int
    below: int = 1


def test_a_function_warns_where_it_is_called_and_stays_itself():
    with pytest.warns(ExperimentalWarning, match="^half is experimental since version 0.1.0: ") as caught:
        assert half(7, up=True) == 4
    assert caught[0].filename == __file__
    assert (half.__name__, half.__doc__) == ("half", "Half of n.") and pickle.loads(pickle.dumps(half)) is half


def test_a_class_warns_when_it_is_instantiated_and_stays_itself():
    with pytest.warns(DeprecationWarning, match="^Ratio is deprecated since version 0.2.0 .* use Fraction$") as caught:
        ratio = Ratio(3)
    assert caught[0].filename == __file__
    assert isinstance(ratio, Ratio) and repr(ratio) == "Ratio(above=3, below=1)"
    with pytest.raises(FrozenInstanceError):
        ratio.above = 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert pickle.loads(pickle.dumps(ratio)) == ratio  # nobody asked for a new one


def test_the_mark_itself_warns_of_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        experimental("0.1.0", "guessing")(lambda: None)


def outlived(source, current):
    """The calls of `deprecated` in a source that remove something in the current version, or earlier."""
    calls = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "deprecated"
    ]
    texts = [
        [n.value for n in ast.walk(c) if isinstance(n, ast.Constant) and str(n.value)[:1].isdigit()] for c in calls
    ]
    versions = [[tuple(map(int, text.split("."))) for text in found] for found in texts]
    return [ast.unparse(c) for c, (since, gone) in zip(calls, versions, strict=True) if not current < gone > since]


def test_nothing_that_is_deprecated_outlives_its_version():
    with (ROOT / "pyproject.toml").open("rb") as file:
        current = tuple(map(int, tomllib.load(file)["project"]["version"].split(".")))
    mark = "@deprecated('0.2.0', '0.3.0', instead='x')\ndef f(): ..."
    assert not outlived(mark, (0, 2, 0)) and outlived(mark, (0, 3, 0))
    for package in ("dpfbo", "runners", "analysis"):
        for path in (ROOT / package).rglob("*.py"):
            assert not outlived(path.read_text(), current), path
