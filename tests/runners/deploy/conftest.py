"""Deployments are tested where the package that makes their keys and certificates is installed."""

import pytest

pytest.importorskip("cryptography", reason="cryptography is not installed: pip install 'dpfbo[flower]'")
