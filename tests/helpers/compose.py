"""Configurations, composed as the commands compose them."""

import copy
from functools import cache

from omegaconf import OmegaConf

from runners.compose.conf_folder import added_folders
from runners.compose.configuration import Composer, composing
from runners.identity.setting import names_of


def compose(*overrides):
    """The configuration, whose folder is set afterwards: tests that differ in it alone compose once."""
    others = tuple(o for o in overrides if not o.startswith("results_dir="))
    cfg = copy.deepcopy(_composed(others))
    for folder in (o.partition("=")[2] for o in overrides if o not in others):
        OmegaConf.update(cfg, "results_dir", folder)
    return cfg


def setting_hash(cfg):
    """The name of the setting of a configuration."""
    return names_of(cfg).setting


def with_seed(setting, seed):
    """The configuration of one trial of a planned setting."""
    cfg = setting.cfg.copy()
    cfg.seed = seed
    return cfg


@cache
def _composed(overrides):
    with composing():
        return _composer(tuple(added_folders())).compose(overrides)


_composer = cache(lambda folders: Composer())  # files are read once for each choice of groups
