"""Checks that a server of the private prior computes its broadcast from the release and public settings alone.

The audit holds the release constant and varies what the agents send. Each broadcast must equal, bit for bit, a
broadcast computed from the released numbers, the sigma charged in the ledger, and the public settings.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from dpfbo.audit.findings import require
from dpfbo.audit.server.colluders import held_sum
from dpfbo.audit.server.rounds import RepeatedRounds
from dpfbo.audit.server.target import seeded
from dpfbo.federated.broadcast import Broadcast, SharedPrior
from dpfbo.federated.distributed import DistributedGaussian
from dpfbo.federated.mechanism import Messages, SubsampledGaussian
from dpfbo.federated.prior_server import PriorServer
from dpfbo.gp.design import Design
from dpfbo.gp.nystrom import NystromFeatures
from dpfbo.privacy.entropy import Entropy
from dpfbo.privacy.noise import Gaussian

_NAME = "post-processing"


@dataclass(frozen=True)
class HeldRelease(Gaussian):
    """Stands in for a mechanism's noise: ignores the sum and returns `values` as the release."""

    values: Tensor

    def add(self, total: Tensor, sigma: float, sensitivity: float, entropy: Entropy, round: int) -> Tensor:
        return self.values.clone()


def holding(mechanism: SubsampledGaussian, values: Tensor) -> SubsampledGaussian:
    """Return a copy of the mechanism that always releases `values`."""
    if isinstance(mechanism, DistributedGaussian):
        return held_sum(mechanism, values)
    return replace(mechanism, noise=HeldRelease(values))


def public_server(server: PriorServer) -> PriorServer:
    """Return a copy of the server, with a design and features that are computed again from public settings alone."""
    d, f = server.design, server.features
    design = Design(d.domain, d.regions, d.streams, d.n_init, d.kind)
    return PriorServer(server.server, design, NystromFeatures.of(d.domain, f.size, f.lengthscales))


def post_processing(rounds: RepeatedRounds) -> str:
    """Check that every broadcast is a function of the release and public settings alone."""
    target, compared = rounds.target, 0
    if not isinstance(target.server, PriorServer):
        return "the broadcast is the release and nothing else"
    with torch.inference_mode(False):
        for t in sorted({0, min(1, target.rounds - 1), target.rounds - 1}):
            _check_replay(rounds, t)
            for messages in (rounds.zeros(), rounds.crowd):  # whose release is held fixed
                compared += _check_held(rounds, target.server, t, rounds.release(0, t, messages))
    return f"{compared} broadcasts with equal releases, each computed from the release and public settings bit for bit"


def _check_held(rounds: RepeatedRounds, server: PriorServer, t: int, values: Tensor) -> int:
    """Run round t with several sets of messages, always with the release `values`, and check each broadcast.

    `_sent` yields the sets of messages. The mechanism is replaced by one that releases `values`, whatever agents send.
    Each broadcast must equal the one that is inferred from `values`, the sigma charged in the ledger, and public
    settings. Returns the number of runs.
    """
    mechanism, sent = rounds.target.mechanism, list(_sent(rounds))
    held = rounds.target.with_mechanism(holding(mechanism, values))
    expected: Broadcast | None = None
    for name, messages, late in sent:
        broadcast, ledger = held.whole_round(seeded(_NAME, rounds.seed, name), t, messages, late)
        if expected is None and ledger.charges:  # `charging.charged` finds an uncharged round
            expected = public_server(server).infer(values, ledger.charges[0].sigma)
        expected = broadcast if expected is None else expected
        wrong = _difference(broadcast, expected, values)
        require(not wrong, f"round {t}: when {name}, although the release is the same, {wrong}")
    return len(sent)


def _check_replay(rounds: RepeatedRounds, t: int) -> None:
    """Check that round t has the same release and charge whether or not the server infers the shared prior."""
    label, messages = (_NAME, rounds.seed, t), rounds.crowd
    whole, whole_ledger = rounds.target.whole_round(seeded(*label), t, messages)
    short, short_ledger = rounds.target.run_round(seeded(*label), t, messages)
    same = isinstance(whole, SharedPrior) and short is not None and torch.equal(whole.values, short)
    same = same and whole_ledger.charges == short_ledger.charges
    require(same, f"round {t}: the release or its charge changes when the inference is left out")


def _sent(rounds: RepeatedRounds) -> Iterator[tuple[str, Messages | None, Tensor | None]]:
    """Yield different sets of messages that agents may send in one round, each as (name, messages, late).

    messages: None if no message arrives. late: N booleans, True for each late message; None if no message is late.
    """
    zeros, crowd = rounds.zeros(), rounds.crowd
    one = zeros.clone()
    one[0] = rounds.long_message(0)
    yield "nobody sends", zeros, None
    yield "one agent sends far too much", one, None
    yield "all send", crowd, None
    yield "all send far too much", rounds.long_message(0).expand_as(zeros).clone(), None
    yield "all send NaN", zeros + math.nan, None
    yield "no message arrives", None, None
    yield "half of the messages are late", crowd, torch.arange(len(zeros)) % 2 == 0
    if rounds.target.agents is not None:
        yield "agents send their own", rounds.target.agents.first_turn().messages, None


def _difference(broadcast: Broadcast | None, expected: Broadcast | None, values: Tensor) -> str:
    """Describe the first difference between two broadcasts; empty if there is none."""
    if not isinstance(broadcast, SharedPrior) or not isinstance(expected, SharedPrior):
        return f"{type(broadcast).__name__} leaves in place of a prior"
    if not torch.equal(broadcast.values, values):
        return "the broadcast holds other numbers than the release"
    for name in (field.name for field in fields(SharedPrior)):
        if not bool(torch.isfinite(getattr(broadcast, name)).all()):
            return f"`{name}` is not finite"
        if not torch.equal(getattr(broadcast, name), getattr(expected, name)):
            return f"`{name}` is not what the release and public settings give"
    return ""
