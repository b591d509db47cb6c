"""The audit of a secure sum finds every planted fault of its sites, and nothing in sound ones."""

from pathlib import Path

import numpy as np
import pytest

from dpfbo.audit.findings import ERROR, ClaimBroken
from dpfbo.audit.secure import curious
from dpfbo.audit.secure.examine import SITE_CHECKS, examine_sites
from dpfbo.audit.secure.sums import SumRun
from dpfbo.secure.site import SumSite
from tests.planted import faults, secure

PAGE = Path(__file__).parents[3] / "docs" / "results" / "planted-faults.md"
HEAD = f"| fault | {' | '.join(SITE_CHECKS)} |"


def shown():
    """The table of sites in docs/results/planted-faults.md: by name, the checks that find a fault."""
    lines = PAGE.read_text().partition(HEAD)[2].splitlines()[2:]
    table = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("|")]
    rows = {cells[0].partition(":")[0]: cells[1:] for cells in table}
    return {name: [c for c, x in zip(SITE_CHECKS, cells, strict=True) if x] for name, cells in rows.items()}


@pytest.mark.parametrize("name", secure.sound_ones())
def test_no_check_finds_anything_in_sound_sites(name):
    assert [(f.check, f.words) for f in examine_sites(secure.sound_ones()[name]) if not f.holds] == []
    assert shown()[name] == []


@pytest.mark.parametrize("name", faults.planted_in_sites())
def test_every_planted_fault_is_found_by_the_checks_that_the_page_shows(name):
    fault, names = faults.planted_in_sites()[name], shown()[name]
    assert names
    assert [f.check for f in examine_sites(fault.target, names=names) if not f.holds] == names


def test_every_check_finds_some_fault():
    assert {check for names in shown().values() for check in names} == set(SITE_CHECKS)


@pytest.mark.slow
def test_the_page_shows_what_the_checks_find():
    for name, fault in faults.planted_in_sites().items():
        assert faults.found_by(fault.target) == set(shown()[name]), name
        assert f"| {name}: {fault.words} |" in PAGE.read_text()


def test_the_bare_pair_is_named():
    (finding,) = examine_sites(faults.planted_in_sites()["one pair bare"].target, names=["masks"])
    assert "the mask of sites 1 and 3, attempt 1: p = 0" in finding.words


def test_uniform_numbers_pass_and_bytes_off_by_15_percent_are_found():
    """Among 10^4 numbers, in at least 36 of 40 draws, as the page states."""
    random = np.random.default_rng(0)
    sound = [p for _ in range(200) for _, p in curious._uniform(random.integers(0, 2**32, 10_000, dtype=np.uint32))]
    assert min(sound) > 1e-5 and 0.4 < np.mean(sound) < 0.6
    p = (1 + 0.15 * (-1.0) ** np.arange(256)) / 256
    drawn = [random.choice(256, 10_000, p=p).astype(np.uint32) for _ in range(40)]
    assert sum(dict(curious._uniform(numbers))["byte 0"] < ERROR / 14 for numbers in drawn) >= 36


@pytest.mark.parametrize("size", [7, 100, 2000])
def test_equal_masks_are_found_among_many_vectors(size):
    """One difference of equal masks among 200 that are uniform."""
    random = np.random.default_rng(0)
    rows = random.integers(0, 2**32, (200, size), dtype=np.uint32)
    assert curious._near(rows) > 1e-3
    rows[17] = random.integers(-(2**17), 2**17, size).astype(np.uint32)
    assert curious._near(rows) < ERROR / 10 and curious._nearest(rows) == 17


def test_a_site_that_ends_with_an_error_is_a_finding():
    class Stumbles(SumSite):
        def _unmask(self, request):
            return {"self": request.payload["signatures"]["99"]}

    (finding,) = examine_sites(secure.sound(Stumbles), names=["signed survivors"])
    assert not finding.holds and finding.words == "site 0 ends step unmask with KeyError: '99'"


def test_a_sum_that_fails_is_a_finding():
    class Silent(SumSite):
        def respond(self, data):
            return b"nothing"

    with pytest.raises(ClaimBroken, match="a site's answer cannot be read: the bytes must begin with"):
        SumRun(secure.sound(Silent)).until("shares")
