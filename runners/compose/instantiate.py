"""Objects and classes from the `_target_` nodes of the configuration."""

from typing import Any

import hydra


def instantiate(node: dict[str, Any]) -> Any:
    """`hydra.utils.instantiate` that raises the constructor's own errors."""
    try:
        return hydra.utils.instantiate(node, _convert_="all")
    except hydra.errors.InstantiationException as error:
        raise (error.__cause__ or error) from None


def class_named(node: Any) -> type[Any]:
    """The class that a node names. Raises ValueError if there is none."""
    try:
        return hydra.utils.get_class(node["_target_"])
    except (KeyError, TypeError, ValueError, ImportError) as error:
        raise ValueError(f"algorithm.server must be null or the class of a server, got {node!r}") from error
