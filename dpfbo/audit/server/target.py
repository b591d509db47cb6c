"""The server under audit: a real one, copied with other randomness and a new ledger for every replay."""

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import dp_accounting
import torch
from torch import Tensor

from dpfbo import checks
from dpfbo.audit.server.agents_side import AgentsSide
from dpfbo.checks import SettingError
from dpfbo.federated.broadcast import Broadcast, RegionVectors, SharedPrior
from dpfbo.federated.dropout import Dropout
from dpfbo.federated.mechanism import Messages, SubsampledGaussian
from dpfbo.federated.prior_server import PriorServer
from dpfbo.federated.server import Server
from dpfbo.privacy.accounting import Accountant, check_delta
from dpfbo.privacy.budget import EpsilonCurve
from dpfbo.privacy.entropy import Entropy, SeededEntropy, SystemEntropy
from dpfbo.privacy.ledger import Ledger
from dpfbo.privacy.noise import DiscreteGaussian, Gaussian
from dpfbo.rng import Streams

LONG_NORM = 1e3  # norm of a long message, in clip norms


class _NoEpsilon(EpsilonCurve):
    """An epsilon curve that computes nothing: no release depends on the epsilon of the records."""

    def __init__(self) -> None:
        pass

    def prepare(self) -> None:
        pass

    def after(self, charged: Sequence[dp_accounting.DpEvent], then: Sequence[dp_accounting.DpEvent] = ()) -> float:
        return math.nan


class _CachedWeighting:
    """The weighting (public, the same in every replay), computed once a round."""

    def __init__(self, weighting: Callable[[int, Tensor, int], Tensor]) -> None:
        self._weighting, self._known = weighting, dict[int, Tensor]()

    def __call__(self, round: int, assignment: Tensor, P: int) -> Tensor:
        if round not in self._known:
            self._known[round] = self._weighting(round, assignment, P)
        return self._known[round]


@dataclass(frozen=True)
class _CachedDropout(Dropout):
    """The server's lost messages, computed once a round."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_known", dict[int, Tensor]())

    def lost(self, n_agents: int, round: int) -> Tensor:
        known: dict[int, Tensor] = self._known  # type: ignore[attr-defined]
        if round not in known:
            known[round] = super().lost(n_agents, round)
        return known[round]


@dataclass(frozen=True)
class Target:
    """Rounds 0 to rounds - 1 of a server, accounted for by one accountant at one delta.

    server: never run itself; a replay runs a copy with an entropy source and a ledger of its own. For speed, copies
    share cached weights and losses and have no epsilon curve; no release changes any of these. agents: the other end
    of the message path, for a server of the private prior; None leaves it out.

    Raises ValueError for a server without a private mechanism or without noise, rounds < 1 or delta outside (0, 1).
    """

    server: Server | PriorServer
    rounds: int
    accountant: Accountant
    delta: float
    agents: AgentsSide | None = None

    def __post_init__(self) -> None:
        known = isinstance(self.server, Server | PriorServer)
        if not known or not isinstance(self.summing.mechanism, SubsampledGaussian):
            raise ValueError("an audit needs a server with a private mechanism: nothing is claimed of any other")
        if self.mechanism.noise_multiplier == 0:
            raise SettingError("noise_multiplier", "is 0: no finite epsilon is claimed, there is nothing to audit")
        checks.integer("rounds of the audit", self.rounds, minimum=1)
        check_delta(self.delta)

    @property
    def summing(self) -> Server:
        """The server that sums the messages: the server itself, or the one inside that of the private prior."""
        return self.server.server if isinstance(self.server, PriorServer) else self.server

    @property
    def mechanism(self) -> SubsampledGaussian:
        return self.summing.mechanism  # type: ignore[return-value]

    @property
    def message_norm(self) -> float:
        """The norm that each message is clipped to."""
        return self.mechanism.message_norm(self.summing.regions.P)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(N, P, M), with M the numbers in a message."""
        return self.summing.n_agents, self.summing.regions.P, self.summing.message_size

    @property
    def seedable(self) -> bool:
        """True if all randomness comes from an entropy source; discrete noise has a generator of its own."""
        return not isinstance(self.mechanism.noise, DiscreteGaussian)

    @cached_property
    def repeatable(self) -> "Target":
        """This target, with Gaussian noise of the same size in place of discrete noise, which no seed repeats."""
        return self if self.seedable else self.with_mechanism(replace(self.mechanism, noise=Gaussian()))

    def with_mechanism(self, mechanism: SubsampledGaussian) -> "Target":
        return replace(self, server=self._with(replace(self.summing, mechanism=mechanism)))

    def _with(self, summing: Server) -> Server | PriorServer:
        return replace(self.server, server=summing) if isinstance(self.server, PriorServer) else summing

    def weights(self, t: int) -> Tensor:
        """The weights of a round, P x N."""
        N, P, _ = self.shape
        return self.summing.weighting(t, self.summing.regions.assign(torch.arange(N)), P)

    @cached_property
    def _template(self) -> Server:
        s = self.summing
        dropout = _CachedDropout(s.dropout.probability, s.dropout.streams)
        return replace(s, epsilon=_NoEpsilon(), weighting=_CachedWeighting(s.weighting), dropout=dropout, kept=None)

    def trial_entropy(self, *label: object) -> Entropy:
        """Randomness for one trial: a seed from the label, or the system's where the server or its noise uses that."""
        system = isinstance(self.summing.entropy, SystemEntropy) or not self.seedable
        return SystemEntropy() if system else seeded(*label)

    def copy(self, entropy: Entropy, ledger: Ledger, inference: bool = False) -> Server | PriorServer:
        """A copy of the server for one replay.

        inference: the server of the private prior computes its whole broadcast. Without it all but the release is
        zero, which saves most of the time; the check of post-processing shows that no more than the release counts.
        """
        copied = self._with(replace(self._template, entropy=entropy, ledger=ledger))
        if isinstance(copied, PriorServer) and not inference:
            object.__setattr__(copied, "infer", _release_alone)
        return copied

    def run_round(
        self, entropy: Entropy, t: int, messages: Messages | None, late: Tensor | None = None
    ) -> tuple[Tensor | None, Ledger]:
        """The release of round t alone (P x M, or None), and the ledger."""
        ledger = Ledger()
        return _values(self.copy(entropy, ledger).round(t, messages, late)[0]), ledger

    def run(self, entropy: Entropy, messages: Messages | None) -> tuple[list[Tensor | None], Ledger]:
        """The releases of all rounds, with the same messages in each, and the ledger."""
        ledger = Ledger()
        server = self.copy(entropy, ledger)
        return [_values(server.round(t, messages)[0]) for t in range(self.rounds)], ledger

    def whole_round(
        self, entropy: Entropy, t: int, messages: Messages | None, late: Tensor | None = None
    ) -> tuple[Broadcast | None, Ledger]:
        """Everything that leaves in round t, and the ledger. It needs gradients, so no inference mode of torch."""
        ledger = Ledger()
        return self.copy(entropy, ledger, inference=True).round(t, messages, late)[0], ledger


def without_epsilon() -> EpsilonCurve:
    """An epsilon curve that computes nothing."""
    return _NoEpsilon()


def seeded(*label: object) -> SeededEntropy:
    """Randomness from a seed that is a hash of the label."""
    words = "/".join(map(str, label)).encode()
    return SeededEntropy(Streams(int.from_bytes(hashlib.blake2b(words, digest_size=16).digest(), "big")))


def charged(ledger: Ledger) -> tuple[tuple[object, ...], ...]:
    """The charges without their digests: the same in every replay of a sound server."""
    return tuple((c.round, c.q, c.z, c.sigma, c.subset) for c in ledger.charges)


def _values(broadcast: object) -> Tensor | None:
    if broadcast is None:
        return None
    if not isinstance(broadcast, RegionVectors | SharedPrior):
        raise ValueError(
            f"an audit needs a server that broadcasts region vectors or a prior, got {type(broadcast).__name__}"
        )
    return broadcast.values


def _release_alone(values: Tensor, sigma: float) -> SharedPrior:
    """A broadcast of the private prior in which all but the release is zero."""
    M = values.shape[1] - 1
    vector, matrix, number = values.new_zeros(M), values.new_zeros(M, M), values.new_zeros(())
    return SharedPrior(values, vector, matrix, vector, matrix, number, number, number)
