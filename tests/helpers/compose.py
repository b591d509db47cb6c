"""Configurations, composed as the commands compose them."""

from runners.compose.configuration import composed


def compose(*overrides):
    return composed(overrides)
