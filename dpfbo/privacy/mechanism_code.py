"""Digests of the source files that determine sampling, clipping, noise and charge.

A resumed run compares the stored digests with those of the present code. If the code has changed, the run's privacy
claim may not hold for the remaining rounds. Other packages have no digest. The only accountant with a digest is
`analytic_gaussian`, because it also sets the noise of some releases.
"""

import hashlib
from collections.abc import Mapping
from functools import cache
from importlib import resources

VERSION = 1  # of the mechanism; raise it if the released distribution changes although no file below does

SOURCES = (
    "rng.py",
    "privacy/charge.py",
    "privacy/distributed.py",
    "privacy/entropy.py",
    "privacy/ledger.py",
    "privacy/noise.py",
    "privacy/release.py",
    "privacy/accounting/analytic_gaussian.py",
    "privacy/accounting/events.py",
    "federated/controls.py",
    "federated/distributed.py",
    "federated/dropout.py",
    "federated/mechanism.py",
    "federated/messages.py",
    "federated/peer_exchange.py",
    "federated/prior_server.py",
    "federated/schedule.py",
    "federated/server.py",
    "federated/prior.py",
    "federated/weights/__init__.py",
    "federated/weights/decay.py",
    "federated/weights/power.py",
    "federated/weights/softmax.py",
    "federated/weights/uniform.py",
    "outsourced/curator.py",
    "outsourced/table.py",
    "outsourced/transforms/__init__.py",
    "outsourced/transforms/cells.py",
    "outsourced/transforms/cover.py",
    "outsourced/transforms/gaussian.py",
    "outsourced/transforms/histogram.py",
    "outsourced/transforms/indices.py",
    "outsourced/transforms/plain.py",
    "outsourced/transforms/random_projection.py",
    "secure/parties.py",
    "secure/site.py",
)  # paths in the package dpfbo
_DIGITS = 16  # hexadecimal digits of a file's digest
_VERSION = "version"
_SHOWN = 4  # most files that a message names


@cache
def code_digests() -> dict[str, str] | None:
    r"""Return the digest of each file in `SOURCES`, by path; None if a file is not installed.

    The entry "version" is the mechanism's `VERSION`. Line ends are read as `\n`.
    """
    root, found = resources.files("dpfbo"), {_VERSION: str(VERSION)}
    for name in SOURCES:
        try:
            source = root.joinpath(*name.split("/")).read_bytes()
        except OSError:
            return None
        text = source.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        found[name] = hashlib.sha256(text).hexdigest()[:_DIGITS]
    return found


def changed(before: Mapping[str, str] | None, now: Mapping[str, str] | None) -> str:
    """Return a text that names the files whose digests differ; empty if no digest differs or an argument is None."""
    if before is None or now is None or dict(before) == dict(now):
        return ""
    names = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
    rest = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + rest
