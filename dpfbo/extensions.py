"""Extensions in other installed packages, found by the entry points that their `pyproject.toml` declares.

    [project.entry-points."dpfbo.accountants"]
    mine = "my_package.accountant:Mine"       # a class with the attributes of `dpfbo.privacy.accounting.Accountant`
    [project.entry-points."dpfbo.messages"]
    mine = "my_package.message:weights"       # a `Message`
    [project.entry-points."dpfbo.conf"]
    mine = "my_package.conf"                  # a package of YAML files, for the commands

For problems, weightings, servers and noises, a YAML file names the class. The commands run a class from another package
only if that package has an entry point of any kind, or if the user allows the package.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, Protocol

from dpfbo.checks import SettingError

if TYPE_CHECKING:
    from torch import Tensor

ACCOUNTANTS, MESSAGES, CONF = "dpfbo.accountants", "dpfbo.messages", "dpfbo.conf"


class Message(Protocol):
    """A function that computes an agent's message, a vector for the server, from the agent's observations.

    dpfbo calls the function for one agent at a time (under `torch.vmap` if its operations allow that). A private server
    limits every message to norm S / sqrt(P), with S the clip norm and P the number of sub-regions. The guarantee holds
    if an agent's message depends only on this agent's observations. A function that keeps state between calls may break
    this condition.
    """

    def __call__(self, features: Tensor, y: Tensor, noise_variance: float) -> Tensor:
        """Return the message, 1 x M. features: 1 x k x M, at the agent's k points; y: 1 x k, the observations."""


@cache
def entries(group: str) -> dict[str, EntryPoint]:
    """Return the entry points of a group by name."""
    return {entry.name: entry for entry in entry_points(group=group)}


def packages() -> set[str]:
    """Return the names of the top-level packages that have an entry point in one of dpfbo's groups."""
    groups = (ACCOUNTANTS, MESSAGES, CONF)
    return {entry.value.partition(":")[0].partition(".")[0] for group in groups for entry in entries(group).values()}


def load(group: str, name: str) -> Any:
    """Import the object of an entry point. Raises SettingError if this fails."""
    entry = entries(group)[name]
    try:
        return entry.load()
    except Exception as error:  # other packages' code may raise anything
        raise SettingError(name, f"of {group} ({entry.value}) cannot be imported: {error!r}") from error
