"""Search spaces: their parameters, the unit cube that agents work in, and its sub-regions."""

from typing import TYPE_CHECKING

from dpfbo import lazy

__all__ = ["Box", "Categorical", "Fixed", "Float", "Grid", "Integer", "Ordinal", "Regions", "Space"]

if TYPE_CHECKING:
    from dpfbo.space.axes import Categorical, Float, Integer, Ordinal
    from dpfbo.space.domain import Box, Grid
    from dpfbo.space.parameters import Fixed, Space
    from dpfbo.space.regions import Regions
else:
    __getattr__, __dir__ = lazy.attach(__name__)
