"""Compose configurations with Hydra, from the files of conf/ and overrides."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import hydra
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from runners.compose import resolvers
from runners.compose.conf_folder import CONF, added_folders, groups
from runners.compose.instantiate import allowed_names, check_targets
from runners.private_apis import parse_overrides

_PLAIN = re.compile(r"[A-Za-z_][\w./]*=")  # an override that changes a value or chooses an option


class AddedFolders(SearchPathPlugin):
    """A Hydra plugin that appends configuration folders of the user and of extension packages to the search path."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        for folder in added_folders():
            search_path.append("dpfbo", f"file://{folder}")


Plugins.instance().register(AddedFolders)
resolvers.register()


@contextmanager
def composing() -> Iterator[None]:
    """Initialise Hydra with conf/ within this block."""
    GlobalHydra.instance().clear()
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        yield


@contextmanager
def command_line(overrides: Sequence[str], multirun: bool = False) -> Iterator[DictConfig]:
    """Compose a configuration with the node `hydra`, check the classes in that node, and yield the configuration.

    With `multirun`, the configuration is that of the first run. Raises HydraException if the overrides do not compose.
    Raises ValueError if `check_targets` refuses a class, such as a launcher or callback; classes of Hydra and its
    plugins are allowed. Also raises ValueError for a log handler or formatter that is not a class of `logging`.
    """
    with composing():
        given = [_first(o) for o in parse_overrides(overrides)] if multirun else list(overrides)
        cfg = hydra.compose("config", given, return_hydra_config=True)
        own: Any = OmegaConf.to_container(cfg.hydra)
        check_targets({"hydra": own}, ["hydra", "hydra_plugins", *allowed_names(cfg.get("allow") or ())])
        for name in ("job_logging", "hydra_logging"):
            groups = [parts for parts in (own[name] or {}).values() if isinstance(parts, dict)]
            for part in (part for parts in groups for part in parts.values() if isinstance(part, dict)):
                kind = part.get("()", part.get("class", "logging."))
                if "()" in part or not str(kind).startswith("logging."):
                    raise ValueError(f"hydra.{name} must use the classes of logging, got {kind!r}")
        yield cfg


def _first(override: Override) -> str:
    if not override.is_discrete_sweep():
        return override.input_line or ""
    return f"{override.get_key_element()}={next(iter(override.sweep_string_iterator()))}"


class Composer:
    """A faster `hydra.compose` for many configurations that differ only in values; use it within `composing`."""

    def __init__(self) -> None:
        self._groups, self._bases, self._values = set(groups()), {}, {}  # type: ignore[var-annotated]

    def compose(self, overrides: Sequence[str]) -> DictConfig:
        """Return the same as `hydra.compose`, and raise its errors."""
        plain = [_PLAIN.match(o) and o.partition("=")[0] not in self._groups for o in overrides]
        rest = tuple(o for o, is_value in zip(overrides, plain, strict=True) if not is_value)
        if not all(_PLAIN.match(o) for o in rest):  # the effect of ~, + and @ depends on the overrides' order
            return hydra.compose("config", list(overrides))
        try:
            if rest not in self._bases:
                self._bases[rest] = hydra.compose("config", list(rest))
            cfg: DictConfig = self._bases[rest].copy()
            for override, is_value in zip(overrides, plain, strict=True):
                if is_value:
                    key, value = self._parsed(override)
                    OmegaConf.update(cfg, key, value)
        except (HydraException, OmegaConfBaseException):
            return hydra.compose("config", list(overrides))
        return cfg

    def _parsed(self, override: str) -> tuple[str, Any]:
        if override not in self._values:
            (parsed,) = parse_overrides([override])
            self._values[override] = parsed.key_or_group, parsed.value()
        return self._values[override]  # type: ignore[no-any-return]


def composed(overrides: Sequence[str] = ()) -> DictConfig:
    """Compose the configuration of `runners.run`. Raises HydraException if the overrides do not compose."""
    with composing():
        return hydra.compose("config", list(overrides))
