"""Create the objects for the `_target_` nodes of a configuration, and import only what is allowed.

Allowed are some packages of dpfbo, packages with an entry point (`dpfbo.extensions`), and packages or modules that the
user names with `allow`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

import hydra

from dpfbo import extensions
from runners.compose.keys import keys

_OWN = ("dpfbo.problems", "dpfbo.federated", "dpfbo.outsourced", "dpfbo.privacy.noise")


def check_targets(tree: Any, allow: object = (), option: str = "allow=[{}]") -> None:
    """Raise ValueError if a `_target_` in a plain tree is not allowed or cannot be used.

    A target is imported only if its package or module is allowed. The target must be a class or a function that an
    allowed package or module defines; a target in dpfbo's own packages must be a class. allow: names of packages or
    modules. option: the option that the error message suggests, with `{}` in place of the name to allow.
    """
    allowed = (*_OWN, *allowed_names(allow))
    for key, target in _targets(tree, ""):
        if not isinstance(target, str) or not _is_allowed(target, allowed):
            package = str(target).partition(".")[0]
            raise ValueError(
                f"{key}={target!r} is neither of dpfbo nor of an installed extension, and is not run: "
                f"{option.format(package)} allows it"
            )
        module, _, name = target.rpartition(".")
        try:
            found = getattr(import_module(module), name)
        except Exception as error:  # importing other packages may raise any error
            raise ValueError(f"{key}={target!r} cannot be imported: {error}") from error
        fits = isinstance(found, type) or (callable(found) and not _begins(target, _OWN))
        if not fits or not _is_allowed(f"{getattr(found, '__module__', None)}.{name}", allowed):
            raise ValueError(f"{key}={target!r} must be a class that is defined in an allowed package")


def check_function(problem: Mapping[str, Any], allow: object, option: str) -> None:
    """Raise ValueError if the problem in a results folder has a function that is not allowed.

    A function is allowed if it belongs to a package or module in `allow`, or to an installed extension. option: see
    `check_targets`.
    """
    function, allowed = problem.get("function"), allowed_names(allow)
    if function is not None and not (isinstance(function, str) and _is_allowed(function.replace(":", "."), allowed)):
        module = str(function).partition(":")[0]
        raise ValueError(
            f"problem.function={function!r} is named by a file of the results folder, and is not called: "
            f"{option.format(module)} allows it"
        )


def allowed_names(allow: object) -> tuple[str, ...]:
    """Return the names in `allow`, which is one name or a list. Raises ValueError for anything else."""
    names = [allow] if isinstance(allow, str) else list(allow) if isinstance(allow, Sequence) else [None]
    for name in names:
        if not isinstance(name, str) or not all(part.isidentifier() for part in name.split(".")):
            raise ValueError(f"allow must be names of packages or modules, such as allow=[my_package], got {allow!r}")
    return tuple(names)  # type: ignore[arg-type]


def _is_allowed(path: str, names: Iterable[str]) -> bool:
    return _begins(path, names) or _begins(path, extensions.packages())


def _begins(path: str, names: Iterable[str]) -> bool:
    return any(f"{path}.".startswith(f"{name}.") for name in names)


def _targets(node: Any, key: str) -> Iterator[tuple[str, Any]]:
    parts = node.items() if isinstance(node, Mapping) else enumerate(node) if isinstance(node, list | tuple) else ()
    for name, value in parts:
        inner = f"{key}.{name}" if key else str(name)
        if name == "_target_":
            yield inner, value
        else:
            yield from _targets(value, inner)


def instantiate(node: Any, key: str, **others: str) -> Any:
    """Instantiate the node at `key` with Hydra.

    A SettingError of the constructor becomes a ValueError about the configuration's key. others: see `about_key`.
    """
    if not isinstance(node, dict):
        raise ValueError(f"{key} is a group of files: choose with {key.replace('.', '/')}={node}")
    try:
        return hydra.utils.instantiate(node, _convert_="all")
    except hydra.errors.InstantiationException as error:
        with keys(key, **others):
            raise (error.__cause__ or error) from None


def class_named(node: Any, attribute: str) -> type[Any]:
    """Return the server class that a node names.

    Raises ValueError if the node has a key besides `_target_`, or if the class lacks `attribute`.
    """
    wrong = f"algorithm.server must be null or the class of a server, got {node!r}"
    if not isinstance(node, dict) or set(node) != {"_target_"}:
        raise ValueError(wrong)
    try:
        kind = hydra.utils.get_class(node["_target_"])
    except (TypeError, ValueError, ImportError) as error:
        raise ValueError(wrong) from error
    if not hasattr(kind, attribute):
        raise ValueError(wrong)
    return kind
