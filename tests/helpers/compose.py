"""Configurations, composed as the commands compose them."""

import copy
from functools import cache

from omegaconf import OmegaConf

from runners.compose.configuration import composed


def compose(*overrides):
    """The configuration, whose folder is set afterwards: tests that differ in it alone compose once."""
    others = tuple(o for o in overrides if not o.startswith("results_dir="))
    cfg = copy.deepcopy(_composed(others))
    for folder in (o.partition("=")[2] for o in overrides if o not in others):
        OmegaConf.update(cfg, "results_dir", folder)
    return cfg


_composed = cache(lambda overrides: composed(overrides))
