"""Where no server is trusted, the audit attacks the release without the noise that is missing or known."""

from dataclasses import dataclass
from functools import cache

import pytest
import torch

from dpfbo.audit.server.colluders import attacked_view, held_sum, worst_case
from dpfbo.audit.server.examine import examine
from dpfbo.audit.server.target import seeded
from dpfbo.audit.server.two_world import replay
from dpfbo.federated.distributed import DistributedGaussian
from dpfbo.privacy.distributed import BITS, DistributedNoise
from tests.planted import prior

N, Z, DROPOUTS, COLLUDERS = prior.N, 1.0, 3, 2
SETTINGS = (1.0, Z, prior.S)


@dataclass(frozen=True)
class WithoutMargin(DistributedGaussian):
    """Every site adds the variance over N, not over what is left of honest survivors."""

    def share(self, agent, n_agents, M, entropy, round):
        return DistributedNoise(n_agents).share(agent, self.scale(n_agents, M, round), M, entropy, round)


@dataclass(frozen=True)
class SharesOfOneSite(DistributedGaussian):
    """All sites add the same noise share."""

    def share(self, agent, n_agents, M, entropy, round):
        return super().share(0, n_agents, M, entropy, round)


@cache
def attacked(kind=DistributedGaussian, **more):
    more = more or {"max_dropouts": DROPOUTS, "colluders": COLLUDERS}
    return worst_case(prior.sound(kind(*SETTINGS, **more)))


def test_no_check_finds_anything_in_the_sound_server():
    assert [(f.check, f.words) for f in examine(attacked()) if not f.holds] == []


def test_the_view_is_the_release_without_the_shares_of_missing_and_colluding_sites():
    real = prior.sound(DistributedGaussian(*SETTINGS, max_dropouts=DROPOUTS, colluders=COLLUDERS))
    messages = real.agents.first_turn().messages
    (whole, charged), (seen, as_seen) = (t.run_round(seeded(0), 0, messages) for t in (real, attacked()))
    M = real.shape[2]
    known = sum(real.mechanism.share(n, N, M, seeded(0), 0) for n in range(N - DROPOUTS - COLLUDERS, N))
    assert torch.allclose((whole - seen)[0], known.double() * 2.0**-BITS / N, atol=1e-12, rtol=0)
    assert known.any()
    sensitivity = real.mechanism.sum_sensitivity(N, M) / N
    assert as_seen.charges[0].sigma == pytest.approx(Z * sensitivity, rel=1e-12)
    assert charged.charges[0].sigma > 1.3 * as_seen.charges[0].sigma
    assert as_seen.charges[0].event() == charged.charges[0].event()


def test_the_bound_reaches_a_stated_part_of_the_claim_and_not_more():
    """The limits of `test_prior`'s trusted server, whose noise is the same: claim 2.32, 0.55 of it on average."""
    found = replay(attacked(), 2000).verdict
    assert 0.3 * found.claim.epsilon < found.epsilon < found.claim.epsilon
    assert found.holds


@pytest.mark.parametrize("kind", [WithoutMargin, SharesOfOneSite])
def test_faults_of_the_shares_are_found(kind):
    assert not examine(attacked(kind), names=["noise"])[0].holds


def test_the_bound_finds_shares_without_the_margin_by_itself():
    assert not replay(attacked(WithoutMargin, max_dropouts=5, colluders=1), 1000).holds


def test_a_sum_is_held_whatever_is_sent():
    values = torch.linspace(-1, 1, attacked().shape[2], dtype=torch.float64)[None]
    held = attacked().with_mechanism(held_sum(attacked().mechanism, values))
    for size in (0.0, 1e6):
        released, ledger = held.run_round(seeded(size), 0, torch.full((N, values.shape[1]), size).double())
        assert torch.equal(released, values)
        assert ledger.charges[0].sigma == attacked().run_round(seeded(1), 0, None)[1].charges[0].sigma


def test_the_report_says_what_is_attacked():
    assert attacked_view(prior.sound()) is None
    assert attacked_view(attacked()) == (
        "the sum with the noise shares of 7 of 12 sites, without those of 3 missing and 2 colluding ones"
    )
