"""Values of parameters: everything that JSON can write, and tuples."""

import copy
import json
import math
from typing import Any

PLAIN = (str, bool, int, float, type(None))
KINDS = "numbers, strings, booleans, null, or lists and dicts of them"

Value = Any  # of a parameter: a number, a string, a boolean, None, or a list, tuple or dict of them


def json_text(value: object) -> str | None:
    """Write a value as JSON with sorted keys, or return None if JSON cannot write it.

    1, 1.0 and True have different texts; a tuple is written as a list. Numbers in lists and dicts must be finite, and
    keys must be strings.
    """
    try:
        return json.dumps(value, sort_keys=True) if isinstance(value, PLAIN) or _is_nested(value) else None
    except (RecursionError, ValueError):  # it contains itself, is nested too deeply, or has too long an integer
        return None


def _is_nested(value: object) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_nested, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_nested(inner) for key, inner in value.items())
    return isinstance(value, PLAIN) and (not isinstance(value, float) or math.isfinite(value))


def own(value: Value) -> Value:
    """Return a deep copy of a value."""
    return value if isinstance(value, PLAIN) else copy.deepcopy(value)
