"""Decorators for functions and classes that may change or be removed; docs/versions.md has the policy."""

import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

Marked = TypeVar("Marked", bound=Callable[..., Any])


class ExperimentalWarning(UserWarning):
    """The program uses a part of dpfbo that may change in any version."""


def experimental(since: str, name: str | None = None) -> Callable[[Marked], Marked]:
    """Mark a function or a class that any version may change or remove without a deprecation.

    Args:
        since: The version that introduced it.
        name: The name in the warning; None for the qualified name.

    Returns:
        A decorator. The function warns when it is called, the class when it is instantiated.

    Example:
        >>> import warnings
        >>> @experimental("0.1.0")
        ... def guess(agents):
        ...     return agents // 2
        >>> with warnings.catch_warnings(record=True, action="always") as caught:
        ...     guess(8)
        4
        >>> print(caught[0].message)
        guess is experimental since version 0.1.0: it may change in any version
    """

    def mark(marked: Marked) -> Marked:
        text = f"{name or marked.__qualname__} is experimental since version {since}: it may change in any version"
        return _warning(marked, text, ExperimentalWarning)

    return mark


def deprecated(since: str, removed_in: str, instead: str) -> Callable[[Marked], Marked]:
    """Mark a function or a class that a later version will remove.

    Args:
        since: The first version that warns.
        removed_in: The first version without it.
        instead: What to use instead.

    Returns:
        A decorator. The function warns when it is called, the class when it is instantiated.

    Example:
        >>> import warnings
        >>> @deprecated("0.2.0", "0.3.0", instead="Ledger.verify")
        ... def check_ledger():
        ...     return True
        >>> with warnings.catch_warnings(record=True, action="always") as caught:
        ...     check_ledger()
        True
        >>> print(caught[0].message)
        check_ledger is deprecated since version 0.2.0 and is removed in version 0.3.0: use Ledger.verify
    """

    def mark(marked: Marked) -> Marked:
        name = marked.__qualname__
        text = f"{name} is deprecated since version {since} and is removed in version {removed_in}: use {instead}"
        return _warning(marked, text, DeprecationWarning)

    return mark


def _warning(marked: Any, text: str, category: type[Warning]) -> Any:
    is_class = isinstance(marked, type)
    function: Callable[..., Any] = marked.__init__ if is_class else marked  # type: ignore[misc]

    @wraps(function)
    def warn_first(*args: Any, **kwargs: Any) -> Any:
        warnings.warn(text, category, stacklevel=2)
        return function(*args, **kwargs)

    if not is_class:
        return warn_first
    marked.__init__ = warn_first
    return marked
