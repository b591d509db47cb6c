"""The site's build hook for notebook kernels, and its extension for docstrings."""

from typing import Any, Literal

import griffe
from jupyter_client import KernelManager


def on_startup(command: Literal["build", "gh-deploy", "serve"], dirty: bool) -> None:
    """Encrypt the connections to the kernels, which warn about plain text."""
    KernelManager.transport_encryption.default_value = "required"


class Examples(griffe.Extension):
    """Show `Example:` in docstrings as code: griffe knows only `Examples:`."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            text = obj.docstring.value
            obj.docstring.value = text.replace("\nExample:\n", "\nExamples:\n")
