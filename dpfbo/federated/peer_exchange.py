"""The server of the original FTS (2020), which passes messages between agents."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from dpfbo.checks import SettingError
from dpfbo.federated.broadcast import AgentVectors
from dpfbo.federated.dropout import Dropout
from dpfbo.federated.mechanism import Messages
from dpfbo.federated.server import RoundOutput, ServerKind
from dpfbo.rng import Streams


@dataclass(frozen=True)
class PeerExchange(ServerKind):
    """Passes each agent the message of another agent, picked at random, as FTS did in 2020.

    This is not private: agents receive each other's messages unchanged. Lost or non-finite messages become zeros.

    Args:
        n_agents: N.
        streams: The random numbers that pick the other agents.
        dropout: A simulated loss of messages.

    Raises:
        SettingError: There are fewer than two agents.

    Example:
        >>> sent, _, _ = PeerExchange(2, Streams(0)).round(0, messages=torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        >>> sent.values
        tensor([[3., 4.],
                [1., 2.]])
    """

    n_agents: int
    streams: Streams
    dropout: Dropout = Dropout()
    uses_messages: ClassVar[bool] = True
    bare_messages: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.n_agents < 2:
            raise SettingError("n_agents", f"must be at least 2 for the exchange between agents, got {self.n_agents}")

    def round(self, t: int, messages: Messages | None, late: Tensor | None = None) -> RoundOutput:
        if not isinstance(messages, Tensor):
            raise ValueError("the exchange between agents needs the N x M messages of all agents")
        lost = self.dropout.lost(self.n_agents, t) | (False if late is None else late)
        usable = torch.isfinite(messages).all(1) & ~lost
        agents = torch.arange(self.n_agents, device="cpu")
        shift = 1 + (self.streams.uniform("peer", agents, t, 1)[:, 0] * (self.n_agents - 1)).long()
        passed_on = torch.where(usable[:, None], messages, 0.0)[(agents + shift) % self.n_agents]
        return AgentVectors(passed_on), None, None
