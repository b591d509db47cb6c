"""`pld`, and the bounds that the audit judges accountants by, against an integration that shares no code with them."""

import pytest

from dpfbo.audit.server.claims import epsilon_interval
from dpfbo.privacy.accounting.events import round_event
from dpfbo.privacy.accounting.pld import Pld
from tests.dpfbo.privacy.accounting import integrated_loss

CASES = [
    (((1.0, 1.0), 1),),
    (((0.5, 1.0), 2),),
    (((0.1, 0.8), 10),),
    (((0.35, 1.0), 60),),
    (((0.02, 0.5), 40),),
    (((0.5, 1.0), 1), ((0.3, 2.0), 3)),
]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("delta", [1e-2, 1e-5])
def test_pld_lies_above_the_exact_epsilon_and_close_to_it(case, delta):
    events = [round_event(q, z) for (q, z), count in case for _ in range(count)]
    pld = Pld().epsilon(events, delta)
    exact = integrated_loss.epsilon_interval(case, delta, pld, opposite=False)
    assert exact.lower <= pld <= 1.005 * exact.upper
    if len(events) > 1:
        assert Pld().epsilon(events[:-1], delta) < exact.lower, "one round short is seen"


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("opposite", [False, True])
def test_the_bounds_of_the_audit_hold(case, opposite):
    guess = Pld().epsilon([round_event(q, z) for (q, z), count in case for _ in range(count)], 1e-3)
    exact = integrated_loss.epsilon_interval(case, 1e-3, guess, opposite)
    lower, upper = epsilon_interval(case, 1e-3, guess, opposite)
    assert lower <= exact.upper and exact.lower <= upper
    assert lower == pytest.approx(exact.lower, rel=0.01)
