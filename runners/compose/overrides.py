"""Explain in one sentence why an override does not compose, with the nearest known name."""

import re
from typing import Any

from omegaconf import OmegaConf

from dpfbo.checks import nearest
from dpfbo.extras import MissingPackage
from runners.compose.conf_folder import CONF, added_folders, groups
from runners.compose.configuration import composed

_PLUGINS = {
    "hydra/launcher=joblib": "hydra-joblib-launcher",
    "hydra/launcher=submitit_local": "hydra-submitit-launcher",
    "hydra/launcher=submitit_slurm": "hydra-submitit-launcher",
}


def name_of(override: str) -> str:
    """Return the key or group of an override, without the + or ~ before it."""
    return override.lstrip("+~").partition("=")[0]


def quoted(override: str) -> str:
    """Quote the value of an override if it has letters beyond ASCII, as Hydra's grammar requires."""
    key, equals, value = override.partition("=")
    if not equals or value.isascii() or set(value) & set("'\"\\,[]{}()"):
        return override
    return f"{key}='{value}'"


def one_sentence(message: str) -> str:
    """Shorten Hydra's error message about an override to one sentence, with the nearest known name."""
    ambiguous = re.search(r"Ambiguous value for argument '([^=']+)=", message)
    if ambiguous:
        return (
            f"{ambiguous[1]} has several values: -m runs them one after another, python -m runners.sweep side by side; "
            f"a single value that is a list reads {ambiguous[1]}=[a,b]"
        )
    group = re.search(r"Could not find '([\w/]+)/([^/']+)'", message)
    if group:
        chosen = f"{group[1]}={group[2]}"
        if chosen in _PLUGINS:
            return str(MissingPackage(chosen, _PLUGINS[chosen], "launchers"))
        options = groups().get(group[1]) or re.findall(r"^\t(\w+)$", message, re.MULTILINE)  # groups of Hydra itself
        return f"unknown {group[1]} {group[2]!r}: choose one of {', '.join(options)}{nearest(group[2], options)}"
    key = re.search(r"Could not override '([^']+)'", message) or re.search(r"Key '([^']+)' is not in struct", message)
    if key:
        return f"unknown override {key[1]!r}{_meant(key[1])}; python -m runners.run --cfg job shows all settings"
    return message.split("\n\n")[0]


def no_setting(word: str) -> str:
    """Return an error message about a command-line word that is not of the form `key=value`."""
    key = word.lstrip("-").partition("=")[0].replace("-", "_")
    value = word.partition("=")[2] or "VALUE"
    for name, options in groups().items():
        if word in options:
            program = "sweep" if name == "experiment" else "run"
            return f"settings read key=value, got {word!r}: python -m runners.{program} {name}={word}"
    if word.startswith("-"):
        meant = f": {key}={value}" if key in known_keys() else _meant(key) or "; --help lists the options"
        return f"unknown option {word!r}; settings have no dashes{meant}"
    return f"settings read key=value, got {word!r}" + (f": {key}={value}" if key in known_keys() else "")


def _meant(name: str) -> str:
    group, _, rest = name.partition(".")
    having = [option for option in groups().get(group, []) if rest and rest in _keys_of(group, option)]
    if having:
        return f": it is a setting of {group}={' or '.join(having)}"
    known = known_keys()
    ends = [k for k in known if k.rpartition(".")[2] in (name, f"n_{name}") and not k.startswith("problem.preset.")]
    return (
        f" (did you mean {' or '.join(map(repr, ends))}?)"
        if ends
        else nearest(name, [other for other in known if other != name])
    )


def _keys_of(group: str, option: str) -> set[str]:
    for root in (CONF, *added_folders()):
        if (file := root / group / f"{option}.yaml").is_file():
            node = OmegaConf.to_container(OmegaConf.load(file))
            node = node if isinstance(node, dict) else {}
            bases = [base for base in node.get("defaults", []) if isinstance(base, str) and base != "_self_"]
            return set(map(str, node)).union(*(_keys_of(group, base) for base in bases))
    return set()


def known_keys() -> list[str]:
    """Return the dotted names of all keys in the default configuration."""
    return _names(OmegaConf.to_container(composed()), "")


def _names(node: Any, prefix: str) -> list[str]:
    if not isinstance(node, dict):
        return []
    return [name for key, child in node.items() for name in (f"{prefix}{key}", *_names(child, f"{prefix}{key}."))]
