"""All checks that test the sites of a secure sum, and a function that runs them."""

from collections.abc import Callable, Iterable

from dpfbo.audit.findings import CheckResult, checked
from dpfbo.audit.secure import active, curious
from dpfbo.audit.secure.sums import SumTarget

SITE_CHECKS: dict[str, Callable[[SumTarget], str]] = {
    "right sum": curious.right_sum,
    "masked numbers": curious.masked_numbers,
    "masks": curious.masks,
    "two transcripts": curious.two_worlds,
    "seeds": curious.seeds,
    "noise shares": curious.noise_shares,
    "signed survivors": active.signed_survivors,
    "enough sites": active.enough_sites,
    "signed keys": active.signed_keys,
    "one vector": active.one_vector,
    "key streams": active.key_streams,
    "one share each": active.one_share_each,
    "charged first": active.charged_first,
}


def examine_sites(
    target: SumTarget, on_check: Callable[[], None] = lambda: None, names: Iterable[str] = SITE_CHECKS
) -> list[CheckResult]:
    """Run the named checks and return their results. on_check: called after each."""
    found = []
    for name in names:
        found.append(checked(name, SITE_CHECKS[name], target))
        on_check()
    return found
