"""The text of config.yaml, equal to OmegaConf's, written and read in a tenth of its time."""

from typing import Any

import yaml


def config_text(settings: dict[str, Any]) -> str:
    """A resolved configuration as YAML, which both OmegaConf and YAML 1.1 read as the same values.

    A value that is no plain one, such as a path, is written as its text.
    """
    return str(yaml.dump(settings, Dumper=_Dumper, default_flow_style=False, allow_unicode=True, sort_keys=False))


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """The compiled emitter, if there is one; no anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: Any, value: Any) -> yaml.ScalarNode:
    """A string, in quotes if OmegaConf would read it as another type: to YAML 1.1, `1e-3` and `y` are strings."""
    text = str(value)
    style: str | None = "'"
    if text.lower() not in ("y", "n"):
        try:
            float(text)
        except ValueError:
            style = None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)
_Dumper.add_representer(None, _text)
