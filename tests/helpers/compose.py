"""Configurations, composed as the commands compose them."""

import hydra

from runners.compose.conf_folder import CONF


def compose(*overrides):
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        return hydra.compose("config", overrides=list(overrides))
