"""Studies without a trusted server: of the sites' messages, the server learns only the noisy sum."""

from typing import TYPE_CHECKING

from dpfbo import lazy

__all__ = ["Roster", "SecureCoordinator", "SecureSite", "SiteKey", "SumError", "fingerprint"]

if TYPE_CHECKING:
    from dpfbo.secure.messages import SumError
    from dpfbo.secure.parties import SecureCoordinator, SecureSite
    from dpfbo.secure.roster import Roster, SiteKey, fingerprint
else:
    __getattr__, __dir__ = lazy.attach(__name__)
