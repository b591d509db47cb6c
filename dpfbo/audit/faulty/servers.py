"""Servers with one fault each; all other code is inherited from the real one."""

from collections.abc import Sequence
from dataclasses import replace

import dp_accounting
import torch
from torch import Tensor

from dpfbo.federated.mechanism import Messages, SubsampledGaussian
from dpfbo.federated.server import RoundOutput, Server
from dpfbo.privacy.ledger import Charge, Ledger
from dpfbo.privacy.release import KeptRelease, Release


class OneRoundFree(Server):
    def round(self, t: int, messages: Messages | None, late: Tensor | None = None) -> RoundOutput:
        return Server.round(self if t != 1 else replace(self, ledger=Ledger()), t, messages, late)


class EmptyRoundsFree(Server):
    def round(self, t: int, messages: Messages | None, late: Tensor | None = None) -> RoundOutput:
        _, _, private = Server.round(replace(self, ledger=Ledger()), t, messages, late)
        empty = private is not None and private.n_chosen == 0
        return Server.round(replace(self, ledger=Ledger()) if empty else self, t, messages, late)


class _ErrorsIgnored(Ledger):
    """A ledger that charges the real one and ignores its errors."""

    def __init__(self, real: Ledger) -> None:
        super().__init__()
        self._real = real

    def charge(self, entry: Charge) -> bool:
        try:
            return self._real.charge(entry)
        except OSError:
            return False


class GoesOnUncharged(Server):
    def round(self, t: int, messages: Messages | None, late: Tensor | None = None) -> RoundOutput:
        return Server.round(replace(self, ledger=_ErrorsIgnored(self.ledger)), t, messages, late)


class NoBudget(Server):
    def _affordable(self, t: int, event: dp_accounting.DpEvent, kept: Release | None) -> bool:
        return True


class ChargesTheFirstRound(Server):
    """A server that charges every round at the price of round 0, whatever its own weights and noise are."""

    def round(self, t: int, messages: Messages | None, late: Tensor | None = None) -> RoundOutput:
        broadcast, record, private = Server.round(replace(self, ledger=Ledger()), t, messages, late)
        first = self.mechanism.dp_event(self._weights_of(0), 0)
        if broadcast is not None and record is not None:
            self.ledger.charge(Charge.of(t, first, record.sigma, record.sensitivity, broadcast.values))
        return broadcast, record, private

    def _weights_of(self, t: int) -> Tensor:
        return self.weighting(t, self.regions.assign(torch.arange(self.n_agents)), self.regions.P)


class ChargesTheNextRound(Server):
    """A server whose charge has the price and sigma of the round after."""

    def round(self, t: int, messages: Messages | None, late: Tensor | None = None) -> RoundOutput:
        broadcast, record, private = Server.round(replace(self, ledger=Ledger()), t, messages, late)
        assert isinstance(self.mechanism, SubsampledGaussian)
        if broadcast is not None:
            weights = self.weighting(t + 1, self.regions.assign(torch.arange(self.n_agents)), self.regions.P)
            event, sigma = self.mechanism.dp_event(weights, t + 1), self.mechanism.sigma(weights, t + 1)
            self.ledger.charge(Charge.of(t, event, sigma, self.mechanism.sensitivity(weights), broadcast.values))
        return broadcast, record, private


class ReportsThePlan(Server):
    """A server whose records have the epsilon of the planned rounds, whatever the ledger holds."""

    def round(self, t: int, messages: Messages | None, late: Tensor | None = None) -> RoundOutput:
        broadcast, record, private = Server.round(self, t, messages, late)
        weights = [
            self.weighting(s, self.regions.assign(torch.arange(self.n_agents)), self.regions.P) for s in range(t + 1)
        ]
        planned = [self.mechanism.dp_event(phi, s) for s, phi in enumerate(weights)]
        return broadcast, None if record is None else replace(record, epsilon=self.epsilon.after(planned)), private


class _KeepsTheSum:
    """A kept release without its noise."""

    def __init__(self, kept: KeptRelease, server: Server, messages: Messages | None) -> None:
        self.kept, self.server, self.messages = kept, server, messages

    def load(self, round: int) -> tuple[Release, Sequence[int] | None] | None:
        return self.kept.load(round)

    def save(self, round: int, release: Release, order: Sequence[int] | None = None) -> None:
        server, sound = self.server, self.server.mechanism
        assert isinstance(sound, SubsampledGaussian) and self.messages is not None
        weights = server.weighting(round, server.regions.assign(torch.arange(server.n_agents)), server.regions.P)
        bare = replace(sound, noise_multiplier=0.0)
        total, _ = bare.release(self.messages, weights, server.message_size, server.entropy, round)
        self.kept.save(round, replace(release, values=total.values), order)


class KeepsTheSum(Server):
    """A server that keeps the sum without noise for a restart."""

    def round(self, t: int, messages: Messages | None, late: Tensor | None = None) -> RoundOutput:
        kept = None if self.kept is None else _KeepsTheSum(self.kept, self, messages)
        return Server.round(replace(self, kept=kept), t, messages, late)
