"""The privacy plan: epsilon by every accountant, budgets, calibration, and one sentence for bad plans."""

import subprocess
import sys
from dataclasses import replace

import pytest

from dpfbo.checks import SettingError
from dpfbo.privacy.accounting import ACCOUNTANTS, UnsupportedEvent, accountant_named
from dpfbo.privacy.accounting.analytic_gaussian import AnalyticGaussian
from dpfbo.privacy.accounting.events import round_event
from dpfbo.privacy.accounting.gdp import Gdp
from dpfbo.privacy.accounting.pld import Pld
from dpfbo.privacy.accounting.rdp import Rdp
from dpfbo.privacy.plan import PrivacyPlan, analysing

DELTA = 1e-3
SIX = [round_event(0.3, 1.5)] * 6
SUBSETS = [round_event(0.5, 2.0, (5, 10))] * 2


def plan(events=SIX, chosen="pld", names=None):
    return PrivacyPlan(events, DELTA, analysing(events, chosen, names), chosen, "all of it")


def test_epsilon_is_that_of_each_accountant():
    p = plan()
    assert list(p.accountants) == ["moments", "rdp", "pld"]  # gdp is an approximation, fixed_size has another relation
    for name, epsilon in p.totals().items():
        assert epsilon == accountant_named(name).epsilon(SIX, DELTA)
        assert p.epsilons()[name] == pytest.approx(epsilon, abs=1e-6)
    assert p.epsilon(SIX[:2]) == Pld().curve(SIX, DELTA)[1] == p.epsilons(SIX[:2])["pld"]
    assert p.epsilon() == p.epsilon(SIX) == p.epsilons()["pld"] == pytest.approx(p.totals()["pld"], abs=1e-6)
    assert p.epsilons([]) == replace(p, events=[]).totals() == {"moments": 0.0, "rdp": 0.0, "pld": 0.0}
    assert set(replace(p, events=[], epsilon_of_nothing=None).totals().values()) == {None}
    assert (p.relation, p.covers, p.approximations) == ("zero-out", "all of it", [])


def test_no_finite_epsilon_is_none():
    assert set(plan([round_event(1.0, None)]).epsilons().values()) == {None}


def test_outsourced_releases_have_the_accountant_of_their_relation():
    by = AnalyticGaussian("one row replaced")
    p = PrivacyPlan([round_event(1.0, 2.0)], DELTA, {"analytic_gaussian": by}, "analytic_gaussian", "the release")
    assert p.epsilons() == p.totals() == {"analytic_gaussian": by.epsilon(p.events, DELTA)}
    assert p.relation == "one row replaced"


def test_accountants_that_can_analyse():
    assert list(analysing(SIX)) == ["moments", "rdp", "pld", "gdp"]
    assert list(analysing(SUBSETS)) == ["fixed_size"]
    assert list(analysing([round_event(1.0, None)], "fixed_size")) == ["fixed_size"]  # the chosen one's relation counts
    assert analysing([*SIX, *SUBSETS]) == {}
    assert analysing(SIX, "gdp", ["pld", "gdp"]) == {"pld": Pld(), "gdp": Gdp()}
    assert analysing(SIX, "rdp", ["rdp"]) == {"rdp": Rdp()}
    with pytest.raises(UnsupportedEvent, match="cannot analyse"):
        analysing(SUBSETS, "pld")
    with pytest.raises(SettingError, match="accountant must be one of 'rdp', got 'pld'"):
        analysing(SIX, "pld", ["rdp"])
    with pytest.raises(
        SettingError, match="accountant must be one of 'moments', 'rdp', 'pld', 'gdp', 'fixed_size', got 'exact'"
    ):
        accountant_named("exact")


def test_a_budget_pays_for_the_first_releases():
    limit = plan().epsilon(SIX[:4]) * (1 + 1e-9)
    p = plan().limited(limit, when_spent="stop")
    assert len(p.events) == p.affordable() == 4
    assert p.budget.allows(SIX[:4]) and not p.budget.allows(SIX[:5])
    assert p.affordable(spent=SIX[:3], done=0) == 1  # charges of an earlier run count
    assert p.affordable(spent=SIX[:3], done=3) == 4
    assert len(plan().limited(100.0).events) == plan().affordable() == 6
    assert len(plan().limited(limit, delta=1e-6).events) < 4


@pytest.mark.parametrize(
    ("make", "name", "says"),
    [
        (lambda: plan(chosen="gdp").limited(1.0), "budget", "needs an accountant whose epsilon is a guarantee"),
        (lambda: plan().limited(0.0), "epsilon", "must be a finite number above 0, got 0.0"),
        (lambda: plan().limited(1.0, 2.0), "delta", "must lie in (0, 1), got 2.0"),
        (lambda: plan().limited(1.0, when_spent="beg"), "when_spent", "must be one of 'refuse', 'stop', got 'beg'"),
        (lambda: PrivacyPlan(SIX, 0.0, {"pld": Pld()}, "pld", ""), "delta", "must lie in (0, 1), got 0.0"),
        (lambda: PrivacyPlan(SIX, DELTA, {"pld": Pld()}, "rdp", ""), "accountant", "must be one of 'pld', got 'rdp'"),
    ],
)
def test_a_bad_plan_is_one_sentence_in_the_librarys_words(make, name, says):
    with pytest.raises(SettingError) as error:
        make()
    assert error.value.name == name
    assert error.value.rule.startswith(says)


class Linear:
    """Half an epsilon an event."""

    relation, approximation = "any", False

    def curve(self, events, delta):
        return [0.5 * (k + 1) for k in range(len(events))]

    def epsilon(self, events, delta):
        return 0.5 * len(events)


class TestCalibrate:
    def cost(self, q=0.3, z=1.5, T=6):
        return Rdp().epsilon([round_event(q, z)] * T, DELTA)

    def test_noise(self):
        p, events_of = plan((), "rdp"), lambda z: [round_event(0.3, z)] * 6
        z = p.calibrate_noise(events_of, 2.0)
        assert self.cost(z=z) <= 2.0 < self.cost(z=z * 0.999)
        asked = []
        assert p.calibrate_noise(lambda z: asked.append(z) or events_of(z), 2.0, guess=z) == z
        assert len(asked) == 2
        assert p.calibrate_noise(events_of, 2.0, guess=z + 1) == z

    def test_sampling(self):
        q = plan((), "rdp").calibrate_sampling(lambda q: [round_event(q, 1.5)] * 6, 2.0)
        assert self.cost(q=q) <= 2.0 < self.cost(q=q * 1.001)

    def test_rounds(self):
        p, events_of = plan((), "rdp"), lambda T: [round_event(0.3, 1.5)] * T
        T = p.calibrate_rounds(events_of, 2.0)
        assert self.cost(T=T) <= 2.0 < self.cost(T=T + 1)

    def test_no_round_gets_less_than_the_smallest_noise(self):
        """All multipliers cost the same: the smallest with z_t >= 0.01 in each round is found."""
        p = PrivacyPlan((), DELTA, {"linear": Linear()}, "linear", "")
        for least, z in ((1.0, 0.01), (0.5, 0.02), (4.0, 0.01)):
            for guess in (None, 0.01, z):
                assert p.calibrate_noise(lambda z: range(1), 2.0, least, guess) == z

    def test_as_many_rounds_as_are_paid_for(self):
        """Half an epsilon a round."""
        p = PrivacyPlan((), DELTA, {"linear": Linear()}, "linear", "")
        for target, T in ((0.5, 1), (31.5, 63), (32.0, 64), (100.25, 200), (1000.0, 2000)):
            assert p.calibrate_rounds(range, target) == T


def test_accountants_are_imported_when_they_are_asked_for():
    """An agent's process plans nothing: it needs neither SciPy nor dp-accounting."""
    code = "import sys, dpfbo.privacy.plan; print({'dp_accounting', 'scipy', 'dpfbo.federated'} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "set()\n"
    assert all(accountant_named(name).relation for name in ACCOUNTANTS)
