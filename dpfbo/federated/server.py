"""Algorithm 1: in each round the server turns the messages of all agents into one public broadcast."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import torch
from torch import Tensor

from dpfbo.federated.broadcast import Broadcast, RegionVectors
from dpfbo.federated.dropout import Dropout
from dpfbo.federated.mechanism import Mechanism, Messages
from dpfbo.federated.weights import Weighting
from dpfbo.gp.design import Design
from dpfbo.gp.features import RandomFeatures
from dpfbo.gp.nystrom import NystromFeatures
from dpfbo.privacy.accounting import finite_or_none
from dpfbo.privacy.budget import Budget, BudgetSpent, EpsilonCurve
from dpfbo.privacy.entropy import Entropy
from dpfbo.privacy.ledger import Charge, Ledger, check_noise_is_new
from dpfbo.privacy.release import Diagnostics, KeptRelease, Release
from dpfbo.records import ServerRecord
from dpfbo.rng import Streams
from dpfbo.space.domain import Domain
from dpfbo.space.regions import Regions

if TYPE_CHECKING:
    import dp_accounting


# broadcast (None: nothing is sent), public record (None: nothing is released) and secret numbers (None: no simulation)
RoundOutput = tuple[Broadcast | None, ServerRecord | None, Diagnostics | None]


@dataclass(frozen=True)
class ServerParts:
    """The parts from which a run's server is made.

    n_agents: N. rounds: T. message_size: M, the length of a message. kept: the file that keeps a release until it is
    sent; None if the noise is seeded, because a restart then draws the same noise.
    """

    n_agents: int
    rounds: int
    message_size: int
    features: RandomFeatures | NystromFeatures
    design: Design
    domain: Domain
    regions: Regions
    weighting: Weighting
    mechanism: Mechanism
    dropout: Dropout
    streams: Streams
    entropy: Entropy
    ledger: Ledger
    epsilon: EpsilonCurve
    budget: Budget | None
    kept: KeptRelease | None


class ServerKind(Protocol):
    """The protocol of servers.

    In each round, a server makes a broadcast, which agents may use to choose their queries of the next round.

    Attributes:
        uses_messages: True if the agents send messages to the server.
        aggregates: True if the server adds the messages up by a mechanism, private or not.
        bare_messages: True if agents receive the messages of others unchanged. The run's epsilon is then
            infinite, although the ledger has no charge.
    """

    uses_messages: ClassVar[bool] = False
    aggregates: ClassVar[bool] = False
    bare_messages: ClassVar[bool] = False

    @classmethod
    def for_run(cls, parts: ServerParts) -> Any:
        """Make the server of one run; each field of the class gets the part of the same name."""
        return cls(**{f.name: getattr(parts, f.name) for f in fields(cls)})  # type: ignore[arg-type]

    def round(self, t: int, messages: Messages | None, late: Tensor | None = None) -> RoundOutput:
        """Run one round; the broadcast is None if the server has stopped. late: N booleans, True for late messages."""


@dataclass(frozen=True)
class Server(ServerKind):
    """The server of DP-FTS-DE and its family, which adds the agents' messages up by a mechanism.

    Args:
        n_agents: N.
        message_size: M, the length of a message.
        regions: The P sub-regions.
        weighting: A function that returns the P x N weights of a round, given the round, the N agents' regions, and P.
        mechanism: The step from messages to a release (the noisy sums), such as `SubsampledGaussian`.
        entropy: The random numbers that choose the agents and make the noise.
        ledger: The ledger that records the charge of every release.
        epsilon: The object that computes epsilon after each release.
        dropout: A simulated loss of messages.
        kept: The file that keeps a release until it is sent; None for seeded noise, which a restart draws again.
        budget: The limit on the epsilon of all releases in the ledger; None for no limit.

    Guarantee:
        Each broadcast is a post-processing of the mechanism's releases. The neighbouring relation, the `DpEvent` of a
        round and the sensitivity are those of the mechanism. `round` charges a release to the ledger, durably, before
        it returns the broadcast, and releases nothing that would take the ledger over the budget. The `Diagnostics` are
        secret: `round` returns them only in a simulation, where the noise is seeded.

    Raises:
        BudgetSpent: `round` would exceed a budget with `when_spent="refuse"`.
        LedgerError: `round` cannot charge the ledger, and therefore releases nothing.

    Example:
        >>> import dpfbo
        >>> from dpfbo.federated import SubsampledGaussian, Uniform
        >>> ledger, entropy = dpfbo.Ledger(), dpfbo.privacy.SeededEntropy(Streams(0))
        >>> curve = EpsilonCurve(dpfbo.accountant_named("pld"), planned=[], delta=0.1)
        >>> mechanism = SubsampledGaussian(sampling_probability=0.5, noise_multiplier=1.0, clip_norm=2.0)
        >>> server = Server(4, 20, Regions(2, 1), Uniform(), mechanism, entropy, ledger, curve)
        >>> broadcast, record, _ = server.round(0, messages=torch.ones(4, 20))
        >>> broadcast.values.shape, round(record.epsilon, 2), len(ledger.charges)  # P x M
        (torch.Size([2, 20]), 0.38, 1)
    """

    n_agents: int
    message_size: int
    regions: Regions
    weighting: Weighting
    mechanism: Mechanism
    entropy: Entropy
    ledger: Ledger
    epsilon: EpsilonCurve
    dropout: Dropout = Dropout()
    kept: KeptRelease | None = None
    budget: Budget | None = None
    uses_messages: ClassVar[bool] = True
    aggregates: ClassVar[bool] = True

    @classmethod
    def for_run(cls, parts: ServerParts) -> Server:
        parts.epsilon.prepare()
        return super().for_run(parts)  # type: ignore[no-any-return]

    def round(self, t: int, messages: Messages | None, late: Tensor | None = None) -> RoundOutput:
        """Turn the messages of round t into a release, charge it, and return it as a broadcast (Algo. 1 lines 5 to 13).

        Args:
            t: The round.
            messages: N x M; or N vectors, None for a lost message; or `Contributions`; or None if all are lost.
            late: N booleans, True for messages that came too late and count as zero vectors.

        Returns:
            The broadcast, its public record, and the secret `Diagnostics`, which are None outside a simulation. All
            three are None if the budget is spent and its `when_spent` is `stop`.
        """
        assignment = self.regions.assign(torch.arange(self.n_agents, device="cpu"))
        weights = self.weighting(t, assignment, self.regions.P)  # P x N
        event = self.mechanism.dp_event(weights, t)
        kept = self.kept.load(t) if self.kept else None  # the release of a process that was killed in this round
        if not self._affordable(t, event, kept[0] if kept else None):
            return None, None, None
        private = None
        if kept is None:
            lost = self.dropout.lost(self.n_agents, t) | (False if late is None else late)
            messages = [None] * self.n_agents if messages is None else messages
            release, found = self.mechanism.release(messages, weights, self.message_size, self.entropy, t, lost)
            if self.entropy.reproducible:
                private = replace(found, n_dropped=int(lost.sum()))
            if self.kept:
                self.kept.save(t, release)
        else:
            release, _ = kept
        entry = Charge.of(t, event, release.sigma, finite_or_none(release.sensitivity), release.values)
        with self.ledger.locked():
            if not self._affordable(t, event, release):  # another run has charged the ledger meanwhile
                return None, None, None
            check_noise_is_new(self.ledger, t, release, self.entropy, release.sigma > 0)
            self.ledger.charge(entry)
            # a repeated seeded run will release the charged later rounds again; with fresh noise all charges count
            spent = self.ledger.events(up_to_round=t if self.entropy.reproducible else None)
        record = ServerRecord(t, self.epsilon.after(spent), release.sigma, release.sensitivity)
        return RegionVectors(release.values), record, private

    def _affordable(self, t: int, event: dp_accounting.DpEvent, kept: Release | None) -> bool:
        if self.budget is None or (kept is not None and self.ledger.holds(t, kept.values)):
            return True
        spent = self.ledger.events(up_to_round=t - 1 if self.entropy.reproducible else None)
        if self.budget.allows(spent, [event]):
            return True
        if self.budget.when_spent == "stop":
            return False
        raise BudgetSpent(
            f"the broadcast of round {t} would exceed the budget's epsilon {self.budget.epsilon!r}; "
            f"broadcasts charged so far: {len(spent)}"
        )
