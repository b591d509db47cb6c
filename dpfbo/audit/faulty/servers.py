"""Servers with one fault each; all other code is inherited from the real one."""

from dataclasses import replace

import dp_accounting
import torch
from torch import Tensor

from dpfbo.federated.messages import Messages
from dpfbo.federated.server import RoundOutput, Server
from dpfbo.privacy.ledger import Charge, Ledger
from dpfbo.privacy.release import Release


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
