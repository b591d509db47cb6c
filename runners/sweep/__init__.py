"""Sweeps over many settings and seeds. `results(folder)` returns a data frame of an experiment's trials."""

from typing import TYPE_CHECKING

from dpfbo import lazy

if TYPE_CHECKING:
    from runners.sweep.results_folder import results
else:
    __getattr__, __dir__ = lazy.attach(__name__)

__all__ = ["results"]
