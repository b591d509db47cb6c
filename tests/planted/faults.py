"""The planted faults, and the checks that find them: an audit of the audit.

Every fault is the real server, or a real site of a secure sum, with one thing wrong; without it every check passes.
"""

from dataclasses import dataclass
from functools import partial

from dpfbo.audit.secure.examine import examine_sites
from dpfbo.audit.secure.sums import SumTarget
from dpfbo.audit.server.examine import CHECKS, examine
from dpfbo.audit.server.target import Target, seeded
from dpfbo.audit.server.two_world import replay
from dpfbo.federated.mechanism import SubsampledGaussian
from dpfbo.federated.schedule import Steps
from dpfbo.federated.server import Server
from dpfbo.federated.weights.decay import Decay
from dpfbo.federated.weights.softmax import Softmax
from dpfbo.privacy.accounting.pld import Pld
from dpfbo.privacy.budget import Budget, EpsilonCurve
from dpfbo.privacy.ledger import Ledger
from dpfbo.space.regions import Regions
from tests.planted import accountants, mechanisms, noise, prior, secure, servers
from tests.planted.noise import FaultyNoise

TWO_WORLDS = "two worlds"
N, P, M, ROUNDS, DELTA = 12, 3, 12, 2, 1e-2
Q, Z, S = 0.5, 1.0, 2.0
TIGHT = (Q, Z, S, "tight")
PLD = Pld()
BUDGET = 2.0  # epsilon, enough for one of the two rounds
STEPPED = SubsampledGaussian(*TIGHT, schedule=Steps([2.0, 1.0]))
RARE = SubsampledGaussian(0.05, Z, S, "tight")
GROWING = Steps([1.0, 1.0, 1.0, 1.2, 1.2, 1.5])


@dataclass(frozen=True)
class Fault:
    """A server, or sites of a secure sum, with one thing wrong. words: its description."""

    words: str
    target: Target | SumTarget


def sound(mechanism=None, kind=Server, budget=False, n_agents=N, rounds=ROUNDS, accountant=PLD):
    """A small server with exactly the claimed noise; weights are concentrated before the last round, uniform in it."""
    curve = EpsilonCurve(accountant, [], DELTA)
    server = kind(
        n_agents, M, Regions(P, 2), Softmax(Decay(rounds - 1)), mechanism or SubsampledGaussian(*TIGHT),
        seeded("faults"), Ledger(), curve,
        budget=Budget(BUDGET, EpsilonCurve(accountant, [], DELTA), "stop") if budget else None,
    )  # fmt: skip
    return Target(server, rounds, accountant, DELTA)


def sound_ones():
    """The sound servers that the faulty ones derive from, by name: no check may fail on them."""
    return {
        "sound": sound(), "sound, agents rarely chosen": sound(RARE), "sound, with a schedule": sound(STEPPED),
        "sound, with a budget": sound(budget=True), "sound, a private prior": prior.sound(),
    }  # fmt: skip


def planted():
    """Every fault, by name."""
    found = [*_of_mechanisms(), *_of_noise(), *_of_choice(), *_of_charges(), *prior.planted()]
    return {name: Fault(words, target) for name, words, target in found}


def planted_in_sites():
    """Every fault of the sites of a secure sum, by name."""
    return {name: Fault(words, target) for name, words, target in secure.planted()}


many, long = partial(sound, n_agents=200, rounds=3), partial(sound, rounds=8)


def _noisy(add):
    return SubsampledGaussian(*TIGHT, noise=FaultyNoise(add))


def _of_mechanisms():
    m = mechanisms
    bad = {
        "no clipping": ("messages are summed as they come", m.NoClipping),
        "divide by subset size": ("the sum is divided by the number of chosen agents, not by q", m.DividesBySubset),
        "bare when empty": ("no noise when S_t is empty", m.BareWhenEmpty),
        "uniform when empty": ("a uniform vector when S_t is empty", m.UniformWhenEmpty),
        "q halved": ("the ledger has half the sampling probability", m.HalfQ),
        "tight as paper": (
            "noise for the exact (tight) sensitivity, charged as if it were for the paper's bound",
            m.EffectiveOnTight,
        ),
        "NaN passed": ("a NaN message makes the sum NaN", m.PassesNaN),
        "scaled after clipping": ("clipped messages are doubled", m.ScalesAfterClipping),
        "clip by region": ("clipped to S, not to S / sqrt(P)", m.ClipsByRegion),
        "clip by entry": ("the largest entry is clipped, not the norm", m.ClipsByEntry),
        "norm of the sum": ("the sum is normalised, not each message", m.NormOfTheSum),
        "average weight": ("sensitivity from the mean of the weights", m.AverageWeight),
        "noise by messages": ("noise fitted to the longest message sent", m.NoiseByMessages),
        "bare when rejected": ("no noise when a message was unusable", m.BareWhenRejected),
        "centred before clipping": ("the mean of all chosen messages is subtracted", m.CentredBeforeClipping),
    }
    for name, (words, kind) in bad.items():
        yield name, words, sound(kind(*TIGHT))
    yield "one agent unclipped", "agent 57 of 200 is not clipped", many(m.OneAgentUnclipped(*TIGHT))
    yield "later agents doubled", "agents from 100 on are clipped to 2 S", many(m.LaterAgentsDoubled(*TIGHT))


def _of_noise():
    bad = {
        "noise halved": ("half the claimed standard deviation", noise.half),
        "noise in one region": ("the other regions have none", noise.first_region_alone),
        "noise shared": ("the same noise in every region", noise.shared_by_regions),
        "noise repeated": ("the same noise in every round", noise.same_in_every_round),
        "noise not Gaussian": ("uniform, of the claimed deviation", noise.uniform),
        "noise of the choice": ("noise and S_t are made of the same draws", noise.of_the_choice),
        "bare feature": ("one feature of twelve has no noise", noise.one_bare_feature),
        "noise truncated": ("none beyond four deviations", noise.truncated),
        "noise in single precision": ("its low bits are zero", noise.in_single_precision),
        "uniforms in single precision": ("noise made of 24 bits", noise.of_single_uniforms),
        "signs of the first region": (
            "region 1 has the noise of region 0, with random signs", noise.signs_of_the_first_region,
        ),
    }  # fmt: skip
    for name, (words, add) in bad.items():
        yield name, words, sound(_noisy(add))
    words = "odd rounds from 3 on repeat the noise of the round two before"
    yield "noise of an earlier round", words, long(_noisy(noise.repeated_in_odd_rounds))


def _of_choice():
    m = mechanisms
    half = "half of the agents chosen, q = 0.5 charged"
    return [
        ("chosen together", "one draw chooses all agents or none", sound(m.OneDraw(*TIGHT))),
        ("same subset", "S_t is drawn once for all rounds", sound(m.SameSubset(*TIGHT))),
        ("longest chosen", "S_t are those with the longest messages", sound(m.LongestChosen(*TIGHT))),
        ("S_t of an earlier round", "odd rounds repeat an earlier S_t", long(m.ChoiceOfAnEarlierRound(*TIGHT))),
        ("fixed size as Poisson", half, sound(m.FixedSizeAsPoisson(*TIGHT))),
        ("fixed size, 200 agents", "100 of them chosen, q = 0.5 charged", many(m.FixedSizeAsPoisson(*TIGHT))),
        ("chosen 2 % too often", "q is 2 % larger than charged", many(m.ChosenTooOften(*TIGHT, excess=0.02))),
        ("chosen 5 % too often", "5 % larger q than charged, 12 agents", sound(m.ChosenTooOften(*TIGHT, excess=0.05))),
    ]


def _of_charges():
    """Faults of the price, the ledger, the record, what is kept, and the accountant."""
    m, a, s = mechanisms, accountants, servers
    doubled, stepwise = Steps([2.0]), SubsampledGaussian(*TIGHT, schedule=GROWING)
    later = long(m.TightAsPaperLater(Q, Z, S, charge="effective"))
    next_multiplier = long(m.MultiplierOfTheNextRound(*TIGHT, schedule=GROWING))
    return [
        ("schedule on paper", "2z charged by schedule, z applied", sound(m.ScheduleOnPaper(*TIGHT, schedule=doubled))),
        ("tight as paper later", "round 2 has too little noise: see tight as paper", later),
        ("multiplier of the next round", "from round 2 on, each is charged at the z of the next", next_multiplier),
        (
            "charge of the next round", "z and sigma of the ledger are the next round's",
            long(stepwise, s.ChargesTheNextRound),
        ),
        ("one round free", "round 1 is not charged", sound(kind=s.OneRoundFree)),
        ("empty rounds free", "a round with an empty S_t is not charged", sound(RARE, s.EmptyRoundsFree)),
        ("priced as the first", "every round charged as round 0", sound(STEPPED, s.ChargesTheFirstRound)),
        ("uncharged on error", "broadcast although the charge failed", sound(kind=s.GoesOnUncharged)),
        ("budget ignored", "broadcasts go on beyond the budget", sound(kind=s.NoBudget, budget=True)),
        ("plan reported", "records have the epsilon of the plan", sound(kind=s.ReportsThePlan)),
        ("sum kept", "the checkpoint holds the sum without noise", sound(kind=s.KeepsTheSum)),
        ("accountant optimistic", "epsilon 2 % too small", sound(accountant=a.Optimistic())),
        ("accountant one round short", "the last round left out", sound(accountant=a.OneRoundShort())),
        ("accountant one-sided", "only one order of the two worlds counts", sound(accountant=a.OneSided())),
        ("accountant of another delta", "twice the delta", sound(accountant=a.AnotherDelta())),
        ("curve one round short", "epsilon in the records is one round behind", sound(accountant=a.OptimisticCurve())),
    ]  # fmt: skip


def found_by(target, trials=0):
    """The names of the checks that fail on a target, the two worlds of a server among them if `trials` > 0."""
    if isinstance(target, SumTarget):
        return {f.check for f in examine_sites(target) if not f.holds}
    found = {f.check for f in examine(target) if not f.holds}
    if trials and not replay(target, trials).verdict.holds:
        found.add(TWO_WORLDS)
    return found


def markdown(rows, names=(*CHECKS, TWO_WORLDS)):
    """A table of the page: x where a check (a column) finds a fault (a row). rows: `found_by` by title."""
    lines = [["fault", *names], ["---", *[":-:"] * len(names)]]
    lines += [[title, *("x" if name in found else "" for name in names)] for title, found in rows.items()]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
