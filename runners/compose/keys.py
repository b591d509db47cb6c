"""The user's key, such as `privacy.q`, in errors of the library, which has its own name for the setting."""

from collections.abc import Iterator
from contextlib import contextmanager

from dpfbo.checks import SettingError

MECHANISM = {
    "sampling_probability": "privacy.q", "noise_multiplier": "privacy.z", "clip_norm": "privacy.S",
    "calibration": "privacy.sensitivity", "sampling": "privacy.sampling", "charge": "privacy.charge",
    "normalize": "algorithm.message_normalize", "bits": "privacy.noise.bits",
}  # fmt: skip


@contextmanager
def keys(group: str, **others: str) -> Iterator[None]:
    """Within this block a SettingError becomes a ValueError that names the key.

    group: the node whose settings are read; `q` of the group `privacy` is the key `privacy.q`. others: the keys of
    library names that are not keys of the group.
    """
    try:
        yield
    except SettingError as error:
        key = others.get(error.name, f"{group}.{error.name}" if group else error.name)
        known_as = "" if error.name in key else f" ({error.name})"
        raise ValueError(f"{key}{known_as} {error.rule}") from error
