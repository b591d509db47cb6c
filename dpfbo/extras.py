"""Optional packages: an extra of the installation brings each, and one sentence says which extra where one is missing.

The extras are those of pyproject.toml, as in `pip install 'dpfbo[problems]'`.
"""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec

_NAMES = {"hydra": "hydra-core", "PIL": "pillow", "sklearn": "scikit-learn", "yaml": "pyyaml"}  # by module
_OWN = ("dpfbo", "runners", "analysis")


class MissingPackage(ImportError):
    """A package that an extra of the installation brings is not installed.

    Example:
        >>> str(MissingPackage("the federated EMNIST file", "h5py", "emnist"))
        "the federated EMNIST file needs h5py: pip install 'dpfbo[emnist]'"
    """

    def __init__(self, needed_by: str, module: str, extra: str) -> None:
        package = _NAMES.get(module, module)
        super().__init__(f"{needed_by} needs {package}: pip install 'dpfbo[{extra}]'", name=module)


@contextmanager
def needing(extra: str, needed_by: str) -> Iterator[None]:
    """Import optional packages in a `with` block.

    Args:
        extra: The extra that brings them.
        needed_by: The subject of the sentence, such as `Landmine`.

    Raises:
        MissingPackage: One of them is not installed.

    Example:
        >>> with needing("problems", "a kernel ridge regression"):
        ...     import no_such_package
        Traceback (most recent call last):
        ...
        dpfbo.extras.MissingPackage: a kernel ridge regression needs no_such_package: pip install 'dpfbo[problems]'
    """
    try:
        yield
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if module in ("", *_OWN):
            raise
        raise MissingPackage(needed_by, module, extra) from error


def check_for_program(modules: Iterable[str], extra: str) -> None:
    """Exit with one sentence if `python -m PACKAGE.PROGRAM` runs without one of these top-level modules.

    A package calls it while it is imported. Then Python is looking for the program, whose own imports come later, and
    says so by `-m` in place of the program's path. In other processes it does nothing.
    """
    if sys.argv[:1] != ["-m"]:
        return
    for module in modules:
        if find_spec(module) is None:
            sys.exit(f"error: {MissingPackage('a program of dpfbo', module, extra)}")
