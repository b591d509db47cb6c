"""What the building of the site needs of its notebooks' kernels."""

from typing import Literal

from jupyter_client import KernelManager


def on_startup(command: Literal["build", "gh-deploy", "serve"], dirty: bool) -> None:
    """Encrypt what goes between the site and its kernels, which warn of plain text."""
    KernelManager.transport_encryption.default_value = "required"
