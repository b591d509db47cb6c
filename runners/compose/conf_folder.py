"""The folder conf/: inside `runners` in an installed package, beside it in a checkout."""

from pathlib import Path

_RUNNERS = Path(__file__).resolve().parents[1]
CONF = _RUNNERS / "conf" if (_RUNNERS / "conf").is_dir() else _RUNNERS.parent / "conf"
