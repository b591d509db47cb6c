"""Studies without a trusted server: it learns the noisy sum of all sites' messages and nothing else."""

from typing import TYPE_CHECKING

from dpfbo import lazy

__all__ = ["Roster", "SecureCoordinator", "SecureSite", "SiteKey", "SumError", "fingerprint"]

if TYPE_CHECKING:
    from dpfbo.secure.messages import SumError
    from dpfbo.secure.parties import SecureCoordinator, SecureSite
    from dpfbo.secure.roster import Roster, SiteKey, fingerprint
else:
    __getattr__, __dir__ = lazy.attach(__name__)
