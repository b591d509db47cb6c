"""Objects from the `_target_` nodes of the configuration."""

from typing import Any

import hydra


def instantiate(node: dict[str, Any]) -> Any:
    """hydra.utils.instantiate whose errors are the constructor's own."""
    try:
        return hydra.utils.instantiate(node, _convert_="all")
    except hydra.errors.InstantiationException as error:
        raise (error.__cause__ or error) from None
