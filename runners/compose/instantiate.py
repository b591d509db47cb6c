"""Objects and classes from the `_target_` nodes of the configuration."""

from typing import Any

import hydra


def instantiate(node: dict[str, Any]) -> Any:
    """`hydra.utils.instantiate` that raises the constructor's own errors."""
    try:
        return hydra.utils.instantiate(node, _convert_="all")
    except hydra.errors.InstantiationException as error:
        raise (error.__cause__ or error) from None


def class_named(node: Any, attribute: str) -> type[Any]:
    """The class of servers that a node names. Raises ValueError if there is none, or if the node has other keys."""
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
