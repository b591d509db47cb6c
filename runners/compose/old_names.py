"""Names of classes, servers and accountants in the configurations of earlier versions, and settings they did not have.

`identity` names a run's folder by the settings as the first version wrote them, so that finished runs and ledgers are
found again; `modernised` translates a config.yaml of any version.
"""

from collections.abc import Iterator
from typing import Any

# module of a class, and its module in the first version
_MOVED = {
    "dpfbo.outsourced.curator": "dpfbo.outsourced.curator",
    "dpfbo.federated.schedule.PowerSchedule": "dpfbo.schedule.Power",
    "dpfbo.federated.schedule": "dpfbo.schedule",
    "dpfbo.federated.weights": "dpfbo.weights",
    "dpfbo.privacy.noise": "dpfbo.noise",
    "dpfbo.outsourced.transforms": "dpfbo.outsourced",
}
# class of a server, and the first version's word for it
_SERVERS = {
    None: "none",
    "dpfbo.federated.server.Server": "aggregate",
    "dpfbo.federated.peer_exchange.PeerExchange": "peer",
    "dpfbo.federated.controls.RandomServer": "random",
    "dpfbo.federated.controls.SobolServer": "sobol",
    "dpfbo.outsourced.curator.Curator": "curator",
}
# the first version named the classes of the accountants
_ACCOUNTANTS = {
    name: {"_target_": f"dpfbo.accounting.{name}.{kind}"}
    for name, kind in (
        ("moments", "Moments"), ("rdp", "Rdp"), ("pld", "Pld"), ("fixed_size", "FixedSize"), ("gdp", "Gdp"),
    )
}  # fmt: skip

# settings that were added later, by the node that holds them, with the value that changes nothing
ADDED: dict[tuple[str, ...], dict[str, Any]] = {
    ("algorithm", "own_gp"): {"kernel": "rbf", "ard": False, "warp": False, "priors": False, "standardize": False},
}


# the same for settings of one problem, whose class has that value as its default
_ADDED_TO_A_PROBLEM: dict[str, Any] = {"space": None, "on_failure": "stop", "retries": 0, "timeout": None}


def as_first_written(settings: dict[str, Any]) -> dict[str, Any]:
    """Resolved settings as the first version would have written them."""
    old: dict[str, Any] = _with_classes(settings, _MOVED)
    server = settings["algorithm"]["server"]
    target = None if server is None else server["_target_"]
    old["algorithm"]["server"] = _SERVERS.get(target, server)
    if "privacy" in old:  # the settings of a curator's release had them, too
        names = old["privacy"].get("accountants", _ACCOUNTANTS)
        old["privacy"]["accountants"] = {name: _ACCOUNTANTS.get(name, name) for name in names}
    for node, values in [*_later_settings(old), (old["problem"], _ADDED_TO_A_PROBLEM)]:
        for key, value in values.items():
            if key in node and node[key] == value:
                del node[key]
    return old


def modernised(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of a config.yaml of any version, in our names."""
    new: dict[str, Any] = _with_classes(settings, {old: ours for ours, old in _MOVED.items()})
    server = new["algorithm"].get("server")
    if isinstance(server, str):
        target = {word: path for path, word in _SERVERS.items()}[server]
        new["algorithm"]["server"] = None if target is None else {"_target_": target}
    accountants = new.get("privacy", {}).get("accountants")
    if isinstance(accountants, dict):
        del new["privacy"]["accountants"]
        if "q" in new["privacy"]:
            new["privacy"]["accountants"] = list(accountants)
    for node, values in _later_settings(new):
        node.update({key: value for key, value in values.items() if key not in node})
    return new


def _later_settings(settings: dict[str, Any]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """The nodes of a configuration that gained settings, with those settings as they change nothing."""
    for path, values in ADDED.items():
        node: Any = settings
        for key in path:
            node = node.get(key) if isinstance(node, dict) else None
        if isinstance(node, dict):
            yield node, values


def _with_classes(node: Any, moved: dict[str, str]) -> Any:
    """The tree with the module of every class replaced."""
    if isinstance(node, dict):
        return {k: _class_path(v, moved) if k == "_target_" else _with_classes(v, moved) for k, v in node.items()}
    return [_with_classes(item, moved) for item in node] if isinstance(node, list) else node


def _class_path(path: str, moved: dict[str, str]) -> str:
    for module, elsewhere in moved.items():
        there_already = elsewhere.startswith(module) and path.startswith(f"{elsewhere}.")
        if f"{path}.".startswith(f"{module}."):
            return path if there_already else elsewhere + path.removeprefix(module)
    return path
