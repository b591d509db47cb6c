"""The canonical form of settings: text that is equal for equal settings, in every process."""

import hashlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor

from dpfbo.checks import SettingError


def canonical(value: Any) -> str:
    """Class paths, field names and values in their order; a tensor by its shape, type and the SHA-256 of its bytes.

    Raises SettingError, named after the class, for an object that is none of these.
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return repr(value)
    if isinstance(value, Tensor):
        digest = hashlib.sha256(value.detach().cpu().contiguous().numpy().tobytes()).hexdigest()
        return f"tensor({tuple(value.shape)}, {value.dtype}, {digest})"
    if isinstance(value, type):
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{canonical(k)}: {canonical(v)}' for k, v in value.items())}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(canonical, value))}]"
    if is_dataclass(value):
        parts = (f"{f.name}={canonical(getattr(value, f.name))}" for f in fields(value))
        return f"{canonical(type(value))}({', '.join(parts)})"
    name = type(value).__qualname__
    raise SettingError(name, f"must be a dataclass, a tensor or a plain value to be part of a study, got {value!r}")
