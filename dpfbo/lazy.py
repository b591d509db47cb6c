"""Public names of a package that are imported from their modules at their first use (PEP 562).

A package lists such names once, as imports under `if TYPE_CHECKING:`, where type checkers and editors read them. So
`import dpfbo` is quick, and the process of an agent loads no problem and no accountant.
"""

import ast
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module, util


def attach(package: str) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """The functions `__getattr__` and `__dir__` of a package, for the names that it imports under `TYPE_CHECKING`."""

    def attribute(name: str) -> object:
        if name.startswith("__") or name not in places(package):
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, original = places(package)[name]
        room = f"{module}.{original}" if module == package else ""  # a package of this package
        value = import_module(room) if room else getattr(import_module(module), original)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *places(package)})

    return attribute, names


@cache
def places(package: str) -> dict[str, tuple[str, str]]:
    """The module of each name that a package imports under `TYPE_CHECKING`, and its name there."""
    spec = util.find_spec(package)
    loader = spec.loader if spec else None
    source = loader.get_source(package) if loader else ""  # type: ignore[attr-defined]
    blocks = (node for node in ast.parse(source).body if isinstance(node, ast.If))
    block = next(node for node in blocks if ast.unparse(node.test) == "TYPE_CHECKING")
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.asname or alias.name: (node.module or "", alias.name) for node in imports for alias in node.names}
