"""Servers with one fault each; all other code is inherited from the real one."""

from dataclasses import replace

import torch

from dpfbo.federated.server import Server
from dpfbo.privacy.ledger import Charge, Ledger


def weights_of(server, t):
    return server.weighting(t, server.regions.assign(torch.arange(server.n_agents)), server.regions.P)


class OneRoundFree(Server):
    def round(self, t, messages, late=None):
        return Server.round(self if t != 1 else replace(self, ledger=Ledger()), t, messages, late)


class EmptyRoundsFree(Server):
    def round(self, t, messages, late=None):
        _, _, private = Server.round(replace(self, ledger=Ledger()), t, messages, late)
        empty = private is not None and private.n_chosen == 0
        return Server.round(replace(self, ledger=Ledger()) if empty else self, t, messages, late)


class _ErrorsIgnored(Ledger):
    """A ledger that charges the real one and ignores its errors."""

    def __init__(self, real):
        super().__init__()
        self._real = real

    def charge(self, entry):
        try:
            return self._real.charge(entry)
        except OSError:
            return False


class GoesOnUncharged(Server):
    def round(self, t, messages, late=None):
        return Server.round(replace(self, ledger=_ErrorsIgnored(self.ledger)), t, messages, late)


class NoBudget(Server):
    def _affordable(self, t, event, kept):
        return True


class ChargesTheFirstRound(Server):
    """Every round is charged at the price of round 0, whatever its own weights and noise are."""

    def round(self, t, messages, late=None):
        broadcast, record, private = Server.round(replace(self, ledger=Ledger()), t, messages, late)
        first = self.mechanism.dp_event(weights_of(self, 0), 0)
        self.ledger.charge(Charge.of(t, first, record.sigma, record.sensitivity, broadcast.values))
        return broadcast, record, private


class ChargesTheNextRound(Server):
    """The charge has the price and sigma of the round after."""

    def round(self, t, messages, late=None):
        made = Server.round(replace(self, ledger=Ledger()), t, messages, late)
        weights, mechanism = weights_of(self, t + 1), self.mechanism
        event, sigma = mechanism.dp_event(weights, t + 1), mechanism.sigma(weights, t + 1)
        self.ledger.charge(Charge.of(t, event, sigma, mechanism.sensitivity(weights), made[0].values))
        return made


class ReportsThePlan(Server):
    """Records have the epsilon of the planned rounds, whatever the ledger holds."""

    def round(self, t, messages, late=None):
        broadcast, record, private = Server.round(self, t, messages, late)
        planned = [self.mechanism.dp_event(weights_of(self, s), s) for s in range(t + 1)]
        return broadcast, replace(record, epsilon=self.epsilon.after(planned)), private


class _KeepsTheSum:
    """A kept release without its noise."""

    def __init__(self, kept, server, messages):
        self.kept, self.server, self.messages = kept, server, messages

    def load(self, round):
        return self.kept.load(round)

    def save(self, round, release, order=None):
        server = self.server
        bare = replace(server.mechanism, noise_multiplier=0.0)
        weights = weights_of(server, round)
        total, _ = bare.release(self.messages, weights, server.message_size, server.entropy, round)
        self.kept.save(round, replace(release, values=total.values), order)


class KeepsTheSum(Server):
    """The sum without noise is kept for a restart."""

    def round(self, t, messages, late=None):
        kept = None if self.kept is None else _KeepsTheSum(self.kept, self, messages)
        return Server.round(replace(self, kept=kept), t, messages, late)
