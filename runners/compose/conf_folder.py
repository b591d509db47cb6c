"""The folder of the configuration files."""

from pathlib import Path

CONF = Path(__file__).resolve().parent.parent.parent / "conf"
