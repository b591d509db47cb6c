"""The folder conf/: inside `runners` in an installed package, beside it in a checkout."""

from pathlib import Path

_RUNNERS = Path(__file__).resolve().parents[1]
CONF = _RUNNERS / "conf" if (_RUNNERS / "conf").is_dir() else _RUNNERS.parent / "conf"


def groups() -> dict[str, list[str]]:
    """The options of each group, by its name, such as `privacy/noise`."""
    folders = sorted(path for path in CONF.rglob("*") if path.is_dir() and any(path.glob("*.yaml")))
    return {f.relative_to(CONF).as_posix(): sorted(file.stem for file in f.glob("[a-z]*.yaml")) for f in folders}
