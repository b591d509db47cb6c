"""The known names of overrides, and one sentence for an override that does not compose."""

import difflib
import re
from typing import Any

from omegaconf import OmegaConf

from runners.compose.conf_folder import CONF, added_folders, groups
from runners.compose.configuration import composed


def one_sentence(message: str) -> str:
    """Hydra's message about an override, shortened, with the nearest known name."""
    group = re.search(r"Could not find '([\w/]+)/([^/']+)'", message)
    if group:
        options = groups()[group[1]]
        return f"unknown {group[1]} {group[2]!r}: choose one of {', '.join(options)}{_nearest(group[2], options)}"
    key = re.search(r"Could not override '([^']+)'", message) or re.search(r"Key '([^']+)' is not in struct", message)
    if key:
        return f"unknown override {key[1]!r}{_nearest(key[1], known_keys())}; --cfg job shows all settings"
    return message.split("\n\n")[0]


def unknown_name(override: str) -> str | None:
    """One sentence for an override with an unknown key, whatever its values; None for a known key."""
    known = {*known_keys(), *groups(), *_keys_of_options()}
    name = override.split("=")[0]
    if name in known or name[:1] in "+~" or "@" in name or name.startswith("hydra"):
        return None
    return one_sentence(f"Could not override '{name}'")


def known_keys() -> list[str]:
    """Dotted names of the default configuration."""
    return _names(OmegaConf.to_container(composed()), "")


def _keys_of_options() -> list[str]:
    """Dotted names in other options of a group, such as another problem."""
    roots = (CONF, *added_folders())
    files = [file for root in roots for folder in root.iterdir() if folder.is_dir() for file in folder.glob("*.yaml")]
    return [
        name for file in files for name in _names(OmegaConf.to_container(OmegaConf.load(file)), f"{file.parent.name}.")
    ]


def _names(node: Any, prefix: str) -> list[str]:
    if not isinstance(node, dict):
        return []
    return [name for key, child in node.items() for name in (f"{prefix}{key}", *_names(child, f"{prefix}{key}."))]


def _nearest(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, [other for other in known if other != name], n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
