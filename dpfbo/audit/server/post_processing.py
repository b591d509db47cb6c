"""Everything that leaves a server of the private prior beside its release is computed from that release.

Under a release that is held the same whatever agents send, two broadcasts may not differ in a single bit; and each is
the one that anybody can compute from the released numbers, the charged noise and the public settings.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from dpfbo.audit.server.repeated_rounds import CheckResult, RepeatedRounds
from dpfbo.audit.server.target import seeded
from dpfbo.federated.broadcast import Broadcast, SharedPrior
from dpfbo.federated.mechanism import Messages
from dpfbo.federated.prior_server import PriorServer
from dpfbo.gp.design import Design
from dpfbo.privacy.entropy import Entropy
from dpfbo.privacy.noise import Noise

_NAME = "post-processing"


@dataclass(frozen=True)
class HeldRelease:
    """Noise that turns every sum into the same numbers. noise: the real noise, for its check and its inflation."""

    noise: Noise
    values: Tensor

    def check(self, sigma: float, sensitivity: float) -> None:
        self.noise.check(sigma, sensitivity)

    def inflation(self, size: int) -> float:
        return self.noise.inflation(size)

    def add(self, total: Tensor, sigma: float, sensitivity: float, entropy: Entropy, round: int) -> Tensor:
        return self.values.clone()


def public_server(server: PriorServer, clip_norm: float) -> PriorServer:
    """The server of the private prior that anybody can build from public settings: its design is drawn anew."""
    d = server.design
    design = Design(d.domain, d.regions, d.streams, d.n_init, d.kind)
    return PriorServer(server.server, server.model, design, server.features, clip_norm)


def post_processing(rounds: RepeatedRounds) -> CheckResult:
    """All that leaves is a function of the release and of public settings: equal releases make equal broadcasts."""
    target = rounds.audited
    if not isinstance(target.server, PriorServer):
        return CheckResult(_NAME, True, "the broadcast is the release and nothing else", 0.0, 0.0)
    compared = 0
    with torch.inference_mode(False):
        for t in sorted({0, min(1, target.rounds - 1), target.rounds - 1}):
            for words in _faults(rounds, target.server, t):
                if words:
                    return CheckResult(_NAME, False, words, math.inf, 0.0)
                compared += 1
    words = f"{compared} broadcasts with equal releases, each computed from the release and public settings bit for bit"
    return CheckResult(_NAME, True, words, 0.0, 0.0)


def _faults(rounds: RepeatedRounds, server: PriorServer, t: int) -> Iterator[str]:
    """The fault of each comparison in round t, in words; empty where there is none."""
    if words := _replayed(rounds, t):
        yield words
    for values in _releases(rounds, t):
        yield from _held(rounds, server, t, values)


def _held(rounds: RepeatedRounds, server: PriorServer, t: int, values: Tensor) -> Iterator[str]:
    """The fault of each broadcast of round t whose release is held at `values`, in words; empty if it has none."""
    mechanism = rounds.audited.mechanism
    held = rounds.audited.with_mechanism(replace(mechanism, noise=HeldRelease(mechanism.noise, values)))
    expected: Broadcast | None = None
    for name, messages, late in _sent(rounds):
        broadcast, ledger = held.whole_round(seeded(_NAME, rounds.seed, name), t, messages, late)
        if expected is None and ledger.charges:  # an uncharged round is for another check
            public = public_server(server, mechanism.clip_norm)
            expected = public.infer(values, ledger.charges[0].sigma)
        expected = broadcast if expected is None else expected
        wrong = _difference(broadcast, expected, values)
        yield f"round {t}: the same numbers are released when {name}, and {wrong}" if wrong else ""


def _replayed(rounds: RepeatedRounds, t: int) -> str:
    """The fault of the replays without inference, on which the other checks are run; empty if there is none."""
    target, label = rounds.target, (_NAME, rounds.seed, t)
    whole, whole_ledger = target.whole_round(seeded(*label), t, rounds.crowd.messages)
    short, short_ledger = target.run_round(seeded(*label), t, rounds.crowd.messages)
    same = isinstance(whole, SharedPrior) and short is not None and torch.equal(whole.values, short)
    if same and whole_ledger.charges == short_ledger.charges:
        return ""
    return f"round {t}: the release or its charge changes when the inference is left out"


def _releases(rounds: RepeatedRounds, t: int) -> Iterator[Tensor]:
    """Two releases to hold: noise alone, and one of a crowd's messages."""
    yield rounds.release_once(0, t).clone()
    yield rounds.release_once(0, t, rounds.crowd).clone()


def _sent(rounds: RepeatedRounds) -> Iterator[tuple[str, Messages | None, Tensor | None]]:
    """(name, messages, late) of rounds that differ in private inputs, and in their randomness."""
    N = rounds.target.shape[0]
    zeros, crowd = rounds.zeros().clone(), rounds.crowd.messages
    one = zeros.clone()
    one[0] = rounds.long_message(0)
    yield "nobody sends", zeros, None
    yield "one agent sends far too much", one, None
    yield "all send", crowd, None
    yield "all send far too much", rounds.loud_crowd.messages, None
    yield "all send NaN", zeros + math.nan, None
    yield "no message arrives", None, None
    yield "half of the messages are late", crowd, torch.arange(N) % 2 == 0
    if rounds.target.agents is not None:
        yield "agents send their statistics", rounds.target.agents.first_turn().messages, None


def _difference(broadcast: Broadcast | None, expected: Broadcast | None, values: Tensor) -> str:
    """The first difference of two broadcasts in words; empty if there is none."""
    if not isinstance(broadcast, SharedPrior) or not isinstance(expected, SharedPrior):
        return f"{type(broadcast).__name__} leaves in place of a prior"
    if not torch.equal(broadcast.values, values):
        return "other numbers leave as the release"
    for field in fields(SharedPrior):
        found, right = getattr(broadcast, field.name), getattr(expected, field.name)
        if not bool(torch.isfinite(found).all()):
            return f"`{field.name}` is not finite"
        if not torch.equal(found, right):
            return f"`{field.name}` is not what the release and public settings give"
    return ""
