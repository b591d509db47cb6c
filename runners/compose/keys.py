"""The two names of a setting: the key in the configuration, and the library's name.

Most words are the last part of their key. `WORDS` holds all others; settings, error messages and the page of names in
the documentation follow from it.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from dpfbo.checks import SettingError

WORDS = {  # by key
    "privacy.q": "sampling_probability",
    "privacy.z": "noise_multiplier",
    "privacy.S": "clip_norm",
    "privacy.sensitivity": "calibration",
    "algorithm.message_normalize": "normalize",
}
_KEYS = {word: key for key, word in WORDS.items()}


def about_key(error: SettingError, group: str, **others: str) -> ValueError:
    """An error of the library as one about the key.

    group: the node whose settings are read: `delta` of `privacy` is the key `privacy.delta`. others: keys, by the
    library's word, that are in another group.
    """
    key = others.get(error.name) or _KEYS.get(error.name) or ".".join(filter(None, (group, error.name)))
    known_as = "" if error.name in key else f" ({error.name})"
    return ValueError(f"{key}{known_as} {error.rule}")


@contextmanager
def keys(group: str, **others: str) -> Iterator[None]:
    """Within this block a SettingError of the library becomes a ValueError, see `about_key`."""
    try:
        yield
    except SettingError as error:
        raise about_key(error, group, **others) from error
