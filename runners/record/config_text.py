"""Convert settings to the same YAML text as OmegaConf, but about ten times faster."""

from typing import Any

import yaml


def config_text(settings: dict[str, Any]) -> str:
    """Return a resolved configuration as YAML, which OmegaConf and YAML 1.1 parsers read as the same values.

    A value whose type YAML lacks, such as a path, is written as a string.
    """
    return str(yaml.dump(settings, Dumper=_Dumper, default_flow_style=False, allow_unicode=True, sort_keys=False))


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """A YAML emitter that writes no anchors. It is compiled if possible."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: Any, value: Any) -> yaml.ScalarNode:
    """Represent a value as a YAML string; text that looks like another type, such as 1e5, is quoted."""
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
