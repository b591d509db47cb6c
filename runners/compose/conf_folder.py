"""Find the folders of configuration files: conf/, and the folders that users and other packages add.

Other packages add folders with entry points of the group `dpfbo.conf`. A user adds one folder with the environment
variable DPFBO_CONF.
"""

import os
from importlib.util import find_spec
from pathlib import Path

import yaml

from dpfbo import extensions

_RUNNERS = Path(__file__).resolve().parents[1]
CONF = _RUNNERS / "conf" if (_RUNNERS / "conf").is_dir() else _RUNNERS.parent / "conf"


def added_folders() -> list[Path]:
    """Return the configuration folders that the user and extension packages add to conf/.

    Raises ValueError if one of the folders is missing or invalid.
    """
    given = os.environ.get("DPFBO_CONF")
    folders = [Path(given).absolute()] if given else []
    for name, entry in extensions.entries(extensions.CONF).items():
        spec = find_spec(entry.value)
        if spec is None or not spec.submodule_search_locations:
            raise ValueError(f"entry point {name!r} of {extensions.CONF} must name a package, got {entry.value!r}")
        folders += [Path(place) for place in spec.submodule_search_locations]
    for folder in folders:
        if not folder.is_dir():
            raise ValueError(f"DPFBO_CONF must name a folder, got {str(folder)!r}")
        for file in folder.rglob("*.yaml"):
            _check_allows_nothing(file)
            if (CONF / file.relative_to(folder)).exists():
                raise ValueError(f"{file} has the name of a file of dpfbo's own and would not replace that: rename it")
    return folders


def _check_allows_nothing(file: Path) -> None:
    """Raise ValueError if a file sets `allow`, the list of packages whose classes may be instantiated.

    Only the command line may set `allow`: a file must not permit its own classes.
    """
    try:
        content = yaml.safe_load(file.read_text())
    except (yaml.YAMLError, RecursionError):  # Hydra reports the error when the file is used
        return
    if isinstance(content, dict) and "allow" in content:
        raise ValueError(f"{file} sets allow, which only a command line may set: remove it from the file")


def groups() -> dict[str, list[str]]:
    """Return the options of each group, by the group's name, such as `privacy/noise`."""
    found: dict[str, set[str]] = {}
    for root in (CONF, *added_folders()):
        for file in root.rglob("[a-z]*.yaml"):
            if (group := file.parent.relative_to(root).as_posix()) != ".":
                found.setdefault(group, set()).add(file.stem)
    return {group: sorted(found[group]) for group in sorted(found)}
