"""Translate between a setting's key in the configuration and the library's parameter name.

Most parameter names are the last part of their key. `WORDS` holds the exceptions.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from dpfbo.checks import SettingError

WORDS = {  # the library's name by key
    "privacy.q": "sampling_probability",
    "privacy.z": "noise_multiplier",
    "privacy.S": "clip_norm",
    "privacy.sensitivity": "calibration",
    "algorithm.message_normalize": "normalize",
}
_KEYS = {word: key for key, word in WORDS.items()}


def about_key(error: SettingError, group: str, **others: str) -> ValueError:
    """Convert the library's error about a parameter to an error about the configuration key that sets the parameter.

    group: the configuration node of the parameter. With the group `privacy`, the parameter `delta` has the key
    `privacy.delta`. others: the keys of parameters in other groups, as in `probability="dropout.probability"`.
    """
    key = others.get(error.name) or _KEYS.get(error.name) or ".".join(filter(None, (group, error.name)))
    known_as = "" if error.name in key else f" ({error.name})"
    return ValueError(f"{key}{known_as} {error.rule}")


@contextmanager
def keys(group: str, **others: str) -> Iterator[None]:
    """If the block raises a SettingError, convert it as `about_key` does."""
    try:
        yield
    except SettingError as error:
        raise about_key(error, group, **others) from error
