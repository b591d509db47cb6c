"""The planted faults, and the checks that find them: an audit of the audit.

Every fault is the real server with one thing wrong; the same server without faults passes every check.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from dpfbo.audit import bounds
from dpfbo.audit.bounds import Verdict
from dpfbo.audit.faulty import accountants, mechanisms, prior_faults, rare_mechanisms, servers
from dpfbo.audit.server import two_world
from dpfbo.audit.server.examine import CHECKS, examine
from dpfbo.audit.server.repeated_rounds import CheckResult
from dpfbo.audit.server.target import Target, seeded
from dpfbo.federated.mechanism import SubsampledGaussian
from dpfbo.federated.schedule import Steps
from dpfbo.federated.server import Server
from dpfbo.federated.weights.decay import Decay
from dpfbo.federated.weights.softmax import Softmax
from dpfbo.privacy.accounting import Accountant
from dpfbo.privacy.accounting.pld import Pld
from dpfbo.privacy.budget import Budget, EpsilonCurve
from dpfbo.privacy.ledger import Ledger
from dpfbo.space.regions import Regions

TWO_WORLDS = "two worlds"
N, P, M, ROUNDS, DELTA = 12, 3, 12, 2, 1e-2
Q, Z, S = 0.5, 1.0, 2.0
PLD = Pld()
BUDGET = 2.0  # epsilon, enough for one of the two rounds


@dataclass(frozen=True)
class Fault:
    """A server with one thing wrong. words: its description."""

    words: str
    target: Target


@dataclass(frozen=True)
class Caught:
    """The audit's findings on one server. verdict: from the two worlds; None where they were not replayed."""

    words: str
    findings: tuple[CheckResult, ...]
    verdict: Verdict | None

    @property
    def by(self) -> tuple[str, ...]:
        """The names of the checks that fail."""
        found = [f.check for f in self.findings if not f.holds]
        return (*found, *([TWO_WORLDS] if self.verdict is not None and not self.verdict.holds else []))


def sound(
    mechanism: SubsampledGaussian | None = None,
    kind: type[Server] = Server,
    budget: bool = False,
    n_agents: int = N,
    rounds: int = ROUNDS,
    accountant: Accountant = PLD,
) -> Target:
    """A small server with exactly the claimed noise; weights are concentrated before the last round, uniform in it."""
    curve = EpsilonCurve(accountant, [], DELTA)
    server = kind(
        n_agents, M, Regions(P, 2), Softmax(Decay(rounds - 1)), mechanism or SubsampledGaussian(Q, Z, S, "tight"),
        seeded("faults"), Ledger(), curve,
        budget=Budget(BUDGET, EpsilonCurve(accountant, [], DELTA), "stop") if budget else None,
    )  # fmt: skip
    return Target(server, rounds, accountant, DELTA)


def planted() -> dict[str, Fault]:
    """Every fault, by name."""
    tight, uneven = (Q, Z, S, "tight"), SubsampledGaussian(Q, Z, S, "tight")
    of_mechanisms: dict[str, tuple[str, SubsampledGaussian]] = {
        "noise halved": ("half the claimed standard deviation", replace(uneven, noise=mechanisms.HalfNoise())),
        "no clipping": ("messages are summed as they come", mechanisms.NoClipping(*tight)),
        "divide by subset size": ("a mean over those chosen, no sum over q", mechanisms.DividesBySubset(*tight)),
        "bare when empty": ("no noise when S_t is empty", mechanisms.BareWhenEmpty(*tight)),
        "uniform when empty": ("a uniform vector when S_t is empty", mechanisms.UniformWhenEmpty(*tight)),
        "q halved": ("the ledger has half the sampling probability", mechanisms.HalfQ(*tight)),
        "effective on tight": ("effective z_t charged, noise tight already", mechanisms.EffectiveOnTight(*tight)),
        "NaN passed": ("a NaN message makes the sum NaN", mechanisms.PassesNaN(*tight)),
        "scaled after clipping": ("clipped messages are doubled", mechanisms.ScalesAfterClipping(*tight)),
        "clip by region": ("clipped to S, not to S / sqrt(P)", mechanisms.ClipsByRegion(*tight)),
        "clip by entry": ("the largest entry is clipped, not the norm", mechanisms.ClipsByEntry(*tight)),
        "norm of the sum": ("the sum is normalised, not each message", mechanisms.NormOfTheSum(*tight)),
        "average weight": ("sensitivity from the mean of the weights", mechanisms.AverageWeight(*tight)),
        "noise by messages": ("noise fitted to the longest message sent", mechanisms.NoiseByMessages(*tight)),
        "bare when rejected": ("no noise when a message was unusable", mechanisms.BareWhenRejected(*tight)),
        "noise in one region": ("the other regions have none", replace(uneven, noise=mechanisms.FirstRegionNoise())),
        "noise shared": ("the same noise in every region", replace(uneven, noise=mechanisms.SharedNoise())),
        "noise repeated": ("the same noise in every round", replace(uneven, noise=mechanisms.SameNoise())),
        "noise not Gaussian": ("uniform, of the claimed deviation", replace(uneven, noise=mechanisms.UniformNoise())),
        "noise of the choice": (
            "noise and S_t of the same draws",
            replace(uneven, noise=mechanisms.NoiseOfTheChoice()),
        ),
        "schedule on paper": (
            "2z charged by schedule, z applied",
            mechanisms.ScheduleOnPaper(*tight, schedule=Steps([2.0])),
        ),
        "chosen together": ("one draw chooses all agents or none", mechanisms.OneDraw(*tight)),
        "same subset": ("S_t is drawn once for all rounds", mechanisms.SameSubset(*tight)),
        "longest chosen": ("S_t are those with the longest messages", mechanisms.LongestChosen(*tight)),
        "fixed size as Poisson": ("half of the agents chosen, q = 0.5 charged", mechanisms.FixedSizeAsPoisson(*tight)),
    }
    rare = SubsampledGaussian(0.05, Z, S, "tight")
    stepped = SubsampledGaussian(Q, Z, S, "tight", schedule=Steps([2.0, 1.0]))
    of_servers: dict[str, tuple[str, Target]] = {
        "one round free": ("round 1 is not charged", sound(kind=servers.OneRoundFree)),
        "empty rounds free": ("a round with an empty S_t is not charged", sound(rare, servers.EmptyRoundsFree)),
        "priced as the first": ("every round charged as round 0", sound(stepped, servers.ChargesTheFirstRound)),
        "uncharged on error": ("broadcast although the charge failed", sound(kind=servers.GoesOnUncharged)),
        "budget ignored": ("broadcasts go on beyond the budget", sound(kind=servers.NoBudget, budget=True)),
    }
    others = of_servers | _rare() | prior_faults.planted()
    return {
        **{name: Fault(words, sound(mechanism)) for name, (words, mechanism) in of_mechanisms.items()},
        **{name: Fault(words, target) for name, (words, target) in others.items()},
    }


def _rare() -> dict[str, tuple[str, Target]]:
    """The faults that one agent of many, a later round or many draws bring out."""
    tight, plain, rare = (Q, Z, S, "tight"), SubsampledGaussian(Q, Z, S, "tight"), rare_mechanisms
    long, many = partial(sound, rounds=8), partial(sound, n_agents=200, rounds=3)
    growing = Steps([1.0, 1.0, 1.0, 1.2, 1.2, 1.5])
    return {
        "chosen 2 % too often": (
            "q is 2 % larger than charged", many(rare.ChosenTooOften(*tight, excess=0.02))
        ),
        "chosen 5 % too often": ("the same by 5 %, with 12 agents", sound(rare.ChosenTooOften(*tight, excess=0.05))),
        "one size of many": (
            "100 of 200 agents chosen, q = 0.5 charged", many(mechanisms.FixedSizeAsPoisson(*tight))
        ),
        "noise of an earlier round": (
            "odd rounds from 3 on repeat the noise of the one two before",
            long(replace(plain, noise=rare.NoiseOfAnEarlierRound())),
        ),
        "S_t of an earlier round": ("the same of the choice", long(rare.ChoiceOfAnEarlierRound(*tight))),
        "one agent unclipped": ("agent 57 of 200 is not clipped", many(rare.OneAgentUnclipped(*tight))),
        "later agents doubled": (
            "agents from 100 on are clipped to 2 S", many(rare.LaterAgentsDoubled(*tight))
        ),
        "centred before clipping": (
            "the mean of all chosen messages is subtracted", sound(rare.CentredBeforeClipping(*tight))
        ),
        "bare feature": ("one feature of twelve has no noise", sound(replace(plain, noise=rare.BareFeature()))),
        "noise truncated": ("none beyond four deviations", sound(replace(plain, noise=rare.TruncatedNoise()))),
        "noise in single precision": (
            "its low bits are zero", sound(replace(plain, noise=rare.SingleNoise()))
        ),
        "uniforms in single precision": (
            "noise made of 24 bits", sound(replace(plain, noise=rare.SingleUniforms()))
        ),
        "signs of the first region": (
            "region 1 has the noise of region 0, with random signs",
            sound(replace(plain, noise=rare.SignsOfTheFirstRegion())),
        ),
        "tight as paper later": (
            "round 2 has noise of the tight sensitivity, effective z_t charged",
            long(rare.TightAsPaperLater(Q, Z, S, charge="effective")),
        ),
        "multiplier of the next round": (
            "from round 2 on each is charged at the next one's z",
            long(rare.MultiplierOfTheNextRound(*tight, schedule=growing)),
        ),
        "charge of the next round": (
            "z and sigma of the ledger are the next round's",
            long(replace(plain, schedule=growing), servers.ChargesTheNextRound),
        ),
        "plan reported": ("records have the epsilon of the plan", sound(kind=servers.ReportsThePlan)),
        "sum kept": ("the checkpoint holds the sum without noise", sound(kind=servers.KeepsTheSum)),
        "accountant optimistic": ("epsilon 2 % too small", sound(accountant=accountants.Optimistic())),
        "accountant one round short": ("the last round left out", sound(accountant=accountants.OneRoundShort())),
        "accountant one-sided": ("one order of the two worlds", sound(accountant=accountants.OneSided())),
        "accountant of another delta": ("twice the delta", sound(accountant=accountants.AnotherDelta())),
        "curve one round short": ("records one round behind", sound(accountant=accountants.OptimisticCurve())),
    }  # fmt: skip


def sound_ones() -> dict[str, Target]:
    """The sound servers that the faulty ones derive from: no check may fail on them."""
    stepped = SubsampledGaussian(Q, Z, S, "tight", schedule=Steps([2.0, 1.0]))
    return {
        "sound": sound(),
        "sound, hardly ever chosen": sound(SubsampledGaussian(0.05, Z, S, "tight")),
        "sound, with a schedule": sound(stepped),
        "sound, with a budget": sound(budget=True),
        "sound, a private prior": prior_faults.sound(),
    }


def catch(
    words: str, target: Target, trials: int = 0, seed: int = 0, on_step: Callable[[], None] = lambda: None
) -> Caught:
    """Run all checks on a target, and the two worlds if `trials` > 0. on_step: called after each check and trial."""
    findings = tuple(examine(target, seed, on_step))
    if not trials:
        return Caught(words, findings, None)
    replayed = two_world.replay(target, two_world.Canary.of(target), trials, seed, on_trial=on_step)
    return Caught(words, findings, bounds.verdict(replayed.without, replayed.with_message, replayed.claim))


def table(rows: Mapping[str, Caught], words: bool = False) -> list[list[str]]:
    """Faults x checks, with a header: x where the check finds the fault, - where it was not run.

    words: add each fault's description to its name.
    """
    checks = (*CHECKS, TWO_WORLDS)
    titles = {name: f"{name}: {row.words}" if words and row.words else name for name, row in rows.items()}
    return [["fault", *checks], *([titles[name], *(_cell(row, c) for c in checks)] for name, row in rows.items())]


def _cell(row: Caught, check: str) -> str:
    if check == TWO_WORLDS and row.verdict is None:
        return "-"
    return "x" if check in row.by else ""


def markdown(rows: Mapping[str, Caught]) -> str:
    """The table in Markdown."""
    head, *cells = table(rows, words=True)
    lines = [head, ["---", *[":-:"] * (len(head) - 1)], *cells]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
