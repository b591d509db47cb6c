"""Errors for missing optional packages; they name the extra of pyproject.toml that installs the package."""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec

_NAMES = {"hydra": "hydra-core", "PIL": "pillow", "sklearn": "scikit-learn", "yaml": "pyyaml"}  # package by module
_OWN = ("dpfbo", "runners", "analysis")


class MissingPackage(ImportError):
    """An optional package, which an extra of dpfbo installs, is missing.

    Args:
        needed_by: The feature that needs the package.
        module: The module that cannot be imported.
        extra: The name of the extra in pyproject.toml.

    Example:
        >>> str(MissingPackage("the federated EMNIST file", "h5py", "emnist"))
        "the federated EMNIST file needs h5py: pip install 'dpfbo[emnist]'"
    """

    def __init__(self, needed_by: str, module: str, extra: str) -> None:
        package = _NAMES.get(module, module)
        super().__init__(f"{needed_by} needs {package}: pip install 'dpfbo[{extra}]'", name=module)


@contextmanager
def needing(extra: str, needed_by: str) -> Iterator[None]:
    """Raise MissingPackage for the feature `needed_by` if a package that the `with` block imports is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if module in ("", *_OWN):
            raise
        raise MissingPackage(needed_by, module, extra) from error


def check_for_program(modules: Iterable[str], extra: str) -> None:
    """Exit with an error message if `python -m PACKAGE.PROGRAM` is run and one of the `modules` is missing.

    modules: names of top-level modules. Call this function in the `__init__.py` of PACKAGE.
    """
    if sys.argv[:1] != ["-m"]:  # Python is not looking for a program
        return
    for module in modules:
        if find_spec(module) is None:
            sys.exit(f"error: {MissingPackage('a program of dpfbo', module, extra)}")
