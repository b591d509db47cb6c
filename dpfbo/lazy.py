"""Lazy import of a package's public names: each name is imported at its first use (PEP 562).

A package lists the names as imports under `if TYPE_CHECKING:`.
"""

import ast
import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module, util

_GetAttribute = Callable[[str], object]
_Dir = Callable[[], list[str]]


def attach(package: str) -> tuple[_GetAttribute, _Dir]:
    """Return `__getattr__` and `__dir__` for a package.

    At the first use of a name that the package lists under `if TYPE_CHECKING:`, `__getattr__` imports it.
    """

    def attribute(name: str) -> object:
        if name.startswith("__") or name not in places(package):
            raise AttributeError(f"module {package!r} has no attribute {name!r}{_elsewhere(package, name)}")
        module, original = places(package)[name]
        own_package = module == package
        with uncollected():
            value = import_module(f"{package}.{name}") if own_package else getattr(import_module(module), original)
        setattr(sys.modules[package], name, value)
        return value

    return attribute, lambda: sorted({*vars(sys.modules[package]), *places(package)})


@contextmanager
def uncollected(for_good: bool = False) -> Iterator[None]:
    """Disable garbage collection within this block; imports in it take 20 % less time.

    for_good: True to exempt all objects that exist at the end of the block from later collections. Use it only in a
    program: in a library, the caller's garbage would never be collected.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if for_good:
            gc.freeze()
        if collecting:
            gc.enable()


def _elsewhere(package: str, name: str) -> str:
    """Return `: it is <package>.<subpackage>.<name>` for an error message; empty if no subpackage has the name."""
    for room, (module, _) in places(package).items():
        if module == package and name in places(f"{package}.{room}"):
            return f": it is {package}.{room}.{name}"
    return ""


@cache
def places(package: str) -> dict[str, tuple[str, str]]:
    """Map each name that a package imports under `TYPE_CHECKING` to (module, name in that module)."""
    spec = util.find_spec(package)
    source = spec.loader.get_source(package) if spec else ""  # type: ignore[union-attr]
    blocks = (node for node in ast.parse(source).body if isinstance(node, ast.If))
    block = next(node for node in blocks if ast.unparse(node.test) == "TYPE_CHECKING")
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.asname or alias.name: (node.module or "", alias.name) for node in imports for alias in node.names}
