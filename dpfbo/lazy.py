"""Public names of a package that are imported from their modules at their first use (PEP 562).

A package lists such names once, as imports under `if TYPE_CHECKING:`, where type checkers and editors read them. So
`import dpfbo` is quick, and the process of an agent loads no problem and no accountant.
"""

import ast
import sys
import warnings
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module, util
from types import MappingProxyType

from dpfbo.deprecation import deprecation

_GetAttribute = Callable[[str], object]
_Dir = Callable[[], list[str]]


def attach(package: str, moved: Mapping[str, str] = MappingProxyType({})) -> tuple[_GetAttribute, _Dir]:
    """Make `__getattr__` and `__dir__` of a package for the names that it imports under `TYPE_CHECKING`.

    Args:
        package: Its `__name__`.
        moved: Names that it had in the last version, between spaces, by the module that has them now. They still
            resolve, with a DeprecationWarning.
    """
    modules = {name: module for module, names in moved.items() for name in names.split()}

    def attribute(name: str) -> object:
        if name in modules:
            text = deprecation(f"{package}.{name}", "0.2.0", "0.3.0", instead=f"{modules[name]}.{name}")
            warnings.warn(text, DeprecationWarning, stacklevel=2)
            return getattr(import_module(modules[name]), name)
        if name.startswith("__") or name not in places(package):
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, original = places(package)[name]
        own_package = module == package
        value = import_module(f"{package}.{name}") if own_package else getattr(import_module(module), original)
        setattr(sys.modules[package], name, value)
        return value

    return attribute, lambda: sorted({*vars(sys.modules[package]), *places(package)})


@cache
def places(package: str) -> dict[str, tuple[str, str]]:
    """The module of each name that a package imports under `TYPE_CHECKING`, and its name there."""
    spec = util.find_spec(package)
    source = spec.loader.get_source(package) if spec else ""  # type: ignore[union-attr]
    blocks = (node for node in ast.parse(source).body if isinstance(node, ast.If))
    block = next(node for node in blocks if ast.unparse(node.test) == "TYPE_CHECKING")
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.asname or alias.name: (node.module or "", alias.name) for node in imports for alias in node.names}
