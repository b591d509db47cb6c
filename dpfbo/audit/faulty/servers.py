"""Servers with one thing wrong each. What they inherit is the real code."""

from dataclasses import replace

import dp_accounting
import torch
from torch import Tensor

from dpfbo.federated.broadcast import Broadcast
from dpfbo.federated.messages import Messages
from dpfbo.federated.server import Server
from dpfbo.privacy.ledger import Charge, Ledger
from dpfbo.privacy.release import Release
from dpfbo.records import ServerRecord

Sent = tuple[Broadcast | None, ServerRecord | None]


class OneRoundFree(Server):
    def round(self, t: int, messages: Messages | None, late: Tensor | None = None) -> Sent:
        return Server.round(self if t != 1 else replace(self, ledger=Ledger()), t, messages, late)


class EmptyRoundsFree(Server):
    def round(self, t: int, messages: Messages | None, late: Tensor | None = None) -> Sent:
        _, record = Server.round(replace(self, ledger=Ledger()), t, messages, late)
        empty = record is not None and record.release.n_chosen == 0
        return Server.round(replace(self, ledger=Ledger()) if empty else self, t, messages, late)


class _Forgiving(Ledger):
    """Keeps what was charged elsewhere and swallows what could not be."""

    def __init__(self, real: Ledger) -> None:
        super().__init__()
        self._real = real

    def charge(self, entry: Charge) -> bool:
        try:
            return self._real.charge(entry)
        except OSError:
            return False


class GoesOnUncharged(Server):
    def round(self, t: int, messages: Messages | None, late: Tensor | None = None) -> Sent:
        return Server.round(replace(self, ledger=_Forgiving(self.ledger)), t, messages, late)


class NoBudget(Server):
    def _affordable(self, t: int, event: dp_accounting.DpEvent, kept: Release | None) -> bool:
        return True


class ChargesTheFirstRound(Server):
    """Every round at the price of the first, whatever its own weights and noise are."""

    def round(self, t: int, messages: Messages | None, late: Tensor | None = None) -> Sent:
        broadcast, record = Server.round(replace(self, ledger=Ledger()), t, messages, late)
        first = self.mechanism.dp_event(self._weights_of(0), 0)
        if broadcast is not None and record is not None:
            r = record.release
            self.ledger.charge(Charge.of(t, first, r.sigma, r.sensitivity, r.values))
        return broadcast, record

    def _weights_of(self, t: int) -> Tensor:
        return self.weighting(t, self.regions.assign(torch.arange(self.n_agents)), self.regions.P)
