"""The two names of a setting: the key in the configuration, and the library's name.

Most words are the last part of their key. `WORDS` holds all others; settings, error messages and the page of names in
the documentation follow from it.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from dpfbo.checks import SettingError

WORDS = {  # by key
    "privacy.q": "sampling_probability",
    "privacy.z": "noise_multiplier",
    "privacy.S": "clip_norm",
    "privacy.sensitivity": "calibration",
    "algorithm.message_normalize": "normalize",
}
_KEYS = {word: key for key, word in WORDS.items()}


def in_words(node: Mapping[str, Any], group: str) -> dict[str, Any]:
    """The node at `group` with the library's word for every key."""
    return {WORDS.get(f"{group}.{name}", name): value for name, value in node.items()}


@contextmanager
def keys(group: str, **others: str) -> Iterator[None]:
    """Within this block a SettingError of the library becomes a ValueError about the key.

    group: the node whose settings are read: `delta` of `privacy` is the key `privacy.delta`. others: keys, by the
    library's word, that are in another group.
    """
    try:
        yield
    except SettingError as error:
        key = others.get(error.name) or _KEYS.get(error.name) or ".".join(filter(None, (group, error.name)))
        known_as = "" if error.name in key else f" ({error.name})"
        raise ValueError(f"{key}{known_as} {error.rule}") from error
